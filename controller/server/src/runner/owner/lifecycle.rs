//! What happens by itself: opencode starts and ends, connections break, calls end, deadlines pass.

use berth_opencode::{ClientError, Event, TurnPhase};
use berth_wire::{
    api::SandboxPhase,
    door::{DoorEvent, DoorState},
    turn::{TurnError, TurnErrorReason, TurnOutcome},
};
use jiff::Timestamp;
use tokio::time::Instant;
use uuid::Uuid;

use super::{
    super::{
        asks,
        calls::{self, CallResult, Done},
        link::LinkEvent,
        live::{Repost, Standing},
    },
    Owner, OwnerError,
};
use crate::http::error_chain;

impl Owner {
    /// Takes one event of the link.
    pub(in super::super) async fn take_event(&mut self, event: LinkEvent) -> Result<(), OwnerError> {
        match event {
            LinkEvent::Opened(state) => self.opened(&state).await,
            LinkEvent::Connected => {
                self.connected = true;
                self.send_again();
                self.act().await
            }
            LinkEvent::Lost => {
                self.connected = false;
                Ok(())
            }
            LinkEvent::Item(item) => {
                if item.cursor.is_some() {
                    self.cursor.clone_from(&item.cursor);
                }
                if let Event::Door(event) = &item.event.event {
                    return self.take_door_event(event).await;
                }
                self.note_alive();
                self.translate(&item.event);
                self.act_on_ends().await
            }
        }
    }

    /// The first subscription ever: whatever ran before belongs to an unknown run of opencode.
    async fn opened(&mut self, state: &DoorState) -> Result<(), OwnerError> {
        self.cursor = Some(berth_wire::door::Cursor { epoch: state.epoch.clone(), seq: state.seq });
        self.compare_boot(state);
        self.reconcile_all().await
    }

    async fn take_door_event(&mut self, event: &DoorEvent) -> Result<(), OwnerError> {
        match event {
            DoorEvent::Resync { reason, .. } => {
                tracing::info!(
                    namespace = self.sandbox.namespace,
                    sandbox = self.sandbox.name,
                    ?reason,
                    "door asks to read state again"
                );
                for live in self.live.values_mut() {
                    live.translator.iter_mut().for_each(berth_opencode::SessionTranslator::mark_gap);
                    live.reconcile = live.turn.is_some();
                }
                self.resync = true;
                self.read_again().await
            }
            DoorEvent::ServeStarted { boot_id, .. } => {
                self.boot_id = Some(boot_id.clone());
                self.extend_start_deadlines();
                self.send_again();
                self.act().await
            }
            DoorEvent::ServeExited { boot_id, exit, signal, cause, .. } => {
                let detail = describe_exit(*exit, *signal, *cause);
                if self.boot_id.as_ref() == Some(boot_id) || self.boot_id.is_none() {
                    self.boot_ended(&detail);
                }
                self.act_on_ends().await
            }
        }
    }

    /// Asks the door which run of opencode it serves, then reads each session's state. Inline, so that no event is
    /// applied in between. What fails is tried again at the next tick.
    pub(in super::super) async fn read_again(&mut self) -> Result<(), OwnerError> {
        if self.resync {
            match self.client.door_state().await {
                Ok(state) => {
                    self.resync = false;
                    self.compare_boot(&state);
                }
                Err(error) => {
                    tracing::debug!(error = error_chain(&error), "door state could not be read");
                    return Ok(());
                }
            }
        }
        self.reconcile_all().await
    }

    fn compare_boot(&mut self, state: &DoorState) {
        let same = self.boot_id.as_deref() == Some(state.boot_id.as_str());
        if !same && self.boot_id.is_some() {
            self.boot_ended("opencode was started anew while nobody watched");
        }
        if state.phase == SandboxPhase::Ready {
            self.boot_id = Some(state.boot_id.clone());
            self.extend_start_deadlines();
            self.send_again();
        }
    }

    /// A run of opencode is over: what it had begun has failed; what it had not begun is sent to the next one.
    fn boot_ended(&mut self, detail: &str) {
        self.boot_id = None;
        self.sizes.clear();
        let sessions: Vec<Uuid> = self.live.keys().copied().collect();
        for session in sessions {
            let Some(live) = self.live.get_mut(&session) else { continue };
            live.standing = Standing::Unverified;
            live.reconcile = false;
            let (Some(turn), Some(translator)) = (&mut live.turn, &mut live.translator) else { continue };
            if translator.phase() == TurnPhase::Admitted {
                turn.repost = Some(Repost::OtherBoot);
            } else {
                let translations = translator.serve_exited(detail);
                self.record(session, translations);
            }
        }
    }

