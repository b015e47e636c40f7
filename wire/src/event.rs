//! The session event log: an append-only list per session, numbered by `seq` from 1 without holes.
//!
//! A payload is either an ACP `session/update` (see [`acp`]), ready to be forwarded to an ACP client, or one of
//! Berth's own kinds. Chunks of text say in `_meta` which part they belong to and where they start in it, so that
//! text is a fold: see [`Fold`].

pub use agent_client_protocol_schema::v1 as acp;
use jiff::Timestamp;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::{
    api::PromptPart,
    turn::{TurnError, TurnOutcome},
};

mod fold;
mod version;

pub use fold::{Fold, FoldError, FoldedPart};
pub use version::{to_current, unreadable};

/// Version of the payloads that this code writes.
pub const PAYLOAD_VERSION: i64 = 1;

/// Key in `_meta` of a chunk: `{"id": <part id>, "offset": <UTF-8 bytes of the part before this chunk>}`.
pub const PART_META: &str = "berth.dev/part";

/// Key in `_meta` of a tool call that gives work to a subagent: opencode's id of the subagent's session, `ses_...`.
pub const SUBSESSION_META: &str = "berth.dev/subsession";

/// One entry of a session's log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionEvent {
    /// The session.
    pub session_id: Uuid,
    /// Number in the session's log, from 1, dense.
    pub seq: i64,
    /// The turn it belongs to, if any.
    pub turn_id: Option<Uuid>,
    /// When it was committed.
    pub at: Timestamp,
    /// What happened: `kind` and `payload`.
    #[serde(flatten)]
    pub payload: EventPayload,
}

/// Shape of [`SessionEvent`] for the OpenAPI document.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = SessionEvent)]
pub struct SessionEventSchema {
    /// The session.
    pub session_id: Uuid,
    /// Number in the session's log, from 1, dense.
    pub seq: i64,
    /// The turn it belongs to, if any.
    pub turn_id: Option<Uuid>,
    /// When it was committed.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// An ACP session update kind, or one of Berth's own kinds.
    pub kind: String,
    /// Its content; for ACP kinds the session update itself.
    #[schema(value_type = Object)]
    pub payload: Value,
}

/// Which of the agent's two voices a part is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Voice {
    /// What it says.
    Message,
    /// What it thinks.
    Thought,
}

/// Where a chunk stands in its part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartPosition {
    /// Part id.
    pub id: String,
    /// UTF-8 bytes of the part before this chunk.
    pub offset: u64,
}

/// A prompt was accepted and waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnQueued {
    /// The prompt.
    pub prompt: Vec<PromptPart>,
}

/// A prompt was sent to opencode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnStarted {
    /// The prompt.
    pub prompt: Vec<PromptPart>,
}

/// A part that was streamed will not be completed: what was shown of it is void.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartVoided {
    /// Part id.
    pub part_id: String,
}

/// A part turned out different from what was streamed of it: this is its whole text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartReplaced {
    /// Part id.
    pub part_id: String,
    /// Which voice.
    pub voice: Voice,
    /// Whole text so far; later chunks start at its length.
    pub text: String,
}

/// The agent asks for a permission; the turn waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermissionRequested {
    /// Id to answer with.
    pub permission_id: String,
    /// What kind of thing is asked for, such as `bash`, `edit` or `external_directory`.
    pub permission: String,
    /// What exactly, such as the command.
    pub patterns: Vec<String>,
    /// What `always` would allow.
    pub always: Vec<String>,
    /// The tool call that waits, if one does.
    pub tool_call_id: Option<String>,
    /// For a person, in one line.
    pub title: String,
    /// opencode's own details.
    pub metadata: Value,
    /// Set by the server: when the default (reject) is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

/// How a permission or question request came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resolution {
    /// Allowed once.
    Once,
    /// Allowed, and remembered.
    Always,
    /// Refused.
    Rejected,
    /// A question was answered.
    Answered,
    /// Its turn ended first.
    Dropped,
}

/// Who brought it about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResolvedBy {
    /// Somebody through this API.
    User,
    /// An earlier `always`.
    Rule,
    /// Nobody answered in time.
    Deadline,
    /// opencode, or somebody who talks to it directly.
    Opencode,
}

/// A permission request came to its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermissionResolved {
    /// Its id.
    pub permission_id: String,
    /// How.
    pub resolution: Resolution,
    /// By whom.
    pub by: ResolvedBy,
}

/// One question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// The question.
    pub question: String,
    /// A short label.
    #[serde(default)]
    pub header: String,
    /// More than one option may be chosen.
    #[serde(default)]
    pub multiple: bool,
    /// What may be chosen; free text is accepted too.
    #[serde(default)]
    pub options: Vec<QuestionOption>,
}

/// One option of a question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuestionOption {
    /// What is answered.
    pub label: String,
    /// What it means.
    #[serde(default)]
    pub description: String,
}

