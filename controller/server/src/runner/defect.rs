//! What is done about a defect of ours. An owner that breaks off is started again, and meets what it broke off at again: the
//! journal still has the event, the store still has the row. After a few times in a row the turn that it was at ends, and
//! the door's journal is not read from the old place again. [`Defects`], [`AtWork`] and [`ended`] are pure; [`end`] writes.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use berth_opencode::{SessionTranslator, ids};
use jiff::Timestamp;
use tokio::time::Instant;
use uuid::Uuid;

use super::{
    lease::Taken,
    owner::OwnerError,
    session::{Input, Moment, Output, Session},
};
use crate::{
    config::Limits,
    store::{
        Change, Commit, NewEvent, SandboxKey, SessionCommit, SessionWork, Store, UnreadableTurn, Unusable,
    },
};

/// Owners in a row that broke off, before what they were at ends.
const TRIES: u32 = 3;
/// An owner that worked for so long had got over what its predecessor broke off at.
const OVER: Duration = Duration::from_mins(1);

/// Counts the owners of a sandbox that broke off, one after the other.
#[derive(Debug, Default)]
pub(super) struct Defects {
    in_a_row: u32,
}

impl Defects {
    /// An owner broke off after it had worked for so long. True when what it was at is to end.
    pub(super) fn note(&mut self, worked: Duration) -> bool {
        self.in_a_row = if worked < OVER { self.in_a_row + 1 } else { 1 };
        self.in_a_row >= TRIES && {
            self.clear();
            true
        }
    }

    /// An owner came to a good end.
    pub(super) fn clear(&mut self) {
        self.in_a_row = 0;
    }
}

/// The session that an owner handed something to last.
#[derive(Debug, Default)]
pub(super) struct AtWork(Mutex<Option<Uuid>>);

impl AtWork {
    /// Notes it, and gives the one before.
    pub(super) fn replace(&self, session: Option<Uuid>) -> Option<Uuid> {
        std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), session)
    }

    pub(super) fn last(&self) -> Option<Uuid> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends what owners of the sandbox break off at: the turn of the session that they were at, or each that runs where that
/// session has none. What goes on starts from state that is read anew.
pub(super) async fn end(
    store: &dyn Store,
    sandbox: &SandboxKey,
    (lease, taken): &Taken,
    limits: &Limits,
    at: Option<Uuid>,
) -> Result<(), OwnerError> {
    let limits = Arc::new(limits.clone());
    let (mut sessions, mut removed) = (Vec::new(), Vec::new());
    for work in blamed(store.load_work(sandbox).await?, at) {
        let SandboxKey { namespace, name } = sandbox;
        tracing::error!(
            namespace,
            sandbox = name,
            session_id = %work.id,
            tries = TRIES,
            "the server breaks off at this session again and again; its turn ends"
        );
        removed.extend(work.deleted.then_some(work.id));
        sessions.push(ended(work, &limits));
    }
    let commit = Commit {
        sandbox: sandbox.clone(),
        fence: lease.fence(),
        lease: lease.lasts(),
        cursor: None,
        boot_id: taken.boot_id.clone(),
        sessions,
    };
    store.commit(commit).await?;
    for session in removed {
        store.delete_session(sandbox, lease.fence(), session).await?;
    }
    Ok(())
}

/// The sessions whose turn is to end: never none while there is work.
fn blamed(work: Vec<SessionWork>, at: Option<Uuid>) -> Vec<SessionWork> {
    let is_at = |work: &SessionWork| Some(work.id) == at;
    let runs = |work: &SessionWork| work.running.is_some();
    let chosen: fn(&SessionWork) -> bool = |_| true;
    let wanted: &dyn Fn(&SessionWork) -> bool = if work.iter().any(is_at) {
        &is_at
    } else if work.iter().any(runs) {
        &runs
    } else {
        &chosen
    };
    work.into_iter().filter(wanted).collect()
}

/// The end of the session's turn that runs, or runs next, with a translation that knows nothing of it. What closes the
/// log's open parts is left out where that is what breaks off.
fn ended(work: SessionWork, limits: &Arc<Limits>) -> SessionCommit {
    let fresh = work.opencode_session_id.as_deref().map(SessionTranslator::new);
    let (session_id, translator) = (work.id, fresh.and_then(|fresh| serde_json::to_string(&fresh).ok()));
    let closed = catch_unwind(AssertUnwindSafe(|| close(work.clone(), limits)));
    let (events, changes) =
        closed.unwrap_or_else(|_| close(SessionWork { translator: None, ..work }, limits));
    SessionCommit { session_id, translator, events, changes }
}

fn close(mut work: SessionWork, limits: &Arc<Limits>) -> (Vec<NewEvent>, Vec<Change>) {
    let at = Moment { now: Instant::now(), clock: Timestamp::now(), open: false };
    let running = work.running.take().map(|turn| (turn.id, true));
    let queued = work.queued.take().map(|turn| (turn.id, false));
    let turn = running.or(queued);
    // Nobody is called, also where it is to be deleted.
    work.deleted = false;
    let mut session = Session::new(work.clone(), limits, ids::message_id, at.now);
    let error = "the server breaks off at it".to_owned();
    work.unreadable.extend(turn.map(|(id, runs)| UnreadableTurn { id, runs, why: Unusable::Defect, error }));
    let (mut events, mut changes) = (Vec::new(), Vec::new());
    for output in session.step(Input::Rows(Some(Box::new(work))), &at) {
        match output {
            Output::Log(event) => events.push(event),
            Output::Change(change) => changes.push(change),
            Output::Call(..) | Output::Begin(_) | Output::Reread | Output::Remove => {}
        }
    }
    (events, changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_owners_are_at_ends_after_some_in_a_row() {
        let short = Duration::from_secs(5);
        let mut defects = Defects::default();
        let seen = [short, short, OVER, short, short, short, short].map(|worked| defects.note(worked));
        assert_eq!(seen, [false, false, false, false, true, false, false]);
        defects.clear();
        assert_eq!([short, short, short].map(|worked| defects.note(worked)), [false, false, true]);
    }
}
