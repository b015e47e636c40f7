//! The lease under which this process owns a sandbox, as seen from here. The database's row decides; this is what the
//! owner may believe between two looks at it, by a clock of its own. IO, but for [`Term`].

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use berth_opencode::FenceHolder;
use futures_util::{FutureExt, future::BoxFuture};
use tokio::time::Instant;
use uuid::Uuid;

use crate::{
    config::Limits,
    http::error_chain,
    store::{Acquired, Ownership, SandboxKey, Store, StoreError},
};

/// A lease, and where its owner stood before.
pub(super) type Taken = (Arc<Lease>, Ownership);

/// For how long nobody else can have taken the sandbox over.
#[derive(Debug, Clone, Copy)]
struct Term {
    /// A moment before the database was asked for the lease that lasts now: it cannot end earlier than it would had it
    /// begun here.
    since: Instant,
    lasts: Duration,
    renewal: Duration,
}

impl Term {
    fn new(limits: &Limits, since: Instant) -> Self {
        Self { since, lasts: limits.lease, renewal: limits.lease_renewal }
    }

    /// True while nobody else can have the sandbox. A tenth of the lease is kept back for a call to be on its way.
    fn is_live(&self, now: Instant) -> bool {
        now < self.since + self.lasts - self.lasts / 10
    }

    /// When the owner's loop renews: by a commit, which moves the cursor too.
    fn renewal_due(&self) -> Instant {
        self.since + self.renewal
    }

    /// When the lease is renewed without the loop, which may wait for a read of the door.
    fn overdue(&self) -> Instant {
        self.since + self.renewal + self.renewal / 2
    }
}

/// The lease of one owner.
pub(super) struct Lease {
    store: Arc<dyn Store>,
    sandbox: SandboxKey,
    fence: i64,
    lasts: Duration,
    term: Mutex<Term>,
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("sandbox", &self.sandbox)
            .field("fence", &self.fence)
            .finish_non_exhaustive()
    }
}

impl Lease {
    /// Takes the sandbox over, or tells for how long somebody else owns it.
    pub(super) async fn take(
        store: &Arc<dyn Store>,
        sandbox: &SandboxKey,
        owner: Uuid,
        limits: &Limits,
    ) -> Result<Result<Taken, Duration>, StoreError> {
        let since = Instant::now();
        let taken = match store.acquire(sandbox, owner, limits.lease).await? {
            Acquired::Taken(taken) => taken,
            Acquired::Held { remaining } => return Ok(Err(remaining)),
        };
        let lease = Self {
            store: Arc::clone(store),
            sandbox: sandbox.clone(),
            fence: taken.fence,
            lasts: limits.lease,
            term: Mutex::new(Term::new(limits, since)),
        };
        Ok(Ok((Arc::new(lease), taken)))
    }

    /// The number that every write and every call of this owner carries.
    pub(super) fn fence(&self) -> i64 {
        self.fence
    }

    /// How long the lease lasts after each renewal.
    pub(super) fn lasts(&self) -> Duration {
        self.lasts
    }

    /// When it should be renewed.
    pub(super) fn renewal_due(&self) -> Instant {
        self.term().renewal_due()
    }

    /// A statement that renewed it was begun at this moment, and succeeded.
    pub(super) fn renewed(&self, since: Instant) {
        let mut term = self.lock();
        term.since = term.since.max(since);
    }

    fn lock(&self) -> MutexGuard<'_, Term> {
        self.term.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn term(&self) -> Term {
        *self.lock()
    }

    async fn renew_in_store(&self) -> Result<(), StoreError> {
        let since = Instant::now();
        self.store.renew(&self.sandbox, self.fence, self.lasts).await?;
        self.renewed(since);
        Ok(())
    }

    /// Renews it where the owner's loop is late; ends when somebody else has taken the sandbox over.
    pub(super) async fn keep(self: Arc<Self>) {
        loop {
            let overdue = self.term().overdue();
            tokio::time::sleep_until(overdue).await;
            if self.term().overdue() > Instant::now() {
                continue;
            }
            match self.renew_in_store().await {
                Ok(()) => {}
                Err(StoreError::Fenced) => return,
                Err(error) => {
                    tracing::warn!(
                        namespace = self.sandbox.namespace,
                        sandbox = self.sandbox.name,
                        error = error_chain(&error),
                        "lease could not be renewed"
                    );
                    tokio::time::sleep(self.term().renewal / 2).await;
                }
            }
        }
    }

    /// Gives it up, so that another process may take the sandbox over at once. Where that fails it runs out by itself.
    pub(super) async fn release(&self) {
        if let Err(error) = self.store.release(&self.sandbox, self.fence).await {
            let error = error_chain(&error);
            tracing::debug!(
                namespace = self.sandbox.namespace,
                sandbox = self.sandbox.name,
                error,
                "lease was not released"
            );
        }
    }
}

impl FenceHolder for Lease {
    /// Without a look at the store while the lease lasts. One that has run out, in a process that was paused for example,
    /// is renewed where nobody has taken the sandbox over.
    fn holds(&self) -> BoxFuture<'_, bool> {
        async {
            let live = self.term().is_live(Instant::now());
            live || (self.renew().await && self.term().is_live(Instant::now()))
        }
        .boxed()
    }

    fn renew(&self) -> BoxFuture<'_, bool> {
        async {
            match self.renew_in_store().await {
                Ok(()) => true,
                Err(error) => {
                    tracing::warn!(
                        namespace = self.sandbox.namespace,
                        sandbox = self.sandbox.name,
                        error = error_chain(&error),
                        "the sandbox is not known to be owned any more"
                    );
                    false
                }
            }
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_term_ends_before_anybody_else_can_take_over_and_is_renewed_well_before_that() {
        let (limits, since) = (Limits::default(), Instant::now());
        let term = Term::new(&limits, since);
        let at = |seconds: u64| since + Duration::from_secs(seconds);
        assert_eq!((term.renewal_due(), term.overdue()), (at(5), since + Duration::from_millis(7500)));
        for (seconds, live) in [(0, true), (5, true), (13, true), (14, false), (15, false), (60, false)] {
            assert_eq!(term.is_live(at(seconds)), live, "after {seconds} s");
        }
    }
}
