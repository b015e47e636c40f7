//! opencode's own SDK under node, in a process that lives as long as the benchmark: what it compiles stays warm. IO.

use std::{
    cell::RefCell,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use anyhow::Context;

/// A node that reads event streams.
pub(crate) struct Node {
    child: Child,
    pipes: RefCell<(ChildStdin, BufReader<ChildStdout>)>,
}

impl Node {
    /// Starts it in the directory where the SDK is installed.
    pub(crate) fn start(sdk: &Path) -> anyhow::Result<Self> {
        let mut node = Command::new("node");
        node.arg("baseline.mjs").current_dir(sdk).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = node.spawn().context("node")?;
        let stdin = child.stdin.take().context("node's standard input")?;
        let stdout = child.stdout.take().context("node's standard output")?;
        Ok(Self { child, pipes: RefCell::new((stdin, BufReader::new(stdout))) })
    }

    /// Reads the stream at this address, and returns how many events it had. Node itself gives up after a minute.
    pub(crate) fn read(&self, address: &str) -> anyhow::Result<usize> {
        let mut pipes = self.pipes.borrow_mut();
        writeln!(pipes.0, "{address}").context("node's standard input")?;
        let mut line = String::new();
        pipes.1.read_line(&mut line).context("node's standard output")?;
        line.trim().parse().with_context(|| format!("node said {line:?}"))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // It has ended already when either fails.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
