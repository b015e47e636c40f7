//! Wishes to calls: prompts to be started, turns to be cancelled, asks to be answered, sessions to be deleted.

use berth_opencode::{ClientError, Ensured, EnsuredHow, NewSession, SessionTranslator, TurnPhase, ids};
use berth_wire::{
    event::{EventPayload, SessionReset, TurnStarted},
    turn::{TurnError, TurnErrorReason, TurnOutcome},
};
use tokio::time::Instant;
use uuid::Uuid;

use super::{
    super::{
        asks::{self, Settlement},
        calls::{self, CallResult, EnsureError},
        live::{Live, Repost, Running, Standing},
    },
    Owner, OwnerError,
};
use crate::{
    http::error_chain,
    store::{Change, NewEvent, OpenTurn, SessionCommit, StoreError},
};

impl Owner {
    /// Reads what callers want, and does what can be done now.
    pub(in super::super) async fn read_wishes(&mut self) -> Result<(), OwnerError> {
        let now = Instant::now();
        let rows = self.store.load_work(&self.sandbox).await?;
        for live in self.live.values_mut() {
            live.work.queued = None;
        }
        for row in rows {
            let session = row.id;
            let limits = self.limits.watchdog;
            let live = self.live.entry(session).or_insert_with(|| Live::new(row.clone(), limits, now));
            live.work = row;
            if live.adopt_lost_turn() {
                let message = "the server lost the state of this turn when it was started again, and cannot tell how \
                    the turn went on: see what it left, then send again";
                let reason = TurnErrorReason::OpencodeError;
                self.fail_turn(session, TurnError { reason, message: message.to_owned(), retry_at: None });
            }
        }
        self.act().await
    }

    /// Does, for every session, what can be done now.
    pub(in super::super) async fn act(&mut self) -> Result<(), OwnerError> {
        let (now, linger) = (Instant::now(), self.limits.linger);
        if std::mem::take(&mut self.ended) {
            self.flush().await?;
            self.read_rows().await?;
        }
        let sessions: Vec<Uuid> = self.live.keys().copied().collect();
        for session in sessions {
            self.pass_cancel(session);
            self.answer_asks(session);
            self.start_next(session).await?;
            self.delete_if_asked(session).await?;
        }
        self.live.retain(|_, live| !live.is_over(now, linger));
        Ok(())
    }

    /// Tells the translator that the turn is to end, and aborts it where that can work: before opencode has begun,
    /// an abort is lost, so it waits.
    pub(in super::super) fn pass_cancel(&mut self, session: Uuid) {
        let Some(live) = self.live.get_mut(&session) else { return };
        let (Some(turn), Some(translator)) = (&mut live.turn, &mut live.translator) else { return };
        let same = live.work.running.as_ref().filter(|running| running.id == turn.id);
        if live.work.deleted || same.is_some_and(|running| running.cancel_requested) {
            translator.request_cancel();
        }
        if !translator.abort_due() || turn.aborting {
            return;
        }
        let Some(root) = live.work.opencode_session_id.clone() else { return };
        translator.abort_sent();
        turn.aborting = true;
        live.in_flight += 1;
        let call = calls::abort(self.client.clone(), live.work.directory.clone(), root);
        self.call(session, async { CallResult::Aborted(call.await) });
    }

    /// Delivers answers that persons left and that rules give.
    pub(super) fn answer_asks(&mut self, session: Uuid) {
        let Some(live) = self.live.get(&session) else { return };
        let answer = |id: &String| live.work.asks.iter().find(|ask| &ask.id == id)?.answer.as_ref();
        let open = live.asks.iter().filter(|(id, ask)| !ask.refused && !live.settled.contains_key(*id));
        let ready: Vec<(String, Settlement)> = open
            .filter_map(|(id, ask)| {
                let settlement = answer(id)
                    .map(asks::by_person)
                    .or_else(|| asks::by_rule(&ask.request, &live.work.rules))?;
                Some((id.clone(), settlement))
            })
            .collect();
        for (id, settlement) in ready {
            self.settle(session, id, settlement);
        }
    }

    /// Tells opencode what was decided about an ask.
    pub(in super::super) fn settle(&mut self, session: Uuid, id: String, settlement: Settlement) {
        let Some(live) = self.live.get_mut(&session) else { return };
        let reply = settlement.reply.clone();
        live.settled.insert(id.clone(), settlement);
        let call = calls::reply(self.client.clone(), live.work.directory.clone(), id.clone(), reply);
        self.call(session, async { CallResult::Replied(id, call.await) });
    }

