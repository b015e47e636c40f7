//! One session that has something to do: its state, and every decision about it. Pure: what happens comes as an
//! [`Input`] with the [`Moment`] in which it happens, and what is to be done about it leaves as [`Output`]s, which the
//! owner performs in their order.
//!
//! | stage | is left by |
//! |---|---|
//! | [`Stage::Rest`] | a queued turn, when nothing stands in the way; a wish that the session be deleted |
//! | [`Stage::Preparing`] | the end of the call that makes sure of opencode's session |
//! | [`Stage::Starting`] | the commit that the turn runs, or word that it is not queued any more |
//! | [`Stage::Running`] | the turn's one end |
//! | [`Stage::Deleting`] | the end of the call that deletes opencode's session |
//!
//! [`Session::step`] takes an input (in `delivery`, `record`, `deadlines` and here), then does what can be done now
//! (`wishes`): it passes a cancel on, delivers answers, starts the oldest queued turn, deletes.

use std::{sync::Arc, time::Duration};

use berth_opencode::{GlobalEvent, ModelReference, SessionTranslator, Snapshot, TurnPhase};
use berth_wire::{
    door::TurnEnding,
    turn::{TurnError, TurnErrorReason},
};
use jiff::Timestamp;
use tokio::time::Instant;
use uuid::Uuid;

use super::{
    calls::{CallResult, Request},
    readiness::Waited,
};
use crate::{
    config::Limits,
    store::{Change, NewEvent, OpenTurn, SessionWork},
};

mod asking;
mod deadlines;
mod delivery;
mod gone;
mod record;
mod running;
#[cfg(test)]
mod tests;
mod unasked;
mod wishes;

use asking::Asking;
pub(super) use gone::commit_of;
use running::Running;
pub(super) use running::content_of;

/// Longest pause between two tries to read a session's state.
const READ_PAUSE: Duration = Duration::from_secs(30);

/// When something happens.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    /// By the clock that only goes forward.
    pub(super) now: Instant,
    /// By the wall clock, in which asks and retries are due.
    pub(super) clock: Timestamp,
    /// The subscription stands and the run of opencode is known: prompts may be sent.
    pub(super) open: bool,
}

/// What happens to a session.
#[derive(Debug)]
pub(super) enum Input<'a> {
    /// Its rows, as read now; none when they have nothing to do any more.
    Rows(Option<Box<SessionWork>>),
    /// An event of opencode that concerns it.
    Event(&'a GlobalEvent),
    /// Somebody else's prompt was passed to opencode's session, or runs there.
    Foreign,
    /// An event of any kind came.
    Alive,
    /// The subscription broke; what it will tell when it stands again is not known now.
    Lost,
    /// Events were missed.
    Gap,
    /// The subscription stands, or opencode has booted.
    Open {
        /// opencode has booted.
        booted: bool,
    },
    /// The run of opencode is over, for this reason.
    BootEnded(&'a str),
    /// At the door, the turn with this prompt ended so.
    EndedAtDoor(Option<&'a str>, TurnEnding),
    /// A call ended that was made while this turn ran.
    Done(Option<Uuid>, CallResult),
    /// The commit that the turn runs: it stands, or the turn was not queued any more.
    Begun(bool),
    /// What [`Session::wants_snapshot`] asked for.
    Snapshot(Result<Box<Snapshot>, berth_opencode::ClientError>),
    /// How much its model takes.
    Size(ModelReference, u64),
    /// Half a second has passed, or what [`Session::due`] told.
    Tick,
}

/// What is to be done.
#[derive(Debug)]
pub(super) enum Output {
    /// Append to the log.
    Log(NewEvent),
    /// Change beside the log, in the same commit.
    Change(Change),
    /// Call the door; the end comes back as [`Input::Done`] with this turn.
    Call(Option<Uuid>, Request),
    /// Commit that this turn runs, with what is known so far; the end comes back as [`Input::Begun`].
    Begin(Box<Beginning>),
    /// Commit, and read the rows again.
    Reread,
    /// Commit, and remove the rows: the session is deleted.
    Remove,
}

/// A turn that is to run.
#[derive(Debug)]
pub(super) struct Beginning {
    pub(super) turn: OpenTurn,
    /// The id under which its prompt will leave.
    pub(super) message_id: String,
    /// State of the translation from then on.
    pub(super) translator: Option<String>,
}

/// What the session does.
#[derive(Debug)]
enum Stage {
    /// Nothing.
    Rest,
    /// opencode's session is being made sure of.
    Preparing,
    /// It is being written that the turn runs; nothing of it has left.
    Starting(Box<(Running, SessionTranslator)>),
    /// A turn runs.
    Running(Box<Running>),
    /// opencode's session is being deleted.
    Deleting,
}

/// What is known of opencode's session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// Whether it exists, and does nothing, must be looked up before the next prompt.
    Unverified,
    /// It exists, and does nothing as far as anybody told.
    Verified,
}

/// A queued turn that could not be started.
#[derive(Debug)]
struct Blocked {
    turn: Uuid,
    /// Since when, or when the gate was last seen closed.
    since: Instant,
    /// Since when the gate is closed.
    gated_since: Option<Instant>,
    /// What stood in the way last, once that is known.
    why: Option<Obstacle>,
}

/// What keeps a queued turn from being started, for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Obstacle {
    reason: TurnErrorReason,
    message: String,
}

