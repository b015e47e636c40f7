//! The sandboxes of a cluster, for the server: followed by watching the manifests, whose status names pod and Secret. IO.
//!
//! Pods are not watched here: the operator writes each change of one into the status, and a door that is not of the pod
//! that the status names cannot prove itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use berth_api::{Sandbox, names};
use berth_server::{SandboxAddress, SandboxDirectory, Unready};
use futures_util::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client,
    api::ObjectMeta,
    core::{DeserializeGuard, error_boundary::InvalidObject},
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};
use secrecy::SecretString;
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    place::{Place, unready},
    work::{self, Work},
};

/// A Secret that could not be read is read again after this, and one whose password was refused not sooner.
const AGAIN: Duration = Duration::from_secs(5);

/// Bound on reading a Secret: other sandboxes wait for it.
const READ: Duration = Duration::from_secs(10);

/// Refusals that wait to be looked at; more are dropped, since each is told again.
const REFUSALS: usize = 64;

/// A sandbox's name, by its namespace.
pub(super) type Key = (String, String);

/// What the server asks. Answers come from memory.
#[derive(Debug)]
pub(crate) struct ClusterDirectory {
    sandboxes: RwLock<Sandboxes>,
    changed: watch::Sender<()>,
    refusals: mpsc::Sender<Key>,
    work: Arc<Work>,
}

/// The sandboxes, as far as they are known.
#[derive(Debug, Default)]
struct Sandboxes {
    /// A whole list was read: what is not there is gone.
    complete: bool,
    /// Those that are there and are not being deleted, found or not.
    standing: BTreeSet<Key>,
    /// Where they are, of those that can be found.
    found: BTreeMap<Key, SandboxAddress>,
    /// Why they are not ready, of those that are not.
    unready: BTreeMap<Key, Unready>,
}

impl ClusterDirectory {
    /// An empty directory, and what fills it.
    pub(crate) fn new(client: Client) -> (Arc<Self>, Follower) {
        let (refusals, refused) = mpsc::channel(REFUSALS);
        let (changed, _) = watch::channel(());
        let work = Arc::default();
        let directory = Arc::new(Self { sandboxes: RwLock::default(), changed, refusals, work });
        let follower = Follower {
            client,
            directory: Arc::clone(&directory),
            refused,
            places: BTreeMap::new(),
            fresh: None,
        };
        (directory, follower)
    }

