//! What can go wrong in a call of opencode or its door. Pure.

use std::time::Duration;

use berth_wire::{
    problem::{Problem, ProblemType},
    sse::SseError,
};

use crate::event::EventError;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The base URL, or an id that goes into a path, is not usable.
    #[error("invalid request: {0}")]
    InvalidRequest(String),
    /// No connection, or the connection broke before the whole answer was there.
    #[error("opencode cannot be reached")]
    Unreachable(#[source] reqwest::Error),
    /// No whole answer within the bound.
    #[error("opencode did not answer within {limit:?}")]
    Timeout {
        /// The bound.
        limit: Duration,
    },
    /// What answers does not know the sandbox's password, or is not the pod that was meant.
    #[error("something else answers at the address of the sandbox's door")]
    PortTaken,
    /// The password is wrong.
    #[error("the password of the sandbox was refused")]
    Unauthorized,
    /// opencode says, as JSON, that the object does not exist.
    #[error("not found: {message}")]
    NotFound {
        /// opencode's words.
        message: String,
    },
    /// The door refused to pass the call on.
    #[error("the sandbox's door refused: {0}")]
    Refused(Box<Problem>),
    /// The gate of the sandbox keeps the call out for a while.
    #[error("the sandbox takes no work now: {0}")]
    Gated(Box<Problem>),
    /// The fence of this client is not the current one: somebody else took the sandbox over.
    #[error("another owner took the sandbox over")]
    StaleFence,
    /// The door was started anew and does not know the fence: raise it again.
    #[error("the sandbox's door was started anew")]
    StaleEpoch,
    /// opencode answered with an error of its own.
    #[error("opencode answered {status} {name}: {message}")]
    Status {
        /// HTTP status; opencode also says 500 for a malformed request.
        status: u16,
        /// The error's name, such as `ConfigJsonError`; empty when it gave none.
        name: String,
        /// Its words; empty when it gave none.
        message: String,
    },
    /// The answer is not JSON of the expected shape: opencode answers unknown paths with a web page.
    #[error("unexpected answer: {seen}")]
    UnexpectedBody {
        /// What was seen instead.
        seen: String,
    },
    /// The answer is larger than the bound.
    #[error("the answer is larger than {limit} bytes")]
    BodyTooLarge {
        /// The bound.
        limit: usize,
    },
    /// What answers is not an opencode of a known line.
    #[error("opencode 1.15 to 1.18 is needed, seen: {seen}")]
    UnsupportedVersion {
        /// The version, or what answered instead.
        seen: String,
    },
    /// No event for longer than opencode's heartbeats allow.
    #[error("no event for {limit:?}")]
    StreamIdle {
        /// The bound.
        limit: Duration,
    },
    /// The event stream broke.
    #[error("the event stream failed")]
    Stream(#[source] SseError),
    /// One frame is not an event; the stream goes on.
    #[error("an event was not understood")]
    Event(#[source] EventError),
}

impl ClientError {
    /// True when another password may help: what answers refuses the one that is known, or does not prove to know it, as
    /// a door does not whose password was exchanged.
    pub fn is_of_the_password(&self) -> bool {
        matches!(self, Self::Unauthorized | Self::PortTaken)
    }

    /// True when the same call may succeed a little later.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable(_)
            | Self::Timeout { .. }
            | Self::StreamIdle { .. }
            | Self::Stream(_)
            | Self::Gated(_)
            | Self::StaleEpoch => true,
            Self::Refused(problem) => matches!(
                problem.problem_type(),
                Some(
                    ProblemType::Starting
                        | ProblemType::Busy
                        | ProblemType::Wedged
                        | ProblemType::BadGateway
                        | ProblemType::SandboxUnavailable
                        | ProblemType::ShuttingDown
                )
            ),
            Self::Status { status, name, .. } => matches!(status, 429 | 502 | 503 | 504) && name.is_empty(),
            _ => false,
        }
    }
}
