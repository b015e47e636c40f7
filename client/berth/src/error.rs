//! What can go wrong between a program and Berth's server. Pure.

use berth_wire::{
    problem::{Problem, ProblemType},
    sse::SseError,
};

/// Why a call has no result.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server refused, and says why.
    #[error("{0}")]
    Problem(Box<Problem>),
    /// No connection, or it broke before the whole answer was there.
    #[error("the server at {url} cannot be reached")]
    Unreachable {
        /// Base address of the server.
        url: String,
        /// What the transport says.
        #[source]
        source: reqwest::Error,
    },
    /// Whatever answered does not speak this API.
    #[error("{url} answered {status} with something else than Berth's API would: {excerpt:?}")]
    UnexpectedAnswer {
        /// Base address of the server.
        url: String,
        /// HTTP status.
        status: u16,
        /// Beginning of the body.
        excerpt: String,
    },
    /// The answer, or an event, is JSON of another shape than expected, or not JSON.
    #[error("the server's {what} cannot be understood")]
    Malformed {
        /// What was read.
        what: &'static str,
        /// What the parser says.
        #[source]
        source: serde_json::Error,
    },
    /// The answer is larger than the client reads.
    #[error("the server's answer is larger than {limit} bytes")]
    AnswerTooLarge {
        /// The bound.
        limit: usize,
    },
    /// The event stream broke.
    #[error("the event stream cannot be read")]
    Stream(#[source] SseError),
    /// The server ended the event stream, which it does when it shuts down.
    #[error("the server ended the event stream")]
    StreamEnded,
    /// The event stream broke, and so did every attempt to resume it.
    #[error("the event stream was lost, and {attempts} attempts to resume it failed")]
    StreamLost {
        /// Failed attempts in a row.
        attempts: usize,
        /// How the last one failed.
        #[source]
        source: Box<Self>,
    },
    /// The log has a hole or a double: an event does not follow the one before it.
    #[error("event {found} of the session came where {expected} was due")]
    NotConsecutive {
        /// The number that was due.
        expected: i64,
        /// The number that came.
        found: i64,
    },
    /// The base address is not one of an HTTP server.
    #[error("{url:?} is not an http:// address")]
    InvalidUrl {
        /// What was given.
        url: String,
    },
    /// The HTTP client cannot be built.
    #[error("the HTTP client cannot be set up")]
    Setup(#[source] reqwest::Error),
}

impl ClientError {
    /// The server's problem document, if it gave one.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Problem(problem) => Some(problem),
            Self::StreamLost { source, .. } => source.problem(),
            _ => None,
        }
    }

    /// True when there is no usable connection to a server: none answers, it is on its way down, or it was lost.
    pub fn is_unreachable(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::StreamEnded | Self::Stream(SseError::Body(_)) => true,
            Self::Problem(problem) => problem.problem_type() == Some(ProblemType::ShuttingDown),
            Self::StreamLost { source, .. } => source.is_unreachable(),
            _ => false,
        }
    }

    /// True when the same call can succeed a moment later: the connection failed, or the server or what stands
    /// before it is not up at the moment.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Problem(problem) => matches!(problem.status, 502..=504),
            Self::UnexpectedAnswer { status, .. } => matches!(status, 502..=504),
            Self::StreamLost { .. } => false,
            other => other.is_unreachable(),
        }
    }
}
