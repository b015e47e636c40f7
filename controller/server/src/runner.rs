//! One runner per sandbox: it alone talks to the sandbox's door, and only while there is something to do.
//!
//! A runner waits for work, takes the sandbox over (a lease in the store, under a higher fence than any before), and then
//! is its *owner* until nothing was to do for the linger time. What it learns it writes with its fence; whoever takes the
//! sandbox over later makes those writes fail. While another process owns the sandbox it waits for the lease's end. When
//! the sandbox's door is at another place, or has another password, the owner stops where it stands and begins anew there.
//! When the sandbox is gone, everything that is left to do for it ends as failed, and the runner with it.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt;
use tokio::{sync::watch, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use uuid::Uuid;

use crate::{
    config::Limits,
    directory::{SandboxAddress, SandboxDirectory},
    http::error_chain,
    metrics::Metrics,
    store::{SandboxKey, SessionWork, Store},
};

mod aliases;
mod asks;
mod batch;
mod calls;
mod defect;
mod gone;
mod lease;
mod link;
mod owner;
mod readiness;
mod sandbox;
mod session;
mod starter;
#[cfg(test)]
mod tests;
mod unplaced;

use defect::{AtWork, Defects};
use lease::{Lease, Taken};
use owner::{Owner, OwnerError};
use readiness::Readiness;
use starter::Starter;

/// A runner looks for work this often even if nobody woke it.
const POLL: Duration = Duration::from_secs(30);
/// Pause after a lost sandbox, and after a failure of the store; doubled at each further failure.
const PAUSE: Duration = Duration::from_secs(1);
/// Longest pause after failures: once a full disk has space again, work goes on within that.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// The runners of all sandboxes.
#[derive(Debug)]
pub(crate) struct Runners {
    tasks: TaskTracker,
    shutdown: CancellationToken,
}

impl Runners {
    /// Starts a runner for each sandbox of the directory, now and later, each of which owns its sandbox as `owner`.
    pub(crate) fn start(
        store: &Arc<dyn Store>,
        directory: &Arc<dyn SandboxDirectory>,
        limits: &Limits,
        metrics: &Metrics,
        owner: Uuid,
        shutdown: CancellationToken,
    ) -> Self {
        let tasks = TaskTracker::new();
        let (store, directory) = (Arc::clone(store), Arc::clone(directory));
        let (limits, metrics) = (limits.clone(), metrics.clone());
        let common = Common { store, directory, limits, metrics, owner };
        tasks.spawn(Starter::new(common).run(shutdown.clone()));
        tasks.close();
        Self { tasks, shutdown }
    }

    /// Stops every runner where it stands; what it had learned is in the store.
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        self.tasks.wait().await;
    }
}

/// What all runners have in common.
#[derive(Clone)]
struct Common {
    store: Arc<dyn Store>,
    directory: Arc<dyn SandboxDirectory>,
    limits: Limits,
    metrics: Metrics,
    owner: Uuid,
}

struct Runner {
    common: Common,
    key: SandboxKey,
    defects: Defects,
    readiness: Arc<Readiness>,
}

/// What a runner does next.
enum Next {
    /// Look again after this, or when something is wished.
    Wait(Duration),
    /// Look again when the directory has changed, or after this.
    WaitForAddress(Duration),
    /// The sandbox is gone, and nothing is left.
    End,
}

impl Runner {
    async fn run(mut self, shutdown: CancellationToken) {
        let key = self.key.clone();
        let mut work = self.common.store.watch_work(&key);
        let mut changes = self.common.directory.changes();
        let mut failures = 0;
        while !shutdown.is_cancelled() {
            work.borrow_and_update();
            if let Some(changes) = &mut changes {
                changes.borrow_and_update();
            }
            let (wait, changes) = match unless_panicked(self.run_if_needed(&key, &shutdown)).await {
                Ok(Next::End) => return,
                Ok(Next::Wait(wait)) => (wait.min(POLL), None),
                Ok(Next::WaitForAddress(wait)) => (wait.min(POLL), changes.as_mut()),
                Err(error) => {
                    let wait =
                        if matches!(error, OwnerError::TakenOver) { PAUSE } else { pause_after(failures) };
                    failures += 1;
                    report(&key, &error);
                    pause(wait, &shutdown).await;
                    continue;
                }
            };
            failures = 0;
            tokio::select! {
                _ = work.changed() => {}
                () = changed(changes) => {}
                () = pause(wait, &shutdown) => {}
            }
        }
    }

    /// Owns the sandbox while there is something to do; then tells what is next.
    async fn run_if_needed(
        &mut self,
        key: &SandboxKey,
        shutdown: &CancellationToken,
    ) -> Result<Next, OwnerError> {
        let Common { store, directory, limits, owner, .. } = &self.common;
        let gone = directory.is_gone(&key.namespace, &key.name);
        let work = store.load_work(key).await?;
        if work.is_empty() {
            return Ok(if gone { Next::End } else { Next::Wait(POLL) });
        }
        let address = if gone { None } else { directory.find(&key.namespace, &key.name) };
        if address.is_none() && !gone {
            return self.end_unplaced(&work).await;
        }
        let taken = match Lease::take(store, key, *owner, limits).await? {
            Ok(taken) => taken,
            Err(remaining) => return Ok(Next::Wait(remaining)),
        };
        let (lease, began, at_work) = (Arc::clone(&taken.0), Instant::now(), Arc::<AtWork>::default());
        let result = if let Some(address) = address {
            unless_panicked(self.own(&address, taken, Arc::clone(&at_work), shutdown)).await
        } else {
            let limits = Arc::new(limits.clone());
            let end = Box::pin(gone::end_all(&**store, key, &lease, &limits));
            unless_panicked(end).await.map(|()| Next::Wait(Duration::ZERO))
        };
        lease.release().await;
        match &result {
            Ok(_) => self.defects.clear(),
            Err(error) if error.is_defect() => self.take_defect(began.elapsed(), &at_work).await,
            Err(_) => {}
        }
        result
    }

