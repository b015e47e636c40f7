//! Sees that another process has written to the same file, and wakes everybody who waits: SQLite tells nobody.

use std::{sync::Arc, time::Duration};

use sqlx::SqlitePool;
use tokio::time::MissedTickBehavior;
use uuid::Uuid;

use super::super::{SandboxKey, signals::Signals};

/// Longest time, beside that of the look itself, until what another process wrote is seen.
pub(super) const DELAY: Duration = Duration::from_millis(200);

/// Looks again and again, until it is aborted. `PRAGMA data_version` tells a connection of others' commits only, and all
/// of ours go through the writer.
pub(super) async fn watch(writer: SqlitePool, sessions: Arc<Signals<Uuid>>, work: Arc<Signals<SandboxKey>>) {
    let mut last = None;
    let mut tick = tokio::time::interval(DELAY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let version: i64 = match sqlx::query_scalar("PRAGMA data_version").fetch_one(&writer).await {
            Ok(version) => version,
            Err(sqlx::Error::PoolClosed) => return,
            Err(error) => {
                tracing::debug!(%error, "writes of other processes cannot be seen for now");
                continue;
            }
        };
        if last.replace(version).is_some_and(|last| last != version) {
            sessions.notify_all();
            work.notify_all();
        }
    }
}
