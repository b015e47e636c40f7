//! How a prompt gets to opencode, and what the ends of calls mean. Pure.

use std::time::Duration;

use berth_opencode::{ClientError, TurnPhase};
use berth_wire::turn::{TurnError, TurnErrorReason};
use uuid::Uuid;

use super::{
    super::calls::{CallResult, Look, Request, is_refusal, reason_of},
    Moment, Output, Session, Stage, Standing, backoff, error, is_within,
    running::Doubt,
};
use crate::http::error_chain;

/// How long a prompt that is not wanted any more is looked for before it counts as never taken. In a directory that
/// is not booted, opencode 1.18.33 lists a prompt up to 1.7 s after it took it, and 13.5 s with 20 such directories.
const UNSENT: Duration = Duration::from_secs(15);
/// Twice the longest pause between two tries to abort a turn.
const ABORT_PAUSE: Duration = Duration::from_secs(8);

impl Session {
    /// Hands the running turn's prompt over.
    pub(super) fn post(&mut self, out: &mut Vec<Output>) {
        let Some(turn) = self.turn_mut() else { return };
        turn.delivery.calling = true;
        turn.delivery.doubt = None;
        let prompt = turn.to_prompt();
        self.in_flight += 1;
        self.call(Request::Post(Box::new(prompt)), out);
    }

    /// Looks, where the prompt's fate is not known, whether it was answered before it is sent again.
    pub(super) fn look_if_in_doubt(&mut self, at: &Moment, out: &mut Vec<Output>) {
        let phase = self.phase();
        let Stage::Running(turn) = &mut self.stage else { return };
        if !at.open || turn.delivery.doubt.is_none() || turn.delivery.calling {
            return;
        }
        if phase != TurnPhase::Admitted {
            turn.delivery.doubt = None;
            return;
        }
        turn.delivery.calling = true;
        let message_id = turn.message_id.clone();
        self.call(Request::Look { message_id }, out);
    }

    /// opencode passed the prompt over: it is sent once more, after a look that nothing answers it.
    pub(super) fn note_swallowed(&mut self, at: &Moment, out: &mut Vec<Output>) {
        tracing::warn!(session_id = %self.id, turn_id = ?self.turn_id(), "opencode passed the prompt over; it is sent again");
        if let Some(turn) = self.turn_mut() {
            turn.delivery.doubt = Some(Doubt::SameBoot);
        }
        self.look_if_in_doubt(at, out);
    }

    /// A run of opencode is over: what it had begun has failed; what it had not begun is sent to the next one.
    pub(super) fn end_boot(&mut self, detail: &str, at: &Moment, out: &mut Vec<Output>) {
        self.standing = Standing::Unverified;
        self.reconcile = false;
        let (Stage::Running(turn), Some(translator)) = (&mut self.stage, &mut self.translator) else {
            return;
        };
        if translator.phase() == TurnPhase::Admitted {
            turn.delivery.doubt = Some(Doubt::OtherBoot);
        } else {
            let translations = translator.serve_exited(detail);
            self.record(translations, at, out);
        }
    }

    /// Takes the end of a call that was made while `turn` ran.
    pub(super) fn take_result(
        &mut self,
        turn: Option<Uuid>,
        result: CallResult,
        at: &Moment,
        out: &mut Vec<Output>,
    ) {
        if matches!(result, CallResult::Posted(_) | CallResult::Aborted(_)) {
            self.in_flight = self.in_flight.saturating_sub(1);
        }
        let current = turn.is_some() && turn == self.turn_id();
        match result {
            CallResult::Prepared(result) => self.take_prepared(result, at, out),
            CallResult::Posted(result) if current => self.take_posted(&result, at, out),
            CallResult::Looked(result) if current => self.take_looked(result, at, out),
            CallResult::Aborted(result) if current => self.take_aborted(result, at, out),
            CallResult::Replied(id, result) => self.take_replied(&id, result, at),
            CallResult::Deleted(result) => self.take_deleted(result, at, out),
            // Of a turn that has ended.
            CallResult::Posted(_) | CallResult::Looked(_) | CallResult::Aborted(_) => {}
        }
    }

    /// A prompt was handed over, or not.
    fn take_posted(&mut self, result: &Result<(), ClientError>, at: &Moment, out: &mut Vec<Output>) {
        let (phase, start, gated) = (self.phase(), self.limits.watchdog.start, self.limits.gated);
        let Stage::Running(turn) = &mut self.stage else { return };
        let delivery = &mut turn.delivery;
        delivery.calling = false;
        let Err(failure) = result else {
            (delivery.by, delivery.gated_since) = (None, None);
            turn.watchdog.prompted(at.now);
            return;
        };
        // A gate may hold it for an hour: that is no fault of the sandbox, which has all its time again.
        if matches!(failure, ClientError::Gated(_)) {
            if is_within(gated, &mut delivery.gated_since, at) {
                delivery.by = None;
            }
            delivery.doubt.get_or_insert(Doubt::SameBoot);
            return;
        }
        delivery.gated_since = None;
        let by = *delivery.by.get_or_insert(at.now + start);
        if phase != TurnPhase::Admitted {
            return;
        }
        if !is_refusal(failure) && at.now < by {
            delivery.doubt.get_or_insert(Doubt::SameBoot);
            return;
        }
        self.standing = Standing::Unverified;
        self.fail_turn(error(reason_of(failure), error_chain(failure)), at, out);
    }

