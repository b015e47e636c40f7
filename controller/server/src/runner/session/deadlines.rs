//! Deadlines: each turn comes to an end, whatever opencode does or does not. Looked at each tick. Pure.

use std::time::Duration;

use berth_opencode::TurnPhase;
use berth_wire::turn::{TurnError, TurnErrorReason, TurnOutcome};
use tokio::time::Instant;

use super::{Moment, Obstacle, Output, Session, Stage, error, gone::UNSENT};
use crate::store::Change;

/// Pause between two looks at a turn whose end is in doubt.
const DOUBT: Duration = Duration::from_secs(1);
/// Silence about a turn after which opencode is asked, and asked again: what it told may not have been heard.
const SILENCE: Duration = Duration::from_secs(10);

impl Session {
    /// Looks at every deadline, and tries again what failed before.
    pub(super) fn tick(&mut self, at: &Moment, out: &mut Vec<Output>) {
        self.check_turn(at, out);
        self.check_held(at, out);
        self.store_active(out);
        self.expire_asks(at, out);
        self.check_blocked(at, out);
        self.check_doubt(at);
        self.look_if_in_doubt(at, out);
    }

    pub(super) fn note_alive(&mut self, at: &Moment) {
        if let Some(turn) = self.turn_mut() {
            turn.watchdog.alive(at.now);
        }
    }

    pub(super) fn note_booted(&mut self, at: &Moment) {
        if let Some(turn) = self.turn_mut() {
            turn.watchdog.booted(at.now);
        }
    }

    /// A turn must not go on for ever; where it is to end, opencode must end it.
    fn check_turn(&mut self, at: &Moment, out: &mut Vec<Output>) {
        let (Stage::Running(turn), Some(translator)) = (&mut self.stage, &mut self.translator) else {
            return;
        };
        if translator.abort_wanted() {
            return self.check_stop(at, out);
        }
        if turn.delivery.doubt.is_some() && translator.phase() == TurnPhase::Admitted {
            return self.check_hand_over(at, out);
        }
        let Some(seen) = translator.observe() else { return };
        let Some(error) = turn.watchdog.check(&seen, at.now, at.clock) else { return };
        if !seen.started {
            return self.note_late(error, out);
        }
        tracing::warn!(session_id = %self.id, turn_id = %turn.id, reason = ?error.reason, "turn must not go on");
        translator.request_abort(error);
        self.changed = true;
    }

    /// So that the wall clock goes on where it stood when somebody takes over.
    fn store_active(&mut self, out: &mut Vec<Output>) {
        let Some(turn) = self.turn_mut() else { return };
        let turn_id = turn.id;
        let change = turn.active_to_store().map(|active| Change::TurnActive { turn_id, active });
        out.extend(change.map(Output::Change));
    }

    /// An abort must have its effect.
    fn check_stop(&mut self, at: &Moment, out: &mut Vec<Output>) {
        let limit = self.limits.stop;
        let (Stage::Running(turn), Some(translator)) = (&mut self.stage, &self.translator) else { return };
        let since = *turn.unwanted_since.get_or_insert(at.now);
        if at.now.saturating_duration_since(since) >= limit {
            let error = translator.verdict().unwrap_or_else(|| not_stopped(limit));
            self.fail_turn(error, at, out);
        }
    }

    /// A prompt that cannot be sent fails after a while: soon where the sandbox is away, later where it has no place yet,
    /// after as long as a turn may take where somebody else's turn runs in the session, and late where the gate is closed.
    fn check_blocked(&mut self, at: &Moment, out: &mut Vec<Output>) {
        let (Some(turn), Some(blocked)) = (&self.work.queued, &self.blocked) else { return };
        if blocked.turn != turn.id || !matches!(self.stage, Stage::Rest) {
            return;
        }
        let why = blocked.why.clone().unwrap_or_else(|| Obstacle {
            reason: TurnErrorReason::SandboxUnavailable,
            message: "the sandbox could not be reached".to_owned(),
        });
        let busy = why.reason == TurnErrorReason::SessionBusy;
        let unready = self.unready.as_ref().filter(|_| !busy);
        let limit = if busy { self.limits.watchdog.turn } else { self.limits.unreachable };
        let blocked_for = at.now.saturating_duration_since(blocked.since);
        let (waited, limit) = match unready.and_then(|unready| unready.of(turn, at)) {
            Some(waited) => (waited, self.limits.unplaced),
            None => (blocked_for, limit.max(self.limits.unreachable)),
        };
        if waited < limit {
            return;
        }
        if let Some(unready) = unready {
            let outcome = TurnOutcome::failed_with(unready.error(waited.as_secs(), UNSENT));
            return self.end_blocked(outcome, out);
        }
        let advice = match why.reason {
            TurnErrorReason::SessionBusy => "wait for its end or abort it",
            _ => "see the sandbox's state",
        };
        let since = blocked.gated_since.unwrap_or(blocked.since);
        let seconds = at.now.saturating_duration_since(since).as_secs();
        let message = format!("{}; gave up after {seconds} s: {advice}, then send again", why.message);
        self.end_blocked(TurnOutcome::failed(why.reason, message), out);
    }

    /// Where nothing proves the turn's end, an abort has no visible effect, or nothing is heard, opencode is asked.
    fn check_doubt(&mut self, at: &Moment) {
        let (Stage::Running(turn), Some(translator)) = (&self.stage, &self.translator) else { return };
        let past = |since: Option<Instant>, limit: Duration| {
            since.is_some_and(|since| at.now.saturating_duration_since(since) >= limit)
        };
        let started = translator.phase() == TurnPhase::Started;
        let unheard = started && past(turn.unwanted_since, DOUBT);
        let recent = self.reconciled_at.is_some() && !past(self.reconciled_at, DOUBT);
        let silent = started && past(self.reconciled_at.max(Some(turn.heard_at)), SILENCE);
        self.reconcile |= silent || ((translator.in_doubt() || unheard) && !recent);
    }

    fn expire_asks(&mut self, at: &Moment, out: &mut Vec<Output>) {
        for (id, settlement) in self.asking.expired(at.clock) {
            self.tell(id, settlement, out);
        }
    }
}

fn not_stopped(limit: Duration) -> TurnError {
    let seconds = limit.as_secs();
    let message = format!(
        "opencode did not end the turn within {seconds} s after it was told to, and may still work on it: the next \
         prompt waits until it does not"
    );
    error(TurnErrorReason::OpencodeError, message)
}
