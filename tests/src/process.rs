//! A program of ours as a process that a test kills, pauses and starts again.

use std::{
    fs::OpenOptions,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::process::{Child, Command};

use crate::wait::within;

/// Lines of its log that a failing test shows.
const SHOWN: usize = 60;

/// How a program is started, and its process, while it lives.
#[derive(Debug)]
pub struct Process {
    /// For people.
    pub name: String,
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    pub(crate) environment: Vec<(String, String)>,
    /// Where its output goes.
    pub(crate) log: PathBuf,
    pub(crate) child: Option<Child>,
}

impl Process {
    /// Starts it.
    pub fn start(&mut self) {
        assert!(self.child.is_none(), "{} runs", self.name);
        assert!(self.program.is_file(), "{} is missing: `cargo build` makes it", self.program.display());
        let log =
            OpenOptions::new().create(true).append(true).open(&self.log).expect("the log can be opened");
        let child = Command::new(&self.program)
            .args(&self.arguments)
            .env_clear()
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a handle can be copied"))
            .stderr(log)
            .kill_on_drop(true)
            .spawn();
        self.child = Some(child.expect("the program starts"));
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().and_then(Child::id).expect("it runs")
    }

    /// Whether it runs, as far as is known.
    pub fn runs(&self) -> bool {
        self.child.is_some()
    }

    /// Sends it a signal.
    pub fn send(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// SIGKILL; returns when it is no more.
    pub async fn kill(&mut self) {
        let mut child = self.child.take().expect("it runs");
        within("end by SIGKILL", child.kill()).await.expect("it can be killed");
    }

    /// SIGTERM; gives how it ended, and how long that took.
    pub async fn terminate(&mut self) -> (ExitStatus, Duration) {
        let began = std::time::Instant::now();
        self.send(Signal::SIGTERM);
        let mut child = self.child.take().expect("it runs");
        let status = within("end by SIGTERM", child.wait()).await.expect("it ends");
        (status, began.elapsed())
    }

    /// Everything that it has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Shows the end of its log, of a test that failed.
    #[expect(clippy::print_stderr, reason = "this is how a failing test tells")]
    pub(crate) fn show(&self) {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        eprintln!("--- {}\n{}", self.name, lines[lines.len().saturating_sub(SHOWN)..].join("\n"));
    }
}

/// Sends a signal.
pub fn send(pid: u32, signal: Signal) {
    kill(Pid::from_raw(pid.cast_signed()), signal).expect("the signal is sent");
}