    fn note_alive(&mut self) {
        let now = Instant::now();
        let turns = self.live.values_mut().filter_map(|live| live.turn.as_mut());
        turns.for_each(|turn| turn.watchdog.alive(now));
    }

    fn extend_start_deadlines(&mut self) {
        let now = Instant::now();
        let turns = self.live.values_mut().filter_map(|live| live.turn.as_mut());
        turns.for_each(|turn| turn.watchdog.booted(now));
    }

    /// Looks, for each prompt whose fate is not known, whether it was answered before it is sent again.
    fn send_again(&mut self) {
        if !self.connected || self.boot_id.is_none() {
            return;
        }
        let sessions: Vec<Uuid> = self.live.keys().copied().collect();
        for session in sessions {
            let Some(live) = self.live.get_mut(&session) else { continue };
            let phase = live.translator.as_ref().map(berth_opencode::SessionTranslator::phase);
            let (Some(turn), Some(root)) = (&mut live.turn, &live.work.opencode_session_id) else { continue };
            if turn.repost.is_none() || turn.posting {
                continue;
            }
            if phase != Some(TurnPhase::Admitted) {
                turn.repost = None;
                continue;
            }
            turn.posting = true;
            let (directory, message_id) = (live.work.directory.clone(), turn.message_id.clone());
            let call = calls::look(self.client.clone(), directory, root.clone(), message_id);
            self.call(session, async { CallResult::Looked(call.await) });
        }
    }

    fn finish_look(&mut self, session: Uuid, result: Result<bool, ClientError>) {
        let Some(live) = self.live.get_mut(&session) else { return };
        let cancelled = live.work.running.as_ref().is_some_and(|running| running.cancel_requested);
        let Some(turn) = &mut live.turn else { return };
        turn.posting = false;
        let reason = turn.repost;
        match result {
            Ok(true) if reason == Some(Repost::OtherBoot) => {
                let Some(translator) = &mut live.translator else { return };
                let translations = translator.serve_exited("opencode ended while it worked on this prompt");
                self.record(session, translations);
            }
            Ok(true) => {
                turn.repost = None;
                live.reconcile = true;
            }
            Ok(false) if cancelled => {
                let Some(translator) = &mut live.translator else { return };
                let translations = translator.cancel_unsent();
                self.record(session, translations);
            }
            Ok(false) => self.post_prompt(session),
            Err(error) => {
                tracing::debug!(session_id = %session, error = error_chain(&error), "messages could not be read");
            }
        }
    }

    /// Reads the state of the sessions that may have missed something.
    async fn reconcile_all(&mut self) -> Result<(), OwnerError> {
        let due: Vec<Uuid> =
            self.live.iter().filter(|(_, live)| live.reconcile).map(|(session, _)| *session).collect();
        for session in due {
            self.reconcile(session).await;
        }
        self.act_on_ends().await
    }

    async fn reconcile(&mut self, session: Uuid) {
        let Some(live) = self.live.get_mut(&session) else { return };
        let (Some(root), true) = (&live.work.opencode_session_id, live.turn.is_some()) else {
            live.reconcile = false;
            return;
        };
        let prompt = live.translator.as_ref().and_then(berth_opencode::SessionTranslator::prompt);
        match self.client.snapshot(&live.work.directory, root, prompt).await {
            Ok(snapshot) => {
                live.reconcile = false;
                let Some(translator) = &mut live.translator else { return };
                let translations = translator.reconcile(&snapshot);
                self.record(session, translations);
            }
            Err(error) => {
                tracing::debug!(session_id = %session, error = error_chain(&error), "state could not be read");
            }
        }
    }