    /// Starts the oldest queued turn: at once where opencode's session is known to stand, else after a look.
    async fn start_next(&mut self, session: Uuid) -> Result<(), OwnerError> {
        let now = Instant::now();
        let Some(live) = self.live.get_mut(&session) else { return Ok(()) };
        if !live.can_start(now) {
            return Ok(());
        }
        live.block(now);
        if !self.connected || self.boot_id.is_none() {
            return Ok(());
        }
        if live.standing == Standing::Verified {
            return self.begin_turn(session).await;
        }
        live.busy = true;
        let title = live.work.title.clone();
        let new = NewSession { title, berth_session_id: session, permission: Vec::new() };
        let (directory, known) = (live.work.directory.clone(), live.work.opencode_session_id.clone());
        let call = calls::ensure(self.client.clone(), directory, known, new);
        self.call(session, async { CallResult::Ensured(call.await) });
        Ok(())
    }

    /// opencode's session was made sure of, or not.
    pub(in super::super) async fn finish_ensure(
        &mut self,
        session: Uuid,
        result: Result<Ensured, EnsureError>,
    ) -> Result<(), OwnerError> {
        let Some(live) = self.live.get_mut(&session) else { return Ok(()) };
        live.busy = false;
        match result {
            Ok(ensured) => {
                live.standing = Standing::Verified;
                self.note_ensured(session, &ensured);
                self.begin_turn(session).await
            }
            Err(error) => self.ensure_failed(session, &error).await,
        }
    }

    /// Where opencode's session is new to us: its id, and where it took the place of one that was lost, word of that.
    /// Noted whatever becomes of the prompt, so that the session can be deleted.
    fn note_ensured(&mut self, session: Uuid, ensured: &Ensured) {
        let now = Instant::now();
        let Some(live) = self.live.get_mut(&session) else { return };
        let current = ensured.session.id.clone();
        if live.work.opencode_session_id.as_ref() == Some(&current) {
            return;
        }
        let previous = live.work.opencode_session_id.replace(current.clone());
        live.translator = Some(SessionTranslator::new(&current));
        live.changed = true;
        self.batch.change(session, Change::OpencodeSession { id: current.clone() }, now);
        if previous.is_some() {
            tracing::warn!(session_id = %session, how = ?ensured.how, "opencode had lost the session");
            let payload = EventPayload::SessionReset(SessionReset { previous, current });
            self.batch.push(session, NewEvent { turn_id: None, payload }, now, self.limits.batch);
        } else if ensured.how == EnsuredHow::Found {
            tracing::info!(session_id = %session, "opencode's session was made before and is used");
        }
    }

    /// What may pass is tried again until the turn has waited too long; see [`Self::check_blocked`].
    async fn ensure_failed(&mut self, session: Uuid, error: &EnsureError) -> Result<(), OwnerError> {
        let now = Instant::now();
        let Some(live) = self.live.get_mut(&session) else { return Ok(()) };
        if error.is_transient() {
            live.not_before = Some(now + super::TICK);
            if let Some(blocked) = live.block(now) {
                blocked.why = Some(error_chain(error));
            }
            return Ok(());
        }
        tracing::warn!(session_id = %session, error = error_chain(error), "turn could not be started");
        let reason = match error {
            EnsureError::Client(error) => reason_of(error),
            EnsureError::Busy => TurnErrorReason::SandboxUnavailable,
        };
        self.end_blocked(session, TurnOutcome::failed(reason, error_chain(error))).await
    }

    /// Ends the oldest queued turn, which cannot be started.
    pub(in super::super) async fn end_blocked(
        &mut self,
        session: Uuid,
        outcome: TurnOutcome,
    ) -> Result<(), OwnerError> {
        let now = Instant::now();
        let Some(live) = self.live.get_mut(&session) else { return Ok(()) };
        live.blocked = None;
        let Some(turn) = live.work.queued.take() else { return Ok(()) };
        let turn_id = turn.id;
        let payload = EventPayload::TurnEnded(outcome.clone());
        self.batch.change(session, Change::TurnEnded { turn_id, outcome }, now);
        self.batch.push(session, NewEvent { turn_id: Some(turn_id), payload }, now, self.limits.batch);
        self.flush().await?;
        self.read_rows().await
    }

    /// Reads the rows again without acting on them: what was queued behind a turn that ended is known then.
    pub(in super::super) async fn read_rows(&mut self) -> Result<(), OwnerError> {
        let rows = self.store.load_work(&self.sandbox).await?;
        for live in self.live.values_mut() {
            live.work.queued = None;
        }
        for row in rows {
            if let Some(live) = self.live.get_mut(&row.id) {
                live.work = row;
            }
        }
        Ok(())
    }

