//! The owner of a sandbox: the loop that turns wishes into calls, and events into the log.
//!
//! Everything that was learned since the last commit waits in the batch; a commit writes it together with the
//! cursor and the translators' states, so that a new owner resumes as if nothing had happened between.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use berth_opencode::{ClientConfig, ClientError, FenceHolder, ModelReference, OpencodeClient};
use berth_wire::door::Cursor;
use tokio::{
    sync::mpsc,
    task::{JoinError, JoinSet},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{
    batch::{Batch, Pending},
    calls::Done,
    lease::{Lease, Taken},
    link::{self, LinkEvent},
    live::Live,
};
use crate::{
    config::Limits,
    directory::SandboxAddress,
    store::{Commit, SandboxKey, SessionCommit, Store, StoreError},
};

mod deadlines;
mod lifecycle;
mod wishes;

/// Deadlines are looked at this often.
const TICK: Duration = Duration::from_millis(500);

/// Why an owner had to stop.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OwnerError {
    /// The store failed.
    #[error("the store refused")]
    Store(#[source] StoreError),
    /// Another owner has a higher fence, in the store or at the door.
    #[error("another owner took the sandbox over")]
    TakenOver,
    /// The sandbox's address is not usable.
    #[error("the sandbox's address is not usable")]
    Address(#[from] ClientError),
    /// A task of the owner panicked.
    #[error("a task of the owner failed")]
    Task(#[from] JoinError),
    /// The owner itself panicked.
    #[error("the owner panicked")]
    Panicked,
}

impl From<StoreError> for OwnerError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Fenced => Self::TakenOver,
            error => Self::Store(error),
        }
    }
}

/// A sandbox under this process's care.
pub(super) struct Owner {
    pub(super) store: Arc<dyn Store>,
    pub(super) limits: Limits,
    pub(super) client: OpencodeClient,
    pub(super) sandbox: SandboxKey,
    lease: Arc<Lease>,
    pub(super) cursor: Option<Cursor>,
    /// The run of opencode that the sessions' state belongs to.
    pub(super) boot_id: Option<String>,
    /// The subscription stands.
    pub(super) connected: bool,
    /// The door could not tell whether something was missed: ask again.
    pub(super) resync: bool,
    pub(super) live: BTreeMap<Uuid, Live>,
    pub(super) batch: Batch,
    pub(super) calls: JoinSet<Done>,
    /// How much models take, by directory; empty where that is being asked.
    pub(super) sizes: BTreeMap<String, BTreeMap<ModelReference, u64>>,
    /// A turn has ended since the loop last looked.
    pub(super) ended: bool,
    /// Something was to do at this moment.
    busy_at: Instant,
}

impl Owner {
    /// Cares for a sandbox that was taken over.
    pub(super) fn new(
        store: Arc<dyn Store>,
        address: &SandboxAddress,
        limits: Limits,
        (lease, taken): Taken,
    ) -> Result<Self, OwnerError> {
        let sandbox = SandboxKey { namespace: address.namespace.clone(), name: address.name.clone() };
        let client =
            OpencodeClient::new(ClientConfig::new(&*address.door_url, address.door_password.clone()))?
                .fenced(taken.fence.unsigned_abs(), Arc::clone(&lease) as Arc<dyn FenceHolder>);
        Ok(Self {
            store,
            limits,
            client,
            sandbox,
            lease,
            cursor: taken.cursor.and_then(|cursor| cursor.parse().ok()),
            boot_id: taken.boot_id,
            connected: false,
            resync: false,
            live: BTreeMap::new(),
            batch: Batch::default(),
            calls: JoinSet::new(),
            sizes: BTreeMap::new(),
            ended: false,
            busy_at: Instant::now(),
        })
    }