/// The agent asks questions; the turn waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuestionRequested {
    /// Id to answer with.
    pub question_id: String,
    /// The questions, in order.
    pub questions: Vec<Question>,
    /// The tool call that waits, if one does.
    pub tool_call_id: Option<String>,
}

/// A question request came to its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuestionResolved {
    /// Its id.
    pub question_id: String,
    /// How.
    pub resolution: Resolution,
    /// By whom.
    pub by: ResolvedBy,
}

/// opencode calls the provider again after an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderRetry {
    /// How many times it has tried.
    pub attempt: u64,
    /// The provider's words.
    pub message: String,
    /// When the next try is due.
    pub next_at: Option<Timestamp>,
    /// The tool call whose subagent waits, when it is not the agent itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

/// A message of an earlier turn was removed from opencode's session, by a revert for example: the agent no longer
/// knows of it. The log keeps what it said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageRemoved {
    /// opencode's id of the message: a prompt, under which its turn was started, or a step of the agent.
    pub message_id: String,
}

/// A turn inside opencode that did not come through this API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionReset {
    /// opencode's id before.
    pub previous: Option<String>,
    /// opencode's id now.
    pub current: String,
}

/// Stands in the place of an entry that this version cannot read: a newer Berth wrote it, or its row is damaged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unreadable {
    /// Its kind.
    pub kind: String,
    /// The version of its payload; this one reads up to [`PAYLOAD_VERSION`].
    pub version: i64,
}

/// What a log entry says.
#[derive(Debug, Clone, PartialEq)]
pub enum EventPayload {
    /// An ACP session update.
    Update(Box<acp::SessionUpdate>),
    /// `turn_queued`
    TurnQueued(TurnQueued),
    /// `turn_started`
    TurnStarted(TurnStarted),
    /// `turn_ended`: exactly one for each turn, and nothing of the turn after it.
    TurnEnded(TurnOutcome),
    /// `turn_error`: an error that did not end the turn.
    TurnError(TurnError),
    /// `part_voided`
    PartVoided(PartVoided),
    /// `part_replaced`
    PartReplaced(PartReplaced),
    /// `permission_requested`
    PermissionRequested(PermissionRequested),
    /// `permission_resolved`
    PermissionResolved(PermissionResolved),
    /// `question_requested`
    QuestionRequested(QuestionRequested),
    /// `question_resolved`
    QuestionResolved(QuestionResolved),
    /// `provider_retry`
    ProviderRetry(ProviderRetry),
    /// `message_removed`
    MessageRemoved(MessageRemoved),
    /// `session_reset`: opencode had lost the session, and it was made anew without its history.
    SessionReset(SessionReset),
    /// `unreadable`
    Unreadable(Unreadable),
    /// A kind of a newer Berth.
    Unknown {
        /// Its kind.
        kind: String,
        /// Its content.
        payload: Value,
    },
}

impl EventPayload {
    /// A chunk of text at `offset` bytes of part `part_id`.
    pub fn chunk(voice: Voice, part_id: &str, offset: u64, text: &str) -> Self {
        let mut meta = Map::new();
        meta.insert(PART_META.to_owned(), json!({ "id": part_id, "offset": offset }));
        let content = acp::ContentBlock::Text(acp::TextContent::new(text));
        let chunk = acp::ContentChunk::new(content).meta(meta);
        Self::from(match voice {
            Voice::Message => acp::SessionUpdate::AgentMessageChunk(chunk),
            Voice::Thought => acp::SessionUpdate::AgentThoughtChunk(chunk),
        })
    }

    /// Voice, position and text, if this is a chunk of text.
    pub fn as_chunk(&self) -> Option<(Voice, PartPosition, &str)> {
        let Self::Update(update) = self else { return None };
        let (voice, chunk) = match &**update {
            acp::SessionUpdate::AgentMessageChunk(chunk) => (Voice::Message, chunk),
            acp::SessionUpdate::AgentThoughtChunk(chunk) => (Voice::Thought, chunk),
            _ => return None,
        };
        let acp::ContentBlock::Text(text) = &chunk.content else { return None };
        let position = chunk.meta.as_ref()?.get(PART_META)?;
        Some((voice, PartPosition::deserialize(position).ok()?, text.text.as_str()))
    }

