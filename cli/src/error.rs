//! What can go wrong in the command, and the exit codes. Pure.

use std::{io, path::PathBuf};

use berth_client::ClientError;
pub use berth_wire::problem::error_chain;
use berth_wire::{
    problem::{Problem, ProblemType},
    turn::{TurnErrorReason, TurnOutcome, TurnState, TurnStopReason},
};
use uuid::Uuid;

use crate::{choice::SessionChoice, up::UpError};

/// How the command ended, for the shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// 0: everything that was asked for was done.
    Succeeded,
    /// 1: the turn failed, or something here did.
    Failed,
    /// 2: the command line is wrong.
    Usage,
    /// 3: the turn was cancelled.
    Cancelled,
    /// 4: refused: a permission was rejected, the model declined, or the server did not accept the request.
    Refused,
    /// 5: no server can be reached.
    Unreachable,
    /// 6: the turn was cancelled since its time was over.
    TimedOut,
}

/// The table of exit codes, for `--help`.
pub const EXIT_CODES: &str = "\
Exit codes:
  0  succeeded
  1  failed
  2  the command line is wrong
  3  cancelled
  4  refused: by a rejected permission, by the model, or by the server
  5  no server can be reached
  6  not at an end within --timeout, and cancelled";

impl Exit {
    /// The number that the shell sees.
    pub fn code(self) -> u8 {
        match self {
            Self::Succeeded => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Cancelled => 3,
            Self::Refused => 4,
            Self::Unreachable => 5,
            Self::TimedOut => 6,
        }
    }