    /// Takes the end of a call.
    pub(in super::super) async fn finish_call(&mut self, done: Done) -> Result<(), OwnerError> {
        let session = done.session;
        let turn = self.live.get(&session).and_then(|live| live.turn.as_ref()).map(|turn| turn.id);
        let current = done.turn.is_some() && done.turn == turn;
        match done.result {
            CallResult::Ensured(result) => self.finish_ensure(session, result).await?,
            CallResult::Posted(result) if current => self.finish_post(session, &result),
            CallResult::Looked(result) if current => self.finish_look(session, result),
            CallResult::Aborted(result) if current => self.finish_abort(session, result),
            CallResult::Replied(id, result) => self.finish_reply(session, &id, result),
            CallResult::Deleted(result) => self.finish_delete_call(session, result).await?,
            CallResult::Sized(directory, result) => self.finish_sizes(directory, result),
            CallResult::Posted(_) | CallResult::Looked(_) | CallResult::Aborted(_) => {}
        }
        self.act_on_ends().await
    }

    fn finish_abort(&mut self, session: Uuid, result: Result<(), ClientError>) {
        let Some(live) = self.live.get_mut(&session) else { return };
        let (Some(turn), Some(translator)) = (&mut live.turn, &mut live.translator) else { return };
        turn.aborting = false;
        match result {
            Ok(()) => {
                let translations = translator.abort_returned();
                self.record(session, translations);
            }
            Err(error) => {
                tracing::warn!(session_id = %session, error = error_chain(&error), "abort did not arrive; it is tried again");
                translator.abort_failed();
            }
        }
    }

    /// An ask that opencode does not know was settled otherwise, and an event told or will tell so; any other failure
    /// makes the answer due again.
    fn finish_reply(&mut self, session: Uuid, id: &str, result: Result<(), ClientError>) {
        let Some(live) = self.live.get_mut(&session) else { return };
        match result {
            Ok(()) => {}
            Err(ClientError::NotFound { .. }) => live.reconcile = live.turn.is_some(),
            Err(error) => {
                tracing::warn!(session_id = %session, ask = id, error = error_chain(&error), "answer did not arrive; it is tried again");
                live.settled.remove(id);
            }
        }
    }

    async fn finish_delete_call(
        &mut self,
        session: Uuid,
        result: Result<(), ClientError>,
    ) -> Result<(), OwnerError> {
        let Err(error) = result else { return self.finish_delete(session).await };
        tracing::warn!(session_id = %session, error = error_chain(&error), "opencode's session could not be deleted; it is tried again");
        if let Some(live) = self.live.get_mut(&session) {
            live.busy = false;
            live.not_before = Some(Instant::now() + super::super::POLL);
        }
        Ok(())
    }

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
        let sessions: Vec<Uuid> = self.live.keys().copied().collect();
        for session in sessions {
            self.check_turn(session, now);
            self.expire_asks(session);
            self.check_blocked(session, now).await?;
            if let Some(live) = self.live.get_mut(&session)
                && live.translator.as_ref().is_some_and(berth_opencode::SessionTranslator::in_doubt)
            {
                live.reconcile = live.turn.is_some();
            }
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

    /// A prompt that cannot be sent because the sandbox cannot be reached fails after a while.
    async fn check_blocked(&mut self, session: Uuid, now: Instant) -> Result<(), OwnerError> {
        let limit = self.limits.unreachable;
        let Some(live) = self.live.get_mut(&session) else { return Ok(()) };
        if live.busy || live.blocked_since.is_none_or(|since| now.saturating_duration_since(since) < limit) {
            return Ok(());
        }
        let seconds = limit.as_secs();
        let message =
            format!("the sandbox could not be reached for {seconds} s: see its state, then send again");
        let outcome = TurnOutcome::failed(TurnErrorReason::SandboxUnavailable, message);
        self.end_blocked(session, outcome).await
    }

    /// Ends a turn that must not go on: at once where opencode has not begun, else by an abort.
    fn check_turn(&mut self, session: Uuid, now: Instant) {
        let Some(live) = self.live.get_mut(&session) else { return };
        let (Some(turn), Some(translator)) = (&mut live.turn, &mut live.translator) else { return };
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

fn describe_exit(exit: Option<i32>, signal: Option<i32>, cause: berth_wire::door::ExitCause) -> String {
    match (signal, exit) {
        (Some(signal), _) => format!("opencode was ended by signal {signal} ({cause:?})"),
        (None, Some(code)) => format!("opencode exited with code {code} ({cause:?})"),
        (None, None) => format!("opencode ended ({cause:?})"),
    }
}
