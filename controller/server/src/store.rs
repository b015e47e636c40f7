//! What the server remembers. One trait, so that a cluster's database can stand where SQLite stands.
//!
//! Two kinds of callers: anybody may read and leave wishes (prompts, cancels, answers are rows); only the owner of
//! a sandbox, who holds its fence, writes what opencode said. `seq` of an event is given out by the session's row
//! in the transaction that inserts the event, so commit order is `seq` order.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use async_trait::async_trait;
use berth_wire::{
    api::{ModelChoice, PermissionDecision, PromptPart, Session, Turn},
    event::{EventPayload, SessionEvent},
    turn::TurnOutcome,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use uuid::Uuid;

#[cfg(test)]
mod contract;
mod event;
mod fault;
mod list;
mod methods;
mod signals;
#[cfg(test)]
pub(crate) mod small_disk;
mod sqlite;

pub use event::{LogBounds, LogPage, StoredEvent};
pub use fault::Fault;
pub use list::{HistoryRow, PromptFile, Removed, Retried, Retry, SessionQuery, TurnQuery};
pub(crate) use methods::store_methods;
pub use sqlite::{Sharing, SqliteStore, StoreOpenError};

/// Why the store could not do as asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database cannot be used now, and a person can mend that.
    #[error("the database {} {fault}", path.display())]
    Unusable {
        /// Its file; empty where that is not known yet.
        path: PathBuf,
        /// What is wrong with it.
        fault: Fault,
        /// What the database said.
        source: sqlx::Error,
    },
    /// The database failed.
    #[error("the database failed")]
    Database(#[source] sqlx::Error),
    /// A stored value is not what this version writes.
    #[error("the database holds a value that this version does not understand")]
    Corrupt(#[from] serde_json::Error),
    /// Somebody else owns the sandbox now; nothing was written.
    #[error("the sandbox has another owner")]
    Fenced,
    /// The turn to be started was cancelled meanwhile, or its session deleted; nothing was written.
    #[error("the turn is not queued any more")]
    TurnNotQueued,
}

impl From<sqlx::Error> for StoreError {
    fn from(source: sqlx::Error) -> Self {
        match Fault::of(&source) {
            Some(fault) => Self::Unusable { path: PathBuf::new(), fault, source },
            None => Self::Database(source),
        }
    }
}

impl StoreError {
    /// Whether one stored value is at fault, and not the database: what does not need that value can go on.
    pub(crate) fn is_of_a_value(&self) -> bool {
        match self {
            Self::Corrupt(_) => true,
            Self::Database(error) => {
                matches!(error, sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_))
            }
            _ => false,
        }
    }

    /// Names the file where it is of one.
    #[must_use]
    pub(crate) fn of_file(mut self, file: &Path) -> Self {
        if let Self::Unusable { path, .. } = &mut self {
            file.clone_into(path);
        }
        self
    }
}

/// Names a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SandboxKey {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// A session to be made.
#[derive(Debug, Clone)]
pub struct NewSession {
    /// Its id.
    pub id: Uuid,
    /// Its sandbox.
    pub sandbox: SandboxKey,
    /// Absolute directory inside the sandbox.
    pub directory: String,
    /// Title, if the caller gave one.
    pub title: Option<String>,
}

/// A prompt to be queued.
#[derive(Debug, Clone)]
pub struct NewTurn {
    /// Id that the turn gets if it is new.
    pub id: Uuid,
    /// Its session.
    pub session_id: Uuid,
    /// The prompt as it is shown: see [`berth_wire::api::shown_prompt`].
    pub prompt: Vec<PromptPart>,
    /// What `data:` URLs in it held.
    pub files: Vec<PromptFile>,
    /// Who sends it; idempotency keys of different callers do not meet.
    pub caller: String,
    /// The caller's key, if any.
    pub idempotency_key: Option<String>,
    /// SHA-256 of the canonical body.
    pub body_hash: Vec<u8>,
    /// What it asks for beside its text.
    pub options: TurnOptions,
}

/// What a prompt asks for beside its text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TurnOptions {
    /// The model, when not the session's.
    pub model: Option<ModelChoice>,
    /// The agent by name, when not the default one.
    pub agent: Option<String>,
    /// The turn that it repeats.
    pub retry_of: Option<Uuid>,
    /// The trace that it came in (W3C `traceparent`), which calls to the door on its behalf carry on.
    pub traceparent: Option<String>,
}

