//! What anybody may write: prompts, cancels, answers. Each runs inside a transaction of its caller.

use berth_wire::{
    api::{PermissionDecision, Turn},
    event::{EventPayload, TurnQueued},
    turn::TurnOutcome,
};
use sqlx::{Sqlite, Transaction};
use uuid::Uuid;

use super::{
    super::{Answer, Answered, Cancel, Enqueued, NewEvent, NewTurn, StoreError},
    log::{append_events, end_turn},
    now,
    retry::insert_files,
    rows::TurnRow,
};

type Tx<'a> = Transaction<'a, Sqlite>;

pub(super) async fn enqueue(tx: &mut Tx<'_>, new: NewTurn, queue_limit: i64) -> Result<Enqueued, StoreError> {
    if let Some(row) = fetch_by_key(tx, &new).await? {
        let same = row.body_hash == new.body_hash;
        return Ok(if same { Enqueued::Repeated(Turn::try_from(row)?) } else { Enqueued::KeyTaken });
    }
    if count_open(tx, new.session_id).await? >= queue_limit {
        return Ok(Enqueued::QueueFull);
    }
    let turn = insert_turn(tx, &new).await?;
    insert_files(tx, new.id, &new.files).await?;
    let queued = EventPayload::TurnQueued(TurnQueued { prompt: new.prompt });
    let event = NewEvent { turn_id: Some(new.id), payload: queued };
    append_events(tx, new.session_id, &[event]).await?;
    Ok(Enqueued::New(turn))
}

async fn count_open(tx: &mut Tx<'_>, session_id: Uuid) -> Result<i64, StoreError> {
    let query = "SELECT count(*) FROM turn WHERE session_id = ? AND state IN ('queued', 'running')";
    Ok(sqlx::query_scalar(query).bind(session_id).fetch_one(&mut **tx).await?)
}

async fn fetch_by_key(tx: &mut Tx<'_>, new: &NewTurn) -> Result<Option<TurnRow>, StoreError> {
    let Some(key) = &new.idempotency_key else { return Ok(None) };
    let query = "SELECT * FROM turn WHERE session_id = ? AND caller = ? AND idempotency_key = ?";
    let query = sqlx::query_as(query).bind(new.session_id).bind(&new.caller).bind(key);
    Ok(query.fetch_optional(&mut **tx).await?)
}

async fn insert_turn(tx: &mut Tx<'_>, new: &NewTurn) -> Result<Turn, StoreError> {
    let ordinal: i64 = sqlx::query_scalar(
        "UPDATE build_session SET next_ordinal = next_ordinal + 1, updated_at = ? WHERE id = ?
         RETURNING next_ordinal - 1",
    )
    .bind(now())
    .bind(new.session_id)
    .fetch_one(&mut **tx)
    .await?;
    let row: TurnRow = sqlx::query_as(
        "INSERT INTO turn (id, session_id, ordinal, state, prompt, caller, idempotency_key, body_hash, created_at,
             model, agent, retry_of, traceparent)
         VALUES (?, ?, ?, 'queued', ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING *",
    )
    .bind(new.id)
    .bind(new.session_id)
    .bind(ordinal)
    .bind(serde_json::to_string(&new.prompt)?)
    .bind(&new.caller)
    .bind(&new.idempotency_key)
    .bind(&new.body_hash)
    .bind(now())
    .bind(new.options.model.as_ref().map(serde_json::to_string).transpose()?)
    .bind(&new.options.agent)
    .bind(new.options.retry_of)
    .bind(&new.options.traceparent)
    .fetch_one(&mut **tx)
    .await?;
    Turn::try_from(row)
}

