//! problem+json (RFC 9457) with stable types, and errors in one line.

use std::{error::Error, iter::successors};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// Media type of a problem document.
pub const PROBLEM_JSON: &str = "application/problem+json";

const TYPE_PREFIX: &str = "https://berth.dev/problems/";

/// The stable problem types, with the status each is sent with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProblemType {
    /// 400: the body is not JSON, or a field has the wrong shape.
    InvalidBody,
    /// 400: a path or query parameter has the wrong shape.
    InvalidParameter,
    /// 400: a header has the wrong shape.
    InvalidHeader,
    /// 401: no credentials, or wrong ones.
    Unauthorized,
    /// 403: the Host or Origin is not one that this server serves.
    ForbiddenOrigin,
    /// 403: this route of opencode is not for callers of the door.
    RefusedRoute,
    /// 404: no such object or route.
    NotFound,
    /// 405: the route exists, with other methods.
    MethodNotAllowed,
    /// 408: the request did not arrive within its bound.
    RequestTimeout,
    /// 409: the same idempotency key came with another body.
    IdempotencyConflict,
    /// 409: the request was already settled.
    AlreadyResolved,
    /// 409: the turn has not ended, or ended well: there is nothing to retry.
    TurnNotRetryable,
    /// 409: a call in flight, or a turn, does not end.
    Busy,
    /// 409: the session's sandbox was deleted.
    SandboxGone,
    /// 409: another replica of the server took the sandbox over.
    StaleFence,
    /// 409: the gate has a holder.
    GateHeld,
    /// 409: the lease of the gate is over.
    GateBroken,
    /// 412: the door is another instance than the caller knew.
    StaleEpoch,
    /// 503: the gate keeps this out for now.
    Gated,
    /// 413: the body is larger than the bound.
    BodyTooLarge,
    /// 415: the body's media type is not `application/json`.
    UnsupportedMediaType,
    /// 422: a field's value is not acceptable.
    Invalid,
    /// 422: the file is larger than this API hands out.
    FileTooLarge,
    /// 429: the session's queue is full.
    QueueFull,
    /// 500: a defect of Berth; the request id leads to the log.
    Internal,
    /// 500: what is stored is damaged, or was written by another version.
    StateUnreadable,
    /// 502: opencode broke the connection or answered something else than HTTP.
    BadGateway,
    /// 503: opencode is being started.
    Starting,
    /// 503: opencode was stopped on purpose.
    Stopped,
    /// 503: opencode does not answer and is being restarted.
    Wedged,
    /// 503: opencode is of a version that Berth does not speak.
    UnsupportedVersion,
    /// 503: the sandbox cannot be reached.
    SandboxUnavailable,
    /// 503: the server's database cannot be used now; nothing was written.
    StorageUnavailable,
    /// 503: the server is shutting down.
    ShuttingDown,
}

impl ProblemType {
    /// Every type, for documents and tests.
    pub const ALL: [Self; 34] = [
        Self::InvalidBody,
        Self::InvalidParameter,
        Self::InvalidHeader,
        Self::Unauthorized,
        Self::ForbiddenOrigin,
        Self::RefusedRoute,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::RequestTimeout,
        Self::IdempotencyConflict,
        Self::AlreadyResolved,
        Self::TurnNotRetryable,
        Self::Busy,
        Self::SandboxGone,
        Self::StaleFence,
        Self::GateHeld,
        Self::GateBroken,
        Self::StaleEpoch,
        Self::Gated,
        Self::BodyTooLarge,
        Self::UnsupportedMediaType,
        Self::Invalid,
        Self::FileTooLarge,
        Self::QueueFull,
        Self::Internal,
        Self::StateUnreadable,
        Self::BadGateway,
        Self::Starting,
        Self::Stopped,
        Self::Wedged,
        Self::UnsupportedVersion,
        Self::SandboxUnavailable,
        Self::StorageUnavailable,
        Self::ShuttingDown,
    ];

