//! A home directory of its own with a real opencode, and what runs in it.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::timeout,
};

use crate::process::{Finished, finish};

/// Starting opencode takes 2 to 6 s, on a busy machine several times that.
pub(crate) const START_LIMIT: Duration = Duration::from_secs(90);
/// The server drains, opencode is ended: seconds.
pub(crate) const STOP_LIMIT: Duration = Duration::from_secs(30);

/// The pinned opencode; a failure says how to get it.
pub(crate) fn opencode() -> PathBuf {
    let cache = std::env::vars_os().find(|(name, _)| name == "BERTH_CACHE").map(|(_, value)| value.into());
    let home = std::env::vars_os().find(|(name, _)| name == "HOME").map(|(_, value)| PathBuf::from(value));
    let cache: PathBuf = cache.or_else(|| Some(home?.join(".cache/berth"))).unwrap();
    let given = std::env::vars_os().find(|(name, _)| name == "BERTH_OPENCODE").map(|(_, value)| value.into());
    let choice = match given {
        Some(path) => berth_cli::up::OpencodeChoice::Given(path),
        None => berth_cli::up::OpencodeChoice::usual(&cache, None),
    };
    choice.find().unwrap_or_else(|error| panic!("{error}"))
}

/// A home directory of its own, with a workspace in it.
pub(crate) struct Home {
    pub(crate) directory: tempfile::TempDir,
}

impl Home {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("work")).unwrap();
        Self { directory }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.path(".local/state/berth")
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
        command.env_clear().env("HOME", self.directory.path()).env("PATH", "/usr/bin:/bin");
        command.env("BERTH_OPENCODE", opencode());
        command.args(arguments).current_dir(self.path("work")).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) async fn run(&self, arguments: &[&str], input: &str) -> Finished {
        finish(self.command(arguments), input).await
    }
}

/// A running `berth up`.
pub(crate) struct Up {
    pub(crate) child: Child,
    _out: Lines<BufReader<ChildStdout>>,
}

impl Up {
    pub(crate) async fn start(home: &Home, arguments: &[&str]) -> Self {
        let mut command = home.command(&["up", "--scripted", "--port", "0"]);
        let mut child = command.args(arguments).stderr(Stdio::inherit()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap()).lines();
        let note = home.state().join("server.json");
        let ready = async {
            while !note.exists() {
                assert!(child.try_wait().unwrap().is_none(), "berth up ended before it was ready");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(START_LIMIT, ready).await.expect("berth up is ready in time");
        Self { child, _out: out }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id().unwrap()).unwrap()), signal).unwrap();
    }

    pub(crate) async fn ended(&mut self) -> i32 {
        let status = timeout(STOP_LIMIT, self.child.wait()).await.expect("berth up ends in time").unwrap();
        status.code().unwrap()
    }
}

impl Drop for Up {
    /// A test that failed must not leave opencode behind: the program gets the time to end it.
    fn drop(&mut self) {
        if self.child.id().is_none() {
            return;
        }
        self.signal(Signal::SIGTERM);
        let until = std::time::Instant::now() + STOP_LIMIT;
        while matches!(self.child.try_wait(), Ok(None)) && std::time::Instant::now() < until {
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }
}

/// Processes whose environment leads into this directory: opencode, and whatever its tools started.
pub(crate) fn processes_of(directory: &Path) -> Vec<String> {
    let needle = directory.to_str().unwrap().as_bytes();
    let entries = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let found = entries.filter_map(|entry| {
        let environment = std::fs::read(entry.path().join("environ")).ok()?;
        let ours = environment.windows(needle.len()).any(|window| window == needle);
        let command = std::fs::read(entry.path().join("cmdline")).ok()?;
        ours.then(|| String::from_utf8_lossy(&command).replace('\0', " "))
    });
    found.collect()
}