/// What became of a prompt to be queued.
#[derive(Debug, Clone, PartialEq)]
pub enum Enqueued {
    /// It is queued.
    New(Turn),
    /// The same key and body came before: this is that turn.
    Repeated(Turn),
    /// The same key came before with another body.
    KeyTaken,
    /// The session has as many open turns as it may have.
    QueueFull,
    /// No such session.
    NoSession,
}

/// Which open turns of a session are to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancel {
    /// The oldest one, which runs or runs next.
    Oldest,
    /// All.
    All,
    /// This one.
    One(Uuid),
}

/// What a person answered to an ask.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Answer {
    /// To a permission.
    Permission {
        /// The decision.
        decision: PermissionDecision,
        /// What the agent is told with a rejection.
        message: Option<String>,
    },
    /// To a question; `None` rejects it.
    Question {
        /// One list for each question.
        answers: Option<Vec<Vec<String>>>,
    },
}

impl Answer {
    /// The kind of ask that this answers.
    pub fn ask_kind(&self) -> AskKind {
        match self {
            Self::Permission { .. } => AskKind::Permission,
            Self::Question { .. } => AskKind::Question,
        }
    }
}

/// What an ask asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AskKind {
    /// A permission.
    Permission,
    /// Questions.
    Question,
}

impl AskKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Permission => "permission",
            Self::Question => "question",
        }
    }
}

/// What became of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answered {
    /// It will be delivered.
    Accepted,
    /// No such ask in this session.
    NotFound,
    /// It was answered or settled before.
    Conflict,
    /// The number of answers is not the number of questions.
    WrongCount {
        /// Number of questions.
        questions: usize,
    },
}

/// What an owner takes over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ownership {
    /// Number that every later write of this owner must carry.
    pub fence: i64,
    /// Position in the door's journal up to which everything is in the log.
    pub cursor: Option<String>,
    /// The run of opencode that the cursor belongs to.
    pub boot_id: Option<String>,
}

/// What became of the wish to own a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acquired {
    /// It is owned now.
    Taken(Ownership),
    /// Somebody else owns it.
    Held {
        /// For how long still, unless the owner renews its lease or gives it up.
        remaining: Duration,
    },
}

/// A turn as the runner needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenTurn {
    /// Its id.
    pub id: Uuid,
    /// The prompt as it is shown; [`Store::load_prompt`] has it with what `data:` URLs held.
    pub prompt: Vec<PromptPart>,
    /// opencode's id of the user message, once it was chosen.
    pub message_id: Option<String>,
    /// Somebody wants it to end.
    pub cancel_requested: bool,
    /// When it was queued.
    pub queued_at: Timestamp,
    /// When it was sent.
    pub started_at: Option<Timestamp>,
    /// What it asks for beside its text.
    pub options: TurnOptions,
    /// How much of its wall clock it has used, as last stored: the time in which nobody was waited for.
    pub active: Duration,
}

/// An ask that is not settled.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenAsk {
    /// opencode's id of the request.
    pub id: String,
    /// The request, as logged.
    pub request: EventPayload,
    /// When it is rejected by default.
    pub expires_at: Timestamp,
    /// The answer that waits for delivery.
    pub answer: Option<Answer>,
}

/// What "always" allowed in a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PermissionRule {
    /// Kind of permission.
    pub permission: String,
    /// Pattern with `*` wildcards.
    pub pattern: String,
}

/// A session that has something to do.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionWork {
    /// The session.
    pub id: Uuid,
    /// Absolute directory inside the sandbox.
    pub directory: String,
    /// Title, if one was given by its creator.
    pub title: Option<String>,
    /// opencode's id, once known.
    pub opencode_session_id: Option<String>,
    /// State of the translator, as stored by the last commit.
    pub translator: Option<String>,
    /// It is to be deleted.
    pub deleted: bool,
    /// A prompt was taken for it at some time: opencode may have a session for it of which nobody heard.
    pub prompted: bool,
    /// The turn that runs.
    pub running: Option<OpenTurn>,
    /// The oldest turn that waits.
    pub queued: Option<OpenTurn>,
    /// Unsettled asks.
    pub asks: Vec<OpenAsk>,
    /// Rules for permissions.
    pub rules: Vec<PermissionRule>,
    /// Turns that cannot go on, since this version does not understand what is stored of them: they are to end. Each is
    /// here once; neither `running` nor `queued` has one whose own row it is.
    pub unreadable: Vec<UnreadableTurn>,
}

