//! Sessions and turns as callers see them, one by one and in pages.

use berth_wire::api::Session;
use jiff::Timestamp;
use sqlx::SqlitePool;
use uuid::Uuid;

use super::{
    super::{HistoryRow, SessionQuery, StoreError, TurnQuery},
    rows::{SessionRow, TurnRow, listed_turn},
    to_name,
};

/// Reads sessions with what follows from their turns.
macro_rules! select_session {
    ($rest:literal) => {
        concat!(
            "SELECT s.*,
                 (SELECT json_group_array(lower(hex(id))) FROM (
                     SELECT id FROM turn WHERE session_id = s.id AND state IN ('queued', 'running') ORDER BY ordinal
                 )) AS open_turns,
                 CASE (SELECT max(state) FROM turn WHERE session_id = s.id AND state IN ('queued', 'running'))
                     WHEN 'queued' THEN 'queued'
                     WHEN 'running' THEN CASE WHEN EXISTS (
                         SELECT 1 FROM ask WHERE session_id = s.id AND resolved = 0 AND answer IS NULL
                     ) THEN 'waiting' ELSE 'running' END
                     ELSE 'idle' END AS state,
                 (SELECT json_object(
                     'input_tokens', coalesce(sum(json_extract(usage, '$.input_tokens')), 0),
                     'output_tokens', coalesce(sum(json_extract(usage, '$.output_tokens')), 0),
                     'reasoning_tokens', coalesce(sum(json_extract(usage, '$.reasoning_tokens')), 0),
                     'cache_read_tokens', coalesce(sum(json_extract(usage, '$.cache_read_tokens')), 0),
                     'cache_write_tokens', coalesce(sum(json_extract(usage, '$.cache_write_tokens')), 0),
                     'cost_usd', coalesce(sum(json_extract(usage, '$.cost_usd')), 0.0)
                 ) FROM turn WHERE session_id = s.id AND json_valid(usage)) AS usage
             FROM build_session s ",
            $rest
        )
    };
}

pub(super) async fn session(readers: &SqlitePool, id: Uuid) -> Result<Option<Session>, StoreError> {
    let query = sqlx::query_as(select_session!("WHERE s.id = ? AND s.deleted_at IS NULL"));
    let row: Option<SessionRow> = query.bind(id).fetch_optional(readers).await?;
    row.map(Session::try_from).transpose()
}

/// By id, which is also by age: a session keeps its place, whatever happens in it.
pub(super) async fn sessions(readers: &SqlitePool, query: &SessionQuery) -> Result<Vec<Session>, StoreError> {
    let rows: Vec<SessionRow> = sqlx::query_as(select_session!(
        "WHERE s.namespace = ?1 AND s.sandbox = ?2 AND s.deleted_at IS NULL
             AND (?3 IS NULL OR s.id < ?3)
             AND (?4 IS NULL OR instr(s.title_folded, ?4) > 0)
             AND (?5 IS NULL OR state = ?5)
             AND (?6 IS NULL OR s.updated_at > ?6)
             AND (?7 IS NULL OR s.directory = ?7)
         ORDER BY s.id DESC LIMIT ?8"
    ))
    .bind(&query.sandbox.namespace)
    .bind(&query.sandbox.name)
    .bind(query.before)
    .bind(query.title.as_deref().map(str::to_lowercase))
    .bind(query.state.map(to_name).transpose()?)
    .bind(query.updated_after.map(Timestamp::as_millisecond))
    .bind(&query.directory)
    .bind(query.limit)
    .fetch_all(readers)
    .await?;
    rows.into_iter().map(Session::try_from).collect()
}

/// How many turns wait, and how many run.
pub(super) async fn count_open(readers: &SqlitePool) -> Result<(i64, i64), StoreError> {
    let query = "SELECT count(*) FILTER (WHERE state = 'queued'), count(*) FILTER (WHERE state = 'running')
         FROM turn WHERE state IN ('queued', 'running')";
    Ok(sqlx::query_as(query).fetch_one(readers).await?)
}

pub(super) async fn turn(readers: &SqlitePool, id: Uuid) -> Result<Option<HistoryRow>, StoreError> {
    let row: Option<TurnRow> = sqlx::query_as(
        "SELECT t.* FROM turn t JOIN build_session s ON s.id = t.session_id
         WHERE t.id = ? AND s.deleted_at IS NULL",
    )
    .bind(id)
    .fetch_optional(readers)
    .await?;
    row.map(HistoryRow::try_from).transpose()
}

pub(super) async fn turns(readers: &SqlitePool, query: &TurnQuery) -> Result<Vec<HistoryRow>, StoreError> {
    let text = if query.newest_first {
        "SELECT * FROM turn WHERE session_id = ?1 AND ordinal < coalesce(?2, 9223372036854775807)
         ORDER BY ordinal DESC LIMIT ?3"
    } else {
        "SELECT * FROM turn WHERE session_id = ?1 AND ordinal > coalesce(?2, 0) ORDER BY ordinal LIMIT ?3"
    };
    let query = sqlx::query(text).bind(query.session_id).bind(query.behind).bind(query.limit);
    query.fetch_all(readers).await?.iter().map(listed_turn).collect()
}
