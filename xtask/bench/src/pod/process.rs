//! A program that runs, and what `/proc` says of it. IO.

use std::{fs, path::Path, process::Stdio, time::Duration};

use anyhow::{Context, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    process::{Child, Command},
    time::timeout,
};

/// Bound on an orderly end.
const END_BOUND: Duration = Duration::from_secs(20);

/// Clock ticks in a second, as the kernel shows them: the same on every Linux that opencode runs on.
const TICKS: f64 = 100.0;

/// A running program; killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Program {
    name: &'static str,
    child: Child,
    pid: u32,
}

impl Program {
    /// Starts it with nothing in its environment but this; its log goes to a file.
    pub(crate) fn start(
        name: &'static str,
        path: &Path,
        arguments: Vec<String>,
        environment: &[(&str, String)],
        log: &Path,
    ) -> anyhow::Result<Self> {
        let log = fs::OpenOptions::new().create(true).append(true).open(log)?;
        let mut command = Command::new(path);
        command.args(arguments);
        command.env_clear().envs(environment.iter().map(|(name, value)| (*name, value.as_str())));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).kill_on_drop(true);
        let child = command.spawn().with_context(|| path.display().to_string())?;
        let pid = child.id().with_context(|| format!("{name} has ended at once"))?;
        Ok(Self { name, child, pid })
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Asks it to end, and waits for that.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        kill(Pid::from_raw(self.pid.cast_signed()), Signal::SIGTERM)?;
        let status = timeout(END_BOUND, self.child.wait()).await;
        let status = status.with_context(|| format!("{} does not end", self.name))??;
        ensure!(status.success(), "{} ended with {status}", self.name);
        Ok(())
    }
}

/// Flags and their values, as a program takes them.
pub(crate) fn flags<const COUNT: usize>(flags: [(&str, String); COUNT]) -> Vec<String> {
    flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect()
}

/// Processor time that a process has used so far, in seconds, to a hundredth.
pub(crate) fn cpu(pid: u32) -> anyhow::Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(&path).with_context(|| path.clone())?;
    used(&stat).with_context(|| format!("{path} says {stat:?}"))
}

/// `utime` and `stime`, the 14th and 15th field. The second is a name in brackets, which may hold anything.
fn used(stat: &str) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let ticks = rest.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
    Some(ticks.sum::<Result<f64, _>>().ok()? / TICKS)
}

/// Memory of a process, in MiB.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Memory {
    /// Resident now.
    pub(crate) resident: f64,
    /// The most that ever was.
    pub(crate) peak: f64,
}

/// Memory of a process.
pub(crate) fn memory(pid: u32) -> anyhow::Result<Memory> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).with_context(|| path.clone())?;
    held(&status).with_context(|| format!("{path} lacks memory"))
}

fn held(status: &str) -> Option<Memory> {
    let mebibytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        let kibibytes: f64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
        Some(kibibytes / 1024.0)
    };
    Some(Memory { resident: mebibytes("VmRSS:")?, peak: mebibytes("VmHWM:")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_read() {
        let stat = "77 (a) b (c)) S 1 77 77 0 -1 4194560 4182 0 0 0 150 50 0 0 20 0 1 0 55 1 2 3";
        assert_eq!(used(stat), Some(2.0));
        let status = "Name:\tx\nVmHWM:\t    4096 kB\nVmRSS:\t    2048 kB\n";
        assert_eq!(held(status), Some(Memory { resident: 2.0, peak: 4.0 }));
        assert_eq!((used("77"), held("")), (None, None));
    }

    #[test]
    fn this_process_has_figures() {
        let pid = std::process::id();
        assert!(cpu(pid).unwrap() >= 0.0);
        let memory = memory(pid).unwrap();
        assert!(memory.resident > 0.0 && memory.peak >= memory.resident, "{memory:?}");
    }
}