    /// What the end of a turn means for the shell.
    pub fn of(outcome: &TurnOutcome) -> Self {
        let rejected =
            outcome.error.as_ref().is_some_and(|error| error.reason == TurnErrorReason::PermissionRejected);
        match outcome.state {
            TurnState::Succeeded if outcome.stop_reason == Some(TurnStopReason::Refusal) => Self::Refused,
            TurnState::Succeeded => Self::Succeeded,
            TurnState::Cancelled => Self::Cancelled,
            _ if rejected => Self::Refused,
            TurnState::Failed | TurnState::Unknown | TurnState::Queued | TurnState::Running => Self::Failed,
        }
    }
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// Why the command could not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// An argument, or a variable of the environment, has a value that cannot be used.
    #[error("{field}: {reason}")]
    Usage {
        /// The argument or variable.
        field: &'static str,
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// The server, or the way to it, failed.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// An opencode, or the way to it, failed.
    #[error(transparent)]
    Opencode(#[from] berth_opencode::ClientError),
    /// Local mode failed.
    #[error(transparent)]
    Up(#[from] UpError),
    /// No server is known.
    #[error("no server is known: start one with `berth up`, or name one with --server and --token-file")]
    NoServer,
    /// There is no such sandbox.
    #[error("there is no sandbox {sandbox}; there are: {known}")]
    NoSandbox {
        /// As it was named.
        sandbox: String,
        /// Those that there are.
        known: String,
    },
    /// There is no such session.
    #[error("{}", no_session(choice))]
    NoSession {
        /// As it was named.
        choice: SessionChoice,
    },
    /// Several sessions have an id that begins like that.
    #[error("several sessions begin with {prefix}: {named}; say more of it")]
    Ambiguous {
        /// What was given.
        prefix: String,
        /// Some of them.
        named: String,
    },
    /// A file cannot be read.
    #[error("{} cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file cannot be written.
    #[error("{} cannot be written", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file is not what it should be.
    #[error("{}: {reason}", path.display())]
    BadFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// The prompt cannot be read from standard input.
    #[error("the prompt cannot be read from standard input")]
    Input(#[source] io::Error),
    /// What was to be shown cannot be written.
    #[error("the output cannot be written")]
    Output(#[source] io::Error),
    /// The process's surroundings cannot be read.
    #[error("the current directory cannot be read")]
    Environment(#[source] io::Error),
    /// The threads of this process cannot be started.
    #[error("worker threads cannot be started")]
    Runtime(#[source] io::Error),
    /// The signals of this process cannot be listened to.
    #[error("signal handlers cannot be set up")]
    Signals(#[source] io::Error),
    /// What is up cannot be ended.
    #[error("process {pid} cannot be ended")]
    Down {
        /// Its number.
        pid: u32,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A cancelled turn did not come to its end.
    #[error("the turn did not end within {seconds} s of its cancellation; it is turn {turn}")]
    CancelTimeout {
        /// The bound, in seconds.
        seconds: u64,
        /// The turn.
        turn: Uuid,
    },
}

impl CliError {
    /// An argument that cannot be used.
    pub fn usage(field: &'static str, reason: impl Into<String>) -> Self {
        Self::Usage { field, reason: reason.into() }
    }

    /// What to do next, where the error does not say so itself.
    pub fn hint(&self) -> Option<&'static str> {
        let Self::Client(error) = self else { return None };
        match error.problem().and_then(Problem::problem_type) {
            Some(ProblemType::Unauthorized) => {
                Some("that token is not this server's: name the file with the right one by --token-file")
            }
            Some(ProblemType::Internal) => {
                Some("`berth doctor --bundle FILE` gathers what helps to find the cause")
            }
            None if error.is_unreachable() => {
                Some("does it run? `berth up` starts it, and `berth doctor` looks for what is in the way")
            }
            _ => None,
        }
    }

    /// What it means for the shell.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Usage { .. }
            | Self::Opencode(berth_opencode::ClientError::InvalidRequest(_))
            | Self::Up(UpError::OpencodeGiven { .. } | UpError::Port { .. }) => Exit::Usage,
            Self::NoServer => Exit::Unreachable,
            Self::CancelTimeout { .. } => Exit::Cancelled,
            Self::NoSandbox { .. }
            | Self::NoSession { .. }
            | Self::Ambiguous { .. }
            | Self::Up(UpError::InUse { .. } | UpError::Starting { .. })
            | Self::Opencode(
                berth_opencode::ClientError::Unauthorized | berth_opencode::ClientError::PortTaken,
            ) => Exit::Refused,
            Self::Client(error) if error.is_unreachable() => Exit::Unreachable,
            Self::Client(error) => match error.problem() {
                Some(problem) if problem.status < 500 => Exit::Refused,
                _ => Exit::Failed,
            },
            Self::Opencode(error) if error.is_transient() => Exit::Unreachable,
            Self::Up(_)
            | Self::Opencode(_)
            | Self::Read { .. }
            | Self::Write { .. }
            | Self::BadFile { .. }
            | Self::Down { .. }
            | Self::Input(_)
            | Self::Output(_)
            | Self::Environment(_)
            | Self::Runtime(_)
            | Self::Signals(_) => Exit::Failed,
        }
    }
}

fn no_session(choice: &SessionChoice) -> String {
    match choice {
        SessionChoice::Last => "there is no session yet: `berth run` or `berth chat` begins one".to_owned(),
        SessionChoice::Id(_) | SessionChoice::Prefix(_) => {
            format!("there is no session {choice}: `berth sessions list` shows which there are")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_have_the_documented_codes() {
        let failed = |reason| TurnOutcome::failed(reason, "why");
        let cases = [
            (TurnOutcome::succeeded(TurnStopReason::EndTurn), 0),
            (TurnOutcome::succeeded(TurnStopReason::MaxTokens), 0),
            (failed(TurnErrorReason::ProviderError), 1),
            (TurnOutcome::cancelled(), 3),
            (failed(TurnErrorReason::PermissionRejected), 4),
            (TurnOutcome::succeeded(TurnStopReason::Refusal), 4),
        ];
        for (outcome, code) in cases {
            assert_eq!(Exit::of(&outcome).code(), code, "{outcome:?}");
        }
    }

    #[test]
    fn refusals_of_the_server_are_not_failures_of_the_server() {
        let problem = |kind| CliError::Client(ClientError::Problem(Box::new(Problem::new(kind, ""))));
        assert_eq!(problem(ProblemType::QueueFull).exit(), Exit::Refused);
        assert_eq!(problem(ProblemType::Unauthorized).exit(), Exit::Refused);
        assert_eq!(problem(ProblemType::Internal).exit(), Exit::Failed);
        assert_eq!(problem(ProblemType::ShuttingDown).exit(), Exit::Unreachable);
        assert_eq!(CliError::usage("--port", "no").exit(), Exit::Usage);
    }

    #[test]
    fn a_chain_says_each_thing_once() {
        let source = io::Error::other("disk on fire");
        let error = CliError::Read { path: PathBuf::from("/x"), source };
        assert_eq!(error_chain(&error), "/x cannot be read: disk on fire");
    }
}
