//! Starts a runner for each sandbox that is there, and for each that is not found and has something left to end. IO.
//!
//! A runner ends by itself, once its sandbox is gone and nothing is left: see [`super::Runner`]. Where the directory never
//! changes, the sandboxes that it has at the start are all.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    task::{AbortHandle, JoinSet},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{Common, POLL, Runner, defect::Defects, readiness::Readiness};
use crate::{directory::SandboxAddress, http::error_chain, store::SandboxKey};

/// Least time between two looks for what is left of sandboxes that are not found.
const APART: Duration = Duration::from_secs(1);

/// The runners that are there.
pub(super) struct Starter {
    common: Common,
    tasks: JoinSet<()>,
    running: HashMap<SandboxKey, AbortHandle>,
    /// When it is looked next for what is left of sandboxes that are not found.
    due: Instant,
    /// When it was looked last.
    looked_at: Option<Instant>,
}

impl Starter {
    pub(super) fn new(common: Common) -> Self {
        let (tasks, running) = (JoinSet::new(), HashMap::new());
        Self { common, tasks, running, due: Instant::now(), looked_at: None }
    }

    /// Starts runners until `shutdown`, then waits for their ends.
    pub(super) async fn run(mut self, shutdown: CancellationToken) {
        let mut changes = self.common.directory.changes();
        while !shutdown.is_cancelled() {
            if let Some(changes) = &mut changes {
                changes.borrow_and_update();
            }
            self.follow(&shutdown);
            if changes.is_some() && self.due <= Instant::now() {
                self.look(&shutdown).await;
            }
            tokio::select! {
                changed = changed(changes.as_mut()) => if changed {
                    self.due = self.due.min(self.looked_at.map_or_else(Instant::now, |at| at + APART));
                } else {
                    changes = None;
                },
                Some(ended) = self.tasks.join_next() => {
                    if let Err(error) = ended {
                        tracing::error!(error = error_chain(&error), "a runner broke off; it is started again");
                    }
                    self.running.retain(|_, task| !task.is_finished());
                }
                () = tokio::time::sleep_until(self.due), if changes.is_some() => {}
                () = shutdown.cancelled() => {}
            }
        }
        while self.tasks.join_next().await.is_some() {}
    }

    /// Starts a runner for each sandbox of the directory that has none.
    fn follow(&mut self, shutdown: &CancellationToken) {
        for SandboxAddress { namespace, name, .. } in self.common.directory.list() {
            self.start(SandboxKey { namespace, name }, shutdown);
        }
    }

    /// Starts a runner for each sandbox that has something left to do or to end, and that the directory does not find: it
    /// was deleted while this server did not run, or something was wished of it just as it went, or it lost its place.
    async fn look(&mut self, shutdown: &CancellationToken) {
        let now = Instant::now();
        (self.looked_at, self.due) = (Some(now), now + POLL);
        match self.common.store.sandboxes_with_work().await {
            Ok(sandboxes) => sandboxes.into_iter().for_each(|key| self.start(key, shutdown)),
            Err(error) => {
                tracing::warn!(error = error_chain(&error), "sandboxes with work cannot be read");
            }
        }
    }

    fn start(&mut self, key: SandboxKey, shutdown: &CancellationToken) {
        let (common, tasks) = (&self.common, &mut self.tasks);
        self.running.entry(key).or_insert_with_key(|key| {
            let readiness = Arc::new(Readiness::new(Arc::clone(&common.directory), key.clone()));
            let (common, key) = (common.clone(), key.clone());
            let runner = Runner { common, key, defects: Defects::default(), readiness };
            tasks.spawn(runner.run(shutdown.clone()))
        });
    }
}

/// Waits until the directory has changed; false when it will not any more.
async fn changed(changes: Option<&mut watch::Receiver<()>>) -> bool {
    match changes {
        Some(changes) => changes.changed().await.is_ok(),
        None => std::future::pending().await,
    }
}
