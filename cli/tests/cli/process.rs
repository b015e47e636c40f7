//! The program as a child process with pipes.

use std::{process::Stdio, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStderr, Command},
    time::timeout,
};

use crate::fake::{FakeServer, TOKEN};

/// Nothing in these tests takes anywhere near as long.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// What a process left behind.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// The program with an environment of its own.
pub(crate) struct Berth {
    directory: tempfile::TempDir,
}

impl Berth {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("token-file"), TOKEN).unwrap();
        Self { directory }
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
        command.env_clear().env("HOME", self.directory.path()).current_dir(self.directory.path());
        command.args(arguments).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// The data directory of local mode.
    pub(crate) fn state(&self) -> std::path::PathBuf {
        self.directory.path().join(".local/state/berth")
    }

    /// The command with the address and token of `server`.
    pub(crate) fn against(&self, server: &FakeServer, arguments: &[&str]) -> Command {
        let mut command = self.command(arguments);
        command.env("BERTH_SERVER", &server.url);
        command.env("BERTH_TOKEN_FILE", self.directory.path().join("token-file"));
        command
    }
}

/// Runs a command to its end with this standard input.
pub(crate) async fn finish(mut command: Command, input: &str) -> Finished {
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).await.unwrap();
    drop(stdin);
    finished(child).await
}

pub(crate) async fn finished(child: Child) -> Finished {
    let output = timeout(LIMIT, child.wait_with_output()).await.expect("the program ends").unwrap();
    Finished {
        code: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Sends what Ctrl-C sends.
pub(crate) fn interrupt(child: &Child) {
    let pid = i32::try_from(child.id().unwrap()).unwrap();
    kill(Pid::from_raw(pid), Signal::SIGINT).unwrap();
}

/// Standard error line by line.
pub(crate) fn error_lines(child: &mut Child) -> Lines<BufReader<ChildStderr>> {
    BufReader::new(child.stderr.take().unwrap()).lines()
}

/// Waits for a line that contains `text`.
pub(crate) async fn wait_for(lines: &mut Lines<BufReader<ChildStderr>>, text: &str) {
    let search = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            if line.contains(text) {
                return;
            }
        }
        panic!("standard error ended without {text:?}");
    };
    timeout(LIMIT, search).await.unwrap_or_else(|_| panic!("no line with {text:?}"));
}
