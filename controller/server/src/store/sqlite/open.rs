//! Opens a database file: makes it when absent, and brings its schema up to date, one process at a time.

use std::{
    fs::{File, TryLockError},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use sqlx::{
    Connection, SqliteConnection, SqlitePool,
    migrate::MigrateError,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};
use tokio::{task::JoinSet, time::Instant};

use super::{super::fault::Fault, Sharing, SqliteFile, neighbours};
use crate::metrics::Metrics;

/// Readers beside the one writer.
const READERS: u32 = 4;
/// Longest wait for the database file's lock, held by a copy or a person's tool.
const BUSY: Duration = Duration::from_secs(10);
/// SQLite's way to a file that no other process uses: it locks it once, and keeps the index of the log of changes in its own
/// memory. In a file that is mapped (`-shm`), a write ends the process with SIGBUS once the file system takes none, as when
/// it has turned read only after an error of the disk.
const ALONE: &str = "unix-excl";
/// Rows that may wait between the thread that reads the file and whoever asked for them.
const ROWS: usize = 512;
/// Pause between two tries to be the one who brings the schema up to date.
const PAUSE: Duration = Duration::from_millis(50);

/// Why a database could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum StoreOpenError {
    /// The file cannot be used, and a person can mend that.
    #[error("the database {} {fault}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        fault: Fault,
        /// What the database said.
        source: sqlx::Error,
    },
    /// A newer version of Berth made the file.
    #[error(
        "the database {} was made by a newer Berth, of which this one knows nothing (step {step}): use that one, or name \
         another file",
        path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// The step of its schema that is not known.
        step: i64,
    },
    /// The file cannot be opened or made.
    #[error("cannot open the database {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        source: sqlx::Error,
    },
    /// The schema cannot be brought up to date.
    #[error("cannot bring the database {} up to date", path.display())]
    Migrate {
        /// The file.
        path: PathBuf,
        /// Why.
        source: MigrateError,
    },
    /// The file's folder cannot be locked.
    #[error("cannot lock the folder of the database {}", path.display())]
    Lock {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl SqliteFile {
    pub(super) async fn open(path: &Path, sharing: Sharing) -> Result<Self, StoreOpenError> {
        let failed = |source| open_error(path, source);
        // NORMAL: after a kill of any process nothing is lost; after a power cut the last moments may be.
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Normal)
            .foreign_keys(true)
            .row_buffer_size(ROWS)
            .busy_timeout(BUSY);
        let options = match sharing {
            Sharing::Alone => options.vfs(ALONE),
            Sharing::Shared => options,
        };
        // Others who make the same file at the same moment wait; the lock ends with this value.
        let alone = lock_folder(path).await?;
        let writer = pool(1).connect_with(options.clone()).await.map_err(failed)?;
        sqlx::migrate!("../../migrations/sqlite")
            .run(&writer)
            .await
            .map_err(|source| migrate_error(path, source))?;
        drop(alone);
        let readers = pool(READERS).connect_with(options.read_only(true)).await.map_err(failed)?;
        let (sessions, work) = (Arc::default(), Arc::default());
        let mut neighbours = JoinSet::new();
        match sharing {
            Sharing::Shared => {
                neighbours.spawn(neighbours::watch(writer.clone(), Arc::clone(&sessions), Arc::clone(&work)));
            }
            Sharing::Alone => end_leases(&writer).await.map_err(failed)?,
        }
        let metrics = Metrics::default();
        Ok(Self { writer, readers, sessions, work, metrics, _neighbours: neighbours })
    }
}

/// Connections stay, since each knows its statements, but for one that is stuck: see [`is_usable`].
fn pool(size: u32) -> SqlitePoolOptions {
    SqlitePoolOptions::new()
        .max_connections(size)
        .acquire_timeout(BUSY * 3)
        .idle_timeout(None)
        .max_lifetime(None)
        .test_before_acquire(false)
        .before_acquire(|connection, _| Box::pin(is_usable(connection)))
}

/// On a full disk SQLite ends a transaction by itself. The rollback that follows fails then, and sqlx 0.9 believes that the
/// transaction goes on: every later one on this connection would fail, also when there is space again.
async fn is_usable(connection: &mut SqliteConnection) -> Result<bool, sqlx::Error> {
    if !connection.is_in_transaction() {
        return Ok(true);
    }
    // A rollback may be on its way to the connection's thread.
    connection.ping().await?;
    Ok(!connection.is_in_transaction())
}

async fn end_leases(writer: &SqlitePool) -> Result<(), sqlx::Error> {
    let query = sqlx::query("UPDATE sandbox SET owner = NULL, lease_until = NULL WHERE owner IS NOT NULL");
    query.execute(writer).await.map(drop)
}

/// Locks the file's folder: a lock on the file itself would be lost, and lose SQLite's, when either is closed.
async fn lock_folder(path: &Path) -> Result<File, StoreOpenError> {
    let failed = |source| StoreOpenError::Lock { path: path.to_owned(), source };
    let folder =
        path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    let folder = File::open(folder).map_err(failed)?;
    let deadline = Instant::now() + BUSY * 3;
    loop {
        match folder.try_lock() {
            Ok(()) => return Ok(folder),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => tokio::time::sleep(PAUSE).await,
            Err(error) => return Err(failed(error.into())),
        }
    }
}

fn open_error(path: &Path, source: sqlx::Error) -> StoreOpenError {
    let path = path.to_owned();
    match Fault::of(&source) {
        Some(fault) => StoreOpenError::Unusable { path, fault, source },
        None => StoreOpenError::Open { path, source },
    }
}

fn migrate_error(path: &Path, source: MigrateError) -> StoreOpenError {
    match source {
        MigrateError::VersionMissing(step) => StoreOpenError::Newer { path: path.to_owned(), step },
        MigrateError::Execute(source) | MigrateError::ExecuteMigration(source, _)
            if Fault::of(&source).is_some() =>
        {
            open_error(path, source)
        }
        source => StoreOpenError::Migrate { path: path.to_owned(), source },
    }
}
