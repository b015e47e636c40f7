//! The store as others see it: what [`SqliteFile`] does, with errors that name the file.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use async_trait::async_trait;
use berth_wire::api::{PromptPart, Session, Turn};
use tokio::sync::watch;
use uuid::Uuid;

use super::{
    super::{
        Acquired, Answer, Answered, Cancel, Commit, Enqueued, HistoryRow, LogBounds, LogPage, NewSession,
        NewTurn, PromptFile, Retried, Retry, SandboxKey, SessionQuery, SessionWork, Store, StoreError,
        TurnQuery, fault::Fault,
    },
    Sharing, SqliteFile, StoreOpenError,
};
use crate::metrics::Metrics;

/// The store on one SQLite file.
#[derive(Debug)]
pub struct SqliteStore {
    pub(super) file: SqliteFile,
    path: PathBuf,
}

impl SqliteStore {
    /// Opens the file, makes it when absent, and brings its schema up to date.
    pub async fn open(path: &Path, sharing: Sharing) -> Result<Self, StoreOpenError> {
        Ok(Self { file: SqliteFile::open(path, sharing).await?, path: path.to_owned() })
    }

    /// The same store, which counts ends of turns there.
    #[must_use]
    pub fn counting(mut self, metrics: Metrics) -> Self {
        self.file.metrics = metrics;
        self
    }

    /// The error with the file's name. A connection that was opened while the file could not be written reads only, also
    /// when it can be written again: the next write gets another one.
    async fn named(&self, error: StoreError) -> StoreError {
        let error = error.of_file(&self.path);
        if matches!(error, StoreError::Unusable { fault: Fault::ReadOnly, .. }) {
            self.file.close_writer().await;
        }
        error
    }
}

/// A method of the trait for each of these, by the file's method of the same name.
macro_rules! store {
    ($(async fn $name:ident($($argument:ident: $kind:ty),*) -> $output:ty;)+) => {
        #[async_trait]
        impl Store for SqliteStore {
            $(async fn $name(&self, $($argument: $kind),*) -> Result<$output, StoreError> {
                match self.file.$name($($argument),*).await {
                    Err(error) => Err(self.named(error).await),
                    done => done,
                }
            })+

            fn watch_session(&self, session_id: Uuid) -> watch::Receiver<u64> {
                self.file.watch_session(session_id)
            }

            fn watch_work(&self, sandbox: &SandboxKey) -> watch::Receiver<u64> {
                self.file.watch_work(sandbox)
            }

            async fn close(&self) {
                self.file.close().await;
            }
        }
    };
}

store! {
    async fn create_session(new: NewSession) -> Session;
    async fn session(id: Uuid) -> Option<Session>;
    async fn has_session(id: Uuid) -> bool;
    async fn session_of_root(sandbox: &SandboxKey, root: &str) -> Option<Uuid>;
    async fn list_sessions(query: &SessionQuery) -> Vec<Session>;
    async fn rename_session(id: Uuid, title: &str) -> Option<Session>;
    async fn request_delete(id: Uuid) -> bool;
    async fn enqueue_turn(new: NewTurn, queue_limit: i64) -> Enqueued;
    async fn turn(id: Uuid) -> Option<Turn>;
    async fn turn_row(id: Uuid) -> Option<HistoryRow>;
    async fn list_turns(query: &TurnQuery) -> Vec<HistoryRow>;
    async fn retry_turn(retry: Retry, queue_limit: i64) -> Retried;
    async fn load_prompt(turn_id: Uuid) -> Option<Vec<PromptPart>>;
    async fn prompt_file(turn_id: Uuid, part: usize) -> Option<PromptFile>;
    async fn count_open_turns() -> (i64, i64);
    async fn sandboxes_with_work() -> Vec<SandboxKey>;
    async fn request_cancel(session_id: Uuid, which: Cancel) -> Vec<Uuid>;
    async fn answer_ask(session_id: Uuid, id: &str, answer: Answer) -> Answered;
    async fn read_log(session_id: Uuid, after: i64, bounds: LogBounds) -> LogPage;
    async fn acquire(sandbox: &SandboxKey, owner: Uuid, lease: Duration) -> Acquired;
    async fn renew(sandbox: &SandboxKey, fence: i64, lease: Duration) -> ();
    async fn release(sandbox: &SandboxKey, fence: i64) -> ();
    async fn load_work(sandbox: &SandboxKey) -> Vec<SessionWork>;
    async fn commit(commit: Commit) -> ();
    async fn delete_session(sandbox: &SandboxKey, fence: i64, id: Uuid) -> ();
}
