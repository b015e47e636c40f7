//! Keys that calls keep, so that nobody looks for what a call makes, or makes it again, while the call goes on. Pure but
//! for the lock.

use std::sync::Arc;

use tokio::time::Instant;

use super::{Admission, Refusal, State};
use crate::{fence::Stamp, key::Key};

/// A call that keeps a key.
#[derive(Debug)]
pub(super) struct Keeper {
    number: u64,
    fence: Option<u64>,
    admitted: bool,
}

impl State {
    /// A call under a fence that is not the current one does not count, unless it was admitted before: it will not be.
    fn is_kept(&self, key: &Key) -> bool {
        let current = self.fence.state().fence;
        self.keys
            .get(key)
            .is_some_and(|keeper| keeper.admitted || keeper.fence.is_none_or(|fence| fence == current))
    }
}

impl Admission {
    /// Keeps the key of a call that came and is to change something, until what this gives is dropped: also before it is
    /// admitted, since a caller who goes away is not always noticed. No second one is kept meanwhile.
    pub(crate) fn keep(self: &Arc<Self>, key: Key, stamp: Option<&Stamp>) -> Result<Kept, Refusal> {
        let mut state = self.state();
        if let Some(stamp) = stamp {
            state.fence.check(stamp).map_err(|stale| Refusal::Stale(stale, state.fence.state()))?;
        }
        if state.is_kept(&key) {
            return Err(Refusal::Repeated);
        }
        let number = state.next;
        state.next += 1;
        let keeper = Keeper { number, fence: stamp.map(|stamp| stamp.fence), admitted: false };
        state.keys.insert(key.clone(), keeper);
        Ok(Kept { admission: Arc::clone(self), key, number })
    }

    /// Until then opencode may carry calls that the door before had sent: nobody knows their keys, so no call with a key
    /// is sent. `None` when it carries none.
    pub(crate) fn unsettled(&self, until: Option<Instant>) {
        self.state().unsettled = until;
    }

    /// Whether a call with this key goes on, so that what it makes is not there to be seen yet.
    pub(crate) fn is_kept(&self, key: &Key) -> bool {
        self.state().is_kept(key)
    }
}

/// The key of a call that goes on.
#[derive(Debug)]
pub(crate) struct Kept {
    admission: Arc<Admission>,
    key: Key,
    number: u64,
}

impl Kept {
    /// Its call is to be sent: it goes on then, whoever holds the fence. Not while a call of the door before may go on.
    pub(super) fn admit(&self) -> Result<(), Refusal> {
        let mut state = self.admission.state();
        if state.unsettled.is_some_and(|until| Instant::now() < until) {
            return Err(Refusal::Unsettled);
        }
        if let Some(keeper) = state.keys.get_mut(&self.key)
            && keeper.number == self.number
        {
            keeper.admitted = true;
        }
        Ok(())
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let mut state = self.admission.state();
        if state.keys.get(&self.key).is_some_and(|keeper| keeper.number == self.number) {
            state.keys.remove(&self.key);
        }
    }
}
