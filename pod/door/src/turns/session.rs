//! What runs in one session: a state machine over requests and events. Pure.
//!
//! What it goes by, all measured on opencode 1.15.4 and 1.18.33: an idle means nothing for a prompt that has not begun;
//! a prompt begins when its user message was stored and the session is busy after that, or when an answer names it as
//! its parent; all prompts that were taken into a run end with the run's idle; after an abort or an error the answer
//! that was open is closed after the idle, and followed by another idle.

use std::{collections::VecDeque, time::Duration};

use berth_wire::door::{DoorSession, TurnEnding, TurnEvent, TurnOrigin, TurnPhase};

mod confirm;

pub(crate) use confirm::{Evidence, Listed};

use super::{
    peek::Found,
    spoilt::Signs,
    turn::{Abort, Action, Admission, Note, Now, Out, Quiet, Stage, Turn},
};

/// Turns of a session that have not ended, at most.
pub(crate) const TURNS: usize = 256;

/// Ids of user messages and of open answers that are remembered, each.
const REMEMBERED: usize = 64;

/// After an error without a beginning, how long the beginning may take: the error may be of the turn before.
const AFTER_ERROR: Duration = Duration::from_secs(1);

/// After the idle of the run that a prompt was queued in, how long another run may take to begin with it.
const AFTER_RUN: Duration = Duration::from_secs(2);

/// After the answer to an abort, how long the idle may take.
const AFTER_ABORT: Duration = Duration::from_secs(3);

/// How long the second idle of an aborted turn may take after its answer was closed.
const SECOND_IDLE: Duration = Duration::from_millis(500);

/// How far apart opencode's clock of message times and ours may be, in milliseconds.
const SKEW_MS: i64 = 5_000;

/// Whether an abort may pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Plan {
    /// At once. [`Session::abort_returned`] must be called when it was answered, or was lost.
    Pass,
    /// When these have begun or ended: before that opencode answers it and runs the prompt all the same.
    Hold(Vec<u64>),
}

/// A session.
#[derive(Debug, Default)]
pub(crate) struct Session {
    pub(crate) id: String,
    /// Directory of its instance: by its events, or as a request named it.
    pub(crate) directory: String,
    pub(crate) parent: Option<String>,
    /// opencode works in it, by the events.
    pub(crate) busy: bool,
    pub(crate) turns: Vec<Turn>,
    /// Number of its newest event, as the table counts them.
    pub(crate) touched: u64,
    /// What it says about its directory, until the table takes it.
    pub(crate) signs: Signs,
    deleted: bool,
    /// Answers that are not complete.
    open: Vec<String>,
    /// Prompts that were seen.
    users: VecDeque<String>,
    /// Aborts that are on their way.
    aborts: usize,
    heard: Duration,
    idle_since: Duration,
    /// Until then an idle is the second one of the run before.
    stale_idle: Option<Duration>,
    /// opencode is being asked.
    asking: bool,
    not_before: Duration,
}

impl Session {
    pub(crate) fn new(id: &str, directory: &str) -> Self {
        Self { id: id.to_owned(), directory: directory.to_owned(), ..Self::default() }
    }

    /// Something runs, or will.
    pub(crate) fn is_active(&self) -> bool {
        self.busy || !self.turns.is_empty()
    }

    pub(crate) fn view(&self) -> DoorSession {
        DoorSession {
            session_id: self.id.clone(),
            directory: Some(self.directory.clone()).filter(|directory| !directory.is_empty()),
            parent_id: self.parent.clone(),
            busy: self.busy,
            turns: self.turns.iter().filter(|turn| !turn.is_note()).map(Turn::view).collect(),
        }
    }

    // Requests.

    /// A prompt is passed on. False when there are too many.
    pub(crate) fn admit(&mut self, admission: &Admission, ticket: u64, now: Now) -> bool {
        if self.turns.len() >= TURNS {
            return false;
        }
        let mut turn = Turn::new(admission.origin, now);
        turn.tickets.push(ticket);
        self.turns.push(turn);
        true
    }

    /// All of the prompt that matters was passed on.
    pub(crate) fn learned(&mut self, ticket: u64, found: &Found, out: &mut Out) {
        let Some(at) = self.at(ticket) else { return };
        if let Some(id) = found.message_id.clone() {
            let same = self.turns.iter().position(|turn| turn.has_id(&id) && turn.quiet.is_none());
            if let Some(same) = same.filter(|same| *same != at) {
                // The same ids again: opencode does not run them twice.
                let again = self.turns.remove(at);
                let first = self.turns.get_mut(if same > at { same - 1 } else { same });
                if let Some(first) = first {
                    first.tickets.extend(&again.tickets);
                }
                return;
            }
            if let Some(turn) = self.turns.get_mut(at) {
                turn.message_id = Some(id);
            }
        }
        if let Some(turn) = self.turns.get_mut(at) {
            turn.note = Note::of(found);
        }
        self.announce(at, out);
    }

