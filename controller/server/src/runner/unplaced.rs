//! The end of turns that have waited for too long in a sandbox to which nothing leads. IO, around what [`Session`] decides.

use std::{sync::Arc, time::Duration};

use berth_opencode::ids;
use jiff::Timestamp;
use tokio::time::Instant;

use super::{
    lease::Taken,
    owner::OwnerError,
    readiness::Waited,
    session::{Moment, Session, commit_of},
};
use crate::{
    config::Limits,
    store::{Commit, SandboxKey, SessionWork, Store},
};

/// Whether some turn has waited for too long.
pub(super) fn is_any_late(work: &[SessionWork], waited: &Waited, limits: &Limits) -> bool {
    let at = moment();
    let waits = |work: &SessionWork| {
        let open = work.queued.iter().chain(&work.running);
        open.filter_map(|turn| waited.of(turn, &at)).any(|time| time >= limits.unplaced)
    };
    work.iter().any(waits)
}

/// Ends those that have, for whoever has taken the sandbox over.
pub(super) async fn end_late(
    store: &dyn Store,
    sandbox: &SandboxKey,
    (lease, taken): &Taken,
    limits: &Arc<Limits>,
    waited: &Waited,
) -> Result<(), OwnerError> {
    // Behind each that ends another one may wait.
    loop {
        let work = store.load_work(sandbox).await?;
        if !is_any_late(&work, waited, limits) {
            return Ok(());
        }
        let at = moment();
        let sessions = work.into_iter().filter_map(|work| {
            let mut session = Session::new(work, limits, ids::message_id, at.now);
            let (commit, _) = commit_of(&mut session, |session| session.end_unplaced(waited, &at));
            (!commit.changes.is_empty()).then_some(commit)
        });
        let sessions: Vec<_> = sessions.collect();
        if sessions.is_empty() {
            return Ok(());
        }
        let commit = Commit {
            sandbox: sandbox.clone(),
            fence: lease.fence(),
            lease: lease.lasts(),
            cursor: taken.cursor.clone(),
            boot_id: taken.boot_id.clone(),
            sessions,
        };
        store.commit(commit).await?;
    }
}

fn moment() -> Moment {
    Moment { now: Instant::now(), clock: Timestamp::now(), open: false }
}

/// How soon to look again whether one has.
pub(super) fn pause(limits: &Limits) -> Duration {
    limits.unplaced / 2
}
