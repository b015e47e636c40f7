//! What lists of the store are asked for, and what they and retries answer. Pure.

use base64::{Engine, engine::general_purpose::STANDARD};
use berth_wire::api::{PromptPart, SessionState, Turn};
use jiff::Timestamp;
use uuid::Uuid;

use super::SandboxKey;

/// Which sessions of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionQuery {
    /// The sandbox.
    pub sandbox: SandboxKey,
    /// Only those that are older than this one.
    pub before: Option<Uuid>,
    /// At most so many.
    pub limit: i64,
    /// Only those whose title contains this, in any case of letters.
    pub title: Option<String>,
    /// Only those in this state.
    pub state: Option<SessionState>,
    /// Only those that changed after this moment.
    pub updated_after: Option<Timestamp>,
    /// Only those in this directory.
    pub directory: Option<String>,
}

impl SessionQuery {
    /// The newest sessions of a sandbox, at most `limit`.
    pub fn newest(sandbox: SandboxKey, limit: i64) -> Self {
        Self { sandbox, before: None, limit, title: None, state: None, updated_after: None, directory: None }
    }
}

/// Which turns of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurnQuery {
    /// The session.
    pub session_id: Uuid,
    /// Only those behind this position, seen in the list's order.
    pub behind: Option<i64>,
    /// From the newest back instead of from the oldest on.
    pub newest_first: bool,
    /// At most so many.
    pub limit: i64,
}

/// What of a turn was removed from opencode's session later.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Removed {
    /// Nothing.
    #[default]
    Nothing,
    /// Some of the agent's messages.
    Partly,
    /// The prompt, so that the agent does not know of the turn any more.
    Wholly,
}

/// A turn, and where its history is.
#[derive(Debug, Clone, PartialEq)]
pub struct HistoryRow {
    /// The turn.
    pub turn: Turn,
    /// opencode's id of the user message, once it was chosen.
    pub message_id: Option<String>,
    /// What of it was removed.
    pub removed: Removed,
    /// `seq` of the event that says that it started, if it did.
    pub first_seq: Option<i64>,
    /// `seq` of its last event; not known while it is open.
    pub last_seq: Option<i64>,
}

/// What the `data:` URL of a prompt's part held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptFile {
    /// Position of the part in the prompt, from 0.
    pub part: usize,
    /// Its media type.
    pub mime: String,
    /// Its bytes.
    pub content: Vec<u8>,
}

impl PromptFile {
    /// As a `data:` URL again.
    pub fn to_url(&self) -> String {
        format!("data:{};base64,{}", self.mime, STANDARD.encode(&self.content))
    }

    /// Puts the content back where the prompt says where to find it.
    pub(super) fn restore(self, parts: &mut [PromptPart]) {
        let restored = self.to_url();
        if let Some(PromptPart::File { url, .. }) = parts.get_mut(self.part) {
            *url = restored;
        }
    }
}

/// A turn that is to be tried once more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retry {
    /// Id that the new turn gets if it is new.
    pub id: Uuid,
    /// The turn whose prompt it repeats.
    pub of: Uuid,
    /// Who asks for it.
    pub caller: String,
    /// The caller's key, if any.
    pub idempotency_key: Option<String>,
    /// SHA-256 that tells this retry from other bodies under the same key.
    pub body_hash: Vec<u8>,
    /// The trace that the wish came in.
    pub traceparent: Option<String>,
}

/// What became of a retry.
#[derive(Debug, Clone, PartialEq)]
pub enum Retried {
    /// It is queued.
    New(Turn),
    /// The same key came before for the same turn: this is what came of it.
    Repeated(Turn),
    /// The same key came before for something else.
    KeyTaken,
    /// The session has as many open turns as it may have.
    QueueFull,
    /// No such turn.
    NoTurn,
    /// The turn has not ended, or it succeeded.
    NotRetryable(Turn),
}
