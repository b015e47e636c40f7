//! Runs the reconciler over all sandboxes until it is told to stop. IO.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use berth_api::{Sandbox, names};
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, Resource,
    core::DeserializeGuard,
    runtime::{
        Controller,
        controller::{Action, Config, Error},
        events::{Recorder, Reporter},
        watcher,
    },
};
use rand::RngExt;
use tokio_util::sync::CancellationToken;

use crate::{
    error::ReconcileError,
    platform::Platform,
    reconcile::{Context, reconcile},
};

/// Most passes at a time.
const CONCURRENCY: u16 = 16;

/// The first pause after a failure, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(5));

/// Of the whole run.
struct State {
    context: Context,
    /// Failures in a row, by the UID of the sandbox. One that is deleted leaves with its last success.
    failures: Mutex<HashMap<String, u32>>,
}

/// Cares for all sandboxes of the cluster until `shutdown`; passes that have begun are ended.
pub async fn run(client: Client, platform: Platform, shutdown: CancellationToken) {
    let recorder = Recorder::new(client.clone(), Reporter::from(names::MANAGER));
    let context = Context { client: client.clone(), platform: Arc::new(platform), recorder };
    let state = Arc::new(State { context, failures: Mutex::default() });
    let sandboxes: Api<DeserializeGuard<Sandbox>> = Api::all(client.clone());
    let ours = watcher::Config::default().labels(&format!("{}={}", names::MANAGED_BY, names::MANAGER));
    Controller::new(sandboxes, watcher::Config::default())
        .owns(Api::<Pod>::all(client), ours)
        .with_config(Config::default().concurrency(CONCURRENCY))
        .graceful_shutdown_on(async move { shutdown.cancelled().await })
        .run(pass, failed, state)
        .for_each(|result| {
            match result {
                // What a pass came to was logged where it failed; an object may be gone before its pass begins.
                Ok(_) | Err(Error::ReconcilerFailed(..) | Error::ObjectNotFound(_)) => {}
                Err(error) => {
                    tracing::warn!(error = chain(&error), "the cluster cannot be watched; it is tried again");
                }
            }
            std::future::ready(())
        })
        .await;
}

async fn pass(sandbox: Arc<DeserializeGuard<Sandbox>>, state: Arc<State>) -> Result<Action, ReconcileError> {
    let uid = uid(&sandbox);
    let sandbox = match &sandbox.0 {
        Ok(sandbox) => sandbox,
        Err(invalid) => {
            let metadata = &invalid.metadata;
            tracing::warn!(
                namespace = metadata.namespace,
                sandbox = metadata.name,
                error = %invalid.error,
                "a sandbox cannot be read; it is left as it is"
            );
            return Ok(Action::await_change());
        }
    };
    let action = Box::pin(reconcile(sandbox, &state.context)).await?;
    state.failures.lock().unwrap_or_else(PoisonError::into_inner).remove(&uid);
    Ok(action)
}

#[expect(clippy::needless_pass_by_value, reason = "the controller calls it so")]
fn failed(sandbox: Arc<DeserializeGuard<Sandbox>>, error: &ReconcileError, state: Arc<State>) -> Action {
    let attempt = {
        let mut failures = state.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let count = failures.entry(uid(&sandbox)).or_default();
        *count = count.saturating_add(1);
        *count
    };
    let metadata = sandbox.meta();
    tracing::warn!(
        namespace = metadata.namespace,
        sandbox = metadata.name,
        attempt,
        error = chain(error),
        "a sandbox was not reconciled; it is tried again"
    );
    Action::requeue(pause(attempt, rand::rng().random_range(0.5..1.0)))
}

fn uid(sandbox: &DeserializeGuard<Sandbox>) -> String {
    sandbox.meta().uid.clone().unwrap_or_default()
}

/// The pause after so many failures in a row, with this part of it kept. Pure.
fn pause(attempt: u32, part: f64) -> Duration {
    let (first, longest) = BACKOFF;
    let doubled = first.saturating_mul(1_u32.checked_shl(attempt.saturating_sub(1)).unwrap_or(u32::MAX));
    doubled.min(longest).mul_f64(part)
}

/// An error with all that is behind it.
fn chain(error: &dyn std::error::Error) -> String {
    let all = std::iter::successors(Some(error), |error| error.source());
    all.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        for (attempt, seconds) in
            [(1, 1), (2, 2), (5, 16), (9, 256), (10, 300), (32, 300), (33, 300), (u32::MAX, 300)]
        {
            assert_eq!(pause(attempt, 1.0), Duration::from_secs(seconds), "{attempt}");
        }
        assert_eq!(pause(2, 0.5), Duration::from_secs(1));
    }
}
