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
use berth_server::{SandboxAddress, SandboxDirectory};
use futures_util::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client,
    core::DeserializeGuard,
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

use super::place::Place;

/// A Secret that could not be read is read again after this, and one whose password was refused not sooner.
const AGAIN: Duration = Duration::from_secs(5);

/// Refusals that wait to be looked at; more are dropped, since each is told again.
const REFUSALS: usize = 64;

/// A sandbox's name, by its namespace.
type Key = (String, String);

/// What the server asks. Answers come from memory.
#[derive(Debug)]
pub(crate) struct ClusterDirectory {
    known: RwLock<BTreeMap<Key, SandboxAddress>>,
    changed: watch::Sender<()>,
    refusals: mpsc::Sender<Key>,
}

impl ClusterDirectory {
    /// An empty directory, and what fills it.
    pub(crate) fn new(client: Client) -> (Arc<Self>, Follower) {
        let (refusals, refused) = mpsc::channel(REFUSALS);
        let (changed, _) = watch::channel(());
        let directory = Arc::new(Self { known: RwLock::default(), changed, refusals });
        let follower = Follower {
            client,
            directory: Arc::clone(&directory),
            refused,
            places: BTreeMap::new(),
            fresh: None,
        };
        (directory, follower)
    }

    fn write(&self, key: &Key, address: Option<SandboxAddress>) {
        {
            let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
            match address {
                Some(address) => known.insert(key.clone(), address),
                None => known.remove(key),
            };
        }
        self.changed.send_replace(());
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

    fn list(&self) -> Vec<SandboxAddress> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    fn find(&self, namespace: &str, name: &str) -> Option<SandboxAddress> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.get(&(namespace.to_owned(), name.to_owned())).cloned()
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
        Box::pin(self.follow(events.boxed(), shutdown)).await;
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
            Event::InitApply(DeserializeGuard(Ok(sandbox))) => {
                let key = key(&sandbox);
                self.fresh.get_or_insert_default().insert(key.clone());
                self.see(key, Place::of(&sandbox)).await;
            }
            Event::InitDone => {
                let fresh = self.fresh.take().unwrap_or_default();
                let gone: Vec<Key> =
                    self.places.keys().filter(|key| !fresh.contains(*key)).cloned().collect();
                for key in gone {
                    self.see(key, None).await;
                }
            }
            Event::Apply(DeserializeGuard(Ok(sandbox))) => self.see(key(&sandbox), Place::of(&sandbox)).await,
            Event::Delete(DeserializeGuard(Ok(sandbox))) => self.see(key(&sandbox), None).await,
            Event::InitApply(DeserializeGuard(Err(invalid)))
            | Event::Apply(DeserializeGuard(Err(invalid)))
            | Event::Delete(DeserializeGuard(Err(invalid))) => {
                let metadata = &invalid.metadata;
                let (namespace, sandbox) = (&metadata.namespace, &metadata.name);
                tracing::warn!(namespace, sandbox, error = %invalid.error, "a sandbox cannot be read");
            }
        }
    }

    /// Takes in where a sandbox is now. Its password stays as long as it is the same sandbox.
    async fn see(&mut self, key: Key, place: Option<Place>) {
        let Some(place) = place else {
            if self.places.remove(&key).is_some() {
                self.directory.write(&key, None);
            }
            return;
        };
        let before = self.places.remove(&key);
        if before.as_ref().is_some_and(|before| before.place == place && before.password.is_some()) {
            self.places.extend(before.map(|before| (key, before)));
            return;
        }
        let same = |before: &Known| (&before.place.uid, &before.place.secret) == (&place.uid, &place.secret);
        let kept = before.filter(same).and_then(|before| Some((before.password?, before.read_at)));
        let (password, read_at) = match kept {
            Some((password, read_at)) => (Some(password), read_at),
            None => (self.read_password(&place).await, Instant::now()),
        };
        self.directory.write(&key, password.clone().map(|password| place.address(password)));
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
        self.directory.write(key, address);
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
        match api.get_opt(&place.secret).await {
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

fn key(sandbox: &Sandbox) -> Key {
    let metadata = &sandbox.metadata;
    (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}
