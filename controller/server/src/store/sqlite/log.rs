//! The log, and the ends of turns in it: what owners and callers both write. Writes run inside a transaction of their
//! caller.

use std::{borrow::Cow, time::Duration};

use berth_opencode::ids;
use berth_wire::{
    event::{EventPayload, PAYLOAD_VERSION},
    turn::TurnOutcome,
};
use futures_util::TryStreamExt;
use sqlx::{Sqlite, SqlitePool, Transaction};
use uuid::Uuid;

use super::{
    super::{LogBounds, LogPage, NewEvent, StoreError},
    milliseconds, now,
    rows::EventRow,
    to_name,
};

type Tx<'a> = Transaction<'a, Sqlite>;

/// Reads entries until one of the bounds is reached.
pub(super) async fn read_events(
    readers: &SqlitePool,
    session_id: Uuid,
    after: i64,
    bounds: LogBounds,
) -> Result<LogPage, StoreError> {
    let mut rows = sqlx::query_as::<_, EventRow>(
        "SELECT seq, turn_id, kind, payload, payload_version, at FROM session_event
         WHERE session_id = ? AND seq > ? ORDER BY seq LIMIT ?",
    )
    .bind(session_id)
    .bind(after)
    .bind(bounds.entries)
    .fetch(readers);
    let (mut events, mut bytes) = (Vec::new(), 0);
    while bytes < bounds.bytes
        && let Some(row) = rows.try_next().await?
    {
        bytes += row.size();
        events.push(row.of(session_id));
    }
    let full = i64::try_from(events.len()).is_ok_and(|count| count >= bounds.entries);
    Ok(LogPage { events, cut: full || bytes >= bounds.bytes })
}

/// Appends to the log: the session's row gives out the numbers, so that commit order is their order.
pub(super) async fn append_events(
    tx: &mut Tx<'_>,
    session_id: Uuid,
    events: &[NewEvent],
) -> Result<(), StoreError> {
    if events.is_empty() {
        return Ok(());
    }
    let at = now();
    let first: i64 = sqlx::query_scalar(
        "UPDATE build_session SET next_seq = next_seq + ?1, updated_at = ?2 WHERE id = ?3
         RETURNING next_seq - ?1",
    )
    .bind(i64::try_from(events.len()).unwrap_or(i64::MAX))
    .bind(at)
    .bind(session_id)
    .fetch_one(&mut **tx)
    .await?;
    for (seq, event) in (first..).zip(events) {
        let (kind, payload) = event.payload.to_parts();
        sqlx::query("INSERT INTO session_event VALUES (?, ?, ?, ?, ?, ?, ?)")
            .bind(session_id)
            .bind(seq)
            .bind(event.turn_id)
            .bind(kind)
            .bind(payload.to_string())
            .bind(PAYLOAD_VERSION)
            .bind(at)
            .execute(&mut **tx)
            .await?;
    }
    let end = first + i64::try_from(events.len()).unwrap_or(i64::MAX) - 1;
    note_last(tx, events, end).await
}

/// What comes for a turn after its end moves the end of its history.
async fn note_last(tx: &mut Tx<'_>, events: &[NewEvent], end: i64) -> Result<(), StoreError> {
    let mut turns: Vec<Uuid> = events.iter().filter_map(|event| event.turn_id).collect();
    turns.sort_unstable();
    turns.dedup();
    for turn in turns {
        let query = "UPDATE turn SET last_seq = ? WHERE id = ? AND state NOT IN ('queued', 'running')";
        sqlx::query(query).bind(end).bind(turn).execute(&mut **tx).await?;
    }
    Ok(())
}

/// How far the clock that made a message may be ahead of the one that says when its turn ended.
const SKEW: Duration = Duration::from_secs(5);

/// Marks the turns that messages were removed from, and leaves out removals of what is no turn's: messages of somebody
/// else's turns, which the log never told of.
pub(super) async fn mark_removed(
    tx: &mut Tx<'_>,
    session_id: Uuid,
    events: &mut Cow<'_, [NewEvent]>,
) -> Result<(), StoreError> {
    let removed = events.iter().filter_map(|event| match &event.payload {
        EventPayload::MessageRemoved(removed) => Some(removed.message_id.clone()),
        _ => None,
    });
    for message_id in removed.collect::<Vec<_>>() {
        if mark_turn(tx, session_id, &message_id).await? {
            continue;
        }
        tracing::debug!(%session_id, message_id, "a message was removed that is no turn's");
        events.to_mut().retain(|event| match &event.payload {
            EventPayload::MessageRemoved(removed) => removed.message_id != message_id,
            _ => true,
        });
    }
    Ok(())
}

/// A prompt's message has the id under which it was sent. Other messages are the agent's, and belong to the turn whose
/// prompt is the last before them, if they were made before that ended: opencode's ids sort by time, and tell it. False
/// when there is no such turn.
async fn mark_turn(tx: &mut Tx<'_>, session_id: Uuid, message_id: &str) -> Result<bool, StoreError> {
    let turn: Option<(Uuid, bool, Option<i64>)> = sqlx::query_as(
        "SELECT id, message_id = ?2, ended_at FROM turn WHERE session_id = ?1 AND message_id <= ?2
         ORDER BY message_id DESC LIMIT 1",
    )
    .bind(session_id)
    .bind(message_id)
    .fetch_optional(&mut **tx)
    .await?;
    let made_later =
        |ended: Option<i64>| ended.is_some_and(|at| ids::is_made_after(message_id, at + milliseconds(SKEW)));
    let Some((turn, whole, _)) = turn.filter(|(_, whole, ended)| *whole || !made_later(*ended)) else {
        return Ok(false);
    };
    let query = sqlx::query("UPDATE turn SET removed = max(removed, ?) WHERE id = ?");
    query.bind(if whole { 2 } else { 1 }).bind(turn).execute(&mut **tx).await?;
    Ok(true)
}

/// Writes a turn's end, unless it has ended before. True when this call ended it.
pub(super) async fn end_turn(
    tx: &mut Tx<'_>,
    turn_id: Uuid,
    outcome: &TurnOutcome,
) -> Result<bool, StoreError> {
    let done = sqlx::query(
        "UPDATE turn SET state = ?, stop_reason = ?, error = ?, usage = ?, ended_at = ?
         WHERE id = ? AND state IN ('queued', 'running')",
    )
    .bind(to_name(outcome.state)?)
    .bind(outcome.stop_reason.map(to_name).transpose()?)
    .bind(outcome.error.as_ref().map(serde_json::to_string).transpose()?)
    .bind(outcome.usage.as_ref().map(serde_json::to_string).transpose()?)
    .bind(now())
    .bind(turn_id)
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
}
