//! The owner of a sandbox: the loop that hands what happens to the sessions, and performs what they decide.
//!
//! Everything that was learned since the last commit waits in the batch; a commit writes it together with the
//! cursor and the translators' states, so that a new owner resumes as if nothing had happened between.

use std::{collections::BTreeMap, sync::Arc};

use berth_opencode::{ClientConfig, ClientError, FenceHolder, ModelReference, OpencodeClient, ids};
use berth_wire::door::Cursor;
use jiff::Timestamp;
use tokio::{
    sync::{Notify, mpsc},
    task::{JoinError, JoinSet},
    time::{Duration, Instant},
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{
    batch::{Batch, Pending},
    calls::{self, Done, End},
    defect::AtWork,
    lease::{Lease, Taken},
    link::{self, Link, LinkEvent},
    readiness::Readiness,
    sandbox::Sandbox,
    session::{Input, Moment, Session},
};
use crate::{
    config::Limits,
    directory::SandboxAddress,
    metrics::Metrics,
    store::{Commit, SandboxKey, SessionCommit, Store, StoreError},
};

mod listen;
mod perform;

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

impl OwnerError {
    /// A defect of ours, or a value that no way leads past: whoever starts again will meet it again.
    pub(super) fn is_defect(&self) -> bool {
        match self {
            Self::Panicked => true,
            Self::Task(error) => error.is_panic(),
            Self::Store(error) => error.is_of_a_value(),
            Self::TakenOver | Self::Address(_) => false,
        }
    }
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
    pub(super) limits: Arc<Limits>,
    metrics: Metrics,
    client: OpencodeClient,
    /// Told when the door does not take the password.
    refused: Arc<Notify>,
    /// Told of each session that something is handed to.
    at_work: Arc<AtWork>,
    /// Knows why the sandbox is not ready.
    readiness: Option<Arc<Readiness>>,
    key: SandboxKey,
    /// Other names of its working directory.
    aliases: Arc<[String]>,
    lease: Arc<Lease>,
    pub(super) cursor: Option<Cursor>,
    sandbox: Sandbox,
    pub(super) sessions: BTreeMap<Uuid, Session>,
    batch: Batch,
    pub(super) calls: JoinSet<Done>,
    /// How much models take, by directory; empty where that is being asked.
    sizes: BTreeMap<String, BTreeMap<ModelReference, u64>>,
    /// The rows must be read again.
    reread: bool,
    /// No state is read before this moment.
    reads_not_before: Option<Instant>,
    /// Ends the waits of the loop.
    shutdown: CancellationToken,
    /// Something was to do at this moment.
    busy_at: Instant,
}

impl Owner {
    /// Cares for a sandbox that was taken over.
    pub(super) fn new(
        store: Arc<dyn Store>,
        address: &SandboxAddress,
        limits: Limits,
        metrics: Metrics,
        (lease, taken): Taken,
    ) -> Result<Self, OwnerError> {
        let key = SandboxKey { namespace: address.namespace.clone(), name: address.name.clone() };
        let mut config = ClientConfig::new(&*address.door_url, address.door_password.clone());
        config.request_timeout = limits.call;
        (config.prove, config.pod_uid) = (address.pod_uid.is_some(), address.pod_uid.clone());
        let client = OpencodeClient::new(config)?
            .fenced(taken.fence.unsigned_abs(), Arc::clone(&lease) as Arc<dyn FenceHolder>);
        Ok(Self {
            store,
            limits: Arc::new(limits),
            metrics,
            client,
            refused: Arc::default(),
            at_work: Arc::default(),
            readiness: None,
            key,
            aliases: address.aliases.clone().into(),
            lease,
            cursor: taken.cursor.and_then(|cursor| cursor.parse().ok()),
            sandbox: Sandbox::new(taken.boot_id),
            sessions: BTreeMap::new(),
            batch: Batch::default(),
            calls: JoinSet::new(),
            sizes: BTreeMap::new(),
            reread: false,
            reads_not_before: None,
            shutdown: CancellationToken::new(),
            busy_at: Instant::now(),
        })
    }

    /// Told when the door does not take the password.
    pub(super) fn refused(&self) -> Arc<Notify> {
        Arc::clone(&self.refused)
    }

    /// The same owner, which notes there what it is at, for those who find that it broke off.
    pub(super) fn noting(mut self, at_work: Arc<AtWork>) -> Self {
        self.at_work = at_work;
        self
    }

    /// The same owner, which asks there why prompts wait.
    pub(super) fn asking(mut self, readiness: Arc<Readiness>) -> Self {
        self.readiness = Some(readiness);
        self
    }

    /// Runs until nothing was to do for the linger time, or until `shutdown`.
    pub(super) async fn run(mut self, shutdown: &CancellationToken) -> Result<(), OwnerError> {
        self.shutdown = shutdown.clone();
        let mut work = self.store.watch_work(&self.key);
        self.read_wishes().await?;
        let (sender, mut events) = mpsc::channel(link::CHANNEL);
        let mut tasks = JoinSet::new();
        let link = Link { client: self.client.clone(), events: sender, refused: self.refused() };
        tasks.spawn(link.run(self.cursor.clone()));
        tasks.spawn(Arc::clone(&self.lease).keep());
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while !shutdown.is_cancelled() && !self.is_idle() {
            let due = self.due();
            tokio::select! {
                Some(event) = events.recv() => self.take_events(event, &mut events).await?,
                Some(done) = self.calls.join_next() => self.finish_call(done?).await?,
                Some(ended) = tasks.join_next() => ended?,
                Ok(()) = work.changed() => {
                    work.borrow_and_update();
                    self.read_wishes().await?;
                }
                () = tokio::time::sleep_until(due) => self.wake().await?,
                () = tokio::time::sleep_until(self.lease.renewal_due()) => self.renew().await?,
                _ = tick.tick() => self.check_deadlines().await?,
                () = shutdown.cancelled() => {}
            }
        }
        self.flush().await
    }

    fn is_idle(&mut self) -> bool {
        let now = Instant::now();
        let linger = self.limits.linger;
        self.sessions.retain(|_, session| !session.is_over(now));
        if self.sessions.values().any(|session| !session.is_done()) || !self.calls.is_empty() {
            self.busy_at = now;
        }
        now.saturating_duration_since(self.busy_at) >= linger
    }

    /// When a commit is due, or a session can go on.
    fn due(&self) -> Instant {
        let sessions = self.sessions.values().filter_map(Session::due);
        sessions.chain(self.batch.due()).min().unwrap_or_else(|| Instant::now() + TICK)
    }

    async fn wake(&mut self) -> Result<(), OwnerError> {
        self.flush_if_due().await?;
        let now = Instant::now();
        let due = |(id, session): (&Uuid, &Session)| session.due().filter(|due| *due <= now).map(|_| *id);
        let sessions: Vec<Uuid> = self.sessions.iter().filter_map(due).collect();
        for session in sessions {
            self.feed(session, Input::Tick).await?;
        }
        self.finish().await
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

    /// Takes the end of a call.
    pub(super) async fn finish_call(&mut self, done: Done) -> Result<(), OwnerError> {
        let (call, is_ok) = done.end.summary();
        self.metrics.called(call, is_ok);
        if done.end.is_stale() {
            return Err(OwnerError::TakenOver);
        }
        match done.end {
            End::Session(turn, result) => self.feed(done.session, Input::Done(turn, result)).await?,
            End::Sized(directory, sizes) => self.take_sizes(directory, sizes).await?,
        }
        self.finish().await?;
        self.flush_if_due().await
    }

    /// Looks at every deadline, and tries again what failed before.
    async fn check_deadlines(&mut self) -> Result<(), OwnerError> {
        let clock = Timestamp::now();
        if self.sessions.values().any(|session| session.has_late_ask(clock)) {
            // An answer that came in time counts, also where nobody has read it yet.
            self.read_rows().await?;
        }
        let unready = self.readiness.as_ref().and_then(|readiness| readiness.look(Instant::now()));
        self.sessions.values_mut().for_each(|session| session.note_unready(unready.clone()));
        self.feed_all(|| Input::Tick).await?;
        if self.sandbox.is_connected() {
            self.read_again().await?;
        }
        self.finish().await?;
        self.flush_if_due().await
    }

    /// Reads what callers want, and does what can be done now.
    pub(super) async fn read_wishes(&mut self) -> Result<(), OwnerError> {
        self.read_rows().await?;
        self.finish().await
    }

    /// Gives each session its rows.
    async fn read_rows(&mut self) -> Result<(), OwnerError> {
        let rows = self.store.load_work(&self.key).await?;
        let mut rows: BTreeMap<Uuid, _> = rows.into_iter().map(|row| (row.id, Box::new(row))).collect();
        let known: Vec<Uuid> = self.sessions.keys().copied().collect();
        for session in known {
            let row = rows.remove(&session);
            self.feed(session, Input::Rows(row)).await?;
        }
        for (id, row) in rows {
            let session = Session::new((*row).clone(), &self.limits, ids::message_id, Instant::now());
            self.sessions.insert(id, session);
            self.feed(id, Input::Rows(Some(row))).await?;
        }
        Ok(())
    }

    /// What follows when an input was handed on: after the end of a turn, what waits behind it is read, and so on.
    async fn finish(&mut self) -> Result<(), OwnerError> {
        while std::mem::take(&mut self.reread) {
            self.flush().await?;
            self.read_rows().await?;
        }
        Ok(())
    }

    fn moment(&self) -> Moment {
        Moment { now: Instant::now(), clock: Timestamp::now(), open: self.sandbox.is_open() }
    }

    /// Hands an input to a session, and performs what it decides.
    async fn feed(&mut self, session: Uuid, input: Input<'_>) -> Result<(), OwnerError> {
        let at = self.moment();
        let Some(live) = self.sessions.get_mut(&session) else { return Ok(()) };
        // What every session is told of is nobody's work, once it is done with.
        let passing = matches!(input, Input::Alive | Input::Tick | Input::Lost);
        let before = self.at_work.replace(Some(session));
        let outputs = live.step(input, &at);
        self.perform(session, outputs).await?;
        if passing {
            self.at_work.replace(before);
        }
        Ok(())
    }

    async fn feed_all(&mut self, input: impl Fn() -> Input<'static>) -> Result<(), OwnerError> {
        let sessions: Vec<Uuid> = self.sessions.keys().copied().collect();
        for session in sessions {
            self.feed(session, input()).await?;
        }
        Ok(())
    }

    async fn flush_if_due(&mut self) -> Result<(), OwnerError> {
        if self.batch.due().is_some_and(|due| due <= Instant::now()) { self.flush().await } else { Ok(()) }
    }

    /// Commits everything that was learned: the cursor moves with the states of all sessions, or not at all.
    async fn flush(&mut self) -> Result<(), OwnerError> {
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
        for (&id, session) in &mut self.sessions {
            if let Some(state) = session.state_to_save() {
                states.insert(id, state);
                pending.entry(id).or_default();
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
    async fn commit(&self, sessions: Vec<SessionCommit>) -> Result<(), OwnerError> {
        let since = Instant::now();
        self.store.commit(self.commit_of(sessions)).await?;
        self.lease.renewed(since);
        Ok(())
    }

    /// A commit of these sessions, with the position that they stand at.
    fn commit_of(&self, sessions: Vec<SessionCommit>) -> Commit {
        Commit {
            sandbox: self.key.clone(),
            fence: self.lease.fence(),
            lease: self.lease.lasts(),
            cursor: self.cursor.as_ref().map(Cursor::to_string),
            boot_id: self.sandbox.boot_id().map(str::to_owned),
            sessions,
        }
    }

    fn target(&self, session: &Session) -> calls::Target {
        let client = self.client.clone();
        calls::Target {
            client: match session.traceparent() {
                Some(traceparent) => client.traced(traceparent),
                None => client,
            },
            directory: session.directory().to_owned(),
            aliases: Arc::clone(&self.aliases),
            root: session.root().map(str::to_owned),
            bound: self.limits.unreachable.min(self.limits.call),
        }
    }
}
