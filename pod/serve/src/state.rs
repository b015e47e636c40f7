//! Where opencode stands, and how its runs ended: what a supervisor tells. Types only.

use std::{collections::VecDeque, fmt, net::SocketAddr, path::PathBuf};

use berth_wire::door::ExitCause;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Ends of runs that are kept; older ones are forgotten. Who follows the state may miss so many in between.
pub const EXITS: usize = 16;

/// Where opencode is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ServePhase {
    /// It is being started, or waits for its restart.
    Starting,
    /// It answers.
    Ready,
    /// It lives and did not answer, and is ended for it. This lasts until the next start.
    Wedged,
    /// It was stopped, or is being stopped, and is not started again unless somebody asks for it.
    Stopped,
}

/// The end of one run of opencode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
            (ExitCause::Reconfigured, _) => {
                write!(f, "opencode was started anew because a configuration file was changed ({how})")
            }
            (ExitCause::Wedged, _) => write!(f, "opencode did not answer and was ended ({how})"),
            (ExitCause::OutOfMemory, _) => {
                write!(f, "opencode was killed because the memory of its container was used up ({how})")
            }
            (ExitCause::SupervisorLost, _) => {
                write!(f, "opencode ended with its supervisor, which died ({how})")
            }
        }
    }
}

/// Where opencode stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServeState {
    /// Names the supervisor that tells it, and is never used twice; empty before one was heard of.
    pub instance: String,
    /// Phase of its life.
    pub phase: ServePhase,
    /// opencode's default directory, as an absolute path without links; empty before a supervisor was heard of.
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
    /// Ends of runs, newest last, at most [`EXITS`].
    pub exits: VecDeque<Exit>,
    /// Processes beside opencode that the kernel killed for memory, since the supervisor started.
    pub tool_oom_kills: u64,
}

impl ServeState {
    /// The state before the first start of an opencode with this default directory.
    pub fn new(directory: PathBuf) -> Self {
        Self {
            instance: String::new(),
            phase: ServePhase::Starting,
            directory,
            boot: 0,
            boot_id: String::new(),
            pid: None,
            address: None,
            version: None,
            exits: VecDeque::new(),
            tool_oom_kills: 0,
        }
    }

    /// End of the newest run that ended.
    pub fn last_exit(&self) -> Option<&Exit> {
        self.exits.back()
    }

    /// Adds the end of a run.
    pub fn record(&mut self, exit: Exit) {
        if self.exits.len() >= EXITS {
            self.exits.pop_front();
        }
        self.exits.push_back(exit);
    }

    /// The ends that came after that of this run, oldest first; all that are kept when it is not among them.
    pub fn exits_after(&self, boot_id: Option<&str>) -> impl Iterator<Item = &Exit> {
        let known = self.exits.iter().rposition(|exit| Some(exit.boot_id.as_str()) == boot_id);
        self.exits.iter().skip(known.map_or(0, |known| known + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(boot: u64) -> Exit {
        Exit {
            boot,
            boot_id: format!("run{boot}"),
            exit: Some(1),
            signal: None,
            cause: ExitCause::Exited,
            detail: None,
            unsupported: None,
            at: Timestamp::UNIX_EPOCH,
            output_tail: String::new(),
        }
    }

    #[test]
    fn exits_are_bounded_and_told_from_where_one_was() {
        let mut state = ServeState::new("/work".into());
        (1..=20).for_each(|boot| state.record(exit(boot)));
        assert_eq!(state.exits.len(), EXITS);
        assert_eq!(state.last_exit().map(|exit| exit.boot), Some(20));
        let after = |boot_id| state.exits_after(boot_id).map(|exit| exit.boot).collect::<Vec<_>>();
        assert_eq!(after(Some("run17")), [18, 19, 20]);
        assert_eq!(after(Some("run20")), Vec::<u64>::new());
        assert_eq!(after(Some("run2")), (5..=20).collect::<Vec<_>>(), "it was forgotten");
        assert_eq!(after(None).len(), EXITS);
    }

    #[test]
    fn it_crosses_processes_unchanged() {
        let mut state = ServeState::new("/work".into());
        state.record(exit(1));
        state.address = Some("127.0.0.1:4095".parse().unwrap());
        let json = serde_json::to_string(&state).unwrap();
        assert_eq!(serde_json::from_str::<ServeState>(&json).unwrap(), state);
    }
}
