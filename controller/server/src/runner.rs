//! One runner per sandbox: it alone talks to the sandbox's door, and only while there is something to do.
//!
//! A runner waits for work, takes the sandbox over (which raises its fence in the store), and then is its *owner*
//! until nothing was to do for the linger time. What it learns it writes with its fence; whoever takes the sandbox
//! over later makes those writes fail.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    config::Limits,
    directory::{SandboxAddress, SandboxDirectory},
    http::error_chain,
    store::{SandboxKey, Store},
};

mod asks;
mod batch;
mod calls;
mod events;
mod link;
mod live;
mod owner;
#[cfg(test)]
mod tests;

use owner::{Owner, OwnerError};

/// A runner looks for work this often even if nobody woke it.
const POLL: Duration = Duration::from_secs(30);
/// Pause after a failure of the store or a lost sandbox.
const PAUSE: Duration = Duration::from_secs(1);

/// The runners of all sandboxes.
#[derive(Debug)]
pub(crate) struct Runners {
    tasks: TaskTracker,
    shutdown: CancellationToken,
}

impl Runners {
    /// Starts a runner for each sandbox of the directory.
    pub(crate) fn start(
        store: &Arc<dyn Store>,
        directory: &Arc<dyn SandboxDirectory>,
        limits: &Limits,
        shutdown: CancellationToken,
    ) -> Self {
        let tasks = TaskTracker::new();
        for address in directory.list() {
            let runner = Runner { store: Arc::clone(store), address, limits: limits.clone() };
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
}

impl Runner {
    async fn run(self, shutdown: CancellationToken) {
        let key = SandboxKey { namespace: self.address.namespace.clone(), name: self.address.name.clone() };
        let mut work = self.store.watch_work(&key);
        while !shutdown.is_cancelled() {
            work.borrow_and_update();
            match unless_panicked(self.run_if_needed(&key, &shutdown)).await {
                Ok(()) => {}
                Err(OwnerError::TakenOver) => {
                    tracing::warn!(
                        namespace = key.namespace,
                        sandbox = key.name,
                        "another owner took the sandbox over"
                    );
                    pause(PAUSE, &shutdown).await;
                }
                Err(error) => {
                    let error = error_chain(&error);
                    tracing::error!(
                        namespace = key.namespace,
                        sandbox = key.name,
                        error,
                        "runner failed; it starts again"
                    );
                    pause(PAUSE, &shutdown).await;
                    continue;
                }
            }
            tokio::select! {
                _ = work.changed() => {}
                () = pause(POLL, &shutdown) => {}
            }
        }
    }

    async fn run_if_needed(&self, key: &SandboxKey, shutdown: &CancellationToken) -> Result<(), OwnerError> {
        if self.store.load_work(key).await?.is_empty() {
            return Ok(());
        }
        let owner = Owner::take(Arc::clone(&self.store), &self.address, self.limits.clone()).await?;
        owner.run(shutdown).await
    }
}

/// A panic must not leave a sandbox without a runner.
async fn unless_panicked(run: impl Future<Output = Result<(), OwnerError>>) -> Result<(), OwnerError> {
    AssertUnwindSafe(run).catch_unwind().await.unwrap_or(Err(OwnerError::Panicked))
}

async fn pause(time: Duration, shutdown: &CancellationToken) {
    tokio::select! {
        () = tokio::time::sleep(time) => {}
        () = shutdown.cancelled() => {}
    }
}
