//! What a conversation wants done, and what came of it. Types only.

use berth_client::ClientError;
use berth_wire::{
    api::{
        AgentInfo, CancelRequest, CancelResponse, FileChange, FileEntry, HistoryTurn, ModelInfo, PostMessage,
        Session, Turn,
    },
    event::SessionEvent,
};
use uuid::Uuid;

use crate::ask::Reply;

/// Something to be done outside.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Effect {
    /// Hand a prompt in. Prompts are handed in one after the other, in their order.
    Post { key: Uuid, message: PostMessage },
    /// Hand the prompt of this turn in once more.
    Retry { key: Uuid, turn: Uuid },
    /// End turns.
    Cancel(CancelRequest),
    /// Answer what the agent asks.
    Answer { id: String, reply: Reply },
    /// Ask for the sandbox's sessions.
    ListSessions,
    /// Ask for the sandbox's models.
    ListModels,
    /// Ask for the sandbox's agents.
    ListAgents,
    /// Ask for what is in this directory, named from the session's own, with a slash at its end or empty.
    ListFiles(String),
    /// Go over to another session; `None`: to a new one.
    Open(Option<Uuid>),
    /// Give the session a title.
    Rename(String),
    /// Ask what changed in files: in the whole session, or in one turn.
    Diff(Option<Uuid>),
    /// Empty the screen.
    Clear,
    /// Give the terminal back to the shell until the shell says otherwise.
    Suspend,
    /// Leave.
    Quit,
}

/// A session to go on with.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) session: Session,
    /// Turns that have ended, oldest first; the last few of them.
    pub(super) history: Vec<HistoryTurn>,
    /// There are turns before those.
    pub(super) more: bool,
    /// Events of the turns that have not ended, up to the session's `last_seq`.
    pub(super) events: Vec<SessionEvent>,
}

/// What came of an [`Effect`].
#[derive(Debug)]
pub(super) enum Done {
    Posted { key: Uuid, message: Option<PostMessage>, result: Box<Result<Turn, ClientError>> },
    Cancelled(Result<CancelResponse, ClientError>),
    Answered { id: String, result: Result<(), ClientError> },
    Sessions(Result<Vec<Session>, ClientError>),
    Models(Result<Vec<ModelInfo>, ClientError>),
    Agents(Result<Vec<AgentInfo>, ClientError>),
    Files { directory: String, result: Result<Vec<FileEntry>, ClientError> },
    Opened(Result<Box<Opened>, ClientError>),
    Renamed(Result<Session, ClientError>),
    Changes(Result<Vec<FileChange>, ClientError>),
}