/// Asks open turns to end, and tells which, and how many ended by it. One that is still queued ends here; the running one
/// gets a mark that its owner reads.
pub(super) async fn cancel(
    tx: &mut Tx<'_>,
    session_id: Uuid,
    which: Cancel,
) -> Result<(Vec<Uuid>, usize), StoreError> {
    let (limit, only) = match which {
        Cancel::Oldest => (1, None),
        Cancel::All => (-1, None),
        Cancel::One(turn) => (1, Some(turn)),
    };
    let open: Vec<(Uuid, String)> = sqlx::query_as(
        "SELECT id, state FROM turn WHERE session_id = ?1 AND state IN ('queued', 'running')
         AND (?2 IS NULL OR id = ?2) ORDER BY ordinal LIMIT ?3",
    )
    .bind(session_id)
    .bind(only)
    .bind(limit)
    .fetch_all(&mut **tx)
    .await?;
    for (turn_id, state) in &open {
        if state == "queued" {
            end_turn(tx, *turn_id, &TurnOutcome::cancelled()).await?;
            let ended = EventPayload::TurnEnded(TurnOutcome::cancelled());
            append_events(tx, session_id, &[NewEvent { turn_id: Some(*turn_id), payload: ended }]).await?;
        } else {
            let query = sqlx::query("UPDATE turn SET cancel_requested = 1 WHERE id = ?");
            query.bind(turn_id).execute(&mut **tx).await?;
        }
    }
    let ended = open.iter().filter(|(_, state)| state == "queued").count();
    Ok((open.into_iter().map(|(id, _)| id).collect(), ended))
}

pub(super) async fn answer(
    tx: &mut Tx<'_>,
    session_id: Uuid,
    id: &str,
    answer: &Answer,
) -> Result<Answered, StoreError> {
    let row: Option<(String, Option<String>, bool)> = sqlx::query_as(
        "SELECT request, answer, resolved OR expires_at <= ? FROM ask WHERE session_id = ? AND id = ? AND kind = ?",
    )
    .bind(now())
    .bind(session_id)
    .bind(id)
    .bind(answer.ask_kind().as_str())
    .fetch_optional(&mut **tx)
    .await?;
    let Some((request, earlier, settled)) = row else { return Ok(Answered::NotFound) };
    let text = serde_json::to_string(answer)?;
    if settled || earlier.is_some() {
        let same = earlier.as_deref() == Some(text.as_str());
        return Ok(if same { Answered::Accepted } else { Answered::Conflict });
    }
    let request: EventPayload = serde_json::from_str(&request)?;
    if let Some(questions) = wrong_count(&request, answer) {
        return Ok(Answered::WrongCount { questions });
    }
    remember_always(tx, session_id, &request, answer).await?;
    let query = sqlx::query("UPDATE ask SET answer = ? WHERE session_id = ? AND id = ?");
    query.bind(text).bind(session_id).bind(id).execute(&mut **tx).await?;
    Ok(Answered::Accepted)
}

/// The number of questions, if it is not the number of answers.
fn wrong_count(request: &EventPayload, answer: &Answer) -> Option<usize> {
    match (request, answer) {
        (EventPayload::QuestionRequested(asked), Answer::Question { answers: Some(answers) })
            if asked.questions.len() != answers.len() =>
        {
            Some(asked.questions.len())
        }
        _ => None,
    }
}

/// opencode's own "always" lasts for every session of a directory until its restart; ours for this session.
async fn remember_always(
    tx: &mut Tx<'_>,
    session_id: Uuid,
    request: &EventPayload,
    answer: &Answer,
) -> Result<(), StoreError> {
    let (EventPayload::PermissionRequested(asked), Answer::Permission { decision, .. }) = (request, answer)
    else {
        return Ok(());
    };
    if *decision != PermissionDecision::Always {
        return Ok(());
    }
    for pattern in &asked.always {
        sqlx::query("INSERT INTO permission_rule VALUES (?, ?, ?) ON CONFLICT DO NOTHING")
            .bind(session_id)
            .bind(&asked.permission)
            .bind(pattern)
            .execute(&mut **tx)
            .await?;
    }
    Ok(())
}