/// The session.
#[derive(Debug)]
pub(super) struct Session {
    id: Uuid,
    limits: Arc<Limits>,
    /// Makes ids of messages.
    message_id: fn() -> String,
    /// Its rows, as of the last look.
    work: SessionWork,
    stage: Stage,
    /// State of the translation; none before opencode's session is known.
    translator: Option<SessionTranslator>,
    /// The translation may have changed since it was last saved.
    changed: bool,
    /// Prompts and aborts on their way to opencode, those of turns that have ended included: they must not meet the
    /// next turn.
    in_flight: u32,
    standing: Standing,
    /// Nothing is started before this moment.
    not_before: Option<Instant>,
    /// Why the oldest queued turn waits.
    blocked: Option<Blocked>,
    /// Why the sandbox is not ready.
    unready: Option<Waited>,
    /// State must be read again: events may have been missed.
    reconcile: bool,
    /// When state was last read, or could not be.
    reconciled_at: Option<Instant>,
    /// How often it could not be read since it was.
    read_failures: u32,
    /// Tries to delete it that failed.
    delete_failures: u32,
    /// Since when there is nothing to do.
    done_since: Option<Instant>,
    asking: Asking,
}

impl Session {
    /// A session as its rows tell of it.
    pub(super) fn new(
        work: SessionWork,
        limits: &Arc<Limits>,
        message_id: fn() -> String,
        now: Instant,
    ) -> Self {
        let running = work.running.as_ref().and_then(|turn| Running::resumed(turn, limits.watchdog, now));
        let translator = resume_translator(&work);
        Self {
            id: work.id,
            limits: Arc::clone(limits),
            message_id,
            stage: running.map_or(Stage::Rest, |running| Stage::Running(Box::new(running))),
            reconcile: translator.as_ref().is_some_and(SessionTranslator::has_gap),
            translator,
            changed: false,
            in_flight: 0,
            standing: Standing::Unverified,
            not_before: None,
            blocked: None,
            unready: None,
            reconciled_at: None,
            read_failures: 0,
            delete_failures: 0,
            done_since: None,
            asking: Asking::new(&work.asks),
            work,
        }
    }

    /// Takes what happened, then does what can be done now.
    pub(super) fn step(&mut self, input: Input<'_>, at: &Moment) -> Vec<Output> {
        let mut out = Vec::new();
        match input {
            Input::Rows(work) => self.take_rows(work.map(|work| *work), at, &mut out),
            Input::Event(event) => self.take_event(event, at, &mut out),
            Input::Foreign | Input::Lost => self.standing = Standing::Unverified,
            Input::Alive => self.note_alive(at),
            Input::Gap => self.note_gap(),
            Input::Open { booted } => {
                if booted {
                    self.read_failures = 0;
                    self.note_booted(at);
                }
                self.look_if_in_doubt(at, &mut out);
            }
            Input::EndedAtDoor(prompt, ending) => self.take_word(prompt, ending, at, &mut out),
            Input::BootEnded(detail) => self.end_boot(detail, at, &mut out),
            Input::Done(turn, result) => self.take_result(turn, result, at, &mut out),
            Input::Begun(begun) => self.take_begun(begun, &mut out),
            Input::Snapshot(snapshot) => self.take_snapshot(snapshot.map(|snapshot| *snapshot), at, &mut out),
            Input::Size(model, tokens) => self.take_size(model, tokens, at, &mut out),
            Input::Tick => self.tick(at, &mut out),
        }
        self.settle(at, &mut out);
        out
    }

    /// Notes why the sandbox is not ready, if it is not.
    pub(super) fn note_unready(&mut self, unready: Option<Waited>) {
        self.unready = unready;
    }

    /// Directory inside the sandbox.
    pub(super) fn directory(&self) -> &str {
        &self.work.directory
    }

    /// opencode's session, once known.
    pub(super) fn root(&self) -> Option<&str> {
        self.work.opencode_session_id.as_deref()
    }

    /// State of the translation.
    #[cfg(test)]
    pub(super) fn translator(&self) -> Option<&SessionTranslator> {
        self.translator.as_ref()
    }

    /// The event is of this session or one of its subagents.
    pub(super) fn concerns(&self, event: &GlobalEvent) -> bool {
        self.translator.as_ref().is_some_and(|translator| translator.concerns(event))
    }

    /// A turn runs.
    pub(super) fn runs(&self) -> bool {
        self.turn().is_some()
    }

