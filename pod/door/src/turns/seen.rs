//! The events of opencode that the turn table goes by, read from their frames. Pure.

use serde::Deserialize;

/// What an event says about sessions and their turns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Seen {
    /// A session was made or changed: its parent.
    Session { session: String, parent: Option<String> },
    /// A session was deleted. Its turn, if any, goes on.
    Deleted { session: String },
    /// A user message was stored or changed; created at, in Unix milliseconds.
    User { session: String, message: String, created: Option<i64> },
    /// An assistant message began or changed. It is complete, and an abort was the reason.
    Assistant { session: String, message: String, parent: Option<String>, completed: bool, aborted: bool },
    /// opencode works in the session, or waits to try again.
    Busy { session: String },
    /// Nothing runs in the session.
    Idle { session: String },
    /// Something went wrong in the session.
    Error { session: String },
    /// The instance of the frame's directory was closed.
    Disposed { directory: Option<String> },
}

/// The kinds that matter.
fn matters(kind: &str) -> bool {
    matches!(
        kind,
        "message.updated"
            | "session.status"
            | "session.idle"
            | "session.error"
            | "session.created"
            | "session.updated"
            | "session.deleted"
            | "server.instance.disposed"
    )
}

#[derive(Deserialize)]
struct Payload {
    #[serde(default)]
    properties: Properties,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Properties {
    #[serde(rename = "sessionID")]
    session: Option<String>,
    directory: Option<String>,
    info: Option<Info>,
    status: Option<Status>,
}

#[derive(Deserialize)]
struct Status {
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Info {
    id: String,
    role: String,
    #[serde(rename = "sessionID")]
    session: Option<String>,
    #[serde(rename = "parentID")]
    parent: Option<String>,
    time: Time,
    error: Option<Failure>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Failure {
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Time {
    created: Option<f64>,
    completed: Option<serde::de::IgnoredAny>,
}

impl Seen {
    /// Reads the payload of an event of this kind; `None` for one of no interest or another shape. Of kinds of no
    /// interest nothing is read.
    pub(crate) fn read(kind: &str, payload: &str) -> Option<Self> {
        if !matters(kind) {
            return None;
        }
        let Payload { properties } = serde_json::from_str(payload).ok()?;
        let Properties { session, directory, info, status } = properties;
        match kind {
            "session.status" => {
                let session = session?;
                Some(if status?.kind == "idle" { Self::Idle { session } } else { Self::Busy { session } })
            }
            "session.idle" => Some(Self::Idle { session: session? }),
            "session.error" => Some(Self::Error { session: session? }),
            "server.instance.disposed" => Some(Self::Disposed { directory }),
            "session.created" | "session.updated" => {
                let info = info?;
                Some(Self::Session { session: info.id, parent: info.parent })
            }
            "session.deleted" => Some(Self::Deleted { session: info?.id }),
            "message.updated" => Self::message(info?, session),
            _ => None,
        }
    }

    fn message(info: Info, session: Option<String>) -> Option<Self> {
        let session = info.session.or(session)?;
        let (message, parent) = (info.id, info.parent);
        #[expect(clippy::cast_possible_truncation, reason = "a number that is no time is none of ours")]
        let created = info.time.created.map(|created| created as i64);
        match info.role.as_str() {
            "user" => Some(Self::User { session, message, created }),
            "assistant" => {
                let completed = info.time.completed.is_some() || info.error.is_some();
                let aborted = info.error.is_some_and(|error| error.name == "MessageAbortedError");
                Some(Self::Assistant { session, message, parent, completed, aborted })
            }
            _ => None,
        }
    }

    /// The session that it is about.
    pub(crate) fn session(&self) -> Option<&str> {
        match self {
            Self::Session { session, .. }
            | Self::Deleted { session }
            | Self::User { session, .. }
            | Self::Assistant { session, .. }
            | Self::Busy { session }
            | Self::Idle { session }
            | Self::Error { session } => Some(session),
            Self::Disposed { .. } => None,
        }
    }
}
