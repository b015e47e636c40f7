//! What opencode's HTTP API and events carry, as far as Berth reads it. Pure.
//!
//! Tolerant: unknown fields are ignored, and a field that is only shown or counted takes its default when its shape
//! is not the expected one. Only ids, and what decides over the end of a turn, must be there.

use berth_wire::event::Question;
use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use uuid::Uuid;

/// Key in a session's metadata with the id of the Berth session that it belongs to.
pub const SESSION_METADATA: &str = "berth.dev/session";

/// Takes the default when the value has another shape.
fn lenient<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned + Default,
{
    Ok(T::deserialize(Value::deserialize(deserializer)?).unwrap_or_default())
}

/// Bound on what a step may cost, in US dollars: sums of costs are finite and can be stored.
const MAX_COST: f64 = 1e9;

/// Takes 0 for what no step can cost.
fn lenient_cost<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let cost: f64 = lenient(deserializer)?;
    Ok(if (0.0..=MAX_COST).contains(&cost) { cost } else { 0.0 })
}

/// Takes the whole milliseconds, since a provider's wait may have a fraction; 0 for what is no time.
fn lenient_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    let value = Value::deserialize(deserializer)?;
    #[expect(clippy::cast_possible_truncation, reason = "what is beyond the range is as far as it goes")]
    let whole = || value.as_f64().map(|time| time as i64);
    Ok(value.as_i64().or_else(whole).unwrap_or_default())
}

/// When a session was made, in Unix milliseconds of opencode's clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionTime {
    /// Made; 0 when it is not told.
    #[serde(default)]
    pub created: i64,
}

/// A session of opencode.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionInfo {
    /// Id, `ses_...`.
    pub id: String,
    /// The session whose task tool made this one.
    #[serde(default, rename = "parentID", deserialize_with = "lenient")]
    pub parent_id: Option<String>,
    /// Title; `New session - <time>` until the first turn gave it one.
    #[serde(default, deserialize_with = "lenient")]
    pub title: String,
    /// Working directory.
    #[serde(default, deserialize_with = "lenient")]
    pub directory: String,
    /// When.
    #[serde(default, deserialize_with = "lenient")]
    pub time: SessionTime,
    /// Its own rules for permissions, the last that fits counts.
    #[serde(default, deserialize_with = "lenient")]
    pub permission: Vec<PermissionRule>,
    /// What its creator attached; see [`SESSION_METADATA`].
    #[serde(default, deserialize_with = "lenient")]
    pub metadata: Map<String, Value>,
}

impl SessionInfo {
    /// The Berth session that made it.
    pub fn berth_session_id(&self) -> Option<Uuid> {
        self.metadata.get(SESSION_METADATA)?.as_str()?.parse().ok()
    }

    /// The title, unless it is the placeholder of a new session.
    pub fn chosen_title(&self) -> Option<&str> {
        let placeholder =
            self.title.starts_with("New session - ") || self.title.starts_with("Child session - ");
        (!self.title.is_empty() && !placeholder).then_some(self.title.as_str())
    }
}

/// What a rule for permissions does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PermissionAction {
    /// A person is asked.
    Ask,
    /// It is allowed.
    Allow,
    /// It is refused, and the model told so.
    Deny,
}

/// A session's own rule for permissions. `allow` overrides what the configuration says; `ask` does not hold for
/// subagents, `deny` does (measured on opencode 1.15.4 and 1.18.33).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermissionRule {
    /// What kind of thing, such as `bash`; `*` for all.
    pub permission: String,
    /// What exactly, with `*`.
    pub pattern: String,
    /// What is done.
    pub action: PermissionAction,
}

/// What changed in one file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileDiff {
    /// The file, from the directory.
    #[serde(default, deserialize_with = "lenient")]
    pub file: String,
    /// The change as a unified diff, where opencode gives it. Its context is the whole file, so both states of the
    /// file are in it; empty for what is not text (measured on opencode 1.18.33).
    #[serde(default, deserialize_with = "lenient")]
    pub patch: Option<String>,
    /// `added`, `modified` or `deleted`; empty where it is not told.
    #[serde(default, deserialize_with = "lenient")]
    pub status: String,
    /// Lines added.
    #[serde(default, deserialize_with = "lenient")]
    pub additions: u64,
    /// Lines removed.
    #[serde(default, deserialize_with = "lenient")]
    pub deletions: u64,
}

/// Who wrote a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A prompt, or a message that opencode inserted in a user's name.
    User,
    /// One step of the agent.
    Assistant,
    /// A role of a newer opencode.
    #[serde(other)]
    Other,
}

