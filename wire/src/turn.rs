//! States, outcomes and error reasons of a turn. The table of outcomes is in docs/opencode.md.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Where a turn stands. The last four are final.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TurnState {
    /// Accepted, not yet sent to opencode.
    Queued,
    /// Sent to opencode, no end seen.
    Running,
    /// The agent came to an end of its own.
    Succeeded,
    /// It ended for the reason in `error`.
    Failed,
    /// Somebody cancelled it.
    Cancelled,
    /// Its outcome cannot be proved.
    Unknown,
}

impl TurnState {
    /// True for the states that never change again.
    pub fn is_final(self) -> bool {
        !matches!(self, Self::Queued | Self::Running)
    }
}

/// Why the agent stopped, in ACP's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TurnStopReason {
    /// It had finished.
    EndTurn,
    /// The model's output limit was reached.
    MaxTokens,
    /// The bound on model calls per turn was reached.
    MaxTurnRequests,
    /// The model's provider refused the content.
    Refusal,
    /// Somebody cancelled it.
    Cancelled,
}

/// Why a turn failed; stable, part of the public API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
pub enum TurnErrorReason {
    /// opencode ended in mid-turn; what had been streamed is kept, nothing was run again.
    OpencodeExited,
    /// opencode refused the prompt.
    PromptRejected,
    /// opencode took the prompt and never began the turn within its bound.
    NotStarted,
    /// opencode took the prompt and went idle again and again without asking its model.
    PromptSwallowed,
    /// The sandbox's door could not be reached, or refused to serve.
    SandboxUnavailable,
    /// The sandbox was not ready for too long; `cause` is its own reason.
    SandboxNotReady,
    /// The sandbox was deleted.
    SandboxGone,
    /// What answers in the sandbox is not an opencode of a version that is known.
    UnsupportedVersion,
    /// opencode cannot work in the session's directory: its configuration is broken, or it is not there.
    DirectoryUnusable,
    /// Somebody else's turn ran in the session for too long.
    SessionBusy,
    /// The model's provider answered with an error that is not one of the others.
    ProviderError,
    /// The provider refused the key.
    ProviderUnauthorized,
    /// The provider's rate limit or quota was reached.
    RateLimited,
    /// The provider's stream ended without a finish reason.
    ProviderStreamIncomplete,
    /// The context is longer than the model takes.
    ContextOverflow,
    /// The model is not known to opencode.
    ModelNotFound,
    /// The agent is not known to opencode.
    AgentNotFound,
    /// A person, or a deadline's default, rejected a permission, which ended the turn.
    PermissionRejected,
    /// The turn's wall clock ran out.
    DeadlineExceeded,
    /// Nothing was heard of the turn for too long, while opencode itself was alive.
    Stalled,
    /// The bound on calls of the model per turn was reached.
    StepLimitReached,
    /// Somebody removed the turn's prompt from opencode's session while it ran.
    PromptRemoved,
    /// opencode ended the turn as if it had been aborted, and nobody is known who asked for that.
    Interrupted,
    /// opencode closed the session's directory while the turn ran.
    InstanceDisposed,
    /// What the server had stored of the turn is lost, or this version does not understand it.
    StateUnreadable,
    /// The server broke off at the turn again and again: a defect of Berth.
    ServerDefect,
    /// An error that opencode did not type; its words are in the message.
    OpencodeError,
}

/// What went wrong with a turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TurnError {
    /// The reason, stable.
    pub reason: TurnErrorReason,
    /// For a person: what happened, and what to do. Never holds a secret.
    pub message: String,
    /// When the provider says that a retry can succeed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub retry_at: Option<Timestamp>,
    /// Why the sandbox was not ready, where that is the reason: as in its condition `Ready`, such as `Unschedulable`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

/// Tokens and cost of one turn, or of several, subagents not included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    /// Uncached input tokens.
    pub input_tokens: u64,
    /// Output tokens, reasoning excluded.
    pub output_tokens: u64,
    /// Reasoning tokens.
    pub reasoning_tokens: u64,
    /// Input tokens read from the provider's cache.
    pub cache_read_tokens: u64,
    /// Input tokens written to the provider's cache.
    pub cache_write_tokens: u64,
    /// Cost in US dollars, by opencode's price table.
    pub cost_usd: f64,
}

impl std::ops::Add for Usage {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            input_tokens: self.input_tokens.saturating_add(other.input_tokens),
            output_tokens: self.output_tokens.saturating_add(other.output_tokens),
            reasoning_tokens: self.reasoning_tokens.saturating_add(other.reasoning_tokens),
            cache_read_tokens: self.cache_read_tokens.saturating_add(other.cache_read_tokens),
            cache_write_tokens: self.cache_write_tokens.saturating_add(other.cache_write_tokens),
            cost_usd: self.cost_usd + other.cost_usd,
        }
    }
}

/// How a turn ended: exactly one for each turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TurnOutcome {
    /// A final state.
    pub state: TurnState,
    /// Why the agent stopped; absent when it failed, save for `max_turn_requests`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<TurnStopReason>,
    /// What went wrong, when it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<TurnError>,
    /// Tokens and cost, when known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

impl TurnOutcome {
    /// The agent came to an end of its own.
    pub fn succeeded(stop_reason: TurnStopReason) -> Self {
        Self { state: TurnState::Succeeded, stop_reason: Some(stop_reason), error: None, usage: None }
    }

    /// Somebody cancelled it.
    pub fn cancelled() -> Self {
        let stop_reason = Some(TurnStopReason::Cancelled);
        Self { state: TurnState::Cancelled, stop_reason, error: None, usage: None }
    }

    /// It failed for `reason`.
    pub fn failed(reason: TurnErrorReason, message: impl Into<String>) -> Self {
        Self::failed_with(TurnError { reason, message: message.into(), retry_at: None, cause: None })
    }

    /// It failed for this.
    pub fn failed_with(error: TurnError) -> Self {
        Self { state: TurnState::Failed, stop_reason: None, error: Some(error), usage: None }
    }
}
