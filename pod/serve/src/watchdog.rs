//! Ends opencode and what it started when the supervisor dies and can end nothing itself, by SIGKILL for instance. IO.
//!
//! Where the supervisor is process 1 there is none: the kernel ends all processes with that one.
//!
//! A small shell of its own process group waits at a pipe of which the supervisor alone holds the other end. The kernel
//! closes that end with the supervisor, whatever ends it, and the shell then kills every process of this boot: opencode,
//! and tools in sessions of their own too, which a death signal from the kernel would not reach. It looks for the boot's
//! own marker and carries none: it cannot hit what a new supervisor on the same data directory started meanwhile, and
//! that one's sweep does not end it. It needs `sh`, `grep` and Linux's `/proc`.

use std::{ffi::OsStr, process::Stdio};

use tokio::process::{Child, Command};

use crate::environment::BOOT_MARKER;

/// The whole program of the shell.
const SCRIPT: &str = include_str!("watchdog.sh");

/// The watchdog of one boot. Dropping it is the supervisor's death to it: it kills what is left of the boot, then ends.
#[derive(Debug)]
pub(crate) struct Watchdog {
    shell: Option<Child>,
}

impl Watchdog {
    /// Starts it, before opencode. Without it opencode runs as well, only less well guarded: that is logged.
    pub(crate) fn start(boot_id: &str, path: Option<&OsStr>) -> Self {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", SCRIPT, "berth-watchdog", &format!("{BOOT_MARKER}={boot_id}")])
            .env_clear()
            .envs(path.map(|path| ("PATH", path)))
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        let shell = command
            .spawn()
            .inspect_err(|error| {
                tracing::warn!(%error, "no watchdog: opencode outlives its supervisor if that is killed");
            })
            .ok();
        Self { shell }
    }

    /// Its process id, while there is one.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.shell.as_ref().and_then(Child::id)
    }

    /// Ends it when nothing is left to guard.
    pub(crate) async fn stop(self) {
        let Some(mut shell) = self.shell else { return };
        if let Ok(Some(status)) = shell.try_wait() {
            tracing::warn!(%status, "the watchdog ended before opencode did, which was not guarded since");
        } else if let Err(error) = shell.kill().await {
            tracing::warn!(%error, "the watchdog cannot be ended");
        }
    }
}
