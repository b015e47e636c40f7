//! Ends as of an abort that nobody here asked for. The door saw who did: another client, which cancels the turn, or
//! nobody, which is a failure of opencode's. Its word comes right after opencode's, so an end waits for it a little. Pure.

use std::time::Duration;

use berth_wire::{
    door::TurnEnding,
    turn::{TurnErrorReason, TurnOutcome, TurnState},
};
use tokio::time::Instant;

use super::{Moment, Output, Session, Stage, running::Running};

/// How long an end waits for the door's word. Without one, as after a gap, nobody is known who asked.
const WORD: Duration = Duration::from_secs(5);

/// What came of a turn, by opencode and by the door.
#[derive(Debug, Default)]
pub(super) struct Ends {
    /// How it ended at the door, once that is told.
    at_door: Option<TurnEnding>,
    /// Its end, and since when that waits for the door's word.
    held: Option<(TurnOutcome, Instant)>,
}

impl Ends {
    /// The turn is over, and waits for the door's word.
    pub(super) fn is_held(&self) -> bool {
        self.held.is_some()
    }
}

impl Session {
    /// Takes the running turn's end: at once, or when it is clear who asked for it.
    pub(super) fn take_end(&mut self, outcome: TurnOutcome, at: &Moment, out: &mut Vec<Output>) {
        let doubtful = outcome.state == TurnState::Cancelled && !self.cancel_wanted();
        match &mut self.stage {
            Stage::Running(turn) if doubtful => {
                turn.ends.held = Some((outcome, at.now));
                self.check_held(at, out);
            }
            _ => self.record_end(outcome, at, out),
        }
    }

    /// Takes the door's word on the end of the turn with this prompt.
    pub(super) fn take_word(
        &mut self,
        message_id: Option<&str>,
        ending: TurnEnding,
        at: &Moment,
        out: &mut Vec<Output>,
    ) {
        let ours = |turn: &&mut Running| message_id.is_none_or(|id| id == turn.message_id);
        if let Some(turn) = self.turn_mut().filter(ours) {
            turn.ends.at_door = Some(ending);
        }
        self.check_held(at, out);
    }

    /// Ends a turn whose end was held until the door told who asked for it, or was silent for long.
    pub(super) fn check_held(&mut self, at: &Moment, out: &mut Vec<Output>) {
        let Some(ends) = self.turn_mut().map(|turn| &mut turn.ends) else { return };
        let waited = ends.held.as_ref().map(|(_, since)| at.now.saturating_duration_since(*since));
        if ends.at_door.is_none() && waited.is_none_or(|waited| waited < WORD) {
            return;
        }
        let asked = ends.at_door == Some(TurnEnding::Aborted);
        if let Some((outcome, _)) = ends.held.take() {
            let outcome = if asked { outcome } else { interrupted(&outcome) };
            self.record_end(outcome, at, out);
        }
    }

    /// Somebody asked the server to end the running turn.
    fn cancel_wanted(&self) -> bool {
        let running = self.work.running.as_ref().filter(|running| Some(running.id) == self.turn_id());
        self.work.deleted || running.is_some_and(|running| running.cancel_requested)
    }
}

fn interrupted(outcome: &TurnOutcome) -> TurnOutcome {
    let message = "opencode ended the turn as if it had been aborted, and nobody is known who asked for that: see what \
                   it left, then send the prompt again";
    TurnOutcome { usage: outcome.usage, ..TurnOutcome::failed(TurnErrorReason::Interrupted, message) }
}
