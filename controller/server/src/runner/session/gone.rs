//! The end of what is left to do in a session whose sandbox is gone: nobody is there to be told anything. Pure.

use berth_wire::{
    event::EventPayload,
    turn::{TurnErrorReason, TurnOutcome},
};
use uuid::Uuid;

use super::{Moment, Output, Session, error};
use crate::store::{Change, NewEvent};

/// Of a turn that had begun.
const BEGUN: &str = "the sandbox was deleted while this turn ran: what it did to files went with the workspace; make the \
                     sandbox again, or take another one, and send the prompt again";
/// Of a turn that waited.
const WAITED: &str = "the sandbox was deleted before this prompt was sent to it: make the sandbox again, or take another \
                      one, and send it again";

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
        if runs {
            self.close_translation(turn_id, &error, at, out);
        }
        tracing::info!(session_id = %self.id, turn_id = %turn_id, "turn ends with its sandbox");
        let outcome = TurnOutcome::failed(error.reason, error.message);
        out.push(Output::Change(Change::TurnEnded { turn_id, outcome: outcome.clone() }));
        out.push(Output::Log(NewEvent { turn_id: Some(turn_id), payload: EventPayload::TurnEnded(outcome) }));
    }
}