    fn read<T>(&self, read: impl FnOnce(&Sandboxes) -> T) -> T {
        read(&self.sandboxes.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes what is known; where `change` says that it did, whoever waits is woken.
    fn change(&self, change: impl FnOnce(&mut Sandboxes) -> bool) {
        let changed = change(&mut self.sandboxes.write().unwrap_or_else(PoisonError::into_inner));
        if changed {
            self.changed.send_replace(());
        }
    }

    fn place(&self, key: &Key, address: Option<SandboxAddress>) {
        self.change(|sandboxes| {
            match address {
                Some(address) => sandboxes.found.insert(key.clone(), address),
                None => sandboxes.found.remove(key),
            };
            true
        });
    }

    /// Nobody waits for this: who asks does so again and again.
    fn note(&self, key: &Key, unready: Option<Unready>) {
        self.change(|sandboxes| {
            match unready {
                Some(unready) => sandboxes.unready.insert(key.clone(), unready),
                None => sandboxes.unready.remove(key),
            };
            false
        });
    }

    fn stand(&self, key: &Key, stands: bool) {
        self.change(
            |Sandboxes { standing, .. }| {
                if stands { standing.insert(key.clone()) } else { standing.remove(key) }
            },
        );
    }
}

impl SandboxDirectory for ClusterDirectory {
    fn changes(&self) -> Option<watch::Receiver<()>> {
        Some(self.changed.subscribe())
    }

    fn refused(&self, namespace: &str, name: &str) {
        if self.refusals.try_send((namespace.to_owned(), name.to_owned())).is_err() {
            tracing::debug!(namespace, sandbox = name, "too many refusals at a time: one is left out");
        }
    }

    fn at_work(&self, namespace: &str, name: &str, at_work: bool) {
        self.work.note((namespace.to_owned(), name.to_owned()), at_work);
    }

    fn unready(&self, namespace: &str, name: &str) -> Option<Unready> {
        self.read(|sandboxes| sandboxes.unready.get(&(namespace.to_owned(), name.to_owned())).cloned())
    }

    fn list(&self) -> Vec<SandboxAddress> {
        self.read(|sandboxes| sandboxes.found.values().cloned().collect())
    }

    fn find(&self, namespace: &str, name: &str) -> Option<SandboxAddress> {
        self.read(|sandboxes| sandboxes.found.get(&(namespace.to_owned(), name.to_owned())).cloned())
    }

    fn is_gone(&self, namespace: &str, name: &str) -> bool {
        let key = (namespace.to_owned(), name.to_owned());
        self.read(|Sandboxes { complete, standing, .. }| *complete && !standing.contains(&key))
    }
}

/// A place, and its password once it was read.
struct Known {
    place: Place,
    password: Option<SecretString>,
    read_at: Instant,
}

/// Fills a directory.
pub(crate) struct Follower {
    client: Client,
    directory: Arc<ClusterDirectory>,
    refused: mpsc::Receiver<Key>,
    places: BTreeMap<Key, Known>,
    /// Sandboxes that a list has named so far, while one is read.
    fresh: Option<BTreeSet<Key>>,
}

impl Follower {
    /// Follows the cluster until `shutdown`.
    pub(crate) async fn run(self, shutdown: CancellationToken) {
        let api: Api<DeserializeGuard<Sandbox>> = Api::all(self.client.clone());
        let events = watcher(api, watcher::Config::default()).default_backoff();
        let told = work::tell(self.client.clone(), Arc::clone(&self.directory.work), shutdown.clone());
        tokio::join!(Box::pin(self.follow(events.boxed(), shutdown)), told);
    }

    async fn follow(
        mut self,
        mut events: impl Stream<Item = Result<Event<DeserializeGuard<Sandbox>>, watcher::Error>> + Unpin,
        shutdown: CancellationToken,
    ) {
        let mut again = tokio::time::interval(AGAIN);
        again.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(Ok(event)) => self.take(event).await,
                    Some(Err(error)) => tracing::warn!(error = %error, "sandboxes cannot be watched; it is tried again"),
                    None => return,
                },
                Some(key) = self.refused.recv() => self.read_again(&key).await,
                _ = again.tick() => self.read_missing().await,
                () = shutdown.cancelled() => return,
            }
        }
    }

    async fn take(&mut self, event: Event<DeserializeGuard<Sandbox>>) {
        match event {
            Event::Init => self.fresh = Some(BTreeSet::new()),
            Event::InitApply(DeserializeGuard(sandbox)) => {
                let key = match &sandbox {
                    Ok(sandbox) => key(&sandbox.metadata),
                    Err(invalid) => key(&invalid.metadata),
                };
                let told = sandbox.as_ref().is_ok_and(|sandbox| {
                    sandbox.status.as_ref().is_some_and(|status| status.at_work_since.is_some())
                });
                // At the start: what this server tells it knows.
                if told && !self.directory.read(|sandboxes| sandboxes.complete) {
                    self.directory.work.note_stale(key.clone());
                }
                self.fresh.get_or_insert_default().insert(key);
                self.apply(sandbox).await;
            }
            Event::InitDone => self.drop_missing(),
            Event::Apply(DeserializeGuard(sandbox)) => self.apply(sandbox).await,
            Event::Delete(DeserializeGuard(Ok(sandbox))) => self.forget(&key(&sandbox.metadata)),
            Event::Delete(DeserializeGuard(Err(invalid))) => self.forget(&key(&invalid.metadata)),
        }
    }

    /// Takes in a sandbox as it is now. One that cannot be read stays where it was.
    async fn apply(&mut self, sandbox: Result<Sandbox, InvalidObject>) {
        match sandbox {
            Ok(sandbox) => {
                let (key, stands) = (key(&sandbox.metadata), sandbox.metadata.deletion_timestamp.is_none());
                self.directory.note(&key, unready(&sandbox));
                // At no time can one be found that does not stand.
                if stands {
                    self.directory.stand(&key, true);
                }
                self.see(key.clone(), Place::of(&sandbox)).await;
                if !stands {
                    self.directory.stand(&key, false);
                }
            }
            Err(InvalidObject { error, metadata }) => {
                let (namespace, sandbox) = (&metadata.namespace, &metadata.name);
                tracing::warn!(namespace, sandbox, error = %error, "a sandbox cannot be read");
                self.directory.stand(&key(&metadata), metadata.deletion_timestamp.is_none());
            }
        }
    }

    /// A whole list was read: what it did not name is gone.
    fn drop_missing(&mut self) {
        let fresh = self.fresh.take().unwrap_or_default();
        self.places.retain(|key, _| fresh.contains(key));
        self.directory.change(|Sandboxes { complete, standing, found, unready }| {
            standing.retain(|key| fresh.contains(key));
            unready.retain(|key, _| fresh.contains(key));
            found.retain(|key, _| fresh.contains(key));
            *complete = true;
            true
        });
    }

    fn forget(&mut self, key: &Key) {
        self.places.remove(key);
        self.directory.place(key, None);
        self.directory.note(key, None);
        self.directory.stand(key, false);
    }

    /// Takes in where a sandbox is now. Its password stays as long as it is the same sandbox, and as long as it was not
    /// exchanged; the one from before holds for a while longer, so it stays too where the new one cannot be read now.
    async fn see(&mut self, key: Key, place: Option<Place>) {
        let Some(place) = place else {
            if self.places.remove(&key).is_some() {
                self.directory.place(&key, None);
            }
            return;
        };
        let before = self.places.remove(&key);
        if before.as_ref().is_some_and(|before| before.place == place && before.password.is_some()) {
            self.places.extend(before.map(|before| (key, before)));
            return;
        }
        let same = |before: &Known| (&before.place.uid, &before.place.secret) == (&place.uid, &place.secret);
        let before = before.filter(same);
        let kept = before.as_ref().filter(|before| before.place.has_password_of(&place));
        let kept = kept.and_then(|before| Some((before.password.clone()?, before.read_at)));
        let (password, read_at) = if let Some((password, read_at)) = kept {
            (Some(password), read_at)
        } else {
            let read = self.read_password(&place).await;
            (read.or_else(|| before.and_then(|before| before.password)), Instant::now())
        };
        self.directory.place(&key, password.clone().map(|password| place.address(password)));
        self.places.insert(key, Known { place, password, read_at });
    }

    /// The door refused the password: the Secret may hold another one.
    async fn read_again(&mut self, key: &Key) {
        let Some(known) = self.places.get(key).filter(|known| known.read_at.elapsed() >= AGAIN) else {
            return;
        };
        let place = known.place.clone();
        // Where it cannot be read now, the one from before is as good as none, and stays.
        let password = self.read_password(&place).await.or_else(|| known.password.clone());
        let address = password.clone().map(|password| place.address(password));
        self.places.insert(key.clone(), Known { place, password, read_at: Instant::now() });
        self.directory.place(key, address);
    }

    async fn read_missing(&mut self) {
        let missing = self.places.iter().filter(|(_, known)| known.password.is_none());
        let missing: Vec<(Key, Place)> =
            missing.map(|(key, known)| (key.clone(), known.place.clone())).collect();
        for (key, place) in missing {
            self.see(key, Some(place)).await;
        }
    }

    async fn read_password(&self, place: &Place) -> Option<SecretString> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &place.namespace);
        let (namespace, sandbox) = (&place.namespace, &place.name);
        let read = tokio::time::timeout(READ, api.get_opt(&place.secret)).await;
        let read = read.unwrap_or_else(|late| Err(kube::Error::Service(late.into())));
        match read {
            Ok(secret) => {
                let secret = secret.filter(|secret| is_of(secret, &place.uid));
                let bytes = secret.and_then(|secret| secret.data?.remove(names::DOOR_PASSWORD));
                bytes.and_then(|bytes| String::from_utf8(bytes.0).ok()).map(SecretString::from)
            }
            Err(error) => {
                tracing::warn!(namespace, sandbox, error = %error, "a sandbox's secret cannot be read");
                None
            }
        }
    }
}

