//! DTOs of the server's HTTP API. Field names are snake_case; times are RFC 3339 in UTC; ids are UUIDv7.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::turn::{TurnError, TurnState, TurnStopReason, Usage};

/// Longest accepted `Idempotency-Key`, in bytes.
pub const IDEMPOTENCY_KEY_MAX: usize = 255;

/// Header that makes `POST .../messages` safe to repeat.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// A page of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    /// The items, in the order that the route states.
    pub items: Vec<T>,
}

/// Where a sandbox's opencode stands, as its door sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SandboxPhase {
    /// opencode is being started, or restarted after an exit.
    Starting,
    /// opencode answers.
    Ready,
    /// opencode was stopped and will not be started by itself.
    Stopped,
    /// The door itself cannot be reached.
    Unreachable,
}

/// An agent's sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Sandbox {
    /// Namespace; `local` in local mode.
    pub namespace: String,
    /// Name, unique in its namespace.
    pub name: String,
    /// Absolute path of the working directory inside the sandbox.
    pub directory: String,
    /// Where its opencode stands.
    pub phase: SandboxPhase,
    /// opencode's version, once it has answered.
    pub opencode_version: Option<String>,
    /// How many times opencode has been started since the supervisor started.
    pub boot: u64,
}

/// Body of `POST /v1/sandboxes/{namespace}/{name}/sessions`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSession {
    /// Title, 1 to 200 characters; opencode writes one after the first turn when absent.
    #[serde(default)]
    pub title: Option<String>,
}

/// Body of `PATCH /v1/sessions/{id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RenameSession {
    /// Title, 1 to 200 characters.
    pub title: String,
}

/// A conversation with the agent of one sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Session {
    /// Id (UUIDv7).
    pub id: Uuid,
    /// Namespace of its sandbox.
    pub namespace: String,
    /// Name of its sandbox.
    pub sandbox: String,
    /// Absolute working directory inside the sandbox.
    pub directory: String,
    /// Title, if it has one.
    pub title: Option<String>,
    /// opencode's own id, once the first prompt was sent.
    pub opencode_session_id: Option<String>,
    /// Highest `seq` in its event log; 0 when empty.
    pub last_seq: i64,
    /// Turns that have not ended: the running one and those queued behind it, oldest first.
    pub open_turns: Vec<Uuid>,
    /// When it was created.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When its row last changed.
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
}

/// One part of a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum PromptPart {
    /// Plain text.
    Text {
        /// The text, not blank.
        text: String,
    },
}

impl PromptPart {
    /// The text of this part.
    pub fn text(&self) -> &str {
        match self {
            Self::Text { text } => text,
        }
    }
}

/// Body of `POST /v1/sessions/{id}/messages`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PostMessage {
    /// The prompt, at least one part.
    pub parts: Vec<PromptPart>,
}

impl PostMessage {
    /// A prompt of one text part.
    pub fn text(text: impl Into<String>) -> Self {
        Self { parts: vec![PromptPart::Text { text: text.into() }] }
    }
}

/// A prompt and what became of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Turn {
    /// Id (UUIDv7).
    pub id: Uuid,
    /// Session it belongs to.
    pub session_id: Uuid,
    /// Position in its session, from 1, in the order of acceptance.
    pub ordinal: i64,
    /// Where it stands.
    pub state: TurnState,
    /// The prompt.
    pub prompt: Vec<PromptPart>,
    /// Why the agent stopped; absent while it runs and when it failed.
    pub stop_reason: Option<TurnStopReason>,
    /// What went wrong; only on `failed` and `unknown`.
    pub error: Option<TurnError>,
    /// Tokens and cost; absent until known.
    pub usage: Option<Usage>,
    /// When the prompt was accepted.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When it was sent to opencode.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ended_at: Option<Timestamp>,
}

/// One turn of a session's assembled history: the prompt, and the fold of what the agent said.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HistoryTurn {
    /// The turn.
    pub turn: Turn,
    /// The agent's text, parts in order of first sight, joined without a separator.
    pub text: String,
    /// The agent's thoughts, likewise.
    pub thought: String,
    /// Its tool calls, in order of first sight.
    pub tool_calls: Vec<HistoryToolCall>,
}

/// A tool call in assembled history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HistoryToolCall {
    /// ACP tool call id.
    pub tool_call_id: String,
    /// Last title seen.
    pub title: String,
    /// Last status seen: `pending`, `in_progress`, `completed` or `failed`.
    pub status: String,
}

/// Body of `POST /v1/sessions/{id}/cancel`; an empty body means the defaults.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelRequest {
    /// Also drop the prompts that wait in the queue.
    #[serde(default)]
    pub queued: bool,
    /// End this turn and no other; not together with `queued`.
    #[serde(default)]
    pub turn: Option<Uuid>,
}

impl CancelRequest {
    /// Ends everything that is open in the session.
    pub fn all() -> Self {
        Self { queued: true, turn: None }
    }

    /// Ends one turn, wherever it stands.
    pub fn only(turn: Uuid) -> Self {
        Self { queued: false, turn: Some(turn) }
    }
}

/// Answer of `POST /v1/sessions/{id}/cancel`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CancelResponse {
    /// The turns that this call asked to end; empty when nothing was open.
    pub turns: Vec<Uuid>,
}

/// A person's decision on a permission request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PermissionDecision {
    /// Allow this one.
    Once,
    /// Allow this and every later request that matches one of its `always` patterns, in this session.
    Always,
    /// Refuse it; opencode ends the turn, unless a message tells the agent what to do instead.
    Reject,
}

/// Body of `POST /v1/sessions/{id}/permissions/{pid}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PermissionAnswer {
    /// The decision.
    pub decision: PermissionDecision,
    /// With `reject`: what the agent is told, and it goes on instead of ending the turn.
    #[serde(default)]
    pub message: Option<String>,
}

/// Body of `POST /v1/sessions/{id}/questions/{qid}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct QuestionAnswer {
    /// One list of chosen labels (or free text) for each question, in order; `null` rejects the request.
    pub answers: Option<Vec<Vec<String>>>,
}
