//! opencode's events, as `GET /event` and `GET /global/event` send them, and the door's own. Pure.
//!
//! `/global/event` wraps each event in `{"directory", "project", "payload": {...}}` (without `directory` for those of
//! the server itself), `/event` sends the payload bare; both are read. A kind that is not known is
//! [`Event::Unknown`], never an error. A known kind without the fields that matter is an [`EventError`].

use berth_wire::door::DoorEvent;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use crate::model::{
    ErrorInfo, MessageInfo, Part, PermissionRequest, QuestionRequest, SessionInfo, SessionStatus, Todo,
};

/// One event and where it came from.
#[derive(Debug, Clone, PartialEq)]
pub struct GlobalEvent {
    /// The directory whose instance sent it; absent for events of the server, of the door, and of `/event`.
    pub directory: Option<String>,
    /// opencode's name for it, such as `message.part.delta`.
    pub kind: String,
    /// What it says.
    pub event: Event,
}

/// Why a frame is not an event.
#[derive(Debug, thiserror::Error)]
pub enum EventError {
    /// It is not JSON.
    #[error("a frame of the event stream is not JSON")]
    NotJson(#[source] serde_json::Error),
    /// It is JSON without a `type`.
    #[error("a frame of the event stream has no type")]
    NoType,
    /// Its kind is known, but it lacks fields of that kind.
    #[error("an event of kind {kind} has an unexpected shape")]
    Shape {
        /// Its kind.
        kind: String,
        /// What is missing or wrong.
        #[source]
        source: serde_json::Error,
    },
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The subscription stands.
    ServerConnected,
    /// Each 10 s.
    ServerHeartbeat,
    /// A session was made.
    SessionCreated(SessionInfo),
    /// A session changed.
    SessionUpdated(SessionInfo),
    /// A session was deleted; its turn, if any, goes on.
    SessionDeleted(SessionInfo),
    /// A session began, waits or ended.
    SessionStatus {
        /// The session.
        session_id: String,
        /// What it does.
        status: SessionStatus,
    },
    /// A session has nothing to do. Also sent when something was aborted that had not begun.
    SessionIdle {
        /// The session.
        session_id: String,
    },
    /// Something went wrong in a session; not always the end of its turn.
    SessionError {
        /// The session, when there is one.
        session_id: Option<String>,
        /// What.
        error: Option<ErrorInfo>,
    },
    /// A message was made or changed.
    MessageUpdated(Box<MessageInfo>),
    /// A message was removed.
    MessageRemoved {
        /// Its session.
        session_id: String,
        /// The message.
        message_id: String,
    },
    /// A part was made or changed: this is the whole part.
    PartUpdated(Box<Part>),
    /// More of a part's text.
    PartDelta(PartDelta),
    /// A part was removed.
    PartRemoved {
        /// Its session.
        session_id: String,
        /// Its message.
        message_id: String,
        /// The part.
        part_id: String,
    },
    /// A permission is asked for.
    PermissionAsked(PermissionRequest),
    /// A request for a permission was answered.
    PermissionReplied {
        /// The session that asked.
        session_id: String,
        /// The request.
        request_id: String,
        /// `once`, `always` or `reject`.
        reply: String,
    },
    /// Questions are asked.
    QuestionAsked(QuestionRequest),
    /// Questions were answered.
    QuestionReplied {
        /// The session that asked.
        session_id: String,
        /// The request.
        request_id: String,
    },
    /// Questions were dismissed.
    QuestionRejected {
        /// The session that asked.
        session_id: String,
        /// The request.
        request_id: String,
    },
    /// The list of things to do changed: this is the whole list.
    TodoUpdated {
        /// The session.
        session_id: String,
        /// The list.
        todos: Vec<Todo>,
    },
    /// A directory's instance was closed, with what ran in it.
    InstanceDisposed {
        /// The directory.
        directory: String,
    },
    /// All instances were closed.
    GlobalDisposed,
    /// An event of the door.
    Door(DoorEvent),
    /// A kind that is not read; [`GlobalEvent::kind`] names it.
    Unknown,
}

impl Event {
    /// The session that the event is about, if it is about one.
    pub fn session_id(&self) -> Option<&str> {
        match self {
            Self::SessionCreated(info) | Self::SessionUpdated(info) | Self::SessionDeleted(info) => {
                Some(&info.id)
            }
            Self::SessionStatus { session_id, .. }
            | Self::SessionIdle { session_id }
            | Self::MessageRemoved { session_id, .. }
            | Self::PartRemoved { session_id, .. }
            | Self::PermissionReplied { session_id, .. }
            | Self::QuestionReplied { session_id, .. }
            | Self::QuestionRejected { session_id, .. }
            | Self::TodoUpdated { session_id, .. } => Some(session_id),
            Self::SessionError { session_id, .. } => session_id.as_deref(),
            Self::MessageUpdated(info) => Some(&info.session_id),
            Self::PartUpdated(part) => Some(&part.session_id),
            Self::PartDelta(delta) => Some(&delta.session_id),
            Self::PermissionAsked(request) => Some(&request.session_id),
            Self::QuestionAsked(request) => Some(&request.session_id),
            Self::ServerConnected
            | Self::ServerHeartbeat
            | Self::InstanceDisposed { .. }
            | Self::GlobalDisposed
            | Self::Door(_)
            | Self::Unknown => None,
        }
    }