    /// Writes that the turn runs, and hands the prompt over. Written first: whoever comes after a crash in between
    /// knows the ids under which the prompt may have left.
    async fn begin_turn(&mut self, session: Uuid) -> Result<(), OwnerError> {
        self.flush().await?;
        let Some(live) = self.live.get_mut(&session).filter(|live| !live.work.deleted) else { return Ok(()) };
        let (Some(turn), Some(root)) = (live.work.queued.clone(), live.work.opencode_session_id.clone())
        else {
            return Ok(());
        };
        let message_id = ids::message_id();
        let mut translator = live.translator.clone().unwrap_or_else(|| SessionTranslator::new(&root));
        translator.begin_turn(&message_id);
        let mut commit = start_commit(session, &turn, &message_id);
        commit.translator = Some(serde_json::to_string(&translator).map_err(StoreError::from)?);
        match self.commit(vec![commit]).await {
            Ok(()) => {}
            Err(OwnerError::Store(StoreError::TurnNotQueued)) => return self.read_rows().await,
            Err(error) => return Err(error),
        }
        let Some(live) = self.live.get_mut(&session) else { return Ok(()) };
        live.translator = Some(translator);
        live.changed = false;
        live.work.queued = None;
        live.blocked = None;
        live.turn = Some(Running::new(&turn, message_id, self.limits.watchdog, Instant::now()));
        self.post_prompt(session);
        // What waits behind it, and a cancel that came meanwhile, are in the rows.
        self.read_rows().await?;
        self.pass_cancel(session);
        Ok(())
    }

    /// Hands the running turn's prompt over.
    pub(in super::super) fn post_prompt(&mut self, session: Uuid) {
        let Some(live) = self.live.get_mut(&session) else { return };
        let (Some(turn), Some(root)) = (&mut live.turn, &live.work.opencode_session_id) else { return };
        turn.posting = true;
        turn.repost = None;
        live.in_flight += 1;
        let prompt = turn.to_prompt();
        let call = calls::post(self.client.clone(), live.work.directory.clone(), root.clone(), prompt);
        self.call(session, async { CallResult::Posted(call.await) });
    }

    /// Deletes a session once its turn has ended.
    async fn delete_if_asked(&mut self, session: Uuid) -> Result<(), OwnerError> {
        let now = Instant::now();
        let Some(live) = self.live.get_mut(&session) else { return Ok(()) };
        let waits = live.not_before.is_some_and(|moment| moment > now);
        if !live.work.deleted || !live.is_quiet() || waits {
            return Ok(());
        }
        let Some(root) = live.work.opencode_session_id.clone() else {
            return self.finish_delete(session).await;
        };
        live.busy = true;
        let call = calls::delete(self.client.clone(), live.work.directory.clone(), root);
        self.call(session, async { CallResult::Deleted(call.await) });
        Ok(())
    }

    /// opencode's session is gone: remove ours.
    pub(in super::super) async fn finish_delete(&mut self, session: Uuid) -> Result<(), OwnerError> {
        self.flush().await?;
        self.live.remove(&session);
        self.delete_rows(session).await
    }

    /// A prompt was handed over, or not.
    pub(in super::super) fn finish_post(&mut self, session: Uuid, result: &Result<(), ClientError>) {
        let now = Instant::now();
        let Some(live) = self.live.get_mut(&session) else { return };
        let Some(turn) = &mut live.turn else { return };
        turn.posting = false;
        let Err(error) = result else {
            turn.hand_over_by = None;
            turn.watchdog.prompted(now);
            return;
        };
        // A gate may hold it for an hour: that is no fault of the sandbox.
        if matches!(error, ClientError::Gated(_)) {
            turn.repost.get_or_insert(Repost::SameBoot);
            return;
        }
        let hand_over_by = *turn.hand_over_by.get_or_insert(now + self.limits.watchdog.start);
        if live.translator.as_ref().is_some_and(|translator| translator.phase() != TurnPhase::Admitted) {
            return;
        }
        if error.is_transient() && now < hand_over_by {
            turn.repost.get_or_insert(Repost::SameBoot);
            return;
        }
        live.standing = Standing::Unverified;
        let error = TurnError { reason: reason_of(error), message: error_chain(error), retry_at: None };
        self.fail_turn(session, error);
    }
}

/// Whether opencode refused the prompt, or was not there to take it.
fn reason_of(error: &ClientError) -> TurnErrorReason {
    match error {
        ClientError::Status { .. } | ClientError::NotFound { .. } | ClientError::InvalidRequest(_)
            if !error.is_transient() =>
        {
            TurnErrorReason::PromptRejected
        }
        _ => TurnErrorReason::SandboxUnavailable,
    }
}

fn start_commit(session_id: Uuid, turn: &OpenTurn, message_id: &str) -> SessionCommit {
    let started = EventPayload::TurnStarted(TurnStarted { prompt: turn.prompt.clone() });
    SessionCommit {
        session_id,
        translator: None,
        events: vec![NewEvent { turn_id: Some(turn.id), payload: started }],
        changes: vec![Change::TurnStarted { turn_id: turn.id, message_id: message_id.to_owned() }],
    }
}
