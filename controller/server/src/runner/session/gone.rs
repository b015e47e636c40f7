//! The end of what is left to do in a session whose sandbox is gone, and of turns that have waited for too long in one to
//! which nothing leads: nobody is there to be told anything. Pure.

use berth_wire::{
    event::EventPayload,
    turn::{TurnError, TurnErrorReason, TurnOutcome},
};
use uuid::Uuid;

use super::{Moment, Output, Session, error};
use crate::{
    runner::readiness::Waited,
    store::{Change, NewEvent, OpenTurn, SessionCommit},
};

/// Of a turn that had begun.
const BEGUN: &str = "the sandbox was deleted while this turn ran: what it did to files went with the workspace; make the \
                     sandbox again, or take another one, and send the prompt again";
/// Of a turn that waited.
const WAITED: &str = "the sandbox was deleted before this prompt was sent to it: make the sandbox again, or take another \
                      one, and send it again";

/// Of a turn that had begun in a sandbox to which nothing leads.
const UNFOLLOWED: &str = "see the sandbox's conditions; opencode may still work on it, and the next prompt waits until it \
                          does not";
/// Of a turn that waited for such a one.
pub(super) const UNSENT: &str = "see the sandbox's conditions, then send again";

/// What is to be written of a session that nobody follows, and whether it is to be removed then.
pub(in super::super) fn commit_of(
    session: &mut Session,
    decide: impl FnOnce(&mut Session) -> Vec<Output>,
) -> (SessionCommit, bool) {
    let outputs = decide(session);
    let (session_id, translator) = (session.id, session.state_to_save());
    let mut commit = SessionCommit { session_id, translator, events: vec![], changes: vec![] };
    let mut remove = false;
    for output in outputs {
        match output {
            Output::Log(event) => commit.events.push(event),
            Output::Change(change) => commit.changes.push(change),
            Output::Remove => remove = true,
            Output::Call(..) | Output::Begin(_) | Output::Reread => {}
        }
    }
    (commit, remove)
}

impl Session {
    /// Ends every turn that the rows tell of, and the session where it is to be deleted. What waits behind the oldest
    /// queued turn is in the rows after that.
    pub(in super::super) fn end_with_sandbox(&mut self, at: &Moment) -> Vec<Output> {
        let mut out = Vec::new();
        let work = &mut self.work;
        let unreadable = std::mem::take(&mut work.unreadable).into_iter().map(|turn| (turn.id, turn.runs));
        let running = work.running.take().map(|turn| (turn.id, true));
        let queued = work.queued.take().map(|turn| (turn.id, false));
        for (turn, runs) in unreadable.chain(running).chain(queued) {
            self.end_turn_with_sandbox(turn, runs, at, &mut out);
        }
        if self.work.deleted {
            out.push(Output::Remove);
        }
        out
    }

    fn end_turn_with_sandbox(&mut self, turn_id: Uuid, runs: bool, at: &Moment, out: &mut Vec<Output>) {
        let error = error(TurnErrorReason::SandboxGone, if runs { BEGUN } else { WAITED });
        tracing::info!(session_id = %self.id, turn_id = %turn_id, "turn ends with its sandbox");
        self.end_unfollowed(turn_id, runs, error, at, out);
    }

    /// Ends the turns that have waited for too long.
    pub(in super::super) fn end_unplaced(&mut self, waited: &Waited, at: &Moment) -> Vec<Output> {
        let (mut out, limit) = (Vec::new(), self.limits.unplaced);
        let late = |turn: &OpenTurn| waited.of(turn, at).filter(|time| *time >= limit);
        let running = self.work.running.take_if(|turn| late(turn).is_some()).map(|turn| (turn, true));
        let queued = self.work.queued.take_if(|turn| late(turn).is_some()).map(|turn| (turn, false));
        for (turn, runs) in running.into_iter().chain(queued) {
            let seconds = late(&turn).unwrap_or_default().as_secs();
            let error = waited.error(seconds, if runs { UNFOLLOWED } else { UNSENT });
            tracing::warn!(session_id = %self.id, turn_id = %turn.id, cause = error.cause, "turn ends, its sandbox is not ready");
            self.end_unfollowed(turn.id, runs, error, at, &mut out);
        }
        out
    }

    /// Ends a turn that nobody follows.
    fn end_unfollowed(
        &mut self,
        turn_id: Uuid,
        runs: bool,
        error: TurnError,
        at: &Moment,
        out: &mut Vec<Output>,
    ) {
        if runs {
            self.close_translation(turn_id, &error, at, out);
        }
        let outcome = TurnOutcome::failed_with(error);
        out.push(Output::Change(Change::TurnEnded { turn_id, outcome: outcome.clone() }));
        out.push(Output::Log(NewEvent { turn_id: Some(turn_id), payload: EventPayload::TurnEnded(outcome) }));
    }
}
