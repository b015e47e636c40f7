//! The store on SQLite, for local mode and for replicas on one machine. One connection writes, several read (WAL), so
//! writers of one process wait for each other here and never meet `SQLITE_BUSY`.

use std::{sync::Arc, time::Duration};

use berth_wire::{
    api::{PromptPart, Session, Turn},
    turn::TurnOutcome,
};
use jiff::Timestamp;
use sqlx::{Sqlite, SqlitePool, Transaction};
use tokio::{sync::watch, task::JoinSet};
use uuid::Uuid;

use crate::metrics::Metrics;

use super::{
    Acquired, Answer, Answered, Cancel, Commit, Enqueued, HistoryRow, LogBounds, LogPage, NewSession,
    NewTurn, PromptFile, Retried, Retry, SandboxKey, SessionQuery, SessionWork, StoreError, TurnQuery,
    signals::Signals,
};

mod lease;
mod lists;
mod log;
mod named;
mod neighbours;
mod open;
mod owner;
mod retry;
mod rows;
#[cfg(test)]
mod tests;
mod text;
mod wishes;

pub use named::SqliteStore;
pub use open::StoreOpenError;

/// The file, and who waits for what is written to it.
#[derive(Debug)]
struct SqliteFile {
    writer: SqlitePool,
    readers: SqlitePool,
    sessions: Arc<Signals<Uuid>>,
    work: Arc<Signals<SandboxKey>>,
    /// Where ends of turns are counted.
    metrics: Metrics,
    /// Looks for writes of other processes, where there may be any. Ends with the store.
    _neighbours: JoinSet<()>,
}

/// Who uses a database file at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// This process alone: the file is locked for others, those that only read included. Whoever says so must see to it: a
    /// lease that an earlier process left is taken from it.
    Alone,
    /// Other processes of this machine too. What they write is seen within a fifth of a second. A file system that turns
    /// read only under it may end the process, since they share memory through a file; nothing is lost by that.
    Shared,
}

impl SqliteFile {
    /// A transaction that writes; nobody else writes until it ends.
    async fn write(&self) -> Result<Transaction<'_, Sqlite>, StoreError> {
        Ok(self.writer.begin_with("BEGIN IMMEDIATE").await?)
    }

    /// Ends the connection that writes; the next write opens another one.
    async fn close_writer(&self) {
        let closed = match self.writer.acquire().await {
            Ok(connection) => connection.close().await,
            Err(error) => Err(error),
        };
        if let Err(error) = closed {
            tracing::debug!(%error, "connection could not be closed");
        }
    }

    async fn sandbox_of(
        transaction: &mut Transaction<'_, Sqlite>,
        session_id: Uuid,
    ) -> Result<Option<SandboxKey>, StoreError> {
        let row: Option<(String, String)> = sqlx::query_as(
            "SELECT namespace, sandbox FROM build_session WHERE id = ? AND deleted_at IS NULL",
        )
        .bind(session_id)
        .fetch_optional(&mut **transaction)
        .await?;
        Ok(row.map(|(namespace, name)| SandboxKey { namespace, name }))
    }
}

/// Now, as it is stored.
fn now() -> i64 {
    Timestamp::now().as_millisecond()
}