    /// The session that a session works for, when the event tells it.
    pub fn parent_id(&self) -> Option<&str> {
        match self {
            Self::SessionCreated(info) | Self::SessionUpdated(info) => info.parent_id.as_deref(),
            _ => None,
        }
    }
}

/// More of a part's text.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct PartDelta {
    /// Its session.
    #[serde(rename = "sessionID")]
    pub session_id: String,
    /// Its message.
    #[serde(rename = "messageID")]
    pub message_id: String,
    /// The part. Its kind is not told: text and reasoning look alike here.
    #[serde(rename = "partID")]
    pub part_id: String,
    /// The field that grows; `text` for text and reasoning.
    pub field: String,
    /// What is appended.
    pub delta: String,
}

#[derive(Deserialize)]
struct WithInfo<T> {
    info: T,
}

#[derive(Deserialize)]
struct WithPart {
    part: Part,
}

/// Ids and payloads of the small events.
#[derive(Deserialize)]
struct InSession {
    #[serde(rename = "sessionID")]
    session_id: String,
}

#[derive(Deserialize)]
struct StatusProperties {
    #[serde(rename = "sessionID")]
    session_id: String,
    status: SessionStatus,
}

#[derive(Deserialize)]
struct ErrorProperties {
    #[serde(default, rename = "sessionID")]
    session_id: Option<String>,
    #[serde(default)]
    error: Option<ErrorInfo>,
}

#[derive(Deserialize)]
struct RemovedProperties {
    #[serde(rename = "sessionID")]
    session: String,
    #[serde(rename = "messageID")]
    message: String,
    #[serde(default, rename = "partID")]
    part: String,
}

#[derive(Deserialize)]
struct RepliedProperties {
    #[serde(rename = "sessionID")]
    session_id: String,
    #[serde(rename = "requestID")]
    request_id: String,
    #[serde(default)]
    reply: String,
}

#[derive(Deserialize)]
struct TodoProperties {
    #[serde(rename = "sessionID")]
    session_id: String,
    todos: Vec<Todo>,
}

#[derive(Deserialize)]
struct DisposedProperties {
    directory: String,
}

impl GlobalEvent {
    /// Reads the data of one frame.
    pub fn parse(data: &str) -> Result<Self, EventError> {
        Self::from_value(serde_json::from_str(data).map_err(EventError::NotJson)?)
    }

