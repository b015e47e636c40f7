//! A way to a port in the cluster: `kubectl port-forward`, as people use it.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, bail};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Child,
    task::JoinSet,
};

use crate::kubectl::Kubectl;

/// Bound on its start.
const BOUND: Duration = Duration::from_mins(2);

/// A forwarded port; it ends when it is dropped.
#[derive(Debug)]
pub struct Forward {
    /// Where it listens on this machine.
    pub address: SocketAddr,
    _child: Child,
    _reader: JoinSet<()>,
}

impl Forward {
    /// Forwards a free port of this machine to a port of `target`, such as `pod/one` or `deployment/two`.
    pub async fn start(kubectl: &Kubectl, namespace: &str, target: &str, port: u16) -> anyhow::Result<Self> {
        let port = format!(":{port}");
        let mut child = kubectl
            .command(["port-forward", "--address=127.0.0.1", "--namespace", namespace, target, &port])
            .stderr(std::process::Stdio::null())
            .spawn()
            .context("kubectl is needed")?;
        let mut lines = BufReader::new(child.stdout.take().context("it has an output")?).lines();
        let Ok(line) = tokio::time::timeout(BOUND, lines.next_line()).await else {
            bail!("no port is forwarded to {target} within {BOUND:?}");
        };
        // Forwarding from 127.0.0.1:40000 -> 7447
        let line = line?.with_context(|| format!("no port is forwarded to {target}"))?;
        let address = line.split_whitespace().nth(2).and_then(|address| address.parse().ok());
        let address = address.with_context(|| format!("no address in {line:?}"))?;
        // It prints a line for each connection, and would end if nobody read them.
        let mut reader = JoinSet::new();
        reader.spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(Self { address, _child: child, _reader: reader })
    }
}
