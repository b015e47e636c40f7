//! What happens by itself: opencode starts and ends, connections break, calls end.

use std::time::Duration;

use berth_opencode::{ClientError, Event, SessionTranslator, Snapshot, TurnPhase};
use berth_wire::{
    api::SandboxPhase,
    door::{DoorEvent, DoorState},
    event::ResolvedBy,
};
use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;
use uuid::Uuid;

use super::{
    super::{
        calls::{self, CallResult, Done, Look},
        link::LinkEvent,
        live::{Repost, Standing},
    },
    Owner, OwnerError,
};
use crate::http::error_chain;

/// How long a prompt that is not wanted any more is looked for before it counts as never taken. In a directory that
/// is not booted, opencode 1.18.33 lists a prompt up to 1.7 s after it took it, and 13.5 s with 20 such directories.
const UNSENT: Duration = Duration::from_secs(15);
/// When the rejection of an ask is sent again that opencode refused.
const AGAIN: SignedDuration = SignedDuration::from_secs(30);

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
            LinkEvent::TakenOver => Err(OwnerError::TakenOver),
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
                    live.translator.iter_mut().for_each(SessionTranslator::mark_gap);
                    live.reconcile = live.turn.is_some();
                }
                self.resync = true;
                self.read_again().await
            }
            DoorEvent::ServeStarted { boot_id, .. } => {
                if self.boot_id.as_ref().is_some_and(|known| known != boot_id) {
                    self.boot_ended("opencode was started anew, and nobody saw its end");
                }
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
            DoorEvent::ToolOutOfMemory { count, .. } => {
                tracing::warn!(
                    namespace = self.sandbox.namespace,
                    sandbox = self.sandbox.name,
                    count,
                    "tools were killed for memory"
                );
                Ok(())
            }
            // The translators prove ends by opencode's own events, and calls that the gate keeps out say so themselves.
            DoorEvent::Turn(_) | DoorEvent::Gate { .. } => Ok(()),
        }
    }

    /// Asks the door which run of opencode it serves, then reads each session's state. Inline, so that no event is
    /// applied in between. What fails is tried again at the next tick.
    pub(in super::super) async fn read_again(&mut self) -> Result<(), OwnerError> {
        if self.resync {
            match calls::bounded(self.client.door_state()).await {
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
    pub(super) fn send_again(&mut self) {
        if !self.connected || self.boot_id.is_none() {
            return;
        }
        let sessions: Vec<Uuid> = self.live.keys().copied().collect();
        for session in sessions {
            let Some(live) = self.live.get_mut(&session) else { continue };
            let phase = live.translator.as_ref().map(SessionTranslator::phase);
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

    fn finish_look(&mut self, session: Uuid, result: Result<Look, ClientError>) {
        let Some(live) = self.live.get_mut(&session) else { return };
        let (Some(turn), Some(translator)) = (&mut live.turn, &mut live.translator) else { return };
        turn.posting = false;
        if translator.phase() != TurnPhase::Admitted {
            turn.repost = None;
            return;
        }
        let other_boot = turn.repost == Some(Repost::OtherBoot);
        match result {
            Ok(Look::Answered) if other_boot => {
                let translations = translator.serve_exited("opencode ended while it worked on this prompt");
                self.record(session, translations);
            }
            Ok(Look::Answered | Look::Working) => {
                turn.repost = None;
                live.reconcile = true;
            }
            // It may still be on its way inside opencode, and would run: wait for it, then abort it.
            Ok(Look::Nothing) if translator.abort_wanted() => {
                if other_boot || turn.unwanted_since.is_some_and(|since| since.elapsed() >= UNSENT) {
                    let translations = translator.cancel_unsent();
                    self.record(session, translations);
                }
            }
            Ok(Look::Nothing) => self.post_prompt(session),
            Err(error) => {
                tracing::debug!(session_id = %session, error = error_chain(&error), "messages could not be read");
            }
        }
    }

    /// Reads the state of the sessions that may have missed something, all at once, each within a bound.
    async fn reconcile_all(&mut self) -> Result<(), OwnerError> {
        let mut reads = Vec::new();
        for (&session, live) in self.live.iter_mut().filter(|(_, live)| live.reconcile) {
            let Some(root) = live.work.opencode_session_id.clone().filter(|_| live.turn.is_some()) else {
                live.reconcile = false;
                continue;
            };
            let prompt = live.translator.as_ref().and_then(SessionTranslator::prompt).map(str::to_owned);
            let read = calls::snapshot(self.client.clone(), live.work.directory.clone(), root, prompt);
            reads.push(async move { (session, read.await) });
        }
        if !reads.is_empty() {
            self.flush().await?;
        }
        for (session, snapshot) in futures_util::future::join_all(reads).await {
            self.reconcile(session, snapshot);
        }
        self.act_on_ends().await
    }

    fn reconcile(&mut self, session: Uuid, snapshot: Result<Snapshot, ClientError>) {
        let Some(live) = self.live.get_mut(&session) else { return };
        live.reconciled_at = Some(Instant::now());
        match snapshot {
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
        if done.result.is_stale() {
            return Err(OwnerError::TakenOver);
        }
        let session = done.session;
        if let Some(live) = self.live.get_mut(&session)
            && matches!(done.result, CallResult::Posted(_) | CallResult::Aborted(_))
        {
            live.in_flight = live.in_flight.saturating_sub(1);
        }
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

    /// An ask that opencode does not know was settled otherwise, and an event told or will tell so. What did not arrive
    /// is due again; what opencode refused is not, before the deadline's default.
    fn finish_reply(&mut self, session: Uuid, id: &str, result: Result<(), ClientError>) {
        let Some(live) = self.live.get_mut(&session) else { return };
        match result {
            Ok(()) => {}
            Err(ClientError::NotFound { .. }) => live.reconcile = live.turn.is_some(),
            Err(error) => {
                tracing::warn!(session_id = %session, ask = id, error = error_chain(&error), "answer was not taken");
                let settlement = live.settled.remove(id);
                let Some(ask) = live.asks.get_mut(id).filter(|_| !error.is_transient()) else { return };
                ask.refused = true;
                if settlement.is_some_and(|settlement| settlement.by == ResolvedBy::Deadline) {
                    ask.expires_at = Timestamp::now().saturating_add(AGAIN).unwrap_or(Timestamp::MAX);
                }
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
}

fn describe_exit(exit: Option<i32>, signal: Option<i32>, cause: berth_wire::door::ExitCause) -> String {
    match (signal, exit) {
        (Some(signal), _) => format!("opencode was ended by signal {signal} ({cause:?})"),
        (None, Some(code)) => format!("opencode exited with code {code} ({cause:?})"),
        (None, None) => format!("opencode ended ({cause:?})"),
    }
}
