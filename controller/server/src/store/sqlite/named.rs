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
        TurnQuery, fault::Fault, store_methods,
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

    /// The same, whose error has the file's name. A connection that was opened while the file could not be written reads
    /// only, also when it can be written again: the next write gets another one.
    async fn named<T>(&self, done: Result<T, StoreError>) -> Result<T, StoreError> {
        let Err(error) = done else { return done };
        let error = error.of_file(&self.path);
        if matches!(error, StoreError::Unusable { fault: Fault::ReadOnly, .. }) {
            self.file.close_writer().await;
        }
        Err(error)
    }
}

/// A method of the trait for each of these, by the file's method of the same name.
macro_rules! store {
    ($(async fn $name:ident($($argument:ident: $kind:ty),*) -> $output:ty;)+) => {
        #[async_trait]
        impl Store for SqliteStore {
            $(async fn $name(&self, $($argument: $kind),*) -> Result<$output, StoreError> {
                self.named(self.file.$name($($argument),*).await).await
            })+

            async fn commit(&self, commit: Commit) -> Result<(), StoreError> {
                self.named(self.file.commit(commit).await).await
            }

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

store_methods!(store);
