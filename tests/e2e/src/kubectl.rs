//! `kubectl`, for what people do with it: apply files, run programs in pods, read logs.

use std::{ffi::OsStr, process::Stdio, time::Duration};

use anyhow::{Context, bail, ensure};
use tokio::{
    io::AsyncWriteExt,
    process::{Child, Command},
};

use crate::setting::Setting;

/// Longest run of one command.
const BOUND: Duration = Duration::from_mins(5);

/// Runs commands against the cluster.
#[derive(Debug, Clone)]
pub struct Kubectl {
    setting: Setting,
}

impl Kubectl {
    /// Of this cluster.
    pub fn new(setting: Setting) -> Self {
        Self { setting }
    }

    /// The command, ready to run.
    pub fn command(&self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let mut command = Command::new(&self.setting.kubectl);
        command.args(arguments).env("KUBECONFIG", &self.setting.kubeconfig).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs it; gives its output, or an error with what it complained about.
    pub async fn run(
        &self,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> anyhow::Result<String> {
        let child = self.command(arguments).spawn().context("kubectl is needed")?;
        finish(child).await
    }

    /// The same, with something on its standard input.
    pub async fn run_with(
        &self,
        input: &str,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> anyhow::Result<String> {
        let mut child = self.command(arguments).stdin(Stdio::piped()).spawn().context("kubectl is needed")?;
        let mut pipe = child.stdin.take().context("it has a standard input")?;
        pipe.write_all(input.as_bytes()).await.context("kubectl's standard input")?;
        drop(pipe);
        finish(child).await
    }

    /// Runs a script with `sh` in a container of a pod; the script gets `arguments` as `$1` and so on.
    pub async fn shell(
        &self,
        (namespace, pod, container): (&str, &str, &str),
        script: &str,
        arguments: &[&str],
    ) -> anyhow::Result<String> {
        let head = ["exec", "--namespace", namespace, pod, "--container", container, "--", "sh", "-c"];
        self.run(head.iter().copied().chain([script, "sh"]).chain(arguments.iter().copied())).await
    }
}

async fn finish(child: Child) -> anyhow::Result<String> {
    let output = tokio::time::timeout(BOUND, child.wait_with_output()).await;
    let Ok(output) = output else { bail!("kubectl does not end within {BOUND:?}") };
    let output = output.context("kubectl")?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "kubectl: {}: {}", output.status, complaint.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