/// Whether a Secret is this sandbox's, and not what one before it of the same name left behind.
fn is_of(secret: &Secret, uid: &str) -> bool {
    secret.metadata.owner_references.iter().flatten().any(|owner| owner.uid == uid)
}

fn key(metadata: &ObjectMeta) -> Key {
    (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use http::Response;
    use k8s_openapi::ByteString;
    use kube::client::Body;
    use secrecy::ExposeSecret;
    use serde_json::{Value, json};

    use super::*;

    /// A cluster in which each Secret has this password.
    fn cluster(password: &'static str) -> Client {
        let service = tower::service_fn(move |_| async move {
            let secret = json!({ "apiVersion": "v1", "kind": "Secret",
                "metadata": { "name": "one-door", "ownerReferences": [
                    { "apiVersion": "berth.dev/v1alpha1", "kind": "Sandbox", "name": "one", "uid": "u" },
                ] },
                "data": { "password": ByteString(password.as_bytes().to_vec()) } });
            Ok::<_, std::convert::Infallible>(Response::new(Body::from(secret.to_string().into_bytes())))
        });
        Client::new(service, "default")
    }

    /// A cluster that answers nothing.
    fn refusing() -> Client {
        let service = tower::service_fn(|_| async {
            let body = Body::from(b"{}".to_vec());
            Ok::<_, std::convert::Infallible>(Response::builder().status(500).body(body).unwrap())
        });
        Client::new(service, "default")
    }

    fn sandbox(name: &str, metadata: &Value) -> Sandbox {
        let mut sandbox = json!({ "apiVersion": "berth.dev/v1alpha1", "kind": "Sandbox", "spec": {},
            "metadata": { "name": name, "namespace": "team", "uid": "u" }, "status": { "secretName": "one-door" } });
        for (name, value) in metadata.as_object().unwrap() {
            sandbox["metadata"][name] = value.clone();
        }
        serde_json::from_value(sandbox).unwrap()
    }

    fn there(name: &str) -> DeserializeGuard<Sandbox> {
        DeserializeGuard(Ok(sandbox(name, &json!({}))))
    }

    fn unreadable(name: &str) -> DeserializeGuard<Sandbox> {
        let metadata = sandbox(name, &json!({})).metadata;
        DeserializeGuard(Err(InvalidObject { error: "no".to_owned(), metadata }))
    }

    /// Whether it is found, and whether it is gone.
    fn standing(directory: &ClusterDirectory, name: &str) -> (bool, bool) {
        (directory.find("team", name).is_some(), directory.is_gone("team", name))
    }

    #[tokio::test]
    async fn what_is_not_there_is_gone_once_a_whole_list_was_read() {
        let (directory, mut follower) = ClusterDirectory::new(cluster("p"));
        assert_eq!(standing(&directory, "one"), (false, false));
        for event in [Event::Init, Event::InitApply(there("one")), Event::InitApply(unreadable("odd"))] {
            follower.take(event).await;
        }
        assert_eq!(standing(&directory, "one"), (true, false));
        assert_eq!(standing(&directory, "other"), (false, false), "the list may name it yet");
        follower.take(Event::InitDone).await;
        assert_eq!(standing(&directory, "other"), (false, true));
        assert_eq!(standing(&directory, "odd"), (false, false), "it is there");
        assert_eq!(directory.find("team", "one").unwrap().door_password.expose_secret(), "p");
        // A list that is read again keeps what was known until it is whole.
        for event in [Event::Init, Event::InitApply(unreadable("one"))] {
            follower.take(event).await;
        }
        assert_eq!(standing(&directory, "odd"), (false, false));
        follower.take(Event::InitDone).await;
        assert_eq!(standing(&directory, "odd"), (false, true));
        assert_eq!(standing(&directory, "one"), (true, false), "one that cannot be read stays where it was");
    }

    #[tokio::test]
    async fn an_exchanged_password_is_read_before_the_old_one_goes() {
        let (directory, mut follower) = ClusterDirectory::new(cluster("old"));
        let exchanged = |at: &str| {
            let mut sandbox = sandbox("one", &json!({}));
            sandbox.status.as_mut().unwrap().password_changed_at = serde_json::from_value(json!(at)).unwrap();
            Event::Apply(DeserializeGuard(Ok(sandbox)))
        };
        let password = || directory.find("team", "one").unwrap().door_password.expose_secret().to_owned();
        follower.take(Event::Apply(there("one"))).await;
        follower.client = cluster("new");
        follower.take(Event::Apply(there("one"))).await;
        assert_eq!(password(), "old", "nobody said that it is another one");
        follower.take(exchanged("2026-11-30T12:00:00Z")).await;
        assert_eq!(password(), "new");
        follower.client = refusing();
        follower.take(exchanged("2026-11-30T13:00:00Z")).await;
        assert_eq!(password(), "new", "where it cannot be read, the one from before holds for a while");
    }

    #[tokio::test]
    async fn why_a_sandbox_is_not_ready_is_known_until_it_is() {
        let (directory, mut follower) = ClusterDirectory::new(cluster("p"));
        follower.take(Event::Apply(there("one"))).await;
        assert_eq!(directory.unready("team", "one").unwrap().reason, "Creating");
        follower.take(Event::Delete(there("one"))).await;
        assert_eq!(directory.unready("team", "one"), None);
    }

    #[tokio::test]
    async fn one_that_is_deleted_is_gone_and_another_one_of_its_name_is_not() {
        let (directory, mut follower) = ClusterDirectory::new(cluster("p"));
        for event in [Event::Init, Event::InitApply(there("one")), Event::InitDone] {
            follower.take(event).await;
        }
        let going = sandbox("one", &json!({ "deletionTimestamp": "2026-11-30T12:00:00Z" }));
        for event in [Event::Apply(DeserializeGuard(Ok(going))), Event::Delete(there("one"))] {
            follower.take(event).await;
            assert_eq!(standing(&directory, "one"), (false, true));
        }
        let mut changes = directory.changes().unwrap();
        follower.take(Event::Apply(there("one"))).await;
        assert!(changes.has_changed().unwrap());
        assert_eq!(standing(&directory, "one"), (true, false));
        changes.borrow_and_update();
        let new = sandbox("new", &json!({ "uid": "v" }));
        follower.take(Event::Apply(DeserializeGuard(Ok(new)))).await;
        assert_eq!(standing(&directory, "new"), (false, false), "its Secret is another sandbox's");
    }
}