    /// opencode took the prompt.
    pub(crate) fn accepted(&mut self, ticket: u64, now: Now, out: &mut Out) {
        let Some(at) = self.at(ticket) else { return };
        self.announce(at, out);
        let Some(turn) = self.turns.get_mut(at) else { return };
        turn.accepted = turn.accepted.or(Some(now.elapsed));
    }

    /// opencode answered a call that lasts as long as its turn. The events may come later than that, and tell more.
    pub(crate) fn answered(&mut self, ticket: u64, now: Now, out: &mut Out) {
        self.accepted(ticket, now, out);
        let Some(at) = self.at(ticket) else { return };
        let Some(turn) = self.turns.get_mut(at) else { return };
        turn.answered = true;
        if turn.quiet.is_none() {
            turn.check = turn.check.or(Some(now.elapsed + AFTER_RUN));
        }
    }

    /// opencode refused the prompt, or it did not arrive there.
    pub(crate) fn refused(&mut self, ticket: u64, out: &mut Out) {
        let Some(at) = self.at(ticket) else { return };
        let Some(turn) = self.turns.get_mut(at) else { return };
        turn.tickets.retain(|known| *known != ticket);
        if turn.tickets.is_empty() && !turn.started() {
            self.end(at, TurnEnding::Refused, out);
        }
    }

    /// Somebody wants everything in the session to stop.
    pub(crate) fn abort(&mut self) -> Plan {
        let runs = self.busy || self.turns.iter().any(Turn::runs);
        let mut held = Vec::new();
        for turn in &mut self.turns {
            if turn.waits() {
                turn.abort = Abort::Armed;
                held.extend(turn.tickets.first());
            } else if turn.runs() {
                turn.abort = Abort::Sent;
            }
        }
        if !runs && !held.is_empty() {
            return Plan::Hold(held);
        }
        self.aborts += 1;
        self.signs.aborted |= runs;
        Plan::Pass
    }

    /// An abort that was passed on was answered, or lost.
    pub(crate) fn abort_returned(&mut self, now: Now) {
        self.aborts = self.aborts.saturating_sub(1);
        if self.aborts > 0 {
            return;
        }
        for turn in self.turns.iter_mut().filter(|turn| turn.abort == Abort::Sent) {
            turn.abort = Abort::Returned;
            if turn.runs() {
                turn.check = Some(now.elapsed + AFTER_ABORT);
            }
        }
    }

    /// A held abort need not wait any more: what it is for has ended, or was aborted.
    pub(crate) fn held(&self, tickets: &[u64]) -> bool {
        let mut turns = tickets.iter().filter_map(|ticket| self.turns.get(self.at(*ticket)?));
        turns.all(|turn| turn.abort == Abort::Returned)
    }

    // Events.

    pub(crate) fn user(&mut self, message: &str, created: Option<i64>, now: Now, out: &mut Out) {
        self.hears(now);
        let known = self.users.iter().any(|user| user == message);
        if !known {
            remember(&mut self.users, message);
        }
        let at = self.turns.iter().position(|turn| !turn.seen() && turn.has_id(message));
        let at = at.or_else(|| if known { None } else { self.nameless(created) });
        let Some(at) = at else { return };
        if let Some(turn) = self.turns.get_mut(at) {
            turn.stage = turn.stage.max(Stage::Seen);
            turn.message_id = Some(message.to_owned());
            (turn.check, turn.errored) = (turn.check.filter(|_| turn.answered), false);
        }
        self.announce(at, out);
        if self.turns.get(at).is_some_and(Turn::is_note) {
            self.end(at, TurnEnding::Idle, out);
        }
    }

    /// The oldest prompt whose id is opencode's choice and that may be this message.
    fn nameless(&self, created: Option<i64>) -> Option<usize> {
        let fits = |turn: &Turn| created.is_none_or(|at| at + SKEW_MS >= turn.since.as_millisecond());
        self.turns.iter().position(|turn| !turn.seen() && turn.message_id.is_none() && fits(turn))
    }

