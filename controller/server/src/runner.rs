//! One runner per sandbox: it alone talks to the sandbox's door, and only while there is something to do.
//!
//! A runner waits for work, takes the sandbox over (a lease in the store, under a higher fence than any before), and then
//! is its *owner* until nothing was to do for the linger time. What it learns it writes with its fence; whoever takes the
//! sandbox over later makes those writes fail. While another process owns the sandbox it waits for the lease's end. When
//! the sandbox's door is at another place, or has another password, the owner stops where it stands and begins anew there.

use std::{collections::HashMap, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use uuid::Uuid;

use crate::{
    config::Limits,
    directory::{SandboxAddress, SandboxDirectory},
    http::error_chain,
    metrics::Metrics,
    store::{SandboxKey, Store},
};

mod aliases;
mod asks;
mod batch;
mod calls;
mod lease;
mod link;
mod owner;
mod sandbox;
mod session;
#[cfg(test)]
mod tests;

use lease::Lease;
use owner::{Owner, OwnerError};

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
        let starter = Starter { common, tasks: tasks.clone(), running: HashMap::new() };
        tasks.spawn(starter.run(shutdown.clone()));
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

/// Starts runners for sandboxes that come, and stops those of sandboxes that went.
struct Starter {
    common: Common,
    tasks: TaskTracker,
    running: HashMap<SandboxKey, CancellationToken>,
}

impl Starter {
    async fn run(mut self, shutdown: CancellationToken) {
        let mut changes = self.common.directory.changes();
        loop {
            if let Some(changes) = &mut changes {
                changes.borrow_and_update();
            }
            self.follow(&shutdown);
            let Some(changes) = &mut changes else { return };
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = shutdown.cancelled() => return,
            }
        }
    }

    fn follow(&mut self, shutdown: &CancellationToken) {
        let key = |address: SandboxAddress| SandboxKey { namespace: address.namespace, name: address.name };
        let there: Vec<SandboxKey> = self.common.directory.list().into_iter().map(key).collect();
        self.running.retain(|key, stop| {
            let stays = there.contains(key);
            if !stays {
                stop.cancel();
            }
            stays
        });
        for key in there {
            let (common, tasks) = (&self.common, &self.tasks);
            self.running.entry(key).or_insert_with_key(|key| {
                let stop = shutdown.child_token();
                let runner = Runner { common: common.clone(), key: key.clone() };
                tasks.spawn(runner.run(stop.clone()));
                stop
            });
        }
    }
}

struct Runner {
    common: Common,
    key: SandboxKey,
}

impl Runner {
    async fn run(self, shutdown: CancellationToken) {
        let key = self.key.clone();
        let mut work = self.common.store.watch_work(&key);
        let mut failures = 0;
        while !shutdown.is_cancelled() {
            work.borrow_and_update();
            let wait = match unless_panicked(self.run_if_needed(&key, &shutdown)).await {
                Ok(wait) => wait.min(POLL),
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
                () = pause(wait, &shutdown) => {}
            }
        }
    }

    /// Owns the sandbox while there is something to do; then tells how long to wait unless something is wished.
    async fn run_if_needed(
        &self,
        key: &SandboxKey,
        shutdown: &CancellationToken,
    ) -> Result<Duration, OwnerError> {
        let Common { store, directory, limits, metrics, owner } = &self.common;
        if store.load_work(key).await?.is_empty() {
            return Ok(POLL);
        }
        let Some(address) = directory.find(&key.namespace, &key.name) else { return Ok(POLL) };
        let (lease, taken) = match Lease::take(store, key, *owner, limits).await? {
            Ok(taken) => taken,
            Err(remaining) => return Ok(remaining),
        };
        let owner = Owner::new(
            Arc::clone(store),
            &address,
            limits.clone(),
            metrics.clone(),
            (Arc::clone(&lease), taken),
        );
        let run = Box::pin(async { self.run_owner(owner?, &address, shutdown).await });
        let result = unless_panicked(run).await;
        lease.release().await;
        result
    }

    /// Runs the owner until it has nothing to do, or its door is not where it was.
    async fn run_owner(
        &self,
        owner: Owner,
        address: &SandboxAddress,
        shutdown: &CancellationToken,
    ) -> Result<Duration, OwnerError> {
        let refused = owner.refused();
        let stop = shutdown.child_token();
        let mut run = Box::pin(owner.run(&stop));
        let mut moved = Box::pin(self.moved(address));
        loop {
            tokio::select! {
                result = &mut run => return result.map(|()| POLL),
                () = &mut moved => {
                    stop.cancel();
                    return run.await.map(|()| Duration::ZERO);
                }
                () = refused.notified() => self.common.directory.refused(&self.key.namespace, &self.key.name),
            }
        }
    }

    /// Ends when the sandbox's door is somewhere else, or has another password.
    async fn moved(&self, address: &SandboxAddress) {
        let directory = &self.common.directory;
        let Some(mut changes) = directory.changes() else { return std::future::pending().await };
        loop {
            let now = directory.find(&self.key.namespace, &self.key.name);
            if now.is_some_and(|now| !now.leads_where(address)) {
                return;
            }
            if changes.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
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
