//! One opencode process: spawned, read, waited for, ended. IO.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::Path,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use secrecy::SecretString;
use tokio::{
    process::{Child, Command},
    task::JoinSet,
    time::timeout,
};

use crate::{ServeConfig, environment, health, log_file, output::Output};

/// How long the rest of the output is waited for after the end. A tool that lives on may hold the pipe open.
const DRAIN: Duration = Duration::from_millis(500);

/// What opencode logs. By itself it prints nothing but where it listens; at `INFO` it also prints each session's title,
/// which a model makes of the user's words (measured on opencode 1.18.33).
const LOG_LEVEL: &str = "WARN";

/// What an answering opencode said of itself.
#[derive(Debug)]
pub(crate) struct Ready {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// Its version.
    pub(crate) version: String,
}

/// What one run has of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Marks<'a> {
    /// Of the data directory.
    pub(crate) identity: &'a str,
    /// Of the run.
    pub(crate) boot_id: &'a str,
    /// Its directory for unpacked libraries, if there is one.
    pub(crate) unpacked: Option<&'a Path>,
}

/// A running opencode; killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    output: Output,
    readers: JoinSet<()>,
}

impl Process {
    /// Spawns opencode on a free port of the loopback interface. Its own `--port 0` is no choice: it takes port 4096
    /// when that is free (measured on opencode 1.18.33).
    pub(crate) fn spawn(config: &ServeConfig, password: &SecretString, marks: Marks<'_>) -> io::Result<Self> {
        let output = Output::open(log_file(&config.data));
        let port = config.port.map_or_else(free_port, Ok)?;
        let mut child = Command::new(&config.program)
            .args(["serve", "--hostname", "127.0.0.1", "--port", &port.to_string()])
            .args(["--print-logs", "--log-level", LOG_LEVEL])
            .current_dir(&config.directory)
            .env_clear()
            .envs(environment::build(config, password, marks))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let mut readers = JoinSet::new();
        if let Some(pipe) = child.stdout.take() {
            readers.spawn(output.clone().read(pipe));
        }
        if let Some(pipe) = child.stderr.take() {
            readers.spawn(output.clone().read(pipe));
        }
        Ok(Self { child, output, readers })
    }

    /// Process id, until it was waited for.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Its output.
    pub(crate) fn output(&self) -> &Output {
        &self.output
    }

    /// Waits for the end.
    pub(crate) async fn wait(&mut self) -> Option<ExitStatus> {
        self.child
            .wait()
            .await
            .inspect_err(|error| tracing::error!(%error, "opencode's end cannot be waited for"))
            .ok()
    }

    /// Sends a signal, if it still lives.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid().and_then(|pid| i32::try_from(pid).ok())
            && let Err(error) = kill(Pid::from_raw(pid), signal)
        {
            tracing::debug!(%error, "opencode ended before its signal");
        }
    }

    /// Takes what is left of the output after the end, and gives the last lines.
    pub(crate) async fn drain(mut self) -> String {
        let rest = async { while self.readers.join_next().await.is_some() {} };
        let _ = timeout(DRAIN, rest).await;
        self.output.tail()
    }
}

/// Waits until the opencode behind `output` listens and answers; the error is what it is when Berth does not speak to
/// it, in words. The caller bounds it.
pub(crate) async fn ready(output: Output, password: SecretString, bound: Duration) -> Result<Ready, String> {
    let address = output.address().await;
    let version = health::wait(address, &password, bound).await?;
    Ok(Ready { address, version })
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}
