//! Ends the processes that opencode leaves behind. IO.
//!
//! opencode's bash tool starts each command in a session of its own, so it outlives opencode and opencode's process
//! group (measured on opencode 1.15.4 and 1.18.33). Every process that opencode starts inherits a marker variable;
//! this module finds it in `/proc/<pid>/environ`. A tool that clears its own environment is not found. The caller
//! holds the lock of the data directory, so nobody else can own a process with its marker.

use std::time::Duration;

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::time::{Instant, sleep};

use crate::environment::MARKER;

/// How often it is looked whether the processes have ended.
const POLL: Duration = Duration::from_millis(20);

/// How long new processes are looked for and killed before it gives up.
const KILL_BOUND: Duration = Duration::from_secs(3);

/// Sends TERM to every process with the marker, waits up to `grace`, then kills those left, and those that they
/// have started meanwhile, until there is none or a bound has passed. Gives how many were found at first.
pub(crate) async fn sweep(identity: &str, grace: Duration) -> usize {
    let found = find(identity).await;
    if found.is_empty() {
        return 0;
    }
    tracing::info!(count = found.len(), "processes that opencode left behind are ended");
    signal(&found, Signal::SIGTERM);
    let mut left = wait_gone(identity, grace).await;
    let deadline = Instant::now() + KILL_BOUND;
    while !left.is_empty() && Instant::now() < deadline {
        signal(&left, Signal::SIGKILL);
        left = wait_gone(identity, POLL * 5).await;
    }
    if !left.is_empty() {
        tracing::error!(pids = ?left, "processes that opencode left behind cannot be ended");
    }
    found.len()
}

async fn wait_gone(identity: &str, bound: Duration) -> Vec<i32> {
    let deadline = Instant::now() + bound;
    loop {
        let left = find(identity).await;
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

/// Process ids with the marker, without this process.
async fn find(identity: &str) -> Vec<i32> {
    let entry = format!("{MARKER}={identity}");
    tokio::task::spawn_blocking(move || scan(&entry)).await.unwrap_or_default()
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
        let found = sweep(&identity, Duration::from_millis(200)).await;
        assert!((3..=4).contains(&found), "{found}");
        assert!(plain.wait().unwrap().code().is_none());
        assert!(stubborn.wait().unwrap().code().is_none());
        assert_eq!(find(&identity).await, Vec::<i32>::new());
        assert!(stranger.try_wait().unwrap().is_none(), "a process of another directory lives on");
        stranger.kill().unwrap();
        stranger.wait().unwrap();
    }

    #[tokio::test]
    async fn nothing_to_do_takes_no_time() {
        assert_eq!(sweep(&identity(), Duration::from_mins(10)).await, 0);
    }
}
