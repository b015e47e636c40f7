//! Keeps passes over sandboxes and the sweep out of each other's way, one namespace at a time. Pure.
//!
//! A pass makes a pod after it saw that the namespace is closed; the sweep takes away what closes it. Only one operator
//! works at a time, so a lock in its process is enough.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// A lock for each namespace that somebody is at; clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Namespaces(Arc<Mutex<HashMap<String, Weak<RwLock<()>>>>>);

impl Namespaces {
    /// For a pass: many may be in a namespace. Waits for no more than the few calls of a sweep.
    pub(crate) async fn enter(&self, namespace: &str) -> OwnedRwLockReadGuard<()> {
        self.of(namespace).read_owned().await
    }

    /// For the sweep, which wants to be alone; `None` while somebody else is in the namespace.
    pub(crate) fn try_clear(&self, namespace: &str) -> Option<OwnedRwLockWriteGuard<()>> {
        self.of(namespace).try_write_owned().ok()
    }

    fn of(&self, namespace: &str) -> Arc<RwLock<()>> {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = locks.get(namespace).and_then(Weak::upgrade) {
            return there;
        }
        locks.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::default();
        locks.insert(namespace.to_owned(), Arc::downgrade(&lock));
        lock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_sweep_is_alone_in_a_namespace() {
        let namespaces = Namespaces::default();
        let passes = (namespaces.enter("a").await, namespaces.enter("a").await);
        assert!(namespaces.try_clear("a").is_none());
        let alone = namespaces.try_clear("b").expect("nobody is there");
        drop(passes);
        assert!(namespaces.try_clear("a").is_some());
        let mut waits = std::pin::pin!(namespaces.enter("b"));
        assert!(futures_util::poll!(waits.as_mut()).is_pending());
        drop(alone);
        waits.await;
        assert!(namespaces.0.lock().unwrap().len() < 3, "what nobody holds is not kept");
    }
}