    pub(crate) fn assistant(
        &mut self,
        message: &str,
        parent: Option<&str>,
        completed: bool,
        now: Now,
        out: &mut Out,
    ) {
        self.hears(now);
        if completed {
            self.open.retain(|open| open != message);
            self.closed(message, now);
        } else if !self.open.iter().any(|open| open == message) && self.open.len() < REMEMBERED {
            self.open.push(message.to_owned());
        }
        let Some(parent) = parent else { return };
        if let Some(at) = self.turns.iter().rposition(|turn| turn.has_id(parent)) {
            self.start(at, out);
            if !completed {
                self.revive(at, out);
            }
        } else if !completed && !self.users.iter().any(|user| user == parent) {
            // Its prompt was not told of: the event was lost, or it is older than this table.
            remember(&mut self.users, parent);
            if let Some(at) = self.nameless(None) {
                self.turns.get_mut(at).into_iter().for_each(|turn| turn.message_id = Some(parent.to_owned()));
                self.start(at, out);
            }
        }
        if !completed && self.busy {
            self.notice(Some(parent), now, out);
        }
    }

    /// The answer to a prompt ended as aborted. Those of subagents end so with their parent's.
    pub(crate) fn answer_aborted(&mut self, prompt: Option<&str>) {
        let turn = self.turns.iter_mut().find(|turn| prompt.is_some_and(|prompt| turn.has_id(prompt)));
        let unasked =
            turn.filter(|turn| turn.abort == Abort::None && self.aborts == 0 && self.parent.is_none());
        if let Some(turn) = unasked {
            turn.abort = Abort::Unasked;
            self.signs.interrupted = true;
        }
    }

    /// A run for which nobody asked through this door; those of subagents belong to their parent's.
    pub(crate) fn notice(&mut self, prompt: Option<&str>, now: Now, out: &mut Out) {
        if self.turns.iter().any(Turn::started) || self.parent.is_some() {
            return;
        }
        let mut turn = Turn::new(TurnOrigin::External, now);
        turn.message_id = prompt.map(str::to_owned);
        turn.announced = true;
        self.turns.push(turn);
        self.start(self.turns.len() - 1, out);
    }

    pub(crate) fn busy(&mut self, now: Now, out: &mut Out) {
        self.hears(now);
        self.busy = true;
        // A run is busy when it begins, and again when it asks its model for an answer that it opened.
        self.signs.asked |= !self.open.is_empty();
        for at in 0..self.turns.len() {
            if self.turns.get(at).is_some_and(Turn::seen) {
                self.start(at, out);
            }
        }
    }

    pub(crate) fn idle(&mut self, now: Now) {
        self.hears(now);
        if self.stale_idle.is_some_and(|until| now.elapsed < until) {
            let check = now.elapsed + AFTER_ABORT;
            self.turns.iter_mut().filter(|turn| turn.runs()).for_each(|turn| turn.check = Some(check));
            return;
        }
        (self.busy, self.idle_since) = (false, now.elapsed);
        let open = std::mem::take(&mut self.open);
        for turn in &mut self.turns {
            if turn.runs() {
                let mut waits_for = turn.quiet.take().map(|quiet| quiet.waits_for).unwrap_or_default();
                waits_for.extend_from_slice(&open);
                turn.quiet = Some(Quiet { since: now.elapsed, waits_for });
                turn.check = None;
            } else if turn.seen() && !turn.started() {
                turn.check = turn.check.or(Some(now.elapsed + AFTER_RUN));
            }
        }
    }

    pub(crate) fn error(&mut self, now: Now) {
        self.heard = now.elapsed;
        for turn in self.turns.iter_mut().filter(|turn| turn.waits() && !turn.seen()) {
            turn.errored = true;
            turn.check = turn.check.or(Some(now.elapsed + AFTER_ERROR));
        }
    }

    pub(crate) fn deleted(&mut self) {
        self.deleted = true;
    }

    /// The instance in which it ran is gone.
    pub(crate) fn disposed(&mut self, now: Now, out: &mut Out) {
        (self.busy, self.idle_since) = (false, now.elapsed);
        self.open.clear();
        self.end_where(Turn::started, TurnEnding::Disposed, out);
        let check = now.elapsed + AFTER_RUN;
        self.turns.iter_mut().filter(|turn| turn.seen()).for_each(|turn| turn.check = Some(check));
    }

    /// opencode itself is gone.
    pub(crate) fn exited(&mut self, out: &mut Out) {
        self.busy = false;
        self.open.clear();
        self.stale_idle = None;
        (self.asking, self.not_before) = (false, Duration::ZERO);
        self.end_where(|_| true, TurnEnding::Exited, out);
    }

    /// Events were missed.
    pub(crate) fn missed(&mut self, now: Now) {
        self.open.clear();
        for turn in &mut self.turns {
            turn.quiet.iter_mut().for_each(|quiet| quiet.waits_for.clear());
            turn.check = Some(now.elapsed);
        }
    }

    // What follows.

