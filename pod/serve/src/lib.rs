//! Supervision of `opencode serve`: one process per data directory, started, watched, restarted and ended.
//!
//! [`Supervisor::start`] takes the data directory's lock, ends what a killed predecessor left behind, and keeps one
//! opencode running until [`Supervisor::stop`]. [`ServeState`] tells where it stands. It does not decide whether
//! opencode is wedged, and it serves no opencode to others: see the crate `berth-door`. IO; what can be pure is in the submodules.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use berth_wire::door::ExitCause;
use jiff::Timestamp;
use secrecy::SecretString;
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

mod environment;
mod health;
mod identity;
mod link;
mod lock;
mod orphans;
mod output;
mod process;
mod runner;
mod watchdog;

pub use environment::INHERITED;
pub use link::{LinkError, RestartCause, ServeCommand, ServeLink};
pub use lock::Holder;

/// Where opencode finds its configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigHome {
    /// In the data directory, apart from everything else.
    Own,
    /// In this directory, as `XDG_CONFIG_HOME`.
    At(PathBuf),
}

/// How opencode is to be run.
#[derive(Clone)]
pub struct ServeConfig {
    /// opencode's binary.
    pub program: PathBuf,
    /// Its working directory, which is also its default directory.
    pub directory: PathBuf,
    /// Private directory of this sandbox: lock, identity, output, and opencode's data, state and cache.
    pub data: PathBuf,
    /// Where its configuration is.
    pub config_home: ConfigHome,
    /// Environment of the calling program, of which only [`INHERITED`] names are passed on.
    pub inherited: BTreeMap<OsString, OsString>,
    /// Variables for opencode on top, such as `OPENCODE_CONFIG_CONTENT`. Names of Berth's own are refused.
    pub environment: BTreeMap<String, String>,
    /// Internal password, given to opencode as `OPENCODE_SERVER_PASSWORD`.
    pub password: SecretString,
    /// Bounds.
    pub timings: Timings,
}

impl ServeConfig {
    /// A configuration with an own configuration directory, no extra variables and default bounds.
    pub fn new(
        program: impl Into<PathBuf>,
        directory: impl Into<PathBuf>,
        data: impl Into<PathBuf>,
        password: SecretString,
        inherited: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Self {
        Self {
            program: program.into(),
            directory: directory.into(),
            data: data.into(),
            config_home: ConfigHome::Own,
            inherited: inherited.into_iter().collect(),
            environment: BTreeMap::new(),
            password,
            timings: Timings::default(),
        }
    }
}

impl fmt::Debug for ServeConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServeConfig")
            .field("program", &self.program)
            .field("directory", &self.directory)
            .field("data", &self.data)
            .field("config_home", &self.config_home)
            .field("environment", &self.environment.keys())
            .field("timings", &self.timings)
            .finish_non_exhaustive()
    }
}

/// Bounds of the supervision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timings {
    /// From the spawn until opencode must answer.
    pub start: Duration,
    /// For one health request; each attempt has a connection of its own.
    pub health: Duration,
    /// Pause before the first restart; doubles with each that follows.
    pub backoff_first: Duration,
    /// Longest pause before a restart.
    pub backoff_longest: Duration,
    /// After this long in health, the next pause is the first again.
    pub stable: Duration,
    /// Between TERM and KILL for opencode.
    pub grace: Duration,
    /// Between TERM and KILL for the processes that it left behind.
    pub orphan_grace: Duration,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            start: Duration::from_mins(1),
            health: Duration::from_millis(500),
            backoff_first: Duration::from_secs(1),
            backoff_longest: Duration::from_secs(30),
            stable: Duration::from_mins(1),
            grace: Duration::from_secs(5),
            orphan_grace: Duration::from_secs(1),
        }
    }
}

/// Where opencode is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServePhase {
    /// It is being started, or waits for its restart.
    Starting,
    /// It answers.
    Ready,
    /// It was stopped, or is being stopped, and will not be started again.
    Stopped,
}

