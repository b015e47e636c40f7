//! One turn, from the moment when its prompt was passed on to its end, and what leaves the table. Pure.

use std::{sync::Arc, time::Duration};

use berth_wire::door::{DoorTurn, TurnEvent, TurnOrigin, TurnPhase};
use jiff::Timestamp;

use super::peek::Found;

/// The clocks, as the caller reads them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    /// Of a clock that only goes forward, from an origin of its own.
    pub(crate) elapsed: Duration,
    /// Of the wall.
    pub(crate) unix: Timestamp,
}

/// Names a prompt that was passed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ticket {
    /// Its session.
    pub(crate) session: Arc<str>,
    /// Never given twice.
    pub(crate) number: u64,
}

/// A prompt that is about to be passed on.
#[derive(Debug, Clone)]
pub(crate) struct Admission {
    /// The session that it names.
    pub(crate) session: String,
    /// The directory that the request names, or opencode's own: a guess until the session's first event.
    pub(crate) directory: String,
    /// Who asks.
    pub(crate) origin: TurnOrigin,
}

/// What the door has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Abort what runs in a session: somebody asked for it before it began.
    SendAbort { session: String, directory: String },
    /// Ask opencode where a session stands, and tell the table.
    Confirm { session: String, directory: String },
    /// Ask opencode what runs in it, and tell the table.
    Seed { boot_id: String },
    /// Start opencode anew: it took a prompt and did not begin.
    Restart { boot_id: String },
}

/// What the table wants to be told and done.
#[derive(Debug, Default)]
pub(crate) struct Out {
    /// For the journal, in order.
    pub(crate) events: Vec<TurnEvent>,
    /// For the door, in order.
    pub(crate) actions: Vec<Action>,
    /// opencode must be started anew.
    pub(crate) restart: bool,
}

/// How far an abort of a turn is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Abort {
    /// Nobody asked for one.
    None,
    /// Asked for before the turn began: it is sent when it begins.
    Armed,
    /// Sent to opencode.
    Sent,
    /// Answered by opencode.
    Returned,
    /// opencode aborted it, and nobody had asked for that.
    Unasked,
}

/// How far a turn has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// Its prompt was passed on.
    Admitted,
    /// Its user message was seen.
    Seen,
    /// opencode works on it, or has.
    Started,
}

/// Whether a prompt is stored and nothing runs for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Note {
    No,
    Yes,
    /// It was too long to be looked at whole.
    Maybe,
}

impl Note {
    /// As the prompt's beginning says.
    pub(crate) fn of(found: &Found) -> Self {
        match found {
            Found { no_reply: true, .. } => Self::Yes,
            Found { cut: true, .. } => Self::Maybe,
            Found { .. } => Self::No,
        }
    }
}

/// The session went idle after a turn had begun.
#[derive(Debug, Clone)]
pub(crate) struct Quiet {
    pub(crate) since: Duration,
    /// Answers that were still open then: after an abort or an error opencode closes them later.
    pub(crate) waits_for: Vec<String>,
}

/// A turn that has not ended.
#[derive(Debug, Clone)]
pub(crate) struct Turn {
    /// The prompts that were passed on for it: more than one when the same ids were sent again.
    pub(crate) tickets: Vec<u64>,
    pub(crate) message_id: Option<String>,
    pub(crate) origin: TurnOrigin,
    pub(crate) since: Timestamp,
    pub(crate) admitted: Duration,
    /// When opencode answered the prompt with a success.
    pub(crate) accepted: Option<Duration>,
    /// Its first phase was told to the journal.
    pub(crate) announced: bool,
    pub(crate) note: Note,
    /// opencode answered a call that lasts as long as the turn.
    pub(crate) answered: bool,
    pub(crate) stage: Stage,
    /// opencode reported an error before it began.
    pub(crate) errored: bool,
    pub(crate) abort: Abort,
    pub(crate) quiet: Option<Quiet>,
    /// When its state is to be confirmed, earlier than by its bounds.
    pub(crate) check: Option<Duration>,
    /// How often opencode did not answer when it was asked.
    pub(crate) unanswered: u8,
}

impl Turn {
    pub(crate) fn new(origin: TurnOrigin, now: Now) -> Self {
        Self {
            tickets: Vec::new(),
            message_id: None,
            origin,
            since: now.unix,
            admitted: now.elapsed,
            accepted: None,
            announced: false,
            note: Note::No,
            answered: false,
            stage: Stage::Admitted,
            errored: false,
            abort: Abort::None,
            quiet: None,
            check: None,
            unanswered: 0,
        }
    }

    /// Nothing runs for it.
    pub(crate) fn is_note(&self) -> bool {
        self.note == Note::Yes
    }

    /// Its user message was seen.
    pub(crate) fn seen(&self) -> bool {
        self.stage >= Stage::Seen
    }

    pub(crate) fn started(&self) -> bool {
        self.stage == Stage::Started
    }

    /// Began, and its session has not gone idle since.
    pub(crate) fn runs(&self) -> bool {
        self.started() && self.quiet.is_none()
    }

    /// Waits for its beginning.
    pub(crate) fn waits(&self) -> bool {
        !self.started() && !self.is_note()
    }

    pub(crate) fn aborted(&self) -> bool {
        !matches!(self.abort, Abort::None | Abort::Unasked)
    }

    pub(crate) fn has_id(&self, message: &str) -> bool {
        self.message_id.as_deref() == Some(message)
    }

    /// The turn as the door's callers see it.
    pub(crate) fn view(&self) -> DoorTurn {
        DoorTurn {
            message_id: self.message_id.clone(),
            phase: if self.started() { TurnPhase::Started } else { TurnPhase::Admitted },
            origin: self.origin,
            since: self.since,
            aborting: self.aborted(),
        }
    }
}
