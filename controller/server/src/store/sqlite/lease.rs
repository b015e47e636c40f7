//! Who owns a sandbox, and until when. The clock is the database's: SQLite's is that of the machine, the same for every
//! process that can share the file.

use std::time::Duration;

use sqlx::SqlitePool;
use uuid::Uuid;

use super::{
    super::{Acquired, Ownership, SandboxKey, StoreError},
    milliseconds,
    text::Text,
};

/// A lease that ends later than this from now, in milliseconds, was given before the clock was set back: it counts as
/// ended, or a dead owner would hold the sandbox until then. Longer than any lease.
const FARTHEST: i64 = 10 * 60 * 1000;
/// The longest wait that is told to somebody who finds the sandbox taken meanwhile.
const SHORT: Duration = Duration::from_millis(100);

/// For how long another owner's lease lasts; none when it is free for `owner`.
pub(super) async fn held_by_another(
    readers: &SqlitePool,
    sandbox: &SandboxKey,
    owner: Uuid,
) -> Result<Option<Duration>, StoreError> {
    let remaining: Option<i64> = sqlx::query_scalar(
        "SELECT lease_until - CAST(unixepoch('subsec') * 1000 AS INTEGER) AS remaining FROM sandbox
         WHERE namespace = ? AND name = ? AND owner <> ? AND remaining > 0 AND remaining <= ?",
    )
    .bind(&sandbox.namespace)
    .bind(&sandbox.name)
    .bind(owner)
    .bind(FARTHEST)
    .fetch_optional(readers)
    .await?;
    Ok(remaining.map(|remaining| Duration::from_millis(remaining.unsigned_abs())))
}

pub(super) async fn acquire(
    writer: &SqlitePool,
    sandbox: &SandboxKey,
    owner: Uuid,
    lease: Duration,
) -> Result<Acquired, StoreError> {
    let taken: Option<(i64, Option<Text>, Option<Text>)> = sqlx::query_as(
        "INSERT INTO sandbox (namespace, name, fence, owner, lease_until)
         VALUES (?1, ?2, 1, ?3, CAST(unixepoch('subsec') * 1000 AS INTEGER) + ?4)
         ON CONFLICT (namespace, name) DO UPDATE
         SET fence = fence + 1, owner = excluded.owner, lease_until = excluded.lease_until
         WHERE owner IS NULL OR owner = ?3
             OR lease_until - CAST(unixepoch('subsec') * 1000 AS INTEGER) NOT BETWEEN 1 AND ?5
         RETURNING fence, cursor, boot_id",
    )
    .bind(&sandbox.namespace)
    .bind(&sandbox.name)
    .bind(owner)
    .bind(milliseconds(lease))
    .bind(FARTHEST)
    .fetch_optional(writer)
    .await?;
    Ok(match taken {
        // Without a position state is read anew.
        Some((fence, cursor, boot_id)) => Acquired::Taken(Ownership {
            fence,
            cursor: cursor.and_then(Text::whole),
            boot_id: boot_id.and_then(Text::whole),
        }),
        None => Acquired::Held { remaining: lease.min(SHORT) },
    })
}

pub(super) async fn renew(
    writer: &SqlitePool,
    sandbox: &SandboxKey,
    fence: i64,
    lease: Duration,
) -> Result<(), StoreError> {
    let renewed = sqlx::query(
        "UPDATE sandbox SET lease_until = CAST(unixepoch('subsec') * 1000 AS INTEGER) + ?
         WHERE namespace = ? AND name = ? AND fence = ?",
    )
    .bind(milliseconds(lease))
    .bind(&sandbox.namespace)
    .bind(&sandbox.name)
    .bind(fence)
    .execute(writer)
    .await?;
    if renewed.rows_affected() == 1 { Ok(()) } else { Err(StoreError::Fenced) }
}

pub(super) async fn release(writer: &SqlitePool, sandbox: &SandboxKey, fence: i64) -> Result<(), StoreError> {
    sqlx::query(
        "UPDATE sandbox SET owner = NULL, lease_until = NULL WHERE namespace = ? AND name = ? AND fence = ?",
    )
    .bind(&sandbox.namespace)
    .bind(&sandbox.name)
    .bind(fence)
    .execute(writer)
    .await?;
    Ok(())
}