/// The end of one run of opencode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// The boot that ended.
    pub boot: u64,
    /// Names that run.
    pub boot_id: String,
    /// Exit code, if it exited.
    pub exit: Option<i32>,
    /// Signal number, if a signal ended it.
    pub signal: Option<i32>,
    /// What ended it.
    pub cause: ExitCause,
    /// For [`ExitCause::StartFailed`]: what went wrong, in words.
    pub detail: Option<String>,
    /// When it was ended because Berth does not speak its version: what it is, such as `version 2.0.0`.
    pub unsupported: Option<String>,
    /// When it ended.
    pub at: Timestamp,
    /// Last lines of its output, at most a few KiB. It may hold what a tool printed: not for anonymous callers.
    pub output_tail: String,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = match (self.exit, self.signal) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "no exit status".to_owned(),
        };
        match (self.cause, &self.detail) {
            (ExitCause::StartFailed, Some(detail)) => write!(f, "opencode could not be started: {detail}"),
            (ExitCause::StartFailed, None) => write!(f, "opencode ended while it started ({how})"),
            (ExitCause::Exited, _) => write!(f, "opencode ended by itself ({how})"),
            (ExitCause::Killed, _) => write!(f, "opencode was killed ({how})"),
            (ExitCause::Stopped, _) => write!(f, "opencode was stopped ({how})"),
            (ExitCause::Recycled, _) => write!(f, "opencode was started anew because of its memory ({how})"),
            (ExitCause::NeverStarted, _) => {
                write!(f, "opencode took a prompt and never began with it, and was started anew ({how})")
            }
            (ExitCause::Wedged, _) => write!(f, "opencode did not answer and was ended ({how})"),
        }
    }
}

/// Where opencode stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServeState {
    /// Phase of its life.
    pub phase: ServePhase,
    /// opencode's default directory, as an absolute path without links.
    pub directory: PathBuf,
    /// Starts since the supervisor started, failed ones too; 0 before the first.
    pub boot: u64,
    /// Names this run, and is never used twice; empty before the first.
    pub boot_id: String,
    /// Process id, while it lives.
    pub pid: Option<u32>,
    /// Where it listens, once it answers.
    pub address: Option<SocketAddr>,
    /// Its version, once it has answered; kept over restarts.
    pub version: Option<String>,
    /// End of the newest run that ended.
    pub last_exit: Option<Exit>,
}

impl ServeState {
    /// The state before the first start of an opencode with this default directory.
    pub fn new(directory: PathBuf) -> Self {
        Self {
            phase: ServePhase::Starting,
            directory,
            boot: 0,
            boot_id: String::new(),
            pid: None,
            address: None,
            version: None,
            last_exit: None,
        }
    }
}

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
    stop: CancellationToken,
    tracker: TaskTracker,
}

impl Supervisor {
    /// Takes the data directory, ends what a predecessor left on it, and begins to start opencode. It does not wait
    /// for opencode to answer: see [`Supervisor::ready`].
    pub async fn start(config: ServeConfig) -> Result<Self, StartError> {
        let prepared = runner::prepare(config).await?;
        let (sender, state) = watch::channel(ServeState::new(prepared.directory().to_owned()));
        let link = ServeLink::telling(state);
        let stop = CancellationToken::new();
        let tracker = TaskTracker::new();
        tracker.spawn(prepared.run(sender, stop.clone()));
        tracker.close();
        Ok(Self { link, stop, tracker })
    }

    /// Follows where opencode stands.
    pub fn watch(&self) -> watch::Receiver<ServeState> {
        self.link.state()
    }

    /// For a door in this process.
    pub fn link(&self) -> ServeLink {
        self.link.clone()
    }

    /// Waits until opencode answers, and gives the state then; the state as it is when the first start fails, when
    /// it is stopped, or after `bound`.
    pub async fn ready(&self, bound: Duration) -> Result<ServeState, ServeState> {
        let mut state = self.watch();
        let settled = |state: &ServeState| state.phase != ServePhase::Starting || state.last_exit.is_some();
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

/// File in the data directory that opencode's output goes to.
pub fn log_file(data: &Path) -> PathBuf {
    data.join("opencode.log")
}