impl SqliteFile {
    async fn create_session(&self, new: NewSession) -> Result<Session, StoreError> {
        sqlx::query(
            "INSERT INTO build_session (id, namespace, sandbox, directory, title, title_fixed, created_at, updated_at,
                 title_folded)
             VALUES (?1, ?2, ?3, ?4, ?5, ?5 IS NOT NULL, ?6, ?6, ?7)",
        )
        .bind(new.id)
        .bind(&new.sandbox.namespace)
        .bind(&new.sandbox.name)
        .bind(&new.directory)
        .bind(&new.title)
        .bind(now())
        .bind(new.title.as_deref().map(str::to_lowercase))
        .execute(&self.writer)
        .await?;
        self.session(new.id).await?.ok_or(StoreError::Database(sqlx::Error::RowNotFound))
    }

    async fn session(&self, id: Uuid) -> Result<Option<Session>, StoreError> {
        lists::session(&self.readers, id).await
    }

    async fn has_session(&self, id: Uuid) -> Result<bool, StoreError> {
        let query = sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM build_session WHERE id = ? AND deleted_at IS NULL)",
        );
        Ok(query.bind(id).fetch_one(&self.readers).await?)
    }

    async fn session_of_root(&self, sandbox: &SandboxKey, root: &str) -> Result<Option<Uuid>, StoreError> {
        let query = sqlx::query_scalar(
            "SELECT id FROM build_session
             WHERE namespace = ? AND sandbox = ? AND opencode_session_id = ? AND deleted_at IS NULL AND length(id) = 16",
        );
        let query = query.bind(&sandbox.namespace).bind(&sandbox.name).bind(root);
        Ok(query.fetch_optional(&self.readers).await?)
    }

    async fn list_sessions(&self, query: &SessionQuery) -> Result<Vec<Session>, StoreError> {
        lists::sessions(&self.readers, query).await
    }

    async fn rename_session(&self, id: Uuid, title: &str) -> Result<Option<Session>, StoreError> {
        sqlx::query(
            "UPDATE build_session SET title = ?, title_folded = ?, title_fixed = 1, updated_at = ?
             WHERE id = ? AND deleted_at IS NULL",
        )
        .bind(title)
        .bind(title.to_lowercase())
        .bind(now())
        .bind(id)
        .execute(&self.writer)
        .await?;
        self.session(id).await
    }

    async fn request_delete(&self, id: Uuid) -> Result<bool, StoreError> {
        let mut transaction = self.write().await?;
        let Some(sandbox) = Self::sandbox_of(&mut transaction, id).await? else { return Ok(false) };
        sqlx::query("UPDATE build_session SET deleted_at = ? WHERE id = ?")
            .bind(now())
            .bind(id)
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        self.sessions.notify(&id);
        self.work.notify(&sandbox);
        Ok(true)
    }

    async fn enqueue_turn(&self, new: NewTurn, queue_limit: i64) -> Result<Enqueued, StoreError> {
        let session_id = new.session_id;
        let mut transaction = self.write().await?;
        let Some(sandbox) = Self::sandbox_of(&mut transaction, session_id).await? else {
            return Ok(Enqueued::NoSession);
        };
        let enqueued = wishes::enqueue(&mut transaction, new, queue_limit).await?;
        transaction.commit().await?;
        if matches!(enqueued, Enqueued::New(_)) {
            self.sessions.notify(&session_id);
            self.work.notify(&sandbox);
        }
        Ok(enqueued)
    }

    async fn turn(&self, id: Uuid) -> Result<Option<Turn>, StoreError> {
        Ok(lists::turn(&self.readers, id).await?.map(|row| row.turn))
    }

    async fn turn_row(&self, id: Uuid) -> Result<Option<HistoryRow>, StoreError> {
        lists::turn(&self.readers, id).await
    }

    async fn list_turns(&self, query: &TurnQuery) -> Result<Vec<HistoryRow>, StoreError> {
        lists::turns(&self.readers, query).await
    }

    async fn retry_turn(&self, retry: Retry, queue_limit: i64) -> Result<Retried, StoreError> {
        let mut transaction = self.write().await?;
        let retried = retry::retry(&mut transaction, retry, queue_limit).await?;
        let Retried::New(turn) = &retried else { return Ok(retried) };
        let sandbox = Self::sandbox_of(&mut transaction, turn.session_id).await?;
        transaction.commit().await?;
        self.sessions.notify(&turn.session_id);
        if let Some(sandbox) = sandbox {
            self.work.notify(&sandbox);
        }
        Ok(retried)
    }

    async fn load_prompt(&self, turn_id: Uuid) -> Result<Option<Vec<PromptPart>>, StoreError> {
        retry::load_prompt(&self.readers, turn_id).await
    }

    async fn prompt_file(&self, turn_id: Uuid, part: usize) -> Result<Option<PromptFile>, StoreError> {
        retry::prompt_file(&self.readers, turn_id, part).await
    }

    async fn count_open_turns(&self) -> Result<(i64, i64), StoreError> {
        lists::count_open(&self.readers).await
    }

    async fn sandboxes_with_work(&self) -> Result<Vec<SandboxKey>, StoreError> {
        owner::sandboxes_with_work(&self.readers).await
    }

    async fn request_cancel(&self, session_id: Uuid, which: Cancel) -> Result<Vec<Uuid>, StoreError> {
        let mut transaction = self.write().await?;
        let Some(sandbox) = Self::sandbox_of(&mut transaction, session_id).await? else { return Ok(vec![]) };
        let (turns, ended) = wishes::cancel(&mut transaction, session_id, which).await?;
        transaction.commit().await?;
        for _ in 0..ended {
            self.metrics.turn_ended(&TurnOutcome::cancelled());
        }
        self.sessions.notify(&session_id);
        self.work.notify(&sandbox);
        Ok(turns)
    }

    async fn answer_ask(&self, session_id: Uuid, id: &str, answer: Answer) -> Result<Answered, StoreError> {
        let mut transaction = self.write().await?;
        let Some(sandbox) = Self::sandbox_of(&mut transaction, session_id).await? else {
            return Ok(Answered::NotFound);
        };
        let answered = wishes::answer(&mut transaction, session_id, id, &answer).await?;
        transaction.commit().await?;
        self.work.notify(&sandbox);
        Ok(answered)
    }

    async fn read_log(&self, session_id: Uuid, after: i64, bounds: LogBounds) -> Result<LogPage, StoreError> {
        log::read_events(&self.readers, session_id, after, bounds).await
    }

    fn watch_session(&self, session_id: Uuid) -> watch::Receiver<u64> {
        self.sessions.subscribe(&session_id)
    }

    fn watch_work(&self, sandbox: &SandboxKey) -> watch::Receiver<u64> {
        self.work.subscribe(sandbox)
    }

    async fn acquire(
        &self,
        sandbox: &SandboxKey,
        owner: Uuid,
        lease: Duration,
    ) -> Result<Acquired, StoreError> {
        // Looked at first, since a waiting replica comes often, and a write waits for other writes.
        if let Some(remaining) = lease::held_by_another(&self.readers, sandbox, owner).await? {
            return Ok(Acquired::Held { remaining });
        }
        lease::acquire(&self.writer, sandbox, owner, lease).await
    }

    async fn renew(&self, sandbox: &SandboxKey, fence: i64, lease: Duration) -> Result<(), StoreError> {
        lease::renew(&self.writer, sandbox, fence, lease).await
    }

    async fn release(&self, sandbox: &SandboxKey, fence: i64) -> Result<(), StoreError> {
        lease::release(&self.writer, sandbox, fence).await?;
        self.work.notify(sandbox);
        Ok(())
    }

    async fn load_work(&self, sandbox: &SandboxKey) -> Result<Vec<SessionWork>, StoreError> {
        owner::load_work(&self.readers, sandbox).await
    }

    async fn commit(&self, commit: Commit) -> Result<(), StoreError> {
        let mut transaction = self.write().await?;
        let ended = owner::commit(&mut transaction, &commit).await?;
        transaction.commit().await?;
        for outcome in &ended {
            self.metrics.turn_ended(outcome);
        }
        for session in commit.sessions.iter().filter(|session| !session.events.is_empty()) {
            self.sessions.notify(&session.session_id);
        }
        Ok(())
    }

    async fn delete_session(&self, sandbox: &SandboxKey, fence: i64, id: Uuid) -> Result<(), StoreError> {
        let mut transaction = self.write().await?;
        owner::check_fence(&mut transaction, sandbox, fence).await?;
        sqlx::query("DELETE FROM build_session WHERE id = ? AND deleted_at IS NOT NULL")
            .bind(id)
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(())
    }

    async fn close(&self) {
        // The last connection to close folds the log of changes into the file; one that only reads cannot.
        self.readers.close().await;
        self.writer.close().await;
    }
}

/// A time span, as it is stored.
fn milliseconds(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

/// Reads a value that is stored by its name in JSON, such as a turn's state.
fn from_name<T: serde::de::DeserializeOwned>(name: &str) -> Result<T, StoreError> {
    Ok(serde_json::from_value(serde_json::Value::String(name.to_owned()))?)
}

/// The name by which a value is stored.
fn to_name<T: serde::Serialize>(value: T) -> Result<String, StoreError> {
    Ok(serde_json::to_string(&value)?.trim_matches('"').to_owned())
}
