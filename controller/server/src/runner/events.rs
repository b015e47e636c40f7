//! Events to the log: what the translators make of opencode's events, with what the server adds (deadlines of asks,
//! who settled them, the end of a turn).

use std::{collections::BTreeMap, time::Duration};

use berth_opencode::{ClientError, GlobalEvent, ModelReference, Translation};
use berth_wire::{
    event::{EventPayload, Resolution, ResolvedBy, acp},
    turn::{TurnOutcome, TurnState},
};
use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;
use uuid::Uuid;

use super::{
    asks,
    calls::CallResult,
    live::{Ask, Live, Standing},
    owner::{Owner, OwnerError},
};
use crate::{
    http::error_chain,
    store::{Change, NewEvent},
};

/// After a turn that did not end well, late events of it may still come.
const SETTLE: Duration = Duration::from_millis(250);

impl Owner {
    /// Gives an event to the sessions that have a turn.
    pub(super) fn translate(&mut self, event: &GlobalEvent) {
        let mut recorded = Vec::new();
        for (&session, live) in &mut self.live {
            if let Some(translator) = &mut live.translator
                && translator.concerns(event)
            {
                live.changed = true;
                if let Some(turn) = &mut live.turn {
                    turn.watchdog.heard(Instant::now());
                }
                recorded.push((session, translator.apply(event)));
            }
        }
        for (session, translations) in recorded {
            self.record(session, translations);
            self.size_model(session);
        }
    }

    /// Tells the translator how much the model in use takes; asks opencode once for each directory.
    fn size_model(&mut self, session: Uuid) {
        let Some(live) = self.live.get_mut(&session) else { return };
        let Some(translator) = &mut live.translator else { return };
        let Some(model) = translator.unsized_model() else { return };
        let directory = live.work.directory.clone();
        if let Some(sizes) = self.sizes.get(&directory) {
            let Some(&tokens) = sizes.get(model) else { return };
            let translations = translator.set_context_size(model.clone(), tokens);
            self.record(session, translations);
            return;
        }
        // Empty until the answer is there, so that nobody asks meanwhile.
        self.sizes.insert(directory.clone(), BTreeMap::new());
        let client = self.client.clone();
        self.call(session, async move {
            let sizes = client.context_sizes(&directory).await;
            CallResult::Sized(directory, sizes)
        });
    }

    /// Sizes that cannot be read are not told; they are asked for again after the next boot.
    pub(super) fn finish_sizes(
        &mut self,
        directory: String,
        result: Result<BTreeMap<ModelReference, u64>, ClientError>,
    ) {
        match result {
            Ok(sizes) => {
                self.sizes.insert(directory, sizes);
                let sessions: Vec<Uuid> = self.live.keys().copied().collect();
                for session in sessions {
                    self.size_model(session);
                }
            }
            Err(error) => {
                tracing::debug!(error = error_chain(&error), "sizes of models could not be read");
            }
        }
    }

    /// Puts translations into the batch.
    pub(super) fn record(&mut self, session: Uuid, translations: Vec<Translation>) {
        for translation in translations {
            match translation {
                Translation::Update(payload) => self.record_update(session, payload),
                Translation::Started | Translation::Abort(_) => self.pass_cancel(session),
                Translation::Ended(outcome) => self.record_end(session, outcome),
            }
        }
        if let Some(live) = self.live.get_mut(&session) {
            live.changed = true;
        }
    }

    fn record_update(&mut self, session: Uuid, mut payload: EventPayload) {
        let now = Instant::now();
        let Some(live) = self.live.get_mut(&session) else { return };
        let turn_id = live.turn.as_ref().map(|turn| turn.id);
        let change = note_update(live, &mut payload, turn_id, self.limits.ask);
        if let Some(change) = change {
            self.batch.change(session, change, now);
        }
        self.batch.push(session, NewEvent { turn_id, payload }, now, self.limits.batch);
    }