    /// The model in use, when it is not known how much it takes.
    pub(super) fn unsized_model(&self) -> Option<&ModelReference> {
        self.translator.as_ref()?.unsized_model()
    }

    /// The translation's state, if it may have changed since it was last saved.
    pub(super) fn state_to_save(&mut self) -> Option<String> {
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        self.translator.as_ref().and_then(stored)
    }

    /// State must be read, back to the running turn's prompt. It stays wanted until it is there; what cannot be read is
    /// tried again less and less often.
    pub(super) fn wants_snapshot(&self, now: Instant) -> bool {
        let pause = match self.read_failures {
            0 => Duration::ZERO,
            failures => backoff(failures, READ_PAUSE),
        };
        let rested = self.reconciled_at.is_none_or(|at| now.saturating_duration_since(at) >= pause);
        self.reconcile && rested && self.turn().is_some() && self.root().is_some()
    }

    /// The message id of the running turn's prompt.
    pub(super) fn prompt(&self) -> Option<&str> {
        self.translator.as_ref().and_then(SessionTranslator::prompt)
    }

    /// When something can be done that could not be done before; nothing while that depends on others.
    pub(super) fn due(&self) -> Option<Instant> {
        let waits = self.work.deleted || self.work.queued.is_some();
        self.not_before.filter(|_| waits && self.is_quiet()).or_else(|| self.abort_due())
    }

    /// When an abort that did not arrive may leave again.
    fn abort_due(&self) -> Option<Instant> {
        let (turn, translator) = (self.turn()?, self.translator.as_ref()?);
        turn.abort_not_before.filter(|_| translator.abort_due() && !turn.aborting && self.root().is_some())
    }

    /// An ask's deadline has passed, and nobody has settled it.
    pub(super) fn has_late_ask(&self, clock: Timestamp) -> bool {
        self.asking.late(clock).next().is_some()
    }

    /// True when the session needs nobody's care.
    pub(super) fn is_done(&self) -> bool {
        self.is_quiet() && self.work.queued.is_none() && !self.work.deleted
    }

    /// True when the session has needed nobody's care for `linger`: until then late events, such as a title, come.
    pub(super) fn is_over(&mut self, now: Instant) -> bool {
        if !self.is_done() {
            self.done_since = None;
            return false;
        }
        now.saturating_duration_since(*self.done_since.get_or_insert(now)) >= self.limits.linger
    }

    fn turn(&self) -> Option<&Running> {
        match &self.stage {
            Stage::Running(turn) => Some(turn),
            _ => None,
        }
    }

    fn turn_mut(&mut self) -> Option<&mut Running> {
        match &mut self.stage {
            Stage::Running(turn) => Some(turn),
            _ => None,
        }
    }

    fn turn_id(&self) -> Option<Uuid> {
        self.turn().map(|turn| turn.id)
    }

    /// The trace of the prompt that runs, or else of the one that runs next: what calls are made for.
    pub(super) fn traceparent(&self) -> Option<&str> {
        let queued = || self.work.queued.as_ref().and_then(|turn| turn.options.traceparent.as_deref());
        self.turn().map_or_else(queued, Running::traceparent)
    }

    fn phase(&self) -> TurnPhase {
        self.translator.as_ref().map_or(TurnPhase::Idle, SessionTranslator::phase)
    }

    /// True when nothing runs and nothing is on its way to opencode.
    fn is_quiet(&self) -> bool {
        matches!(self.stage, Stage::Rest) && self.in_flight == 0
    }

    fn call(&self, request: Request, out: &mut Vec<Output>) {
        out.push(Output::Call(self.turn_id(), request));
    }
}

fn stored(translator: &SessionTranslator) -> Option<String> {
    serde_json::to_string(translator).ok()
}

/// State of the translation as stored. Whoever sent an abort is gone.
fn resume_translator(work: &SessionWork) -> Option<SessionTranslator> {
    match serde_json::from_str::<SessionTranslator>(work.translator.as_ref()?) {
        Ok(mut translator) => {
            translator.abort_failed();
            Some(translator)
        }
        Err(error) => {
            tracing::error!(session_id = %work.id, %error, "stored translator state is not understood");
            None
        }
    }
}

fn error(reason: TurnErrorReason, message: impl Into<String>) -> TurnError {
    TurnError { reason, message: message.into(), retry_at: None, cause: None }
}

/// Twice as long after each failure, from a second to `longest`.
fn backoff(failures: u32, longest: Duration) -> Duration {
    Duration::from_secs(1 << failures.saturating_sub(1).min(20)).min(longest)
}

/// Whether what is so since `since`, or from now on, is not so for `limit` yet.
fn is_within(limit: Duration, since: &mut Option<Instant>, at: &Moment) -> bool {
    at.now.saturating_duration_since(*since.get_or_insert(at.now)) < limit
}