    /// An event came, or opencode's word that it works: questions that went unanswered before do not count any more.
    fn hears(&mut self, now: Now) {
        self.heard = now.elapsed;
        self.turns.iter_mut().filter(|turn| !turn.errored).for_each(|turn| turn.unanswered = 0);
    }

    fn at(&self, ticket: u64) -> Option<usize> {
        self.turns.iter().position(|turn| turn.tickets.contains(&ticket))
    }

    fn announce(&mut self, at: usize, out: &mut Out) {
        let Some(turn) = self.turns.get_mut(at) else { return };
        if !turn.announced && !turn.is_note() {
            turn.announced = true;
            self.tell(at, TurnPhase::Admitted, None, out);
        }
    }

    fn start(&mut self, at: usize, out: &mut Out) {
        self.announce(at, out);
        let Some(turn) = self.turns.get_mut(at).filter(|turn| turn.waits()) else { return };
        (turn.stage, turn.errored, turn.check) = (Stage::Started, false, None);
        let armed = turn.abort == Abort::Armed;
        self.tell(at, TurnPhase::Started, None, out);
        if armed {
            self.send_abort(at, out);
        }
    }

    /// A turn whose session had gone idle goes on after all.
    fn revive(&mut self, at: usize, out: &mut Out) {
        let Some(turn) = self.turns.get_mut(at) else { return };
        let (Some(quiet), abort) = (turn.quiet.take(), turn.abort) else { return };
        let open = quiet.waits_for.into_iter().filter(|answer| !self.open.contains(answer));
        self.open.extend(open.collect::<Vec<_>>());
        if abort == Abort::Returned {
            self.send_abort(at, out);
        }
    }

    fn send_abort(&mut self, at: usize, out: &mut Out) {
        let Some(turn) = self.turns.get_mut(at) else { return };
        turn.abort = Abort::Sent;
        let (session, directory) = (self.id.clone(), self.directory.clone());
        let action = Action::SendAbort { session, directory };
        if !out.actions.contains(&action) {
            self.aborts += 1;
            self.signs.aborted = true;
            out.actions.push(action);
        }
    }

    /// An answer was closed. When it is one of a run before, that run's second idle follows.
    fn closed(&mut self, message: &str, now: Now) {
        let mut late = false;
        for quiet in self.turns.iter_mut().filter_map(|turn| turn.quiet.as_mut()) {
            let before = quiet.waits_for.len();
            quiet.waits_for.retain(|open| open != message);
            late |= quiet.waits_for.len() < before;
        }
        if late && self.turns.iter().any(Turn::runs) {
            self.stale_idle = Some(now.elapsed + SECOND_IDLE);
        }
    }

    /// Ends the turns whose session is idle, when nothing of them can come any more.
    pub(crate) fn settle(&mut self, children_work: bool, out: &mut Out) {
        self.end_where(
            |turn| {
                let settled = turn.quiet.as_ref().is_some_and(|quiet| quiet.waits_for.is_empty());
                settled && turn.abort != Abort::Sent && !(turn.aborted() && children_work)
            },
            TurnEnding::Idle,
            out,
        );
    }

    fn end_where(&mut self, over: impl Fn(&Turn) -> bool, ending: TurnEnding, out: &mut Out) {
        while let Some(at) = self.turns.iter().position(&over) {
            self.end(at, ending, out);
        }
    }

    fn end(&mut self, at: usize, ending: TurnEnding, out: &mut Out) {
        let ending = match self.turns.get(at) {
            Some(turn) if ending == TurnEnding::Idle && turn.aborted() => TurnEnding::Aborted,
            Some(turn) if ending == TurnEnding::Idle && turn.abort == Abort::Unasked => {
                TurnEnding::Interrupted
            }
            _ => ending,
        };
        if self.turns.get(at).is_some_and(|turn| turn.announced && !turn.is_note()) {
            self.tell(at, TurnPhase::Ended, Some(ending), out);
        }
        if at < self.turns.len() {
            self.turns.remove(at);
        }
    }

    fn tell(&self, at: usize, phase: TurnPhase, outcome: Option<TurnEnding>, out: &mut Out) {
        let Some(turn) = self.turns.get(at) else { return };
        out.events.push(TurnEvent {
            session_id: self.id.clone(),
            directory: Some(self.directory.clone()).filter(|directory| !directory.is_empty()),
            message_id: turn.message_id.clone(),
            phase,
            origin: turn.origin,
            outcome,
        });
    }
}

fn remember(ids: &mut VecDeque<String>, id: &str) {
    if ids.len() == REMEMBERED {
        ids.pop_front();
    }
    ids.push_back(id.to_owned());
}