    /// What opencode knows of a prompt whose fate was not known.
    fn take_looked(&mut self, result: Result<Look, ClientError>, at: &Moment, out: &mut Vec<Output>) {
        let (Stage::Running(turn), Some(translator)) = (&mut self.stage, &mut self.translator) else {
            return;
        };
        let delivery = &mut turn.delivery;
        delivery.calling = false;
        if translator.phase() != TurnPhase::Admitted {
            delivery.doubt = None;
            return;
        }
        let other_boot = delivery.doubt == Some(Doubt::OtherBoot);
        let late = delivery.late.take();
        match result {
            Ok(Look::Answered) if other_boot => {
                let translations = translator.serve_exited("opencode ended while it worked on this prompt");
                self.record(translations, at, out);
            }
            Ok(Look::Answered | Look::Working) => {
                delivery.doubt = None;
                self.reconcile = true;
            }
            // It may still be on its way inside opencode, and would run: wait for it, then abort it.
            Ok(Look::Nothing) if translator.abort_wanted() => {
                let waited = turn.unwanted_since.map(|since| at.now.saturating_duration_since(since));
                if other_boot || waited.is_some_and(|waited| waited >= UNSENT) {
                    let translations = translator.cancel_unsent();
                    self.record(translations, at, out);
                }
            }
            Ok(Look::Nothing) => match late {
                Some(late) => self.fail_turn(late, at, out),
                None => self.post(out),
            },
            Err(error) => {
                tracing::debug!(session_id = %self.id, error = error_chain(&error), "messages could not be read");
                if let Some(late) = late {
                    self.fail_turn(late, at, out);
                }
            }
        }
    }

    /// Events tell nothing of a beginning in time: that may be their fault, so the messages have the last word.
    pub(super) fn note_late(&mut self, error: TurnError, out: &mut Vec<Output>) {
        let Some(turn) = self.turn_mut().filter(|turn| !turn.delivery.calling) else { return };
        turn.delivery.late = Some(error);
        turn.delivery.calling = true;
        let message_id = turn.message_id.clone();
        self.call(Request::Look { message_id }, out);
    }

    fn take_aborted(&mut self, result: Result<(), ClientError>, at: &Moment, out: &mut Vec<Output>) {
        let (Stage::Running(turn), Some(translator)) = (&mut self.stage, &mut self.translator) else {
            return;
        };
        turn.aborting = false;
        match result {
            Ok(()) => {
                let translations = translator.abort_returned();
                self.record(translations, at, out);
            }
            Err(error) => {
                turn.abort_failures = turn.abort_failures.saturating_add(1);
                turn.abort_not_before = Some(at.now + backoff(turn.abort_failures, ABORT_PAUSE) / 2);
                let (attempt, error) = (turn.abort_failures, error_chain(&error));
                tracing::warn!(session_id = %self.id, attempt, error, "abort did not arrive; it is tried again");
                translator.abort_failed();
            }
        }
    }

    /// An ask that opencode does not know was settled otherwise, and an event told or will tell so. What did not arrive
    /// is due again; what opencode refused is not, before the deadline's default.
    fn take_replied(&mut self, id: &str, result: Result<(), ClientError>, at: &Moment) {
        match result {
            Ok(()) => {}
            Err(ClientError::NotFound { .. }) => self.reconcile = self.turn().is_some(),
            Err(error) => {
                tracing::warn!(session_id = %self.id, ask = id, error = error_chain(&error), "answer was not taken");
                self.asking.not_taken(id, !error.is_transient(), at.clock);
            }
        }
    }

    /// A prompt that may not have arrived must get through.
    pub(super) fn check_hand_over(&mut self, at: &Moment, out: &mut Vec<Output>) {
        let limit = self.limits.unreachable;
        let Some(turn) = self.turn_mut() else { return };
        if *turn.delivery.by.get_or_insert(at.now + limit) > at.now {
            return;
        }
        tracing::warn!(session_id = %self.id, turn_id = ?self.turn_id(), "prompt could not be handed over");
        let message = "the prompt could not be handed over: see the sandbox's state, then send again";
        self.fail_turn(error(TurnErrorReason::SandboxUnavailable, message), at, out);
    }
}
