//! Ends the processes that opencode leaves behind, and waits for those that nobody else does. IO.
//!
//! opencode's bash tool starts each command in a session of its own, so it outlives opencode and opencode's process
//! group (measured on opencode 1.15.4 and 1.18.33). Every process that opencode starts inherits a marker variable;
//! this module finds it in `/proc/<pid>/environ`. The caller holds the lock of the data directory, so nobody else can
//! own a process with its marker. A tool that clears its own environment is found only where the supervisor has a
//! process of its own ([`adopt`]): orphans become its children then, and it ends whatever descends from it.

use std::time::Duration;

use nix::{
    sys::{
        signal::{Signal, kill},
        wait::{WaitPidFlag, waitpid},
    },
    unistd::Pid,
};
use tokio::time::{Instant, sleep};

use crate::{environment::MARKER, proc};

/// How often it is looked whether the processes have ended.
const POLL: Duration = Duration::from_millis(20);

/// How long new processes are looked for and killed before it gives up.
const KILL_BOUND: Duration = Duration::from_secs(3);

/// Which processes are opencode's.
#[derive(Debug, Clone, Default)]
pub(crate) struct Theirs {
    /// The marker of the data directory.
    pub(crate) identity: String,
    /// Everything that descends from this process is, too.
    pub(crate) adopted: bool,
    /// But for these, with which this process guards them.
    pub(crate) spared: Vec<u32>,
}

/// Makes this process the parent of every orphan among its descendants. Process 1 is that anyway.
#[cfg(target_os = "linux")]
pub(crate) fn adopt() {
    if let Err(error) = nix::sys::prctl::set_child_subreaper(true) {
        tracing::warn!(%error, "orphans are not adopted: those that clear their environment are not found");
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn adopt() {}

/// Takes the status of adopted children that have ended, so that they are gone. Those in `awaited` are waited for
/// elsewhere, and are left alone. Gives how many there were.
pub(crate) fn reap(awaited: &[u32]) -> u64 {
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    let is_awaited = |pid: i32| u32::try_from(pid).is_ok_and(|pid| awaited.contains(&pid));
    let ended = proc::all().into_iter().filter(|process| process.parent == own && process.is_zombie);
    let reaped = ended
        .filter(|process| !is_awaited(process.pid))
        .filter(|process| waitpid(Pid::from_raw(process.pid), Some(WaitPidFlag::WNOHANG)).is_ok());
    reaped.count() as u64
}

/// Sends TERM to every process of theirs, waits up to `grace`, then kills those left, and those that they have
/// started meanwhile, until there is none or a bound has passed. Gives how many were found at first.
pub(crate) async fn sweep(theirs: &Theirs, grace: Duration) -> usize {
    let found = find(theirs).await;
    if found.is_empty() {
        return 0;
    }
    tracing::info!(count = found.len(), "processes that opencode left behind are ended");
    signal(&found, Signal::SIGTERM);
    let mut left = wait_gone(theirs, grace).await;
    let deadline = Instant::now() + KILL_BOUND;
    while !left.is_empty() && Instant::now() < deadline {
        signal(&left, Signal::SIGKILL);
        left = wait_gone(theirs, POLL * 5).await;
    }
    if !left.is_empty() {
        tracing::error!(pids = ?left, "processes that opencode left behind cannot be ended");
    }
    found.len()
}

async fn wait_gone(theirs: &Theirs, bound: Duration) -> Vec<i32> {
    let deadline = Instant::now() + bound;
    loop {
        let left = find(theirs).await;
        if left.is_empty() || Instant::now() >= deadline {
            return left;
        }
        sleep(POLL).await;
    }
}

fn signal(pids: &[i32], signal: Signal) {
    for pid in pids {
        if let Err(error) = kill(Pid::from_raw(*pid), signal) {
            tracing::debug!(pid, %error, "a process ended before its signal");
        }
    }
}

/// Their process ids, without this process and without what has ended.
async fn find(theirs: &Theirs) -> Vec<i32> {
    let theirs = theirs.clone();
    tokio::task::spawn_blocking(move || look(&theirs)).await.unwrap_or_default()
}

fn look(theirs: &Theirs) -> Vec<i32> {
    let mut found = scan(&format!("{MARKER}={}", theirs.identity));
    if theirs.adopted {
        let own = i32::try_from(std::process::id()).unwrap_or_default();
        let processes = proc::all();
        let spared = |pid: i32| u32::try_from(pid).is_ok_and(|pid| theirs.spared.contains(&pid));
        let ended = |pid: i32| processes.iter().any(|process| process.pid == pid && process.is_zombie);
        found.extend(
            proc::descendants(&processes, own).into_iter().filter(|pid| !spared(*pid) && !ended(*pid)),
        );
        found.sort_unstable();
        found.dedup();
    }
    found
}

#[cfg(target_os = "linux")]
fn scan(entry: &str) -> Vec<i32> {
    let own = std::process::id();
    let Ok(processes) = std::fs::read_dir("/proc") else {
        tracing::warn!("/proc cannot be read: processes that opencode leaves behind are not found");
        return Vec::new();
    };
    processes
        .filter_map(|process| process.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| u32::try_from(*pid).is_ok_and(|pid| pid != own))
        .filter(|pid| {
            std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(|bytes| {
                bytes.split(|byte| *byte == 0).any(|variable| variable == entry.as_bytes())
            })
        })
        .collect()
}

#[cfg(not(target_os = "linux"))]
fn scan(_entry: &str) -> Vec<i32> {
    Vec::new()
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::{os::unix::process::CommandExt, process::Command};

    use super::*;

    /// Starts a shell in a process group of its own and waits until it says that it is set up.
    fn marked(identity: &str, script: &str) -> std::process::Child {
        use std::io::Read;
        let mut child = Command::new("/bin/sh")
            .args(["-c", script])
            .env(MARKER, identity)
            .process_group(0)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0; 3]).unwrap();
        child
    }

    fn identity() -> String {
        uuid::Uuid::new_v4().simple().to_string()
    }

    #[tokio::test]
    async fn only_marked_processes_end_the_stubborn_and_the_detached_ones_too() {
        let identity = identity();
        let mut stranger = marked(&self::identity(), "echo up; exec sleep 600");
        let mut plain = marked(&identity, "echo up; exec sleep 600");
        let mut stubborn =
            marked(&identity, "trap '' TERM; setsid sleep 600 & echo up; while :; do sleep 600; done");
        let theirs = Theirs { identity: identity.clone(), ..Theirs::default() };
        let found = sweep(&theirs, Duration::from_millis(200)).await;
        assert!((3..=4).contains(&found), "{found}");
        assert!(plain.wait().unwrap().code().is_none());
        assert!(stubborn.wait().unwrap().code().is_none());
        assert_eq!(find(&theirs).await, Vec::<i32>::new());
        assert!(stranger.try_wait().unwrap().is_none(), "a process of another directory lives on");
        stranger.kill().unwrap();
        stranger.wait().unwrap();
    }

    #[tokio::test]
    async fn nothing_to_do_takes_no_time() {
        let theirs = Theirs { identity: identity(), ..Theirs::default() };
        assert_eq!(sweep(&theirs, Duration::from_mins(10)).await, 0);
    }
}
