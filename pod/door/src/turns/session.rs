//! What runs in one session: a state machine over requests and events. Pure.
//!
//! What it goes by, all measured on opencode 1.15.4 and 1.18.33: an idle means nothing for a prompt that has not begun;
//! a prompt begins when its user message was stored and the session is busy after that, or when an answer names it as
//! its parent; all prompts that were taken into a run end with the run's idle; after an abort or an error the answer
//! that was open is closed after the idle, and followed by another idle.

use std::{collections::VecDeque, time::Duration};

use berth_wire::door::{DoorSession, TurnEnding, TurnEvent, TurnPhase};

mod confirm;
mod events;

pub(crate) use confirm::{Evidence, Listed};

use super::{
    peek::Found,
    spoilt::Signs,
    turn::{Abort, Action, Admission, Note, Now, Out, Stage, Turn},
};

/// Turns of a session that have not ended, at most.
pub(crate) const TURNS: usize = 256;

/// After the idle of the run that a prompt was queued in, how long another run may take to begin with it.
const AFTER_RUN: Duration = Duration::from_secs(2);

/// After the answer to an abort, how long the idle may take.
const AFTER_ABORT: Duration = Duration::from_secs(3);

/// How long the second idle of an aborted turn may take after its answer was closed.
const SECOND_IDLE: Duration = Duration::from_millis(500);

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
