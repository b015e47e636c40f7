//! Wishes: prompts to be started, turns to be cancelled, asks to be answered, the session to be deleted. Pure.

use berth_opencode::{ClientError, Ensured, EnsuredHow, NewSession, SessionTranslator, TurnPhase};
use berth_wire::{
    event::{EventPayload, SessionReset},
    turn::{TurnError, TurnErrorReason, TurnOutcome},
};
use std::time::Duration;

use super::{
    super::{
        asks::Settlement,
        calls::{PrepareError, Request},
    },
    Beginning, Blocked, Moment, Obstacle, Output, Running, Session, Stage, Standing, backoff, error,
    is_within, stored,
};
use crate::{
    http::error_chain,
    store::{Change, NewEvent, SessionWork, UnreadableTurn, Unusable},
};

/// Pause before a look at what kept a turn from being started.
const PAUSE: Duration = Duration::from_millis(500);
/// Longest pause between two tries to delete opencode's session.
const DELETE_PAUSE: Duration = Duration::from_mins(5);
/// Refusals of opencode to delete its session after which ours goes without it: more than eight minutes of them.
const DELETE_REFUSALS: u32 = 10;

impl Session {
    /// Does what can be done now.
    pub(super) fn settle(&mut self, at: &Moment, out: &mut Vec<Output>) {
        self.not_before = self.not_before.filter(|moment| *moment > at.now);
        self.pass_cancel(at, out);
        self.deliver_answers(out);
        self.start_next(at, out);
        self.delete_if_asked(out);
    }

    pub(super) fn take_rows(&mut self, work: Option<SessionWork>, at: &Moment, out: &mut Vec<Output>) {
        let Some(mut work) = work else {
            self.work.queued = None;
            return;
        };
        let unreadable = std::mem::take(&mut work.unreadable);
        self.work = work;
        for turn in unreadable {
            self.end_unreadable(turn, at, out);
        }
        if self.adopt_lost_turn() {
            let message = "the server lost the state of this turn when it was started again, and cannot tell how the turn \
                           went on: see what it left, then send again";
            self.fail_turn(error(TurnErrorReason::StateUnreadable, message), at, out);
        }
    }

    /// Ends a turn that cannot go on, since what is stored of it is not understood; the session's other turns do.
    fn end_unreadable(&mut self, turn: UnreadableTurn, at: &Moment, out: &mut Vec<Output>) {
        let error = unusable(&turn);
        let UnreadableTurn { id, runs, why, error: what } = turn;
        tracing::error!(session_id = %self.id, turn_id = %id, ?why, error = what, "turn cannot go on; it ends");
        if self.turn_id() == Some(id) {
            // One whose state is lost too, or whose end is held, ends by that.
            if self.phase() != TurnPhase::Idle {
                self.fail_turn(error, at, out);
            }
            return;
        }
        if runs {
            self.close_translation(id, &error, at, out);
        }
        let outcome = TurnOutcome::failed(error.reason, error.message);
        out.push(Output::Change(Change::TurnEnded { turn_id: id, outcome: outcome.clone() }));
        out.push(Output::Log(NewEvent { turn_id: Some(id), payload: EventPayload::TurnEnded(outcome) }));
        out.push(Output::Reread);
    }

    /// A running turn whose stored state was not understood, or whose end was held by who is gone, gets a state in which it can be ended; true if there is one.
    fn adopt_lost_turn(&mut self) -> bool {
        let held = self.turn().is_some_and(|turn| turn.ends.is_held());
        let known = held || self.phase() != TurnPhase::Idle;
        let (Stage::Running(turn), Some(root), false) = (&self.stage, &self.work.opencode_session_id, known)
        else {
            return false;
        };
        self.translator.get_or_insert_with(|| SessionTranslator::new(root)).begin_turn(&turn.message_id);
        true
    }

    /// Tells the translator that the turn is to end, and aborts it where that can work: before opencode has begun, an
    /// abort is lost, so it waits, and after one that did not arrive it waits too.
    fn pass_cancel(&mut self, at: &Moment, out: &mut Vec<Output>) {
        let (Stage::Running(turn), Some(translator)) = (&mut self.stage, &mut self.translator) else {
            return;
        };
        let same = self.work.running.as_ref().filter(|running| running.id == turn.id);
        if self.work.deleted || same.is_some_and(|running| running.cancel_requested) {
            self.changed |= !translator.abort_wanted();
            translator.request_cancel();
        }
        let pauses = turn.abort_not_before.is_some_and(|moment| moment > at.now);
        if !translator.abort_due() || turn.aborting || pauses || self.work.opencode_session_id.is_none() {
            return;
        }
        translator.abort_sent();
        turn.aborting = true;
        self.in_flight += 1;
        self.call(Request::Abort, out);
    }