/// When a message was made and completed, in Unix milliseconds of opencode's clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageTime {
    /// Made.
    pub created: i64,
    /// Completed; never set for one that was cut off by a crash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed: Option<i64>,
}

/// A model of a provider.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ModelReference {
    /// Provider, such as `anthropic`.
    pub provider_id: String,
    /// Its model.
    pub model_id: String,
}

/// Cache tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheTokens {
    /// Read from the provider's cache.
    #[serde(deserialize_with = "lenient")]
    pub read: u64,
    /// Written to it.
    #[serde(deserialize_with = "lenient")]
    pub write: u64,
}

/// Tokens of one step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tokens {
    /// Uncached input.
    #[serde(deserialize_with = "lenient")]
    pub input: u64,
    /// Output without reasoning.
    #[serde(deserialize_with = "lenient")]
    pub output: u64,
    /// Reasoning.
    #[serde(deserialize_with = "lenient")]
    pub reasoning: u64,
    /// Cached input.
    #[serde(deserialize_with = "lenient")]
    pub cache: CacheTokens,
}

/// A named error: `{"name": "APIError", "data": {"message": ..., "statusCode": ...}}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorInfo {
    /// Name, such as `APIError`, `UnknownError` or `MessageAbortedError`.
    #[serde(default, deserialize_with = "lenient")]
    pub name: String,
    /// Details by name.
    #[serde(default)]
    pub data: Value,
}

impl ErrorInfo {
    /// opencode's or the provider's words; empty when there are none.
    pub fn message(&self) -> &str {
        self.data["message"].as_str().unwrap_or_default()
    }

    /// The provider's HTTP status, for an `APIError`.
    pub fn status_code(&self) -> Option<u64> {
        self.data["statusCode"].as_u64()
    }
}

/// A message without its parts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MessageInfo {
    /// Id, `msg_...`; sorts by time within one opencode.
    pub id: String,
    /// Its session.
    #[serde(rename = "sessionID")]
    pub session_id: String,
    /// Who wrote it.
    pub role: Role,
    /// The user message that an assistant answers.
    #[serde(
        default,
        rename = "parentID",
        deserialize_with = "lenient",
        skip_serializing_if = "Option::is_none"
    )]
    pub parent_id: Option<String>,
    /// When.
    pub time: MessageTime,
    /// Why the model stopped: `stop`, `tool-calls`, `length`, `content-filter`, `unknown`, `other`, ...
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub finish: Option<String>,
    /// What went wrong.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorInfo>,
    /// The agent that wrote it, or that is to answer it, such as `build` or `plan`.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Provider of the model that wrote it.
    #[serde(
        default,
        rename = "providerID",
        deserialize_with = "lenient",
        skip_serializing_if = "Option::is_none"
    )]
    pub provider_id: Option<String>,
    /// The model that wrote it.
    #[serde(
        default,
        rename = "modelID",
        deserialize_with = "lenient",
        skip_serializing_if = "Option::is_none"
    )]
    pub model_id: Option<String>,
    /// Tokens of this step.
    #[serde(default, deserialize_with = "lenient")]
    pub tokens: Tokens,
    /// Cost in US dollars.
    #[serde(default, deserialize_with = "lenient_cost")]
    pub cost: f64,
    /// `true` for the summary of a compaction; user messages may hold an object here.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub summary: Value,
}

impl MessageInfo {
    /// The model that wrote it; user messages have none.
    pub fn model(&self) -> Option<ModelReference> {
        let (provider_id, model_id) = (self.provider_id.clone()?, self.model_id.clone()?);
        Some(ModelReference { provider_id, model_id })
    }

    /// True for a compaction's summary, which the agent writes for itself.
    pub fn is_summary(&self) -> bool {
        self.summary == Value::Bool(true)
    }
}

/// When a part was begun and ended, in Unix milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartTime {
    /// Begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<i64>,
    /// Ended; absent while it is open, and for ever when a retry or crash cut it off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<i64>,
}

/// A text or reasoning part. While it is open its text is empty, in events and in `GET` alike (measured on opencode
/// 1.15.4 and 1.18.33); what it says so far went by in deltas.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextPart {
    /// The whole text, once ended.
    #[serde(default)]
    pub text: String,
    /// When.
    #[serde(default, deserialize_with = "lenient")]
    pub time: PartTime,
}

/// State of a tool call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToolStatus {
    /// Its input is being written by the model.
    Pending,
    /// It runs, or waits for a permission or an answer.
    Running,
    /// It ended.
    Completed,
    /// It failed, was rejected, or was aborted.
    Error,
    /// A state of a newer opencode.
    #[default]
    #[serde(other)]
    Other,
}

