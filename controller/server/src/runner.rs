//! One runner per sandbox: it alone talks to the sandbox's door, and only while there is something to do.
//!
//! A runner waits for work, takes the sandbox over (a lease in the store, under a higher fence than any before), and then
//! is its *owner* until nothing was to do for the linger time. What it learns it writes with its fence; whoever takes the
//! sandbox over later makes those writes fail. While another process owns the sandbox it waits for the lease's end.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

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
    /// Starts a runner for each sandbox of the directory, each of which owns its sandbox as `owner`.
    pub(crate) fn start(
        store: &Arc<dyn Store>,
        directory: &Arc<dyn SandboxDirectory>,
        limits: &Limits,
        metrics: &Metrics,
        owner: Uuid,
        shutdown: CancellationToken,
    ) -> Self {
        let tasks = TaskTracker::new();
        for address in directory.list() {
            let (store, limits, metrics) = (Arc::clone(store), limits.clone(), metrics.clone());
            let runner = Runner { store, address, limits, metrics, owner };
            tasks.spawn(runner.run(shutdown.clone()));
        }
        tasks.close();
        Self { tasks, shutdown }
    }

    /// Stops every runner where it stands; what it had learned is in the store.
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        self.tasks.wait().await;
    }
}

struct Runner {
    store: Arc<dyn Store>,
    address: SandboxAddress,
    limits: Limits,
    metrics: Metrics,
    owner: Uuid,
}

impl Runner {
    async fn run(self, shutdown: CancellationToken) {
        let key = SandboxKey { namespace: self.address.namespace.clone(), name: self.address.name.clone() };
        let mut work = self.store.watch_work(&key);
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
        if self.store.load_work(key).await?.is_empty() {
            return Ok(POLL);
        }
        let (lease, taken) = match Lease::take(&self.store, key, self.owner, &self.limits).await? {
            Ok(taken) => taken,
            Err(remaining) => return Ok(remaining),
        };
        let owner = Owner::new(
            Arc::clone(&self.store),
            &self.address,
            self.limits.clone(),
            self.metrics.clone(),
            (Arc::clone(&lease), taken),
        );
        let run = Box::pin(async { owner?.run(shutdown).await.map(|()| POLL) });
        let result = unless_panicked(run).await;
        lease.release().await;
        result
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
