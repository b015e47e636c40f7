//! Wakes readers inside this process after a commit. A wake carries nothing: readers read the database.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Mutex, PoisonError},
};

use tokio::sync::watch;

/// One counter for each key that somebody watches.
#[derive(Debug)]
pub(super) struct Signals<K> {
    senders: Mutex<HashMap<K, watch::Sender<u64>>>,
}

impl<K> Default for Signals<K> {
    fn default() -> Self {
        Self { senders: Mutex::default() }
    }
}

impl<K: Eq + Hash + Clone> Signals<K> {
    /// Changes at each later [`Self::notify`] of the key.
    pub(super) fn subscribe(&self, key: &K) -> watch::Receiver<u64> {
        let mut senders = self.senders.lock().unwrap_or_else(PoisonError::into_inner);
        senders.retain(|_, sender| sender.receiver_count() > 0);
        senders.entry(key.clone()).or_insert_with(|| watch::channel(0).0).subscribe()
    }

    /// Wakes everybody.
    pub(super) fn notify_all(&self) {
        let senders = self.senders.lock().unwrap_or_else(PoisonError::into_inner);
        senders.values().for_each(|sender| sender.send_modify(|count| *count = count.wrapping_add(1)));
    }

    /// Wakes those who watch the key.
    pub(super) fn notify(&self, key: &K) {
        let senders = self.senders.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = senders.get(key) {
            sender.send_modify(|count| *count = count.wrapping_add(1));
        }
    }
}
