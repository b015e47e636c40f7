//! Makes a session's log out of opencode's events. Pure.

use berth_wire::{
    event::EventPayload,
    turn::{TurnError, TurnOutcome},
};
use serde::{Deserialize, Serialize};

use crate::{
    event::GlobalEvent,
    model::{MessageWithParts, PermissionRequest, QuestionRequest, SessionStatus},
};

/// Where the session's turn stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TurnPhase {
    /// No turn of ours.
    Idle,
    /// A prompt is being handed over, or was, and opencode has not begun: idleness means nothing yet.
    Admitted,
    /// opencode has begun.
    Started,
}

/// What follows from an event.
#[derive(Debug, Clone, PartialEq)]
pub enum Translation {
    /// An entry for the session's log.
    Update(EventPayload),
    /// opencode has begun the turn.
    Started,
    /// The turn must not go on: abort it; it then ends with this error.
    Abort(TurnError),
    /// The turn's end; nothing of the turn follows.
    Ended(TurnOutcome),
}

/// State of a session as read over HTTP. Read `status` before `messages`, and apply no event in between: what the
/// status says must not be newer than the messages.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Snapshot {
    /// The session's newest messages, oldest first, reaching back to the turn's prompt.
    pub messages: Vec<MessageWithParts>,
    /// What the session does; absent when it is not listed, which means idle.
    pub status: Option<SessionStatus>,
    /// The directory's requests for permissions.
    pub permissions: Vec<PermissionRequest>,
    /// The directory's requests for answers.
    pub questions: Vec<QuestionRequest>,
}

/// The translation of one session: feed it every event, and keep it with the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionTranslator {
    root: String,
}

#[expect(clippy::todo, unused_variables, reason = "signatures first")]
impl SessionTranslator {
    /// For the session of opencode with this id (`ses_...`).
    pub fn new(root: &str) -> Self {
        Self { root: root.to_owned() }
    }

    /// A prompt is about to be handed over under this message id.
    pub fn begin_turn(&mut self, user_message_id: &str) {
        todo!()
    }

    /// Where the turn stands.
    pub fn phase(&self) -> TurnPhase {
        todo!()
    }

    /// Somebody wants the turn cancelled.
    pub fn request_cancel(&mut self) {
        todo!()
    }

    /// An abort is wanted, can work, and was not sent.
    pub fn abort_due(&self) -> bool {
        todo!()
    }

    /// The abort is being sent.
    pub fn abort_sent(&mut self) {
        todo!()
    }

    /// The abort could not be delivered; it is due again.
    pub fn abort_failed(&mut self) {
        todo!()
    }

    /// The abort was answered.
    pub fn abort_returned(&mut self) -> Vec<Translation> {
        todo!()
    }

    /// Opencode is idle but the turn's end is not proved: reconcile, not more often than once a second.
    pub fn in_doubt(&self) -> bool {
        todo!()
    }

    /// Takes the next event of the directory's stream; others than the session's are ignored.
    pub fn apply(&mut self, event: &GlobalEvent) -> Vec<Translation> {
        todo!()
    }

    /// Events may have been missed.
    pub fn mark_gap(&mut self) {
        todo!()
    }

    /// Takes the state that was read after a gap.
    pub fn reconcile(&mut self, snapshot: &Snapshot) -> Vec<Translation> {
        todo!()
    }

    /// opencode ended.
    pub fn serve_exited(&mut self, detail: &str) -> Vec<Translation> {
        todo!()
    }

    /// The turn cannot be brought to an end otherwise: ends it with this error.
    pub fn fail(&mut self, error: TurnError) -> Vec<Translation> {
        todo!()
    }
}