/// Why a turn cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unusable {
    /// Something that is stored of it is not understood.
    Value,
    /// What is stored of its session is damaged: no other turn of that can run either.
    Session,
    /// The server breaks off at it again and again: a defect.
    Defect,
}

/// A turn that cannot go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadableTurn {
    /// The turn.
    pub id: Uuid,
    /// It runs; else it waits.
    pub runs: bool,
    /// Why it cannot go on.
    pub why: Unusable,
    /// What is wrong, for the log.
    pub error: String,
}

/// One write of an owner: all of it or nothing.
#[derive(Debug, Clone)]
pub struct Commit {
    /// The sandbox.
    pub sandbox: SandboxKey,
    /// The owner's number.
    pub fence: i64,
    /// The owner's lease lasts this long from now on.
    pub lease: Duration,
    /// Position in the door's journal.
    pub cursor: Option<String>,
    /// The run of opencode that the cursor belongs to.
    pub boot_id: Option<String>,
    /// What changed, session by session.
    pub sessions: Vec<SessionCommit>,
}

/// What a commit changes in one session.
#[derive(Debug, Clone)]
pub struct SessionCommit {
    /// The session.
    pub session_id: Uuid,
    /// State of the translator.
    pub translator: Option<String>,
    /// Entries for the log, in order.
    pub events: Vec<NewEvent>,
    /// Changes beside the log, in order.
    pub changes: Vec<Change>,
}

/// An entry for the log.
#[derive(Debug, Clone, PartialEq)]
pub struct NewEvent {
    /// The turn it belongs to.
    pub turn_id: Option<Uuid>,
    /// What it says.
    pub payload: EventPayload,
}

/// A change beside the log.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// The oldest queued turn runs now; the commit fails if it is not queued any more.
    TurnStarted {
        /// The turn.
        turn_id: Uuid,
        /// opencode's id of the user message.
        message_id: String,
    },
    /// A turn came to its end.
    TurnEnded {
        /// The turn.
        turn_id: Uuid,
        /// How.
        outcome: TurnOutcome,
    },
    /// A running turn has used this much of its wall clock.
    TurnActive {
        /// The turn.
        turn_id: Uuid,
        /// The time in which nobody was waited for.
        active: Duration,
    },
    /// opencode's session changed.
    OpencodeSession {
        /// Its id.
        id: String,
    },
    /// opencode gave the session a title; ignored where a person gave one.
    Title {
        /// The title.
        title: String,
    },
    /// An ask was opened.
    AskOpened {
        /// Its id.
        id: String,
        /// Its kind.
        kind: AskKind,
        /// The turn that waits.
        turn_id: Uuid,
        /// When it is rejected by default.
        expires_at: Timestamp,
        /// The request, as logged.
        request: EventPayload,
    },
    /// An ask was settled.
    AskResolved {
        /// Its id.
        id: String,
    },
}

