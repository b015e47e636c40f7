//! What a sandbox's owner reads and writes. Writes run inside a transaction of their caller.

use std::{borrow::Cow, time::Duration};

use berth_wire::{event::EventPayload, turn::TurnOutcome};
use sqlx::{FromRow, Sqlite, SqlitePool, Transaction};
use uuid::Uuid;

use super::{
    super::{
        Change, Commit, NewEvent, OpenAsk, OpenTurn, PermissionRule, SandboxKey, SessionCommit, SessionWork,
        StoreError, UnreadableTurn, Unusable,
    },
    log::{append_events, end_turn, mark_removed},
    milliseconds, now,
    rows::{AskRow, TurnRow, timestamp},
    text::Text,
};

use crate::http::error_chain;

type Tx<'a> = Transaction<'a, Sqlite>;

#[derive(FromRow)]
struct WorkRow {
    id: Uuid,
    directory: Text,
    title: Option<Text>,
    title_fixed: bool,
    opencode_session_id: Option<Text>,
    translator: Option<Text>,
    deleted: bool,
    prompted: bool,
}

pub(super) async fn load_work(
    readers: &SqlitePool,
    sandbox: &SandboxKey,
) -> Result<Vec<SessionWork>, StoreError> {
    let mut tx = readers.begin().await?;
    let rows = sqlx::query(
        "SELECT id, directory, title, title_fixed, opencode_session_id, translator,
             deleted_at IS NOT NULL AS deleted,
             EXISTS (SELECT 1 FROM turn WHERE session_id = build_session.id) AS prompted
         FROM build_session WHERE namespace = ?1 AND sandbox = ?2 AND id IN (
             SELECT session_id FROM turn WHERE state IN ('queued', 'running')
             UNION SELECT id FROM build_session WHERE namespace = ?1 AND sandbox = ?2 AND deleted_at IS NOT NULL)
         ORDER BY id",
    )
    .bind(&sandbox.namespace)
    .bind(&sandbox.name)
    .fetch_all(&mut *tx)
    .await?;
    let mut work = Vec::with_capacity(rows.len());
    for row in &rows {
        let loaded = match WorkRow::from_row(row) {
            Ok(row) => load_session(&mut tx, row).await,
            Err(error) => Err(error.into()),
        };
        match loaded {
            Ok(session) => work.push(session),
            // Without its id, or a turn's, nothing can be written about it.
            Err(error) if error.is_of_a_value() => {
                let (namespace, sandbox, error) = (&sandbox.namespace, &sandbox.name, error_chain(&error));
                tracing::error!(
                    namespace,
                    sandbox,
                    error,
                    "stored session is not understood; it is left out"
                );
            }
            Err(error) => return Err(error),
        }
    }
    Ok(work)
}

pub(super) async fn sandboxes_with_work(readers: &SqlitePool) -> Result<Vec<SandboxKey>, StoreError> {
    let rows: Vec<(String, String)> = sqlx::query_as(
        "SELECT namespace, sandbox FROM build_session
             WHERE id IN (SELECT session_id FROM turn WHERE state IN ('queued', 'running'))
         UNION SELECT namespace, sandbox FROM build_session WHERE deleted_at IS NOT NULL",
    )
    .fetch_all(readers)
    .await?;
    Ok(rows.into_iter().map(|(namespace, name)| SandboxKey { namespace, name }).collect())
}

