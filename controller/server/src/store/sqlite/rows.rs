//! Rows as SQLite holds them, and what they mean.

use berth_wire::{
    api::{Session, Turn},
    turn::{TurnError, TurnErrorReason},
};
use jiff::Timestamp;
use sqlx::{FromRow, Row, sqlite::SqliteRow};
use uuid::Uuid;

use super::{
    super::{HistoryRow, Removed, StoreError, StoredEvent, TurnOptions},
    from_name,
    text::Text,
};
use crate::http::error_chain;

#[derive(FromRow)]
pub(super) struct SessionRow {
    id: Uuid,
    namespace: Text,
    sandbox: Text,
    directory: Text,
    title: Option<Text>,
    opencode_session_id: Option<Text>,
    next_seq: i64,
    open_turns: String,
    state: String,
    usage: String,
    created_at: i64,
    updated_at: i64,
}

impl TryFrom<SessionRow> for Session {
    type Error = StoreError;

    fn try_from(row: SessionRow) -> Result<Self, StoreError> {
        Ok(Self {
            id: row.id,
            namespace: row.namespace.shown(),
            sandbox: row.sandbox.shown(),
            directory: row.directory.shown(),
            title: row.title.map(Text::shown),
            opencode_session_id: row.opencode_session_id.map(Text::shown),
            state: from_name(&row.state)?,
            last_seq: row.next_seq - 1,
            open_turns: serde_json::from_str(&row.open_turns)?,
            usage: serde_json::from_str(&row.usage)?,
            created_at: timestamp(row.created_at),
            updated_at: timestamp(row.updated_at),
        })
    }
}

#[derive(FromRow)]
pub(super) struct TurnRow {
    pub(super) id: Uuid,
    session_id: Uuid,
    ordinal: i64,
    state: String,
    pub(super) prompt: String,
    pub(super) body_hash: Vec<u8>,
    pub(super) message_id: Option<String>,
    pub(super) cancel_requested: bool,
    stop_reason: Option<String>,
    error: Option<String>,
    usage: Option<String>,
    pub(super) created_at: i64,
    pub(super) started_at: Option<i64>,
    ended_at: Option<i64>,
    model: Option<String>,
    agent: Option<String>,
    retry_of: Option<Uuid>,
    traceparent: Option<String>,
    pub(super) active_ms: i64,
    first_seq: Option<i64>,
    last_seq: Option<i64>,
    removed: i64,
}

impl TurnRow {
    /// What it asks for beside its text.
    pub(super) fn options(&self) -> Result<TurnOptions, StoreError> {
        Ok(TurnOptions {
            model: self.model.as_deref().map(serde_json::from_str).transpose()?,
            agent: self.agent.clone(),
            retry_of: self.retry_of,
            traceparent: self.traceparent.clone(),
        })
    }
}

impl TryFrom<TurnRow> for HistoryRow {
    type Error = StoreError;

    fn try_from(row: TurnRow) -> Result<Self, StoreError> {
        Ok(Self {
            message_id: row.message_id.clone(),
            removed: match row.removed {
                0 => Removed::Nothing,
                1 => Removed::Partly,
                _ => Removed::Wholly,
            },
            first_seq: row.first_seq,
            last_seq: row.last_seq,
            turn: Turn::try_from(row)?,
        })
    }
}

/// A turn as a list shows it. One that this version does not understand hides none of the others: it is there with its
/// state and its times, and with the word that more cannot be told.
pub(super) fn listed_turn(row: &SqliteRow) -> Result<HistoryRow, StoreError> {
    let read = TurnRow::from_row(row).map_err(StoreError::from).and_then(HistoryRow::try_from);
    match read {
        Err(error) if error.is_of_a_value() => {
            let shown = unreadable_turn(row)?;
            tracing::warn!(turn_id = %shown.turn.id, error = error_chain(&error), "stored turn is not understood");
            Ok(shown)
        }
        read => read,
    }
}

fn unreadable_turn(row: &SqliteRow) -> Result<HistoryRow, StoreError> {
    let time = |name| Ok::<_, StoreError>(row.try_get::<Option<i64>, _>(name)?.map(timestamp));
    let message = "this version of the server does not understand what is stored of this turn; its events may tell more";
    let error = TurnError {
        reason: TurnErrorReason::StateUnreadable,
        message: message.to_owned(),
        retry_at: None,
        cause: None,
    };
    Ok(HistoryRow {
        message_id: None,
        removed: Removed::Nothing,
        first_seq: row.try_get("first_seq")?,
        last_seq: row.try_get("last_seq")?,
        turn: Turn {
            id: row.try_get("id")?,
            session_id: row.try_get("session_id")?,
            ordinal: row.try_get("ordinal")?,
            state: from_name(row.try_get("state")?)?,
            prompt: Vec::new(),
            model: None,
            agent: None,
            retry_of: None,
            stop_reason: None,
            error: Some(error),
            usage: None,
            created_at: time("created_at")?.unwrap_or_default(),
            started_at: time("started_at")?,
            ended_at: time("ended_at")?,
        },
    })
}

impl TryFrom<TurnRow> for Turn {
    type Error = StoreError;

    fn try_from(row: TurnRow) -> Result<Self, StoreError> {
        let TurnOptions { model, agent, retry_of, traceparent: _ } = row.options()?;
        Ok(Self {
            id: row.id,
            session_id: row.session_id,
            ordinal: row.ordinal,
            state: from_name(&row.state)?,
            prompt: serde_json::from_str(&row.prompt)?,
            model,
            agent,
            retry_of,
            stop_reason: row.stop_reason.as_deref().map(from_name).transpose()?,
            error: row.error.as_deref().map(serde_json::from_str).transpose()?,
            usage: row.usage.as_deref().map(serde_json::from_str).transpose()?,
            created_at: timestamp(row.created_at),
            started_at: row.started_at.map(timestamp),
            ended_at: row.ended_at.map(timestamp),
        })
    }
}

#[derive(FromRow)]
pub(super) struct EventRow {
    pub(super) seq: i64,
    turn_id: Option<Uuid>,
    kind: Text,
    payload: Text,
    payload_version: i64,
    at: i64,
}

impl EventRow {
    /// Bytes of its payload.
    pub(super) fn size(&self) -> usize {
        self.payload.len()
    }

    pub(super) fn of(self, session_id: Uuid) -> StoredEvent {
        let Self { seq, turn_id, kind, payload, payload_version, at } = self;
        let (kind, payload) = (kind.shown(), payload.shown());
        let stored = StoredEvent { session_id, seq, turn_id, at: timestamp(at), kind, payload };
        stored.of_version(payload_version)
    }
}

#[derive(FromRow)]
pub(super) struct AskRow {
    pub(super) id: String,
    pub(super) request: String,
    pub(super) expires_at: i64,
    pub(super) answer: Option<String>,
}

/// A stored time; what lies outside the calendar is the epoch.
pub(super) fn timestamp(milliseconds: i64) -> Timestamp {
    Timestamp::from_millisecond(milliseconds).unwrap_or_default()
}