/// The store.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Makes a session.
    async fn create_session(&self, new: NewSession) -> Result<Session, StoreError>;

    /// One session; deleted ones are gone.
    async fn session(&self, id: Uuid) -> Result<Option<Session>, StoreError>;

    /// Whether there is such a session: a quick look, for those who only want to know that.
    async fn has_session(&self, id: Uuid) -> Result<bool, StoreError>;

    /// The session that this one of opencode's was made for; deleted ones are gone.
    async fn session_of_root(&self, sandbox: &SandboxKey, root: &str) -> Result<Option<Uuid>, StoreError>;

    /// Sessions of a sandbox, newest first.
    async fn list_sessions(&self, query: &SessionQuery) -> Result<Vec<Session>, StoreError>;

    /// Gives a session a title that opencode does not overwrite.
    async fn rename_session(&self, id: Uuid, title: &str) -> Result<Option<Session>, StoreError>;

    /// Hides a session at once, and leaves the wish that it be deleted. False when there is none.
    async fn request_delete(&self, id: Uuid) -> Result<bool, StoreError>;

    /// Queues a prompt, once per idempotency key.
    async fn enqueue_turn(&self, new: NewTurn, queue_limit: i64) -> Result<Enqueued, StoreError>;

    /// One turn.
    async fn turn(&self, id: Uuid) -> Result<Option<Turn>, StoreError>;

    /// One turn, and where its history is.
    async fn turn_row(&self, id: Uuid) -> Result<Option<HistoryRow>, StoreError>;

    /// Turns of a session.
    async fn list_turns(&self, query: &TurnQuery) -> Result<Vec<HistoryRow>, StoreError>;

    /// Queues the prompt of a turn that did not succeed once more.
    async fn retry_turn(&self, retry: Retry, queue_limit: i64) -> Result<Retried, StoreError>;

    /// A turn's prompt with what `data:` URLs in it held, as it was posted.
    async fn load_prompt(&self, turn_id: Uuid) -> Result<Option<Vec<PromptPart>>, StoreError>;

    /// What the `data:` URL of a prompt's part held.
    async fn prompt_file(&self, turn_id: Uuid, part: usize) -> Result<Option<PromptFile>, StoreError>;

    /// How many turns wait, and how many run, of all sandboxes.
    async fn count_open_turns(&self) -> Result<(i64, i64), StoreError>;

    /// Sandboxes with sessions that have something to do, whoever owns them.
    async fn sandboxes_with_work(&self) -> Result<Vec<SandboxKey>, StoreError>;

    /// Asks open turns to end; queued ones end at once. Returns those that this call asked.
    async fn request_cancel(&self, session_id: Uuid, which: Cancel) -> Result<Vec<Uuid>, StoreError>;

    /// Leaves the answer to an ask.
    async fn answer_ask(&self, session_id: Uuid, id: &str, answer: Answer) -> Result<Answered, StoreError>;

    /// Log entries with `seq > after`, in order, within `bounds`.
    async fn read_log(&self, session_id: Uuid, after: i64, bounds: LogBounds) -> Result<LogPage, StoreError>;

    /// As [`Self::read_log`], with payloads that are read; at most `limit`, within the default bound on bytes.
    async fn events_after(
        &self,
        session_id: Uuid,
        after: i64,
        limit: i64,
    ) -> Result<Vec<SessionEvent>, StoreError> {
        let bounds = LogBounds { entries: limit, ..LogBounds::default() };
        let stored = self.read_log(session_id, after, bounds).await?.events;
        Ok(stored.into_iter().map(StoredEvent::into_event).collect())
    }

    /// Changes whenever something was appended to the session's log.
    fn watch_session(&self, session_id: Uuid) -> watch::Receiver<u64>;

    /// Changes whenever somebody left a wish for the sandbox's owner.
    fn watch_work(&self, sandbox: &SandboxKey) -> watch::Receiver<u64>;

    /// Takes a sandbox over for `lease`, by the database's clock, unless another owner's lease lasts: every earlier owner's
    /// writes fail from then on. An owner may take over from itself.
    async fn acquire(
        &self,
        sandbox: &SandboxKey,
        owner: Uuid,
        lease: Duration,
    ) -> Result<Acquired, StoreError>;

    /// The owner's lease lasts for `lease` from now on, also where it had run out and nobody had taken the sandbox over.
    async fn renew(&self, sandbox: &SandboxKey, fence: i64, lease: Duration) -> Result<(), StoreError>;

    /// Ends the owner's lease, so that anybody may take the sandbox over at once, and wakes those who wait for work; nothing
    /// where somebody has taken it over.
    async fn release(&self, sandbox: &SandboxKey, fence: i64) -> Result<(), StoreError>;

    /// The sessions of a sandbox that have something to do.
    async fn load_work(&self, sandbox: &SandboxKey) -> Result<Vec<SessionWork>, StoreError>;

    /// Writes what an owner learned, and renews its lease: all of it or, with another owner, nothing.
    async fn commit(&self, commit: Commit) -> Result<(), StoreError>;

    /// Removes a session that was asked to be deleted, with all that belongs to it.
    async fn delete_session(&self, sandbox: &SandboxKey, fence: i64, id: Uuid) -> Result<(), StoreError>;

    /// Ends every connection; later calls fail.
    async fn close(&self);
}