async fn load_session(tx: &mut Tx<'_>, row: WorkRow) -> Result<SessionWork, StoreError> {
    let shown = row.directory.clone().shown();
    let root = row.opencode_session_id.map(Text::whole);
    let (Some(directory), Some(root)) =
        (row.directory.whole(), root.map_or(Some(None), |root| root.map(Some)))
    else {
        return unreadable_session(tx, row.id, shown, row.deleted).await;
    };
    let mut unreadable = Vec::new();
    let running = fetch_oldest(tx, row.id, "running").await;
    let running = unless_unreadable(tx, row.id, Some("running"), running, &mut unreadable).await?;
    let queued = fetch_oldest(tx, row.id, "queued").await;
    let queued = unless_unreadable(tx, row.id, Some("queued"), queued, &mut unreadable).await?;
    let asks = fetch_asks(tx, row.id).await;
    let asks = unless_unreadable(tx, row.id, None, asks, &mut unreadable).await?;
    let rules = fetch_rules(tx, row.id).await;
    let rules = unless_unreadable(tx, row.id, None, rules, &mut unreadable).await?;
    Ok(SessionWork {
        id: row.id,
        directory,
        title: row.title.filter(|_| row.title_fixed).map(Text::shown),
        opencode_session_id: root,
        translator: row.translator.map(Text::shown),
        deleted: row.deleted,
        prompted: row.prompted,
        running,
        queued,
        asks,
        rules,
        unreadable,
    })
}

/// A session that is nowhere, or whose session of opencode's nobody can name: each of its turns is to end. When it is
/// deleted, opencode's own stays behind.
async fn unreadable_session(
    tx: &mut Tx<'_>,
    id: Uuid,
    directory: String,
    deleted: bool,
) -> Result<SessionWork, StoreError> {
    let turns: Vec<(Uuid, bool)> = sqlx::query_as(
        "SELECT id, state = 'running' FROM turn WHERE session_id = ? AND state IN ('queued', 'running')
         ORDER BY state DESC, ordinal",
    )
    .bind(id)
    .fetch_all(&mut **tx)
    .await?;
    let error = "its session's directory, or the id of opencode's session, is no text";
    let unreadable = turns.into_iter().map(|(id, runs)| UnreadableTurn {
        id,
        runs,
        why: Unusable::Session,
        error: error.to_owned(),
    });
    Ok(SessionWork {
        id,
        directory,
        title: None,
        opencode_session_id: None,
        translator: None,
        deleted,
        prompted: false,
        running: None,
        queued: None,
        asks: Vec::new(),
        rules: Vec::new(),
        unreadable: unreadable.collect(),
    })
}

/// What was read. Where a stored value is not understood, nothing instead, and the turn that cannot go on without it is
/// noted: the oldest one in this state, or else the one that runs or runs next.
async fn unless_unreadable<T: Default>(
    tx: &mut Tx<'_>,
    session_id: Uuid,
    state: Option<&str>,
    read: Result<T, StoreError>,
    unreadable: &mut Vec<UnreadableTurn>,
) -> Result<T, StoreError> {
    let error = match read {
        Err(error) if error.is_of_a_value() => error_chain(&error),
        other => return other,
    };
    let turn: Option<(Uuid, bool)> = sqlx::query_as(
        "SELECT id, state = 'running' FROM turn
         WHERE session_id = ?1 AND state IN ('queued', 'running') AND state = ifnull(?2, state)
         ORDER BY state DESC, ordinal LIMIT 1",
    )
    .bind(session_id)
    .bind(state)
    .fetch_optional(&mut **tx)
    .await?;
    let turn = turn.filter(|(id, _)| unreadable.iter().all(|turn| turn.id != *id));
    unreadable.extend(turn.map(|(id, runs)| UnreadableTurn { id, runs, why: Unusable::Value, error }));
    Ok(T::default())
}

/// Asks that are not settled. What a turn left that has ended is of no use to anybody.
async fn fetch_asks(tx: &mut Tx<'_>, session_id: Uuid) -> Result<Vec<OpenAsk>, StoreError> {
    let rows: Vec<AskRow> = sqlx::query_as(
        "SELECT * FROM ask WHERE session_id = ? AND resolved = 0
             AND turn_id IN (SELECT id FROM turn WHERE session_id = ask.session_id AND state IN ('queued', 'running'))",
    )
    .bind(session_id)
    .fetch_all(&mut **tx)
    .await?;
    rows.into_iter().map(open_ask).collect()
}