    /// Delivers answers that persons left and that rules give.
    fn deliver_answers(&mut self, out: &mut Vec<Output>) {
        for (id, settlement) in self.asking.decided(&self.work) {
            self.tell(id, settlement, out);
        }
    }

    /// Tells opencode what was decided about an ask.
    pub(super) fn tell(&mut self, id: String, settlement: Settlement, out: &mut Vec<Output>) {
        let reply = settlement.reply.clone();
        self.asking.tell(&id, settlement);
        self.call(Request::Reply(id, reply), out);
    }

    /// Starts the oldest queued turn: at once where opencode's session is known to stand, else after a look.
    fn start_next(&mut self, at: &Moment, out: &mut Vec<Output>) {
        if !self.is_quiet() || self.work.deleted || self.work.queued.is_none() || self.not_before.is_some() {
            return;
        }
        self.block(at);
        if !at.open {
            return;
        }
        if self.standing == Standing::Verified {
            return self.begin(at, out);
        }
        self.stage = Stage::Preparing;
        let new =
            NewSession { title: self.work.title.clone(), berth_session_id: self.id, permission: Vec::new() };
        self.call(Request::Prepare(new), out);
    }

    /// Notes that the oldest queued turn waits for what it needs.
    pub(super) fn block(&mut self, at: &Moment) -> Option<&mut Blocked> {
        let turn = self.work.queued.as_ref()?.id;
        if self.blocked.as_ref().is_none_or(|blocked| blocked.turn != turn) {
            self.blocked = Some(Blocked { turn, since: at.now, gated_since: None, why: None });
        }
        self.blocked.as_mut()
    }

    /// opencode's session was made sure of, or not.
    pub(super) fn take_prepared(
        &mut self,
        result: Result<Ensured, PrepareError>,
        at: &Moment,
        out: &mut Vec<Output>,
    ) {
        self.stage = Stage::Rest;
        match result {
            Ok(ensured) => {
                self.standing = Standing::Verified;
                self.note_ensured(&ensured, out);
            }
            Err(error) => self.note_obstacle(&error, at, out),
        }
    }

    /// Where opencode's session is new to us: its id, and where it took the place of one that was lost, word of that.
    /// Noted whatever becomes of the prompt, so that the session can be deleted.
    fn note_ensured(&mut self, ensured: &Ensured, out: &mut Vec<Output>) {
        let current = ensured.session.id.clone();
        if self.work.opencode_session_id.as_ref() == Some(&current) {
            return;
        }
        let previous = self.work.opencode_session_id.replace(current.clone());
        self.translator = Some(SessionTranslator::new(&current));
        self.changed = true;
        out.push(Output::Change(Change::OpencodeSession { id: current.clone() }));
        if previous.is_some() {
            tracing::warn!(session_id = %self.id, how = ?ensured.how, "opencode had lost the session");
            let payload = EventPayload::SessionReset(SessionReset { previous, current });
            out.push(Output::Log(NewEvent { turn_id: None, payload }));
        } else if ensured.how == EnsuredHow::Found {
            tracing::info!(session_id = %self.id, "opencode's session was made before and is used");
        }
    }

    /// What may pass is tried again until the turn has waited too long; anything else ends it.
    fn note_obstacle(&mut self, error: &PrepareError, at: &Moment, out: &mut Vec<Output>) {
        let why = Obstacle { reason: error.reason(), message: error_chain(error) };
        if error.is_transient() {
            self.not_before = Some(at.now + PAUSE);
            let limit = self.limits.gated;
            if let Some(blocked) = self.block(at) {
                blocked.why = Some(why);
                if !error.is_gated() {
                    blocked.gated_since = None;
                } else if is_within(limit, &mut blocked.gated_since, at) {
                    blocked.since = at.now;
                }
            }
            return;
        }
        tracing::warn!(session_id = %self.id, error = why.message, "turn could not be started");
        self.end_blocked(TurnOutcome::failed(why.reason, why.message), out);
    }

    /// Ends the oldest queued turn, which cannot be started.
    pub(super) fn end_blocked(&mut self, outcome: TurnOutcome, out: &mut Vec<Output>) {
        self.blocked = None;
        let Some(turn) = self.work.queued.take() else { return };
        let payload = EventPayload::TurnEnded(outcome.clone());
        out.push(Output::Change(Change::TurnEnded { turn_id: turn.id, outcome }));
        out.push(Output::Log(NewEvent { turn_id: Some(turn.id), payload }));
        out.push(Output::Reread);
    }

