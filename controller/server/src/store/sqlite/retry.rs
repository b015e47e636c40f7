//! Prompts with what `data:` URLs in them held, and prompts that are queued once more.

use berth_wire::{
    api::{PromptPart, Turn},
    turn::TurnState,
};
use sqlx::{Sqlite, SqlitePool, Transaction};
use uuid::Uuid;

use super::{
    super::{Enqueued, NewTurn, PromptFile, Retried, Retry, StoreError, TurnOptions},
    rows::TurnRow,
    wishes,
};

type Tx<'a> = Transaction<'a, Sqlite>;

pub(super) async fn retry(tx: &mut Tx<'_>, retry: Retry, queue_limit: i64) -> Result<Retried, StoreError> {
    let row: Option<TurnRow> = sqlx::query_as(
        "SELECT t.* FROM turn t JOIN build_session s ON s.id = t.session_id
         WHERE t.id = ? AND s.deleted_at IS NULL",
    )
    .bind(retry.of)
    .fetch_optional(&mut **tx)
    .await?;
    let Some(row) = row else { return Ok(Retried::NoTurn) };
    let options = TurnOptions { retry_of: Some(retry.of), traceparent: retry.traceparent, ..row.options()? };
    let turn = Turn::try_from(row)?;
    if !matches!(turn.state, TurnState::Failed | TurnState::Cancelled | TurnState::Unknown) {
        return Ok(Retried::NotRetryable(turn));
    }
    let new = NewTurn {
        id: retry.id,
        session_id: turn.session_id,
        files: load_files(tx, retry.of, &turn.prompt).await?,
        prompt: moved(turn.prompt, retry.of, retry.id),
        caller: retry.caller,
        idempotency_key: retry.idempotency_key,
        body_hash: retry.body_hash,
        options,
    };
    Ok(match wishes::enqueue(tx, new, queue_limit).await? {
        Enqueued::New(turn) => Retried::New(turn),
        Enqueued::Repeated(turn) => Retried::Repeated(turn),
        Enqueued::KeyTaken => Retried::KeyTaken,
        Enqueued::QueueFull => Retried::QueueFull,
        Enqueued::NoSession => Retried::NoTurn,
    })
}

/// The prompt of the new turn says that its files are its own.
fn moved(mut prompt: Vec<PromptPart>, old: Uuid, new: Uuid) -> Vec<PromptPart> {
    for part in &mut prompt {
        if let PromptPart::File { url, .. } = part
            && let Some(rest) = url.strip_prefix(&format!("/v1/turns/{old}/"))
        {
            *url = format!("/v1/turns/{new}/{rest}");
        }
    }
    prompt
}

async fn load_files(
    tx: &mut Tx<'_>,
    turn_id: Uuid,
    prompt: &[PromptPart],
) -> Result<Vec<PromptFile>, StoreError> {
    let rows: Vec<(i64, Vec<u8>)> =
        sqlx::query_as("SELECT part, content FROM prompt_file WHERE turn_id = ? ORDER BY part")
            .bind(turn_id)
            .fetch_all(&mut **tx)
            .await?;
    Ok(rows.into_iter().filter_map(|(part, content)| file_of(prompt, part, content)).collect())
}

fn file_of(prompt: &[PromptPart], part: i64, content: Vec<u8>) -> Option<PromptFile> {
    let part = usize::try_from(part).ok()?;
    match prompt.get(part)? {
        PromptPart::File { mime, .. } => Some(PromptFile { part, mime: mime.clone(), content }),
        _ => None,
    }
}

pub(super) async fn insert_files(
    tx: &mut Tx<'_>,
    turn_id: Uuid,
    files: &[PromptFile],
) -> Result<(), StoreError> {
    for file in files {
        sqlx::query("INSERT INTO prompt_file (turn_id, part, content) VALUES (?, ?, ?)")
            .bind(turn_id)
            .bind(i64::try_from(file.part).unwrap_or(i64::MAX))
            .bind(&file.content)
            .execute(&mut **tx)
            .await?;
    }
    Ok(())
}

async fn fetch_prompt(tx: &mut Tx<'_>, turn_id: Uuid) -> Result<Option<Vec<PromptPart>>, StoreError> {
    let row: Option<String> = sqlx::query_scalar(
        "SELECT t.prompt FROM turn t JOIN build_session s ON s.id = t.session_id
         WHERE t.id = ? AND s.deleted_at IS NULL",
    )
    .bind(turn_id)
    .fetch_optional(&mut **tx)
    .await?;
    Ok(row.as_deref().map(serde_json::from_str).transpose()?)
}

pub(super) async fn load_prompt(
    readers: &SqlitePool,
    turn_id: Uuid,
) -> Result<Option<Vec<PromptPart>>, StoreError> {
    let mut tx = readers.begin().await?;
    let Some(mut prompt) = fetch_prompt(&mut tx, turn_id).await? else { return Ok(None) };
    for file in load_files(&mut tx, turn_id, &prompt).await? {
        file.restore(&mut prompt);
    }
    Ok(Some(prompt))
}

pub(super) async fn prompt_file(
    readers: &SqlitePool,
    turn_id: Uuid,
    part: usize,
) -> Result<Option<PromptFile>, StoreError> {
    let mut tx = readers.begin().await?;
    let Some(prompt) = fetch_prompt(&mut tx, turn_id).await? else { return Ok(None) };
    let position = i64::try_from(part).unwrap_or(i64::MAX);
    let content: Option<Vec<u8>> =
        sqlx::query_scalar("SELECT content FROM prompt_file WHERE turn_id = ? AND part = ?")
            .bind(turn_id)
            .bind(position)
            .fetch_optional(&mut *tx)
            .await?;
    Ok(content.and_then(|content| file_of(&prompt, position, content)))
}
