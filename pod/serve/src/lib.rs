//! Supervision of `opencode serve`: one process per data directory, started, watched, restarted and ended.
//!
//! [`Supervisor::start`] takes the data directory's lock, ends what a killed predecessor left behind, and keeps one
//! opencode running until [`Supervisor::stop`]. [`ServeState`] tells where it stands, [`ServeLink`] takes commands. It
//! serves no opencode to others: see the crate `berth-door`. What happens when is decided in `life`, which is pure;
//! `runner` does it. IO.

use std::{path::PathBuf, time::Duration};

use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use uuid::Uuid;

mod admission;
pub mod args;
mod config;
mod control;
mod environment;
mod exchange;
mod health;
mod identity;
mod life;
mod link;
mod lock;
mod memory;
mod metrics;
mod oom;
mod orphans;
mod output;
mod proc;
mod process;
mod remote;
mod report;
mod runner;
mod state;
mod unpacked;
mod watchdog;

pub use config::{ConfigHome, Inherit, Password, ServeConfig, Timings, WaitFor, log_file};
pub use control::serve_control;
pub use environment::INHERITED;
pub use link::{LinkError, RestartCause, ServeCommand, ServeLink};
pub use lock::Holder;
pub use memory::ServeMemory;
pub use metrics::Metrics;
pub use state::{EXITS, Exit, ServePhase, ServeState};

/// Why supervision did not begin.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another supervisor runs on this data directory.
    #[error("{} is in use by {holder}", data.display())]
    InUse {
        /// The data directory.
        data: PathBuf,
        /// Who holds it.
        holder: Holder,
    },
    /// There is no such program.
    #[error("there is no opencode binary at {}", program.display())]
    Program {
        /// What was asked for.
        program: PathBuf,
    },
    /// The working directory cannot be used.
    #[error("cannot use {} as opencode's working directory", directory.display())]
    Directory {
        /// What was asked for.
        directory: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The data directory cannot be used.
    #[error("cannot use {} as the sandbox's data directory", data.display())]
    Data {
        /// What was asked for.
        data: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A variable that only the supervisor sets was given.
    #[error("the environment variable {name} is set by the supervisor and cannot be given")]
    Reserved {
        /// Its name.
        name: String,
    },
}

/// Keeps one opencode running. [`Supervisor::stop`] ends it and everything that it left behind; a supervisor that is
/// dropped instead begins the same in the background and cannot tell when it is done. When the program ends without
/// either, by SIGKILL too, opencode and everything that it started are killed at once (on Linux).
#[derive(Debug)]
pub struct Supervisor {
    link: ServeLink,
    metrics: Metrics,
    stop: CancellationToken,
    tracker: TaskTracker,
}

impl Supervisor {
    /// Takes the data directory, ends what a predecessor left on it, and begins to start opencode. It does not wait
    /// for opencode to answer: see [`Supervisor::ready`].
    pub async fn start(config: ServeConfig) -> Result<Self, StartError> {
        let prepared = runner::prepare(config).await?;
        let instance = Uuid::new_v4().simple().to_string();
        let first = ServeState { instance, ..ServeState::new(prepared.directory().to_owned()) };
        let (sender, state) = watch::channel(first);
        let (link, commands) = ServeLink::new(state, prepared.owns_process());
        let metrics = prepared.metrics().clone();
        let stop = CancellationToken::new();
        let tracker = TaskTracker::new();
        tracker.spawn(prepared.run(sender, commands, stop.clone()));
        tracker.close();
        Ok(Self { link, metrics, stop, tracker })
    }

    /// Follows where opencode stands.
    pub fn watch(&self) -> watch::Receiver<ServeState> {
        self.link.state()
    }

    /// For a door in this process.
    pub fn link(&self) -> ServeLink {
        self.link.clone()
    }

    /// What is counted; registered nowhere.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Waits until opencode answers, and gives the state then; the state as it is when the first start fails, when
    /// it is stopped, or after `bound`.
    pub async fn ready(&self, bound: Duration) -> Result<ServeState, ServeState> {
        let mut state = self.watch();
        let settled = |state: &ServeState| state.phase != ServePhase::Starting || state.last_exit().is_some();
        let _ = tokio::time::timeout(bound, state.wait_for(settled)).await;
        let state = state.borrow().clone();
        if state.phase == ServePhase::Ready { Ok(state) } else { Err(state) }
    }

    /// Ends opencode (TERM, then KILL) and every process that it left behind, and gives the data directory free.
    /// May be called more than once; returns when all is done.
    pub async fn stop(&self) {
        self.stop.cancel();
        self.tracker.wait().await;
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
