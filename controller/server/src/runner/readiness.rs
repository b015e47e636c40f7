//! Whether a sandbox is ready, as its directory tells, and since when it has no place. Kept by its runner, from one owner
//! to the next: pods that come and go do not begin the wait anew. Asks the directory, whose answers come from memory.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use berth_wire::turn::{TurnError, TurnErrorReason};
use jiff::Timestamp;
use tokio::time::Instant;

use super::session::Moment;
use crate::{
    directory::{SandboxDirectory, Unready},
    store::{OpenTurn, SandboxKey},
};

/// Of one sandbox.
pub(super) struct Readiness {
    directory: Arc<dyn SandboxDirectory>,
    key: SandboxKey,
    unplaced_since: Mutex<Option<Instant>>,
}

/// Why a sandbox is not ready.
#[derive(Debug, Clone)]
pub(super) struct Waited {
    pub(super) why: Arc<Unready>,
    /// Since when it has no place; nothing where its programs run.
    pub(super) unplaced_since: Option<Instant>,
}

impl Readiness {
    pub(super) fn new(directory: Arc<dyn SandboxDirectory>, key: SandboxKey) -> Self {
        Self { directory, key, unplaced_since: Mutex::default() }
    }

    /// Why it is not ready, where that is known.
    pub(super) fn look(&self, now: Instant) -> Option<Waited> {
        let unready = self.directory.unready(&self.key.namespace, &self.key.name);
        self.note(unready, now)
    }

    /// The same of one that cannot be found.
    pub(super) fn look_for_lost(&self, now: Instant) -> Option<Waited> {
        let told = self.directory.unready(&self.key.namespace, &self.key.name);
        let unknown = || Unready {
            reason: "Unknown".to_owned(),
            message: "nobody has told where it is".to_owned(),
            runs: false,
        };
        self.note(Some(Unready { runs: false, ..told.unwrap_or_else(unknown) }), now)
    }

    fn note(&self, unready: Option<Unready>, now: Instant) -> Option<Waited> {
        let mut since = self.unplaced_since.lock().unwrap_or_else(PoisonError::into_inner);
        *since = match (&unready, *since) {
            (None, _) => None,
            // Programs that run for a moment and end are no place yet.
            (Some(unready), since) if unready.runs => since,
            (Some(_), since) => since.or(Some(now)),
        };
        let unplaced_since = since.filter(|_| unready.as_ref().is_some_and(|unready| !unready.runs));
        unready.map(|why| Waited { why: Arc::new(why), unplaced_since })
    }
}

impl Waited {
    /// For how long a queued turn has waited for the sandbox's place, where it has none.
    pub(super) fn of(&self, turn: &OpenTurn, at: &Moment) -> Option<Duration> {
        let unplaced = at.now.saturating_duration_since(self.unplaced_since?);
        Some(unplaced.min(age(turn.queued_at, at.clock)))
    }

    /// What the turn ends with.
    pub(super) fn error(&self, seconds: u64, advice: &str) -> TurnError {
        let Unready { reason, message, .. } = &*self.why;
        let message = message.trim_end_matches('.');
        TurnError {
            reason: TurnErrorReason::SandboxNotReady,
            message: format!(
                "the sandbox is not ready ({reason}: {message}); gave up after {seconds} s: {advice}"
            ),
            retry_at: None,
            cause: Some(reason.clone()),
        }
    }
}

fn age(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::StaticDirectory;

    fn unready(runs: bool) -> Unready {
        Unready { reason: "Unschedulable".to_owned(), message: "no node.".to_owned(), runs }
    }

    #[test]
    fn the_wait_for_a_place_goes_on_until_the_sandbox_was_ready() {
        let key = SandboxKey { namespace: "team".to_owned(), name: "one".to_owned() };
        let readiness = Readiness::new(Arc::new(StaticDirectory(Vec::new())), key);
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        for (second, told, expected) in [
            (0, Some(unready(false)), Some(0)),
            (5, Some(unready(false)), Some(0)),
            (6, Some(unready(true)), None),
            (7, Some(unready(false)), Some(0)),
            (8, None, None),
            (9, Some(unready(true)), None),
            (10, Some(unready(false)), Some(10)),
        ] {
            let is_told = told.is_some();
            let waited = readiness.note(told, at(second));
            assert_eq!(waited.is_some(), is_told, "{second}");
            assert_eq!(waited.and_then(|waited| waited.unplaced_since), expected.map(at), "{second}");
        }
        let lost = readiness.look_for_lost(at(20)).unwrap();
        assert_eq!((lost.why.reason.as_str(), lost.unplaced_since), ("Unknown", Some(at(10))));
        assert!(readiness.look(at(21)).is_none(), "nothing is told of it");
    }

    #[test]
    fn an_end_has_the_sandboxs_own_reason() {
        let waited = Waited { why: Arc::new(unready(false)), unplaced_since: None };
        let error = waited.error(900, "send again");
        assert_eq!(error.cause.as_deref(), Some("Unschedulable"));
        assert_eq!(
            error.message,
            "the sandbox is not ready (Unschedulable: no node); gave up after 900 s: send again"
        );
    }
}
