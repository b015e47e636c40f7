//! Tells the cluster which sandboxes have work, so that their pods are not moved: in `status.atWorkSince`, which is the
//! server's own. IO, around [`Work`], which is pure.
//!
//! Work is told at once, its end after a while: prompts often follow each other. What cannot be written is written later.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use berth_api::Sandbox;
use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use super::directory::Key;

/// Field manager of the server.
const MANAGER: &str = "berth-server";

/// How long there must be no work until that is told.
const QUIET: Duration = Duration::from_secs(5);

/// How soon what could not be written is written again.
const AGAIN: Duration = Duration::from_secs(5);

/// How often it is looked whether something is due.
const LOOK: Duration = Duration::from_secs(1);

/// Bound on one write.
const WRITE: Duration = Duration::from_secs(5);

/// What is to be told.
#[derive(Debug, Default)]
pub(super) struct Work {
    sandboxes: Mutex<BTreeMap<Key, State>>,
    changed: Notify,
}

/// Of one sandbox.
#[derive(Debug, Clone, Copy)]
struct State {
    at_work: bool,
    /// What the cluster was told last.
    told: bool,
    /// Nothing is told before.
    not_before: Instant,
}

impl Work {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, State>> {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A sandbox has work, or none any more.
    pub(super) fn note(&self, key: Key, at_work: bool) {
        self.note_at(key, at_work, Instant::now());
        self.changed.notify_one();
    }

    fn note_at(&self, key: Key, at_work: bool, now: Instant) {
        let mut sandboxes = self.lock();
        let told = sandboxes.get(&key).is_some_and(|state| state.told);
        let not_before = if at_work { now } else { now + QUIET };
        sandboxes.insert(key, State { at_work, told, not_before });
    }

    /// The cluster says that there is work, and here is none: a server that is no more told so.
    pub(super) fn note_stale(&self, key: Key) {
        let not_before = Instant::now() + QUIET;
        self.lock().entry(key).or_insert(State { at_work: false, told: true, not_before });
    }

    fn due(&self, now: Instant) -> Vec<(Key, bool)> {
        let mut sandboxes = self.lock();
        // What came to nothing is forgotten.
        sandboxes.retain(|_, state| state.at_work || state.told);
        let due = |(key, state): (&Key, &State)| {
            (state.at_work != state.told && state.not_before <= now).then(|| (key.clone(), state.at_work))
        };
        sandboxes.iter().filter_map(due).collect()
    }

    fn wrote(&self, key: &Key, at_work: bool, is_ok: bool, now: Instant) {
        let mut sandboxes = self.lock();
        let Some(state) = sandboxes.get_mut(key) else { return };
        if is_ok {
            state.told = at_work;
        } else {
            state.not_before = state.not_before.max(now + AGAIN);
        }
    }
}

/// Tells until `shutdown`.
pub(super) async fn tell(client: Client, work: Arc<Work>, shutdown: CancellationToken) {
    while !shutdown.is_cancelled() {
        for (key, at_work) in work.due(Instant::now()) {
            let written = timeout(WRITE, write(&client, &key, at_work)).await;
            let error = match written {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(late) => Some(late.to_string()),
            };
            work.wrote(&key, at_work, error.is_none(), Instant::now());
            if let Some(error) = error {
                let (namespace, sandbox) = &key;
                tracing::warn!(namespace, sandbox, error, "it cannot be told whether a sandbox has work");
            }
        }
        tokio::select! {
            () = work.changed.notified() => {}
            () = tokio::time::sleep(LOOK) => {}
            () = shutdown.cancelled() => {}
        }
    }
}

async fn write(client: &Client, (namespace, name): &Key, at_work: bool) -> Result<(), kube::Error> {
    let api: Api<Sandbox> = Api::namespaced(client.clone(), namespace);
    let status = if at_work { json!({ "atWorkSince": now() }) } else { json!({}) };
    let object = json!({
        "apiVersion": Sandbox::api_version(&()), "kind": Sandbox::kind(&()), "metadata": { "name": name },
        "status": status,
    });
    let parameters = PatchParams::apply(MANAGER).force();
    match api.patch_status(name, &parameters, &Patch::Apply(&object)).await {
        Ok(_) => Ok(()),
        // It is gone, and so is what was told of it.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(error),
    }
}

fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        ("team".to_owned(), "one".to_owned())
    }

    #[tokio::test]
    async fn work_is_told_at_once_and_its_end_when_it_lasts() {
        let (work, start) = (Work::default(), Instant::now());
        let at = |second| start + Duration::from_secs(second);
        work.note_at(key(), true, at(0));
        assert_eq!(work.due(at(0)), [(key(), true)]);
        work.wrote(&key(), true, true, at(0));
        assert_eq!(work.due(at(1)), []);
        work.note_at(key(), false, at(10));
        work.note_at(key(), true, at(11));
        assert_eq!(work.due(at(20)), [], "the next prompt came at once");
        work.note_at(key(), false, at(30));
        assert_eq!(work.due(at(34)), []);
        assert_eq!(work.due(at(35)), [(key(), false)]);
        work.wrote(&key(), false, true, at(35));
        assert_eq!(work.due(at(36)), []);
        assert!(work.lock().is_empty(), "nothing is kept of it");
    }

    #[tokio::test]
    async fn what_cannot_be_written_is_written_later() {
        let (work, start) = (Work::default(), Instant::now());
        let at = |second| start + Duration::from_secs(second);
        work.note_at(key(), true, at(0));
        work.wrote(&key(), true, false, at(1));
        assert_eq!(work.due(at(5)), []);
        assert_eq!(work.due(at(6)), [(key(), true)]);
    }

    #[tokio::test]
    async fn what_a_server_left_that_is_no_more_is_taken_back_unless_there_is_work() {
        let work = Work::default();
        work.note_stale(key());
        assert_eq!(work.due(Instant::now() + QUIET), [(key(), false)]);
        work.note_at(key(), true, Instant::now());
        assert_eq!(work.due(Instant::now() + QUIET), [], "it is told already");
        let other = ("team".to_owned(), "two".to_owned());
        work.note(other.clone(), true);
        work.note_stale(other.clone());
        assert_eq!(work.due(Instant::now()), [(other, true)]);
    }
}