async fn fetch_rules(tx: &mut Tx<'_>, session_id: Uuid) -> Result<Vec<PermissionRule>, StoreError> {
    let rows: Vec<(String, String)> =
        sqlx::query_as("SELECT permission, pattern FROM permission_rule WHERE session_id = ?")
            .bind(session_id)
            .fetch_all(&mut **tx)
            .await?;
    Ok(rows.into_iter().map(|(permission, pattern)| PermissionRule { permission, pattern }).collect())
}

async fn fetch_oldest(
    tx: &mut Tx<'_>,
    session_id: Uuid,
    state: &str,
) -> Result<Option<OpenTurn>, StoreError> {
    let row: Option<TurnRow> = sqlx::query_as(
        "SELECT * FROM turn WHERE session_id = ? AND state = ? AND state IN ('queued', 'running')
         ORDER BY ordinal LIMIT 1",
    )
    .bind(session_id)
    .bind(state)
    .fetch_optional(&mut **tx)
    .await?;
    row.map(open_turn).transpose()
}

fn open_turn(row: TurnRow) -> Result<OpenTurn, StoreError> {
    Ok(OpenTurn {
        options: row.options()?,
        active: Duration::from_millis(row.active_ms.unsigned_abs()),
        id: row.id,
        prompt: serde_json::from_str(&row.prompt)?,
        message_id: row.message_id,
        cancel_requested: row.cancel_requested,
        queued_at: timestamp(row.created_at),
        started_at: row.started_at.map(timestamp),
    })
}

fn open_ask(row: AskRow) -> Result<OpenAsk, StoreError> {
    Ok(OpenAsk {
        id: row.id,
        request: serde_json::from_str(&row.request)?,
        expires_at: timestamp(row.expires_at),
        answer: row.answer.as_deref().map(serde_json::from_str).transpose()?,
    })
}

pub(super) async fn check_fence(tx: &mut Tx<'_>, sandbox: &SandboxKey, fence: i64) -> Result<(), StoreError> {
    let held: Option<i64> = sqlx::query_scalar("SELECT fence FROM sandbox WHERE namespace = ? AND name = ?")
        .bind(&sandbox.namespace)
        .bind(&sandbox.name)
        .fetch_optional(&mut **tx)
        .await?;
    if held == Some(fence) { Ok(()) } else { Err(StoreError::Fenced) }
}

/// Writes what an owner learned, and tells which turns ended by it.
pub(super) async fn commit(tx: &mut Tx<'_>, commit: &Commit) -> Result<Vec<TurnOutcome>, StoreError> {
    let moved = sqlx::query(
        "UPDATE sandbox
         SET cursor = ?, boot_id = ?, lease_until = CAST(unixepoch('subsec') * 1000 AS INTEGER) + ?
         WHERE namespace = ? AND name = ? AND fence = ?",
    )
    .bind(&commit.cursor)
    .bind(&commit.boot_id)
    .bind(milliseconds(commit.lease))
    .bind(&commit.sandbox.namespace)
    .bind(&commit.sandbox.name)
    .bind(commit.fence)
    .execute(&mut **tx)
    .await?;
    if moved.rows_affected() == 0 {
        return Err(StoreError::Fenced);
    }
    let mut ended = Vec::new();
    for session in &commit.sessions {
        ended.extend(commit_session(tx, session).await?);
    }
    Ok(ended)
}

async fn commit_session(tx: &mut Tx<'_>, session: &SessionCommit) -> Result<Vec<TurnOutcome>, StoreError> {
    let mut events = Cow::Borrowed(session.events.as_slice());
    for change in &session.changes {
        apply_change(tx, session.session_id, change, &mut events).await?;
    }
    mark_removed(tx, session.session_id, &mut events).await?;
    append_events(tx, session.session_id, &events).await?;
    if let Some(translator) = &session.translator {
        let query = sqlx::query("UPDATE build_session SET translator = ? WHERE id = ?");
        query.bind(translator).bind(session.session_id).execute(&mut **tx).await?;
    }
    let ended = events.iter().filter_map(|event| match &event.payload {
        EventPayload::TurnEnded(outcome) => Some(outcome.clone()),
        _ => None,
    });
    Ok(ended.collect())
}