    /// Last segment of the type's URI, its status and its title.
    fn parts(self) -> (&'static str, u16, &'static str) {
        match self {
            Self::InvalidBody => ("invalid-body", 400, "The request body is not valid"),
            Self::InvalidParameter => ("invalid-parameter", 400, "A path or query parameter is not valid"),
            Self::InvalidHeader => ("invalid-header", 400, "A header is not valid"),
            Self::Unauthorized => ("unauthorized", 401, "Credentials are missing or wrong"),
            Self::ForbiddenOrigin => ("forbidden-origin", 403, "This host or origin is not served"),
            Self::RefusedRoute => ("refused-route", 403, "This route is not for callers"),
            Self::NotFound => ("not-found", 404, "Not found"),
            Self::MethodNotAllowed => ("method-not-allowed", 405, "Method not allowed"),
            Self::RequestTimeout => ("request-timeout", 408, "The request took too long to arrive"),
            Self::IdempotencyConflict => ("idempotency-conflict", 409, "The idempotency key is taken"),
            Self::AlreadyResolved => ("already-resolved", 409, "This request was already settled"),
            Self::TurnNotRetryable => ("turn-not-retryable", 409, "This turn cannot be retried"),
            Self::Busy => ("busy", 409, "Something is still going on"),
            Self::SandboxGone => ("sandbox-gone", 409, "The sandbox was deleted"),
            Self::StaleFence => ("stale-fence", 409, "The fence is not the current one"),
            Self::GateHeld => ("gate-held", 409, "The gate is held"),
            Self::GateBroken => ("gate-broken", 409, "The lease of the gate is over"),
            Self::StaleEpoch => ("stale-epoch", 412, "The door was started anew"),
            Self::Gated => ("gated", 503, "The gate is held"),
            Self::BodyTooLarge => ("body-too-large", 413, "The request body is too large"),
            Self::UnsupportedMediaType => ("unsupported-media-type", 415, "The body must be JSON"),
            Self::Invalid => ("invalid", 422, "A field's value is not acceptable"),
            Self::FileTooLarge => ("file-too-large", 422, "The file is too large"),
            Self::QueueFull => ("queue-full", 429, "The session's queue is full"),
            Self::Internal => ("internal", 500, "Internal error"),
            Self::StateUnreadable => ("state-unreadable", 500, "What is stored is not understood"),
            Self::BadGateway => ("bad-gateway", 502, "opencode gave no usable answer"),
            Self::Starting => ("starting", 503, "opencode is starting"),
            Self::Stopped => ("stopped", 503, "opencode is stopped"),
            Self::Wedged => ("wedged", 503, "opencode does not answer"),
            Self::UnsupportedVersion => ("unsupported-version", 503, "opencode's version is not supported"),
            Self::SandboxUnavailable => ("sandbox-unavailable", 503, "The sandbox cannot be reached"),
            Self::StorageUnavailable => ("storage-unavailable", 503, "The server's database cannot be used"),
            Self::ShuttingDown => ("shutting-down", 503, "The server is shutting down"),
        }
    }

    /// True for those that the server's API answers with; the others are the door's alone.
    pub fn is_of_server(self) -> bool {
        !matches!(
            self,
            Self::RefusedRoute
                | Self::Busy
                | Self::StaleFence
                | Self::GateHeld
                | Self::GateBroken
                | Self::StaleEpoch
        )
    }

    /// Last segment of the type's URI.
    pub fn slug(self) -> &'static str {
        self.parts().0
    }

    /// HTTP status that this type is sent with.
    pub fn status(self) -> u16 {
        self.parts().1
    }

    /// The type with this slug.
    pub fn from_slug(slug: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.slug() == slug)
    }
}

/// A problem document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// URI of the type; stable.
    #[serde(rename = "type")]
    pub kind: String,
    /// The type in words.
    pub title: String,
    /// HTTP status.
    pub status: u16,
    /// What happened this time, and what to do.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// Members of this type's own, such as `field`, `limit_bytes` or `request_id`.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub extensions: Map<String, Value>,
}

impl Problem {
    /// A problem of a stable type.
    pub fn new(kind: ProblemType, detail: impl Into<String>) -> Self {
        let (slug, status, title) = kind.parts();
        Self {
            kind: format!("{TYPE_PREFIX}{slug}"),
            title: title.to_owned(),
            status,
            detail: detail.into(),
            extensions: Map::new(),
        }
    }

    /// Adds a member of this type's own.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.extensions.insert(name.to_owned(), value.into());
        self
    }

    /// The stable type, unless it comes from a newer peer.
    pub fn problem_type(&self) -> Option<ProblemType> {
        self.kind.strip_prefix(TYPE_PREFIX).and_then(ProblemType::from_slug)
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.detail.is_empty() {
            f.write_str(&self.title)
        } else {
            write!(f, "{}: {}", self.title, self.detail)
        }
    }
}

/// An error with its causes in one line, as details of problems and the log have it.
pub fn error_chain(error: &dyn Error) -> String {
    let causes = successors(error.source(), |cause| (*cause).source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

#[cfg(test)]
mod tests {
    use std::{error::Error, io};

    use super::{Problem, ProblemType, error_chain};

    #[derive(Debug)]
    struct Outer(io::Error);

    impl std::fmt::Display for Outer {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("outer")
        }
    }

    impl Error for Outer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn an_error_is_told_with_its_causes() {
        assert_eq!(error_chain(&io::Error::other("alone")), "alone");
        assert_eq!(error_chain(&Outer(io::Error::other("inner"))), "outer: inner");
    }

    #[test]
    fn every_type_round_trips() {
        for kind in ProblemType::ALL {
            let problem = Problem::new(kind, "why").with("field", "parts");
            let text = serde_json::to_string(&problem).unwrap();
            let back: Problem = serde_json::from_str(&text).unwrap();
            assert_eq!(back, problem);
            assert_eq!(back.problem_type(), Some(kind));
        }
    }
}