    /// Reads the JSON of one frame.
    pub fn from_value(mut frame: Value) -> Result<Self, EventError> {
        let directory = frame.get("directory").and_then(Value::as_str).map(str::to_owned);
        let mut payload = match frame.get_mut("payload") {
            Some(payload) => payload.take(),
            None => frame,
        };
        let kind = payload.get("type").and_then(Value::as_str).ok_or(EventError::NoType)?.to_owned();
        let event = if kind.starts_with("berth.") {
            // A kind of a newer door is as unknown as one of a newer opencode.
            DoorEvent::deserialize(&payload).map_or(Event::Unknown, Event::Door)
        } else {
            let properties = payload.get_mut("properties").map(Value::take).unwrap_or_default();
            Event::read(&kind, properties)
                .map_err(|source| EventError::Shape { kind: kind.clone(), source })?
        };
        Ok(Self { directory, kind, event })
    }
}

fn read<T: DeserializeOwned>(properties: Value) -> Result<T, serde_json::Error> {
    serde_json::from_value(properties)
}

impl Event {
    fn read(kind: &str, properties: Value) -> Result<Self, serde_json::Error> {
        Ok(match kind {
            "server.connected" => Self::ServerConnected,
            "server.heartbeat" => Self::ServerHeartbeat,
            "session.created" => Self::SessionCreated(read::<WithInfo<_>>(properties)?.info),
            "session.updated" => Self::SessionUpdated(read::<WithInfo<_>>(properties)?.info),
            "session.deleted" => Self::SessionDeleted(read::<WithInfo<_>>(properties)?.info),
            "session.status" => {
                let StatusProperties { session_id, status } = read(properties)?;
                Self::SessionStatus { session_id, status }
            }
            "session.idle" => Self::SessionIdle { session_id: read::<InSession>(properties)?.session_id },
            "session.error" => {
                let ErrorProperties { session_id, error } = read(properties)?;
                Self::SessionError { session_id, error }
            }
            "message.updated" => Self::MessageUpdated(read::<WithInfo<_>>(properties)?.info),
            "message.removed" => {
                let RemovedProperties { session: session_id, message: message_id, part: _ } =
                    read(properties)?;
                Self::MessageRemoved { session_id, message_id }
            }
            "message.part.updated" => Self::PartUpdated(Box::new(read::<WithPart>(properties)?.part)),
            "message.part.delta" => Self::PartDelta(read(properties)?),
            "message.part.removed" => {
                let removed: RemovedProperties = read(properties)?;
                Self::PartRemoved {
                    session_id: removed.session,
                    message_id: removed.message,
                    part_id: removed.part,
                }
            }
            "permission.asked" => Self::PermissionAsked(read(properties)?),
            "question.asked" => Self::QuestionAsked(read(properties)?),
            "permission.replied" | "question.replied" | "question.rejected" => {
                Self::replied(kind, read(properties)?)
            }
            "todo.updated" => {
                let TodoProperties { session_id, todos } = read(properties)?;
                Self::TodoUpdated { session_id, todos }
            }
            "server.instance.disposed" => {
                let DisposedProperties { directory } = read(properties)?;
                Self::InstanceDisposed { directory }
            }
            "global.disposed" => Self::GlobalDisposed,
            _ => Self::Unknown,
        })
    }

