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
            let live =
                self.live.entry(row.id).or_insert_with(|| Live::new(row.clone(), self.limits.watchdog, now));
            live.work = row;
        }
        self.act().await
    }

    /// Does, for every session, what can be done now.
    pub(in super::super) async fn act(&mut self) -> Result<(), OwnerError> {
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
        self.live.retain(|_, live| !live.is_done());
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
        translator.abort_sent();
        turn.aborting = true;
        let Some(root) = live.work.opencode_session_id.clone() else { return };
        let call = calls::abort(self.client.clone(), live.work.directory.clone(), root);
        self.call(session, async { CallResult::Aborted(call.await) });
    }

    /// Delivers answers that persons left and that rules give.
    fn answer_asks(&mut self, session: Uuid) {
        let Some(live) = self.live.get(&session) else { return };
        let answer = |id: &String| live.work.asks.iter().find(|ask| &ask.id == id)?.answer.as_ref();
        let open = live.asks.iter().filter(|(id, _)| !live.settled.contains_key(*id));
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
        live.blocked_since.get_or_insert(now);
        if !self.connected || self.boot_id.is_none() {
            return Ok(());
        }
        if live.standing == Standing::Verified {
            return self.begin_turn(session, None).await;
        }
        live.busy = true;
        let title = live.work.title.clone();
        let new = NewSession { title, berth_session_id: session, permission: Vec::new() };
        let (directory, known) = (live.work.directory.clone(), live.work.opencode_session_id.clone());
        let in_doubt = live.standing == Standing::InDoubt;
        let call = calls::ensure(self.client.clone(), directory, known, new, in_doubt);
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
                self.begin_turn(session, Some(ensured)).await
            }
            Err(error) => self.ensure_failed(session, &error).await,
        }
    }

    async fn ensure_failed(&mut self, session: Uuid, error: &EnsureError) -> Result<(), OwnerError> {
        let now = Instant::now();
        let limit = self.limits.unreachable;
        let Some(live) = self.live.get_mut(&session) else { return Ok(()) };
        let blocked = live.blocked_since.map_or(limit, |since| now.saturating_duration_since(since));
        if error.is_transient() && blocked < limit {
            live.not_before = Some(now + super::TICK);
            return Ok(());
        }
        tracing::warn!(session_id = %session, error = error_chain(error), "turn could not be started");
        self.end_blocked(session, TurnOutcome::failed(reason_of(error), error_chain(error))).await
    }

    /// Ends the oldest queued turn, which cannot be started.
    pub(in super::super) async fn end_blocked(
        &mut self,
        session: Uuid,
        outcome: TurnOutcome,
    ) -> Result<(), OwnerError> {
        let now = Instant::now();
        let Some(live) = self.live.get_mut(&session) else { return Ok(()) };
        live.blocked_since = None;
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
    async fn begin_turn(&mut self, session: Uuid, ensured: Option<Ensured>) -> Result<(), OwnerError> {
        self.flush().await?;
        let Some(live) = self.live.get_mut(&session) else { return Ok(()) };
        let Some(turn) = live.work.queued.clone() else { return Ok(()) };
        let message_id = ids::message_id();
        let mut commit = start_commit(session, &turn, &message_id);
        let mut translator = live.translator.clone();
        if let Some(ensured) = &ensured
            && live.work.opencode_session_id.as_ref() != Some(&ensured.session.id)
        {
            note_opencode_session(live, ensured, &mut commit);
            translator = None;
        }
        let root =
            ensured.map(|ensured| ensured.session.id).or_else(|| live.work.opencode_session_id.clone());
        let Some(root) = root else { return Ok(()) };
        let mut translator = translator.unwrap_or_else(|| SessionTranslator::new(&root));
        translator.begin_turn(&message_id);
        commit.translator = Some(serde_json::to_string(&translator).map_err(StoreError::from)?);
        let commit = self.commit_of(vec![commit]);
        match self.store.commit(commit).await {
            Ok(()) => {}
            Err(StoreError::TurnNotQueued) => return self.read_rows().await,
            Err(error) => return Err(error.into()),
        }
        let Some(live) = self.live.get_mut(&session) else { return Ok(()) };
        live.translator = Some(translator);
        live.changed = false;
        live.work.opencode_session_id = Some(root);
        live.work.queued = None;
        live.blocked_since = None;
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
        let prompt = turn.to_prompt();
        let call = calls::post(self.client.clone(), live.work.directory.clone(), root.clone(), prompt);
        self.call(session, async { CallResult::Posted(call.await) });
    }

    /// Deletes a session once its turn has ended.
    async fn delete_if_asked(&mut self, session: Uuid) -> Result<(), OwnerError> {
        let now = Instant::now();
        let Some(live) = self.live.get_mut(&session) else { return Ok(()) };
        let waits = live.not_before.is_some_and(|moment| moment > now);
        if !live.work.deleted || live.turn.is_some() || live.busy || waits {
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
        let start_by = turn.watchdog.prompted(now);
        let Err(error) = result else { return };
        if live.translator.as_ref().is_some_and(|translator| translator.phase() != TurnPhase::Admitted) {
            return;
        }
        if error.is_transient() && now < start_by {
            turn.repost.get_or_insert(Repost::SameBoot);
            return;
        }
        live.standing = Standing::Unverified;
        let reason = if error.is_transient() {
            TurnErrorReason::SandboxUnavailable
        } else {
            TurnErrorReason::PromptRejected
        };
        let error = TurnError { reason, message: error_chain(error), retry_at: None };
        self.fail_turn(session, error);
    }
}

fn reason_of(error: &EnsureError) -> TurnErrorReason {
    match error {
        EnsureError::Client(ClientError::Status { .. } | ClientError::NotFound { .. }) => {
            TurnErrorReason::PromptRejected
        }
        EnsureError::Client(_) | EnsureError::Busy => TurnErrorReason::SandboxUnavailable,
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

/// opencode's session is new to us: write its id, and tell where it took the place of one that was lost.
fn note_opencode_session(live: &Live, ensured: &Ensured, commit: &mut SessionCommit) {
    let current = ensured.session.id.clone();
    commit.changes.push(Change::OpencodeSession { id: current.clone() });
    let previous = live.work.opencode_session_id.clone();
    if previous.is_some() {
        tracing::warn!(session_id = %commit.session_id, how = ?ensured.how, "opencode had lost the session");
        let payload = EventPayload::SessionReset(SessionReset { previous, current });
        commit.events.insert(0, NewEvent { turn_id: None, payload });
    } else if ensured.how == EnsuredHow::Found {
        tracing::info!(session_id = %commit.session_id, "opencode's session was made before and is used");
    }
}