    fn record_end(&mut self, session: Uuid, outcome: TurnOutcome) {
        let now = Instant::now();
        let Some(live) = self.live.get_mut(&session) else { return };
        let Some(turn) = live.turn.take() else { return };
        live.asks.clear();
        live.settled.clear();
        live.reconcile = false;
        if matches!(outcome.state, TurnState::Failed | TurnState::Unknown | TurnState::Cancelled) {
            live.standing = Standing::Unverified;
            live.not_before = Some(now + SETTLE);
        }
        tracing::info!(session_id = %session, turn_id = %turn.id, state = ?outcome.state, "turn ended");
        let payload = EventPayload::TurnEnded(outcome.clone());
        self.batch.change(session, Change::TurnEnded { turn_id: turn.id, outcome }, now);
        self.batch.push(session, NewEvent { turn_id: Some(turn.id), payload }, now, self.limits.batch);
        self.ended = true;
    }

    /// After a turn's end: commit it, then see what waits behind it.
    pub(super) async fn act_on_ends(&mut self) -> Result<(), OwnerError> {
        if self.ended { self.act().await } else { Ok(()) }
    }
}

/// Keeps account of asks, and adds to an entry what only the server knows.
fn note_update(
    live: &mut Live,
    payload: &mut EventPayload,
    turn_id: Option<Uuid>,
    ask_limit: Duration,
) -> Option<Change> {
    match payload {
        EventPayload::PermissionRequested(asked) => {
            asked.expires_at = Some(expiry(ask_limit));
            open_ask(live, payload, turn_id?, ask_limit)
        }
        EventPayload::QuestionRequested(_) => open_ask(live, payload, turn_id?, ask_limit),
        EventPayload::PermissionResolved(resolved) => {
            close_ask(live, &resolved.permission_id, &mut resolved.resolution, &mut resolved.by);
            Some(Change::AskResolved { id: resolved.permission_id.clone() })
        }
        EventPayload::QuestionResolved(resolved) => {
            close_ask(live, &resolved.question_id, &mut resolved.resolution, &mut resolved.by);
            Some(Change::AskResolved { id: resolved.question_id.clone() })
        }
        EventPayload::Update(update) => match &**update {
            acp::SessionUpdate::SessionInfoUpdate(info) => {
                info.title.value().map(|title| Change::Title { title: title.clone() })
            }
            _ => None,
        },
        _ => None,
    }
}

fn expiry(limit: Duration) -> Timestamp {
    let limit = SignedDuration::try_from(limit).unwrap_or(SignedDuration::from_hours(24));
    Timestamp::now().checked_add(limit).unwrap_or(Timestamp::MAX)
}

fn open_ask(live: &mut Live, request: &EventPayload, turn_id: Uuid, limit: Duration) -> Option<Change> {
    let (id, kind) = asks::ask_of(request)?;
    let expires_at = match request {
        EventPayload::PermissionRequested(asked) => asked.expires_at.unwrap_or_else(|| expiry(limit)),
        _ => expiry(limit),
    };
    live.asks.insert(id.to_owned(), Ask::new(request.clone(), expires_at));
    Some(Change::AskOpened { id: id.to_owned(), kind, turn_id, expires_at, request: request.clone() })
}

/// Forgets an ask; what we had decided about it, if we had and opencode tells the same, says how it ended and by whom.
/// It tells otherwise when the ask ended with its turn, or was rejected along with another one.
fn close_ask(live: &mut Live, id: &str, resolution: &mut Resolution, by: &mut ResolvedBy) {
    live.asks.remove(id);
    if let Some(settled) = live.settled.remove(id)
        && is_same(settled.resolution, *resolution)
    {
        (*resolution, *by) = (settled.resolution, settled.by);
    }
}

fn is_same(decided: Resolution, told: Resolution) -> bool {
    decided == told || (decided == Resolution::Always && told == Resolution::Once)
}
