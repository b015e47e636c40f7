//! The end of everything that was wished of a sandbox that is gone. IO, around what [`Session`] decides.

use std::sync::Arc;

use berth_opencode::ids;
use jiff::Timestamp;
use tokio::time::Instant;

use super::{
    lease::Lease,
    owner::OwnerError,
    session::{Moment, Session, commit_of},
};
use crate::{
    config::Limits,
    store::{Commit, SandboxKey, SessionCommit, SessionWork, Store},
};

/// Ends all that is open, for whoever has taken the sandbox over. Where the door's journal stood is forgotten too: a
/// sandbox of the same name has another one.
pub(super) async fn end_all(
    store: &dyn Store,
    sandbox: &SandboxKey,
    lease: &Lease,
    limits: &Arc<Limits>,
) -> Result<(), OwnerError> {
    let mut ended = 0_usize;
    loop {
        let work = store.load_work(sandbox).await?;
        if work.is_empty() {
            break;
        }
        ended += work.len();
        let (mut sessions, mut removed) = (Vec::new(), Vec::new());
        for work in work {
            let (session, remove) = end(work, limits);
            removed.extend(remove.then_some(session.session_id));
            sessions.push(session);
        }
        let (fence, lasts) = (lease.fence(), lease.lasts());
        let sandbox_key = sandbox.clone();
        store
            .commit(Commit {
                sandbox: sandbox_key,
                fence,
                lease: lasts,
                cursor: None,
                boot_id: None,
                sessions,
            })
            .await?;
        for session in removed {
            store.delete_session(sandbox, fence, session).await?;
        }
    }
    let SandboxKey { namespace, name } = sandbox;
    tracing::info!(
        namespace,
        sandbox = name,
        sessions = ended,
        "the sandbox is gone; what was open has ended"
    );
    Ok(())
}

/// What is written of one session, and whether it is to be removed then.
fn end(work: SessionWork, limits: &Arc<Limits>) -> (SessionCommit, bool) {
    let at = Moment { now: Instant::now(), clock: Timestamp::now(), open: false };
    let mut session = Session::new(work, limits, ids::message_id, at.now);
    commit_of(&mut session, |session| session.end_with_sandbox(&at))
}
