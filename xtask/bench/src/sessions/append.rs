//! Events in a second that the store takes in, against the same rows in a table of a bare SQLite file. IO.

use std::{path::Path, time::Instant};

use sqlx::{
    Connection, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous},
};

use super::{Programs, Scale, seed::Owned};
use crate::pod::{Figure, figure::Relation, runtime, statistics::Pairs};

/// Sessions that are written together.
const SESSIONS: usize = 20;

/// Commits of one pass.
const COMMITS: u32 = 500;

/// Counted pairs.
const PAIRS: u32 = 9;

/// As long as the payload of a chunk.
const PAYLOAD: usize = 190;

/// Runs it.
pub(super) fn run(_: &Programs, scale: Scale) -> anyhow::Result<Vec<Figure>> {
    runtime()?.block_on(async {
        let folder = tempfile::tempdir()?;
        let one = pairs(folder.path(), 1, scale).await?;
        let many = pairs(folder.path(), SESSIONS, scale).await?;
        Ok(vec![
            Figure::compared("server-append-1", "events/s", one.medians(), (Relation::Ratio, one.ratio())),
            Figure::compared("server-append-20", "events/s", many.medians(), (Relation::Ratio, many.ratio())),
        ])
    })
}

/// Passes in which each commit has one event for each of so many sessions.
async fn pairs(folder: &Path, sessions: usize, scale: Scale) -> anyhow::Result<Pairs> {
    let commits = scale.count(COMMITS);
    let owned = Owned::open(&folder.join(format!("{sessions}.db"))).await?;
    let mut written = owned.sessions(sessions).await?;
    let mut bare = Bare::open(&folder.join(format!("bare-{sessions}.db"))).await?;
    #[expect(clippy::cast_precision_loss, reason = "some thousands")]
    let events = sessions as f64 * f64::from(commits);
    let mut pairs = Pairs::default();
    for pair in 0..=scale.count(PAIRS) {
        let begun = Instant::now();
        for _ in 0..commits {
            bare.insert(sessions).await?;
        }
        let theirs = events / begun.elapsed().as_secs_f64();
        let begun = Instant::now();
        for _ in 0..commits {
            owned.commit(&mut written, 1).await?;
        }
        if pair > 0 {
            pairs.push(theirs, events / begun.elapsed().as_secs_f64());
        }
    }
    owned.close().await?;
    Ok(pairs)
}

/// A file with one table, opened as the store opens its own.
struct Bare {
    connection: SqliteConnection,
    next: i64,
}

impl Bare {
    async fn open(path: &Path) -> anyhow::Result<Self> {
        let options = SqliteConnectOptions::new().filename(path).create_if_missing(true);
        let options = options.journal_mode(SqliteJournalMode::Wal).synchronous(SqliteSynchronous::Normal);
        let mut connection = SqliteConnection::connect_with(&options).await?;
        sqlx::query("CREATE TABLE entry (id INTEGER PRIMARY KEY, payload TEXT NOT NULL) STRICT")
            .execute(&mut connection)
            .await?;
        Ok(Self { connection, next: 1 })
    }

    /// One transaction of so many rows.
    async fn insert(&mut self, rows: usize) -> anyhow::Result<()> {
        let payload = "x".repeat(PAYLOAD);
        let mut transaction = self.connection.begin().await?;
        for _ in 0..rows {
            sqlx::query("INSERT INTO entry VALUES (?, ?)")
                .bind(self.next)
                .bind(&payload)
                .execute(&mut *transaction)
                .await?;
            self.next += 1;
        }
        Ok(transaction.commit().await?)
    }
}
