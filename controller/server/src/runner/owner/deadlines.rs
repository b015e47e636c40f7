//! Deadlines: each turn comes to an end, whatever opencode does or does not. Looked at each tick.

use std::time::Duration;

use berth_opencode::TurnPhase;
use berth_wire::turn::{TurnError, TurnErrorReason, TurnOutcome};
use jiff::Timestamp;
use tokio::time::Instant;
use uuid::Uuid;

use super::{super::asks, Owner, OwnerError};

/// Pause between two looks at a turn whose end is in doubt.
const DOUBT: Duration = Duration::from_secs(1);

impl Owner {
    /// Ends the running turn with an error of ours.
    pub(in super::super) fn fail_turn(&mut self, session: Uuid, error: TurnError) {
        let Some(live) = self.live.get_mut(&session) else { return };
        let Some(translator) = &mut live.translator else { return };
        let translations = translator.fail(error);
        self.record(session, translations);
    }

    /// Looks at every deadline, and tries again what failed before.
    pub(in super::super) async fn check_deadlines(&mut self) -> Result<(), OwnerError> {
        let now = Instant::now();
        if self.live.values().any(|live| live.has_late_ask(Timestamp::now())) {
            // An answer that came in time counts, also where nobody has read it yet.
            self.read_rows().await?;
        }
        let sessions: Vec<Uuid> = self.live.keys().copied().collect();
        for session in sessions {
            self.check_turn(session, now);
            self.answer_asks(session);
            self.expire_asks(session);
            self.check_blocked(session, now).await?;
            self.check_doubt(session, now);
        }
        self.send_again();
        if self.connected {
            // The door may have said that opencode is up before this subscription began.
            self.resync |= self.boot_id.is_none() && !self.live.is_empty();
            self.read_again().await?;
        }
        self.act().await?;
        self.flush_if_due().await
    }

    /// A prompt that cannot be sent fails after a while.
    async fn check_blocked(&mut self, session: Uuid, now: Instant) -> Result<(), OwnerError> {
        let limit = self.limits.unreachable;
        let Some(live) = self.live.get(&session) else { return Ok(()) };
        let queued = live.work.queued.as_ref().map(|turn| turn.id);
        let Some(blocked) = live.blocked.as_ref().filter(|blocked| Some(blocked.turn) == queued) else {
            return Ok(());
        };
        if live.busy || now.saturating_duration_since(blocked.since) < limit {
            return Ok(());
        }
        let why = blocked.why.as_deref().unwrap_or("the sandbox could not be reached");
        let message =
            format!("{why}; gave up after {} s: see the sandbox's state, then send again", limit.as_secs());
        let outcome = TurnOutcome::failed(TurnErrorReason::SandboxUnavailable, message);
        self.end_blocked(session, outcome).await
    }

    /// A turn must not go on for ever; where it is to end, opencode must end it.
    fn check_turn(&mut self, session: Uuid, now: Instant) {
        let Some(live) = self.live.get_mut(&session) else { return };
        let (Some(turn), Some(translator)) = (&mut live.turn, &mut live.translator) else { return };
        if translator.abort_wanted() {
            return self.check_stop(session, now);
        }
        if turn.repost.is_some() && translator.phase() == TurnPhase::Admitted {
            return self.check_hand_over(session, now);
        }
        let Some(seen) = translator.observe() else { return };
        let Some(error) = turn.watchdog.check(&seen, now, Timestamp::now()) else { return };
        tracing::warn!(session_id = %session, turn_id = %turn.id, reason = ?error.reason, "turn must not go on");
        if !seen.started {
            return self.fail_turn(session, error);
        }
        translator.request_abort(error);
        live.changed = true;
        self.pass_cancel(session);
    }

    /// An abort must have its effect.
    fn check_stop(&mut self, session: Uuid, now: Instant) {
        let limit = self.limits.stop;
        let Some(live) = self.live.get_mut(&session) else { return };
        let (Some(turn), Some(translator)) = (&mut live.turn, &live.translator) else { return };
        let since = *turn.unwanted_since.get_or_insert(now);
        if now.saturating_duration_since(since) >= limit {
            let error = translator.verdict().unwrap_or_else(|| not_stopped(limit));
            self.fail_turn(session, error);
        }
    }

    /// A prompt that may not have arrived must get through.
    fn check_hand_over(&mut self, session: Uuid, now: Instant) {
        let limit = self.limits.unreachable;
        let Some(turn) = self.live.get_mut(&session).and_then(|live| live.turn.as_mut()) else { return };
        if *turn.hand_over_by.get_or_insert(now + limit) > now {
            return;
        }
        tracing::warn!(session_id = %session, turn_id = %turn.id, "prompt could not be handed over");
        let message =
            "the prompt could not be handed over: see the sandbox's state, then send again".to_owned();
        self.fail_turn(
            session,
            TurnError { reason: TurnErrorReason::SandboxUnavailable, message, retry_at: None },
        );
    }

    /// Where nothing proves the turn's end, or an abort has no visible effect, opencode is asked.
    fn check_doubt(&mut self, session: Uuid, now: Instant) {
        let Some(live) = self.live.get_mut(&session) else { return };
        let (Some(turn), Some(translator)) = (&live.turn, &live.translator) else { return };
        let lasts =
            |since: Option<Instant>| since.is_some_and(|since| now.saturating_duration_since(since) >= DOUBT);
        let unheard = translator.phase() == TurnPhase::Started && lasts(turn.unwanted_since);
        let recent = live.reconciled_at.is_some_and(|at| now.saturating_duration_since(at) < DOUBT);
        live.reconcile |= (translator.in_doubt() || unheard) && !recent;
    }

    fn expire_asks(&mut self, session: Uuid) {
        let now = Timestamp::now();
        let Some(live) = self.live.get(&session) else { return };
        let open = live.asks.iter().filter(|(id, _)| !live.settled.contains_key(*id));
        let late: Vec<_> = open
            .filter(|(_, ask)| ask.expires_at <= now)
            .filter_map(|(id, ask)| Some((id.clone(), asks::by_deadline(asks::ask_of(&ask.request)?.1))))
            .collect();
        for (id, settlement) in late {
            self.settle(session, id, settlement);
        }
    }
}

fn not_stopped(limit: Duration) -> TurnError {
    let seconds = limit.as_secs();
    let message = format!(
        "opencode did not end the turn within {seconds} s after it was told to, and may still work on it: the next \
         prompt waits until it does not"
    );
    TurnError { reason: TurnErrorReason::OpencodeError, message, retry_at: None }
}