/// A tool call's state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolState {
    /// Where it stands.
    #[serde(default, deserialize_with = "lenient")]
    pub status: ToolStatus,
    /// Its input; `{}` while pending.
    #[serde(default)]
    pub input: Value,
    /// A title, usually once it has completed.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// What it returned to the model.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Why it failed.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// By tool: `output` so far for bash, `sessionId` of the child for task.
    #[serde(default)]
    pub metadata: Value,
}

/// A tool call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolPart {
    /// Id that the model gave it.
    #[serde(rename = "callID")]
    pub call_id: String,
    /// Tool name; may change (an unknown tool becomes `invalid`).
    pub tool: String,
    /// State.
    pub state: ToolState,
}

/// The end of a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepFinish {
    /// Why the model stopped.
    #[serde(default, deserialize_with = "lenient")]
    pub reason: String,
    /// Tokens of the step.
    #[serde(default, deserialize_with = "lenient")]
    pub tokens: Tokens,
    /// Cost in US dollars.
    #[serde(default, deserialize_with = "lenient_cost")]
    pub cost: f64,
}

/// What a part is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum PartKind {
    /// What the agent, or the user, says.
    Text(TextPart),
    /// What the agent thinks.
    Reasoning(TextPart),
    /// A tool call.
    Tool(ToolPart),
    /// A call of the model begins; a second one in the same message follows a retry.
    StepStart,
    /// A call of the model ended.
    StepFinish(StepFinish),
    /// Snapshots, patches, files and kinds of a newer opencode.
    #[serde(other)]
    Other,
}

/// A part of a message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Id, `prt_...`; sorts by time within one opencode.
    pub id: String,
    /// Its message.
    #[serde(rename = "messageID")]
    pub message_id: String,
    /// Its session.
    #[serde(rename = "sessionID")]
    pub session_id: String,
    /// What it is.
    #[serde(flatten)]
    pub kind: PartKind,
}

/// A message with its parts, as `GET /session/{id}/message` lists them, oldest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MessageWithParts {
    /// The message.
    pub info: MessageInfo,
    /// Its parts, in order.
    #[serde(default)]
    pub parts: Vec<Part>,
}

/// What a session does. Idle sessions are absent from `GET /session/status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum SessionStatus {
    /// Nothing.
    Idle,
    /// A turn runs.
    Busy,
    /// A turn runs and waits before it calls the provider again.
    Retry {
        /// Tries so far.
        #[serde(default, deserialize_with = "lenient")]
        attempt: u64,
        /// The provider's words.
        #[serde(default, deserialize_with = "lenient")]
        message: String,
        /// When the next try is due, in Unix milliseconds; 0 when it is not told.
        #[serde(default, deserialize_with = "lenient_time")]
        next: i64,
    },
    /// A state of a newer opencode.
    #[serde(other)]
    Other,
}

/// The tool call that waits for a permission or an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolReference {
    /// Message of the call.
    #[serde(rename = "messageID")]
    pub message_id: String,
    /// The call.
    #[serde(rename = "callID")]
    pub call_id: String,
}

/// A request for a permission.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermissionRequest {
    /// Id, `per_...`.
    pub id: String,
    /// The session that asks: a subagent's asks carry the child's id.
    #[serde(rename = "sessionID")]
    pub session_id: String,
    /// What kind of thing, such as `bash` or `external_directory`.
    #[serde(default, deserialize_with = "lenient")]
    pub permission: String,
    /// What exactly.
    #[serde(default, deserialize_with = "lenient")]
    pub patterns: Vec<String>,
    /// Details by permission.
    #[serde(default)]
    pub metadata: Value,
    /// What `always` would allow.
    #[serde(default, deserialize_with = "lenient")]
    pub always: Vec<String>,
    /// The tool call that waits.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub tool: Option<ToolReference>,
}

/// A request for answers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuestionRequest {
    /// Id, `que_...`.
    pub id: String,
    /// The session that asks.
    #[serde(rename = "sessionID")]
    pub session_id: String,
    /// The questions.
    #[serde(default, deserialize_with = "lenient")]
    pub questions: Vec<Question>,
    /// The tool call that waits.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub tool: Option<ToolReference>,
}

/// An entry of the agent's list of things to do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Todo {
    /// What.
    #[serde(default, deserialize_with = "lenient")]
    pub content: String,
    /// `pending`, `in_progress`, `completed` or `cancelled`.
    #[serde(default, deserialize_with = "lenient")]
    pub status: String,
    /// `high`, `medium` or `low`.
    #[serde(default, deserialize_with = "lenient")]
    pub priority: String,
}