    fn replied(kind: &str, replied: RepliedProperties) -> Self {
        let RepliedProperties { session_id, request_id, reply } = replied;
        match kind {
            "permission.replied" => Self::PermissionReplied { session_id, request_id, reply },
            "question.replied" => Self::QuestionReplied { session_id, request_id },
            _ => Self::QuestionRejected { session_id, request_id },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_envelopes_are_read() {
        let bare = r#"{"id":"evt_1","type":"session.idle","properties":{"sessionID":"ses_1"}}"#;
        let global = format!(r#"{{"directory":"/w","project":"global","payload":{bare}}}"#);
        let idle = Event::SessionIdle { session_id: "ses_1".to_owned() };
        let event = GlobalEvent::parse(bare).unwrap();
        assert_eq!((event.directory, event.event), (None, idle.clone()));
        let event = GlobalEvent::parse(&global).unwrap();
        assert_eq!((event.directory.as_deref(), event.kind.as_str()), (Some("/w"), "session.idle"));
        assert_eq!(event.event, idle);
    }

    #[test]
    fn the_doors_events_are_read() {
        let text = r#"{"payload":{"type":"berth.resync","properties":{"reason":"expired","oldest":null}}}"#;
        assert!(matches!(GlobalEvent::parse(text).unwrap().event, Event::Door(DoorEvent::Resync { .. })));
        let text = r#"{"payload":{"type":"berth.turn","properties":{"session_id":"ses_1","phase":"admitted","origin":"external"}}}"#;
        let parsed = GlobalEvent::parse(text).unwrap().event;
        assert!(matches!(parsed, Event::Door(DoorEvent::Turn(_))), "{parsed:?}");
        let text = r#"{"payload":{"type":"berth.of-a-newer-door","properties":{}}}"#;
        assert_eq!(GlobalEvent::parse(text).unwrap().event, Event::Unknown);
    }

    #[test]
    fn unknown_kinds_and_fields_are_no_errors() {
        let text = r#"{"type":"session.next.prompted","properties":{"sessionID":"ses_1"}}"#;
        assert_eq!(GlobalEvent::parse(text).unwrap().event, Event::Unknown);
        let text = r#"{"payload":{"type":"sync","syncEvent":{"seq":3}}}"#;
        assert_eq!(GlobalEvent::parse(text).unwrap().event, Event::Unknown);
        let text = r#"{"type":"session.status","properties":{"sessionID":"s","status":{"type":"dreaming","of":"sheep"}}}"#;
        let status = SessionStatus::Other;
        assert_eq!(
            GlobalEvent::parse(text).unwrap().event,
            Event::SessionStatus { session_id: "s".to_owned(), status }
        );
    }

    #[test]
    fn odd_values_of_what_is_only_shown_lose_no_event() {
        let text = r#"{"type":"message.updated","properties":{"info":{"id":"m","sessionID":"s","role":"assistant",
            "time":{"created":1,"completed":2},"cost":null,"tokens":{"input":-1,"output":"x"},"finish":7}}}"#;
        let Event::MessageUpdated(info) = GlobalEvent::parse(text).unwrap().event else {
            panic!("a message")
        };
        assert_eq!((info.time.completed, info.tokens.input, info.finish), (Some(2), 0, None));
    }

    #[test]
    fn a_retry_is_told_whatever_its_numbers_are() {
        for (next, wanted) in
            [("1796014140297.5", 1_796_014_140_297), ("\"soon\"", 0), ("1e300", i64::MAX), ("null", 0)]
        {
            let status = format!(r#"{{"type":"retry","attempt":-1,"message":null,"next":{next}}}"#);
            let text =
                format!(r#"{{"type":"session.status","properties":{{"sessionID":"s","status":{status}}}}}"#);
            let Event::SessionStatus { status: SessionStatus::Retry { next, .. }, .. } =
                GlobalEvent::parse(&text).unwrap().event
            else {
                panic!("a retry: {text}")
            };
            assert_eq!(next, wanted, "{text}");
        }
    }

    #[test]
    fn what_is_no_event_is_typed() {
        assert!(matches!(GlobalEvent::parse("{"), Err(EventError::NotJson(_))));
        assert!(matches!(GlobalEvent::parse("[]"), Err(EventError::NoType)));
        assert!(matches!(GlobalEvent::parse(r#"{"payload":{}}"#), Err(EventError::NoType)));
        let error = GlobalEvent::parse(r#"{"type":"session.idle","properties":{}}"#).unwrap_err();
        assert!(matches!(&error, EventError::Shape { kind, .. } if kind == "session.idle"), "{error:?}");
    }
}
