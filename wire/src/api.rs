//! DTOs of the server's HTTP API. Field names are snake_case; times are RFC 3339 in UTC; ids are UUIDv7.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::turn::{TurnError, TurnState, TurnStopReason, Usage};

mod files;
mod list;
mod prompt;

pub use files::{FileChange, FileChangeStatus, FileEntry, FileKind};
pub use list::{LIST_DEFAULT, LIST_MAX, ListOrder, ListQuery, Page, SessionFilter};
pub use prompt::{
    DATA_URL_MAX, ModelChoice, PARTS_MAX, ParseModelError, PostMessage, PromptPart, shown_prompt,
};

/// Longest accepted `Idempotency-Key`, in bytes.
pub const IDEMPOTENCY_KEY_MAX: usize = 255;

/// Header that makes `POST .../messages` safe to repeat.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";

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

/// A model that a sandbox's opencode is configured with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ModelInfo {
    /// What to put into `PostMessage.model`.
    pub id: ModelChoice,
    /// Its name for a person.
    pub name: String,
    /// Its provider's name for a person.
    pub provider: String,
    /// Tokens that it takes, its answer included; absent where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_tokens: Option<u64>,
    /// It takes images.
    #[serde(default)]
    pub images: bool,
    /// It is what opencode takes where no model is named.
    #[serde(default)]
    pub default: bool,
}

/// How an agent of opencode can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AgentMode {
    /// By a prompt.
    Primary,
    /// By another agent, or where a prompt mentions it.
    Subagent,
    /// In both ways.
    All,
}

/// An agent that a sandbox's opencode is configured with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AgentInfo {
    /// What to put into `PostMessage.agent`, or into an agent part.
    pub name: String,
    /// What it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// How it can be used.
    pub mode: AgentMode,
    /// The model that it is tied to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelChoice>,
}

/// Body of `POST /v1/sandboxes/{namespace}/{name}/sessions`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSession {
    /// Title, 1 to 200 characters; opencode writes one after the first turn when absent.
    #[schema(min_length = 1, max_length = 200, pattern = r"\S")]
    #[serde(default)]
    pub title: Option<String>,
}

/// Body of `PATCH /v1/sessions/{id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RenameSession {
    /// Title, 1 to 200 characters.
    #[schema(min_length = 1, max_length = 200, pattern = r"\S", example = "Fix the login page")]
    pub title: String,
}

/// A conversation with the agent of one sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
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
    /// What it does.
    pub state: SessionState,
    /// Highest `seq` in its event log; 0 when empty.
    pub last_seq: i64,
    /// Turns that have not ended: the running one and those queued behind it, oldest first.
    pub open_turns: Vec<Uuid>,
    /// Tokens and cost of all its turns, those of subagents not included.
    pub usage: Usage,
    /// When it was created.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When its row last changed.
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
}

/// What a session does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    /// Nothing.
    Idle,
    /// A prompt waits to be sent to opencode.
    Queued,
    /// A turn runs.
    Running,
    /// A turn runs, and waits for a person's answer to a permission or a question.
    Waiting,
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
    /// The prompt. What a `data:` URL held is not repeated here: see [`PromptPart::File`].
    pub prompt: Vec<PromptPart>,
    /// The model that was asked for; absent where the session's own was to be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelChoice>,
    /// The agent that was asked for, by name; absent where the default one was to be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The turn whose prompt this one repeats, if it came from a retry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_of: Option<Uuid>,
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
    /// Its prompt was removed from opencode's session later, by a revert for example: the agent no longer knows of
    /// this turn.
    #[serde(default)]
    pub removed: bool,
    /// Its prompt is still there, but some of the agent's messages in it were removed from opencode's session later.
    #[serde(default)]
    pub partly_removed: bool,
    /// The agent's text, parts in order of first sight, joined without a separator.
    pub text: String,
    /// Where in `text` each part but the first begins, in bytes of UTF-8, ascending.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub text_breaks: Vec<usize>,
    /// The agent's thoughts, likewise.
    pub thought: String,
    /// Its tool calls, in order of first sight.
    pub tool_calls: Vec<HistoryToolCall>,
}

impl HistoryTurn {
    /// The agent's text part by part, those without a word left out.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        let starts = std::iter::once(0).chain(self.text_breaks.iter().copied());
        let ends = self.text_breaks.iter().copied().chain([self.text.len()]);
        starts
            .zip(ends)
            .filter_map(|(start, end)| self.text.get(start..end))
            .filter(|text| !text.trim().is_empty())
    }
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
    /// With `reject` only: what the agent is told, and it goes on instead of ending the turn.
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn said(text: &str, breaks: &[usize]) -> HistoryTurn {
        serde_json::from_value(json!({
            "turn": {
                "id": Uuid::nil(), "session_id": Uuid::nil(), "ordinal": 1, "state": "succeeded", "prompt": [],
                "created_at": "1970-01-01T00:00:00Z",
            },
            "text": text, "text_breaks": breaks, "thought": "", "tool_calls": [],
        }))
        .unwrap()
    }

    #[test]
    fn a_text_is_read_part_by_part() {
        let cases: [(&str, &[usize], &[&str]); 5] = [
            ("all of it", &[], &["all of it"]),
            ("", &[], &[]),
            ("one.two.", &[4], &["one.", "two."]),
            ("one. \ntwo", &[4, 6], &["one.", "two"]),
            // Nothing that a server could say makes it panic.
            ("世", &[1, 99, 2], &[]),
        ];
        for (text, breaks, parts) in cases {
            assert_eq!(said(text, breaks).texts().collect::<Vec<_>>(), parts, "{text:?} {breaks:?}");
        }
    }
}