    /// Has it written that the turn runs. Written before anything leaves: whoever comes after a crash in between knows
    /// the ids under which the prompt may have left.
    fn begin(&mut self, at: &Moment, out: &mut Vec<Output>) {
        let (Some(turn), Some(root)) = (&self.work.queued, &self.work.opencode_session_id) else { return };
        let (turn, message_id) = (turn.clone(), (self.message_id)());
        let mut translator = self.translator.clone().unwrap_or_else(|| SessionTranslator::new(root));
        translator.begin_turn(&message_id);
        let state = stored(&translator);
        let running = Running::new(&turn, message_id.clone(), self.limits.watchdog, at.now);
        self.stage = Stage::Starting(Box::new((running, translator)));
        out.push(Output::Begin(Box::new(Beginning { turn, message_id, translator: state })));
    }

    /// It is written that the turn runs, or it was not queued any more. What waits behind it, and a cancel that came
    /// meanwhile, are in the rows.
    pub(super) fn take_begun(&mut self, begun: bool, out: &mut Vec<Output>) {
        self.work.queued = None;
        if let Stage::Starting(starting) = std::mem::replace(&mut self.stage, Stage::Rest)
            && begun
        {
            let (running, translator) = *starting;
            self.translator = Some(translator);
            self.changed = false;
            self.blocked = None;
            self.stage = Stage::Running(Box::new(running));
            self.post(out);
        }
        out.push(Output::Reread);
    }

    /// Deletes a session once its turn has ended. Where opencode's own was never heard of, it may be there all the same:
    /// the call that made it may have been given up.
    fn delete_if_asked(&mut self, out: &mut Vec<Output>) {
        if !self.work.deleted || !self.is_quiet() || self.not_before.is_some() {
            return;
        }
        self.stage = Stage::Deleting;
        if self.work.opencode_session_id.is_some() || self.work.prompted {
            self.call(Request::Delete(self.id), out);
        } else {
            out.push(Output::Remove);
        }
    }

    /// opencode's session is gone, or could not be deleted: that is tried again, less and less often. Where opencode
    /// refuses it for long, as in a directory whose configuration stays broken, ours goes alone.
    pub(super) fn take_deleted(
        &mut self,
        result: Result<(), ClientError>,
        at: &Moment,
        out: &mut Vec<Output>,
    ) {
        let Err(error) = result else { return out.push(Output::Remove) };
        self.delete_failures = self.delete_failures.saturating_add(1);
        let (attempt, refused, error) = (self.delete_failures, !error.is_transient(), error_chain(&error));
        if refused && attempt >= DELETE_REFUSALS {
            let root = self.root();
            tracing::warn!(session_id = %self.id, root, attempt, error, "session is deleted, opencode's own is left behind");
            return out.push(Output::Remove);
        }
        tracing::warn!(session_id = %self.id, attempt, error, "opencode's session could not be deleted; it is tried again");
        self.stage = Stage::Rest;
        self.not_before = Some(at.now + backoff(attempt, DELETE_PAUSE));
    }
}

/// What its caller is told of it.
fn unusable(turn: &UnreadableTurn) -> TurnError {
    let message = match (turn.why, turn.runs) {
        (Unusable::Session, _) => {
            "what is stored of this session is damaged, and opencode cannot be reached for it any more: read what it has, and \
             go on in a new session"
        }
        (Unusable::Value, true) => {
            "this version of the server does not understand what is stored of this turn, and cannot follow it; opencode may \
             still work on it, and the next prompt waits until it does not: see what it left, then send again"
        }
        (Unusable::Value, false) => {
            "this version of the server does not understand what is stored of this prompt, which was not sent: send it \
             again"
        }
        (Unusable::Defect, true) => {
            "the server broke off at this turn again and again, and follows it no more: a defect of Berth, of which its log \
             tells more; opencode may still work on it, and the next prompt waits until it does not: see what it left, then \
             send again"
        }
        (Unusable::Defect, false) => {
            "the server broke off at this prompt again and again before it was sent: a defect of Berth, of which its log \
             tells more"
        }
    };
    let reason = match turn.why {
        Unusable::Defect => TurnErrorReason::ServerDefect,
        Unusable::Value | Unusable::Session => TurnErrorReason::StateUnreadable,
    };
    error(reason, message)
}