    /// Nothing leads to the sandbox: what has waited for that for too long ends.
    async fn end_unplaced(&self, work: &[SessionWork]) -> Result<Next, OwnerError> {
        let Common { store, limits, owner, .. } = &self.common;
        let Some(waited) = self.readiness.look_for_lost(Instant::now()) else { return Ok(Next::Wait(POLL)) };
        if unplaced::is_any_late(work, &waited, limits) {
            let taken = match Lease::take(store, &self.key, *owner, limits).await? {
                Ok(taken) => taken,
                Err(remaining) => return Ok(Next::Wait(remaining)),
            };
            let limits = Arc::new(limits.clone());
            let end = Box::pin(unplaced::end_late(&**store, &self.key, &taken, &limits, &waited));
            let ended = unless_panicked(end).await;
            taken.0.release().await;
            ended?;
        }
        Ok(Next::WaitForAddress(unplaced::pause(limits)))
    }

    /// Owns a sandbox that was taken over, and notes what it is at.
    async fn own(
        &self,
        address: &SandboxAddress,
        taken: Taken,
        at_work: Arc<AtWork>,
        shutdown: &CancellationToken,
    ) -> Result<Next, OwnerError> {
        let Common { store, limits, metrics, .. } = &self.common;
        let owner = Owner::new(Arc::clone(store), address, limits.clone(), metrics.clone(), taken)?;
        let owner = owner.noting(at_work).asking(Arc::clone(&self.readiness));
        let _work = AtWorkMark::new(&self.common.directory, &self.key);
        Box::pin(self.run_owner(owner, address, shutdown)).await
    }

    /// An owner broke off, after it had worked for so long. What too many in a row broke off at ends.
    async fn take_defect(&mut self, worked: Duration, at_work: &AtWork) {
        let Common { store, limits, metrics, owner, .. } = &self.common;
        metrics.owner_defects.inc();
        if !self.defects.note(worked) {
            return;
        }
        let end = Box::pin(async {
            let Ok(taken) = Lease::take(store, &self.key, *owner, limits).await? else { return Ok(()) };
            let ended =
                unless_panicked(defect::end(&**store, &self.key, &taken, limits, at_work.last())).await;
            taken.0.release().await;
            ended
        });
        if let Err(error) = unless_panicked(end).await {
            report(&self.key, &error);
        }
    }

    /// Runs the owner until it has nothing to do, or its door is not where it was.
    async fn run_owner(
        &self,
        owner: Owner,
        address: &SandboxAddress,
        shutdown: &CancellationToken,
    ) -> Result<Next, OwnerError> {
        let refused = owner.refused();
        let stop = shutdown.child_token();
        let mut run = Box::pin(owner.run(&stop));
        let mut moved = Box::pin(self.moved(address));
        loop {
            tokio::select! {
                result = &mut run => return result.map(|()| Next::Wait(POLL)),
                () = &mut moved => {
                    stop.cancel();
                    return run.await.map(|()| Next::Wait(Duration::ZERO));
                }
                () = refused.notified() => self.common.directory.refused(&self.key.namespace, &self.key.name),
            }
        }
    }

    /// Ends when the sandbox's door is somewhere else, or has another password, or when the sandbox is gone.
    async fn moved(&self, address: &SandboxAddress) {
        let SandboxKey { namespace, name } = &self.key;
        let directory = &self.common.directory;
        let Some(mut changes) = directory.changes() else { return std::future::pending().await };
        loop {
            let moved = match directory.find(namespace, name) {
                Some(now) => !now.leads_where(address),
                None => directory.is_gone(namespace, name),
            };
            if moved {
                return;
            }
            if changes.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}

/// Tells the directory that there is work, until it is dropped.
struct AtWorkMark<'a>(&'a dyn SandboxDirectory, &'a SandboxKey);

impl<'a> AtWorkMark<'a> {
    fn new(directory: &'a Arc<dyn SandboxDirectory>, key: &'a SandboxKey) -> Self {
        directory.at_work(&key.namespace, &key.name, true);
        Self(&**directory, key)
    }
}

impl Drop for AtWorkMark<'_> {
    fn drop(&mut self) {
        self.0.at_work(&self.1.namespace, &self.1.name, false);
    }
}

/// Waits until what somebody waits for has changed; for ever where nobody does, or it will not any more.
async fn changed(changes: Option<&mut watch::Receiver<()>>) {
    let Some(changes) = changes else { return std::future::pending().await };
    if changes.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Says in the log why an owner had to stop.
fn report(key: &SandboxKey, error: &OwnerError) {
    let SandboxKey { namespace, name: sandbox } = key;
    if matches!(error, OwnerError::TakenOver) {
        tracing::warn!(namespace, sandbox, "another owner took the sandbox over");
        return;
    }
    tracing::error!(namespace, sandbox, error = error_chain(error), "runner failed; it starts again");
}

fn pause_after(failures: u32) -> Duration {
    PAUSE.saturating_mul(1 << failures.min(8)).min(LONGEST_PAUSE)
}

/// A panic must not leave a sandbox without a runner.
async fn unless_panicked<T>(run: impl Future<Output = Result<T, OwnerError>>) -> Result<T, OwnerError> {
    AssertUnwindSafe(run).catch_unwind().await.unwrap_or(Err(OwnerError::Panicked))
}

async fn pause(time: Duration, shutdown: &CancellationToken) {
    tokio::select! {
        () = tokio::time::sleep(time) => {}
        () = shutdown.cancelled() => {}
    }
}
