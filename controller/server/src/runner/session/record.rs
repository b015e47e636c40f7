//! Events to the log: what the translation makes of opencode's events, with what the server adds (deadlines of asks,
//! who settled them, the end of a turn). Pure.

use std::time::Duration;

use berth_opencode::{ClientError, GlobalEvent, ModelReference, SessionTranslator, Snapshot, Translation};
use berth_wire::{
    event::{EventPayload, acp},
    turn::{TurnError, TurnOutcome, TurnState},
};
use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use super::{super::asks, Moment, Output, Session, Stage, Standing};
use crate::{
    http::error_chain,
    store::{Change, NewEvent},
};

/// After a turn that did not end well, late events of it may still come.
const SETTLE: Duration = Duration::from_millis(250);

impl Session {
    pub(super) fn take_event(&mut self, event: &GlobalEvent, at: &Moment, out: &mut Vec<Output>) {
        let Some(translator) = &mut self.translator else { return };
        if !translator.concerns(event) {
            return;
        }
        let translations = translator.apply(event);
        if let Some(turn) = self.turn_mut() {
            turn.watchdog.heard(at.now);
            turn.heard_at = at.now;
        }
        self.record(translations, at, out);
    }

    pub(super) fn take_size(
        &mut self,
        model: ModelReference,
        tokens: u64,
        at: &Moment,
        out: &mut Vec<Output>,
    ) {
        let Some(translator) = &mut self.translator else { return };
        let translations = translator.set_context_size(model, tokens);
        self.record(translations, at, out);
    }

    /// Events may have been missed: state must be read, and nobody knows what others do in the session.
    pub(super) fn note_gap(&mut self) {
        self.translator.iter_mut().for_each(SessionTranslator::mark_gap);
        self.changed |= self.translator.is_some();
        self.reconcile = self.turn().is_some();
        self.standing = Standing::Unverified;
    }

    pub(super) fn take_snapshot(
        &mut self,
        snapshot: Result<Snapshot, ClientError>,
        at: &Moment,
        out: &mut Vec<Output>,
    ) {
        self.reconciled_at = Some(at.now);
        match snapshot {
            Ok(snapshot) => {
                self.reconcile = false;
                self.read_failures = 0;
                let Some(translator) = &mut self.translator else { return };
                let translations = translator.reconcile(&snapshot);
                self.record(translations, at, out);
            }
            Err(error) => {
                self.read_failures = self.read_failures.saturating_add(1);
                tracing::debug!(session_id = %self.id, error = error_chain(&error), "state could not be read");
            }
        }
    }

    /// Ends the running turn with an error of ours.
    pub(super) fn fail_turn(&mut self, error: TurnError, at: &Moment, out: &mut Vec<Output>) {
        let Some(translator) = &mut self.translator else { return };
        let translations = translator.fail(error);
        self.record(translations, at, out);
    }

    /// Notes what follows from what the translation was told.
    pub(super) fn record(&mut self, translations: Vec<Translation>, at: &Moment, out: &mut Vec<Output>) {
        self.changed = true;
        for translation in translations {
            match translation {
                Translation::Update(payload) => self.record_update(payload, at, out),
                // What is to be aborted is aborted when this step settles.
                Translation::Started | Translation::Abort(_) => {}
                Translation::Swallowed => self.note_swallowed(at, out),
                Translation::Ended(outcome) => self.take_end(outcome, at, out),
            }
        }
    }

    fn record_update(&mut self, mut payload: EventPayload, at: &Moment, out: &mut Vec<Output>) {
        let turn_id = self.turn_id();
        out.extend(self.note_update(&mut payload, turn_id, at).map(Output::Change));
        out.push(Output::Log(NewEvent { turn_id, payload }));
    }

    /// Closes what is open in the log of a turn that ran before, and that nobody follows any more.
    pub(super) fn close_translation(
        &mut self,
        turn_id: Uuid,
        error: &TurnError,
        at: &Moment,
        out: &mut Vec<Output>,
    ) {
        let Some(translator) = &mut self.translator else { return };
        self.changed = true;
        for translation in translator.fail(error.clone()) {
            let Translation::Update(mut payload) = translation else { continue };
            out.extend(self.note_update(&mut payload, Some(turn_id), at).map(Output::Change));
            out.push(Output::Log(NewEvent { turn_id: Some(turn_id), payload }));
        }
    }

    /// Notes the running turn's one end.
    pub(super) fn record_end(&mut self, outcome: TurnOutcome, at: &Moment, out: &mut Vec<Output>) {
        let stage = std::mem::replace(&mut self.stage, Stage::Rest);
        let Stage::Running(turn) = stage else {
            self.stage = stage;
            return;
        };
        self.asking.clear();
        self.reconcile = false;
        self.read_failures = 0;
        if matches!(outcome.state, TurnState::Failed | TurnState::Unknown | TurnState::Cancelled) {
            self.standing = Standing::Unverified;
            self.not_before = Some(at.now + SETTLE);
        }
        tracing::info!(session_id = %self.id, turn_id = %turn.id, state = ?outcome.state, "turn ended");
        let payload = EventPayload::TurnEnded(outcome.clone());
        out.push(Output::Change(Change::TurnEnded { turn_id: turn.id, outcome }));
        out.push(Output::Log(NewEvent { turn_id: Some(turn.id), payload }));
        out.push(Output::Reread);
    }

    /// Keeps account of asks, and adds to an entry what only the server knows.
    fn note_update(
        &mut self,
        payload: &mut EventPayload,
        turn_id: Option<Uuid>,
        at: &Moment,
    ) -> Option<Change> {
        match payload {
            EventPayload::PermissionRequested(asked) => {
                let expires_at = self.expiry(at);
                asked.expires_at = Some(expires_at);
                self.open_ask(payload, turn_id?, expires_at)
            }
            EventPayload::QuestionRequested(_) => self.open_ask(payload, turn_id?, self.expiry(at)),
            EventPayload::PermissionResolved(end) => {
                self.asking.close(&end.permission_id, &mut end.resolution, &mut end.by);
                Some(Change::AskResolved { id: end.permission_id.clone() })
            }
            EventPayload::QuestionResolved(end) => {
                self.asking.close(&end.question_id, &mut end.resolution, &mut end.by);
                Some(Change::AskResolved { id: end.question_id.clone() })
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

    fn open_ask(&mut self, request: &EventPayload, turn_id: Uuid, expires_at: Timestamp) -> Option<Change> {
        let (id, kind) = asks::ask_of(request)?;
        self.asking.open(id, request.clone(), expires_at);
        Some(Change::AskOpened { id: id.to_owned(), kind, turn_id, expires_at, request: request.clone() })
    }

    fn expiry(&self, at: &Moment) -> Timestamp {
        let limit = SignedDuration::try_from(self.limits.ask).unwrap_or(SignedDuration::from_hours(24));
        at.clock.checked_add(limit).unwrap_or(Timestamp::MAX)
    }
}