/// A queued turn may have been cancelled meanwhile; its end is in the log then, and one is enough.
fn is_end_of(event: &NewEvent, turn_id: Uuid) -> bool {
    event.turn_id == Some(turn_id) && matches!(event.payload, EventPayload::TurnEnded(_))
}

async fn apply_change(
    tx: &mut Tx<'_>,
    session_id: Uuid,
    change: &Change,
    events: &mut Cow<'_, [NewEvent]>,
) -> Result<(), StoreError> {
    match change {
        Change::TurnStarted { turn_id, message_id } => start_turn(tx, *turn_id, message_id).await,
        Change::TurnEnded { turn_id, outcome } => {
            if !end_turn(tx, *turn_id, outcome).await? {
                events.to_mut().retain(|event| !is_end_of(event, *turn_id));
            }
            Ok(())
        }
        Change::TurnActive { turn_id, active } => {
            let query = sqlx::query("UPDATE turn SET active_ms = ? WHERE id = ?");
            query.bind(milliseconds(*active)).bind(turn_id).execute(&mut **tx).await?;
            Ok(())
        }
        Change::OpencodeSession { id } => {
            let query = sqlx::query("UPDATE build_session SET opencode_session_id = ? WHERE id = ?");
            query.bind(id).bind(session_id).execute(&mut **tx).await?;
            Ok(())
        }
        Change::Title { title } => {
            let query = sqlx::query(
                "UPDATE build_session SET title = ?, title_folded = ? WHERE id = ? AND title_fixed = 0",
            );
            query.bind(title).bind(title.to_lowercase()).bind(session_id).execute(&mut **tx).await?;
            Ok(())
        }
        Change::AskOpened { .. } => open_ask_row(tx, session_id, change).await,
        Change::AskResolved { id } => {
            let query = sqlx::query("UPDATE ask SET resolved = 1 WHERE session_id = ? AND id = ?");
            query.bind(session_id).bind(id).execute(&mut **tx).await?;
            Ok(())
        }
    }
}

async fn open_ask_row(tx: &mut Tx<'_>, session_id: Uuid, change: &Change) -> Result<(), StoreError> {
    let Change::AskOpened { id, kind, turn_id, expires_at, request } = change else { return Ok(()) };
    sqlx::query(
        "INSERT INTO ask (session_id, id, kind, turn_id, request, expires_at) VALUES (?, ?, ?, ?, ?, ?)
         ON CONFLICT DO NOTHING",
    )
    .bind(session_id)
    .bind(id)
    .bind(kind.as_str())
    .bind(turn_id)
    .bind(serde_json::to_string::<EventPayload>(request)?)
    .bind(expires_at.as_millisecond())
    .execute(&mut **tx)
    .await?;
    Ok(())
}

async fn start_turn(tx: &mut Tx<'_>, turn_id: Uuid, message_id: &str) -> Result<(), StoreError> {
    let started = sqlx::query(
        "UPDATE turn SET state = 'running', message_id = ?, started_at = ?,
             first_seq = (SELECT next_seq FROM build_session WHERE id = turn.session_id)
         WHERE id = ? AND state = 'queued'
             AND session_id IN (SELECT id FROM build_session WHERE deleted_at IS NULL)",
    )
    .bind(message_id)
    .bind(now())
    .bind(turn_id)
    .execute(&mut **tx)
    .await?;
    if started.rows_affected() == 1 { Ok(()) } else { Err(StoreError::TurnNotQueued) }
}