    /// Runs until nothing was to do for the linger time, or until `shutdown`.
    pub(super) async fn run(mut self, shutdown: &CancellationToken) -> Result<(), OwnerError> {
        let mut work = self.store.watch_work(&self.sandbox);
        self.read_wishes().await?;
        let (sender, mut events) = mpsc::channel(link::CHANNEL);
        let mut tasks = JoinSet::new();
        tasks.spawn(link::run(self.client.clone(), self.cursor.clone(), sender));
        tasks.spawn(Arc::clone(&self.lease).keep());
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while !shutdown.is_cancelled() && !self.is_idle() {
            let flush_at = self.flush_at();
            tokio::select! {
                Some(event) = events.recv() => {
                    self.take_events(event, &mut events).await?;
                }
                Some(done) = self.calls.join_next() => self.finish_call(done?).await?,
                Some(ended) = tasks.join_next() => ended?,
                Ok(()) = work.changed() => {
                    work.borrow_and_update();
                    self.read_wishes().await?;
                }
                () = tokio::time::sleep_until(flush_at) => self.flush().await?,
                () = tokio::time::sleep_until(self.lease.renewal_due()) => self.renew().await?,
                _ = tick.tick() => self.check_deadlines().await?,
                () = shutdown.cancelled() => {}
            }
        }
        self.flush().await
    }

    fn is_idle(&mut self) -> bool {
        let now = Instant::now();
        if self.live.values().any(|live| !live.is_done()) || !self.calls.is_empty() {
            self.busy_at = now;
        }
        now.saturating_duration_since(self.busy_at) >= self.limits.linger
    }

    fn flush_at(&self) -> Instant {
        self.batch.due().unwrap_or_else(|| Instant::now() + TICK)
    }

    /// Takes an event and those that wait behind it, then commits what is due: under load many events share one
    /// commit, at rest each has its own.
    async fn take_events(
        &mut self,
        first: LinkEvent,
        events: &mut mpsc::Receiver<LinkEvent>,
    ) -> Result<(), OwnerError> {
        let mut next = Some(first);
        let mut left = link::CHANNEL;
        while let Some(event) = next {
            self.take_event(event).await?;
            left -= 1;
            next = if left > 0 { events.try_recv().ok() } else { None };
        }
        self.flush_if_due().await
    }

    pub(super) async fn flush_if_due(&mut self) -> Result<(), OwnerError> {
        if self.batch.due().is_some_and(|due| due <= Instant::now()) { self.flush().await } else { Ok(()) }
    }

    /// Commits everything that was learned: the cursor moves with the states of all sessions, or not at all.
    pub(super) async fn flush(&mut self) -> Result<(), OwnerError> {
        let sessions = self.take_pending();
        if sessions.is_empty() { Ok(()) } else { self.commit(sessions).await }
    }

    /// Renews the lease, and moves the cursor, also where nothing was learned.
    async fn renew(&mut self) -> Result<(), OwnerError> {
        let sessions = self.take_pending();
        self.commit(sessions).await
    }

    fn take_pending(&mut self) -> Vec<SessionCommit> {
        let mut pending = self.batch.take();
        let mut states = BTreeMap::new();
        for (&session_id, live) in &mut self.live {
            if let Some(state) = live.state_to_save() {
                states.insert(session_id, state);
                pending.entry(session_id).or_default();
            }
        }
        let sessions = pending.into_iter().map(|(session_id, Pending { events, changes })| SessionCommit {
            session_id,
            translator: states.remove(&session_id),
            events,
            changes,
        });
        sessions.collect()
    }

    /// Commits these sessions, with the position that they stand at.
    pub(super) async fn commit(&self, sessions: Vec<SessionCommit>) -> Result<(), OwnerError> {
        let since = Instant::now();
        self.store.commit(self.commit_of(sessions)).await?;
        self.lease.renewed(since);
        Ok(())
    }

    /// A commit of these sessions, with the position that they stand at.
    pub(super) fn commit_of(&self, sessions: Vec<SessionCommit>) -> Commit {
        Commit {
            sandbox: self.sandbox.clone(),
            fence: self.lease.fence(),
            lease: self.lease.lasts(),
            cursor: self.cursor.as_ref().map(Cursor::to_string),
            boot_id: self.boot_id.clone(),
            sessions,
        }
    }

    pub(super) async fn delete_rows(&self, session: Uuid) -> Result<(), OwnerError> {
        Ok(self.store.delete_session(&self.sandbox, self.lease.fence(), session).await?)
    }

    /// Starts a call for a session; its end comes back to the loop.
    pub(super) fn call(
        &mut self,
        session: Uuid,
        result: impl Future<Output = super::calls::CallResult> + Send + 'static,
    ) {
        let turn = self.live.get(&session).and_then(|live| live.turn.as_ref()).map(|turn| turn.id);
        self.calls.spawn(async move { Done { session, turn, result: result.await } });
    }
}