    /// Splits into `kind` and `payload`, as they are stored and sent.
    pub fn to_parts(&self) -> (String, Value) {
        let own = |kind: &str, value: Result<Value, serde_json::Error>| {
            (kind.to_owned(), value.expect("own payloads are plain data and serialise"))
        };
        match self {
            Self::Update(update) => {
                let value = serde_json::to_value(update).expect("ACP updates are plain data and serialise");
                (value["sessionUpdate"].as_str().unwrap_or("update").to_owned(), value)
            }
            Self::TurnQueued(p) => own("turn_queued", serde_json::to_value(p)),
            Self::TurnStarted(p) => own("turn_started", serde_json::to_value(p)),
            Self::TurnEnded(p) => own("turn_ended", serde_json::to_value(p)),
            Self::TurnError(p) => own("turn_error", serde_json::to_value(p)),
            Self::PartVoided(p) => own("part_voided", serde_json::to_value(p)),
            Self::PartReplaced(p) => own("part_replaced", serde_json::to_value(p)),
            Self::PermissionRequested(p) => own("permission_requested", serde_json::to_value(p)),
            Self::PermissionResolved(p) => own("permission_resolved", serde_json::to_value(p)),
            Self::QuestionRequested(p) => own("question_requested", serde_json::to_value(p)),
            Self::QuestionResolved(p) => own("question_resolved", serde_json::to_value(p)),
            Self::ProviderRetry(p) => own("provider_retry", serde_json::to_value(p)),
            Self::MessageRemoved(p) => own("message_removed", serde_json::to_value(p)),
            Self::SessionReset(p) => own("session_reset", serde_json::to_value(p)),
            Self::Unreadable(p) => own(version::UNREADABLE, serde_json::to_value(p)),
            Self::Unknown { kind, payload } => (kind.clone(), payload.clone()),
        }
    }

    /// The reverse of [`Self::to_parts`]; what is not understood becomes [`Self::Unknown`].
    pub fn from_parts(kind: &str, payload: Value) -> Self {
        fn own<T: DeserializeOwned>(
            kind: &str,
            payload: Value,
            wrap: impl FnOnce(T) -> EventPayload,
        ) -> EventPayload {
            match T::deserialize(&payload) {
                Ok(value) => wrap(value),
                Err(_) => EventPayload::Unknown { kind: kind.to_owned(), payload },
            }
        }
        match kind {
            "turn_queued" => own(kind, payload, Self::TurnQueued),
            "turn_started" => own(kind, payload, Self::TurnStarted),
            "turn_ended" => own(kind, payload, Self::TurnEnded),
            "turn_error" => own(kind, payload, Self::TurnError),
            "part_voided" => own(kind, payload, Self::PartVoided),
            "part_replaced" => own(kind, payload, Self::PartReplaced),
            "permission_requested" => own(kind, payload, Self::PermissionRequested),
            "permission_resolved" => own(kind, payload, Self::PermissionResolved),
            "question_requested" => own(kind, payload, Self::QuestionRequested),
            "question_resolved" => own(kind, payload, Self::QuestionResolved),
            "provider_retry" => own(kind, payload, Self::ProviderRetry),
            "message_removed" => own(kind, payload, Self::MessageRemoved),
            "session_reset" => own(kind, payload, Self::SessionReset),
            version::UNREADABLE => own(kind, payload, Self::Unreadable),
            _ => own(kind, payload, |update: acp::SessionUpdate| Self::Update(Box::new(update))),
        }
    }
}

impl From<acp::SessionUpdate> for EventPayload {
    fn from(update: acp::SessionUpdate) -> Self {
        Self::Update(Box::new(update))
    }
}

#[derive(Serialize, Deserialize)]
struct KindAndPayload {
    kind: String,
    payload: Value,
}

impl Serialize for EventPayload {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (kind, payload) = self.to_parts();
        KindAndPayload { kind, payload }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for EventPayload {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let KindAndPayload { kind, payload } = KindAndPayload::deserialize(deserializer)?;
        Ok(Self::from_parts(&kind, payload))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::turn::TurnStopReason;

    #[test]
    fn payloads_round_trip() {
        let payloads = [
            EventPayload::chunk(Voice::Message, "prt_1", 7, "naïve 🦀"),
            EventPayload::TurnEnded(TurnOutcome::succeeded(TurnStopReason::EndTurn)),
            EventPayload::PartVoided(PartVoided { part_id: "prt_1".to_owned() }),
            EventPayload::Unknown { kind: "from_the_future".to_owned(), payload: json!({ "a": 1 }) },
        ];
        for payload in payloads {
            let event = SessionEvent {
                session_id: Uuid::nil(),
                seq: 1,
                turn_id: None,
                at: Timestamp::UNIX_EPOCH,
                payload,
            };
            let text = serde_json::to_string(&event).unwrap();
            assert_eq!(serde_json::from_str::<SessionEvent>(&text).unwrap(), event, "{text}");
        }
    }

    #[test]
    fn a_chunk_tells_its_position() {
        let chunk = EventPayload::chunk(Voice::Thought, "prt_1", 7, "hm");
        let (voice, position, text) = chunk.as_chunk().unwrap();
        assert_eq!((voice, position.id.as_str(), position.offset, text), (Voice::Thought, "prt_1", 7, "hm"));
    }
}
