//! Runs the operator: waits for the Lease, then the reconciler over all sandboxes until it is told to stop. IO.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use berth_api::{Sandbox, names};
use berth_wire::problem::error_chain;
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{Node, Pod};
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
use tokio::{task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    build::network,
    election::{Candidate, LeadershipLost},
    error::ReconcileError,
    metrics::Metrics,
    moving::Cordons,
    namespaces::Namespaces,
    platform::Platform,
    pulse::Pulse,
    reconcile::{Context, reconcile, tell_failure},
    sweep::{self, Swept},
};

/// Most passes at a time.
const CONCURRENCY: u16 = 16;

/// The first pause after a failure, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(5));

/// Bound on telling of a failure.
const TELL: Duration = Duration::from_secs(5);

/// Of the whole run.
struct State {
    context: Context,
    /// Failures in a row, by the UID of the sandbox. One that is deleted leaves with its last success.
    failures: Mutex<HashMap<String, u32>>,
}

/// What an operator is.
#[derive(Debug, Clone)]
pub struct Operator {
    /// What it was told.
    pub platform: Platform,
    /// By which it waits for its turn; it works at once when absent.
    pub candidate: Option<Candidate>,
    /// For how long nobody must have used what a namespace's sandboxes share before it is removed.
    pub sweep_after: Duration,
    /// Where it counts.
    pub metrics: Metrics,
    /// What probes are told.
    pub pulse: Pulse,
}

/// Cares for all sandboxes of the cluster until `shutdown`; passes that have begun are ended. At the loss of the Lease it
/// ends at once, and so must the process: passes may go on in tasks of their own.
pub async fn run(
    client: Client,
    operator: Operator,
    shutdown: CancellationToken,
) -> Result<(), LeadershipLost> {
    let Operator { platform, candidate, sweep_after, metrics, pulse } = operator;
    let mut beat = JoinSet::new();
    beat.spawn(pulse.beat(client.clone(), shutdown.clone()));
    let Some(candidate) = candidate else {
        work(client, platform, sweep_after, metrics, shutdown).await;
        return Ok(());
    };
    let Some(mut held) = candidate.win(&client, &shutdown).await else { return Ok(()) };
    tokio::select! {
        () = work(client, platform, sweep_after, metrics, shutdown) => {}
        lost = held.keep() => return Err(lost),
    }
    held.give_up().await;
    Ok(())
}

/// Everything that one operator at a time does.
async fn work(
    client: Client,
    platform: Platform,
    sweep_after: Duration,
    metrics: Metrics,
    shutdown: CancellationToken,
) {
    metrics.leading.set(1);
    let mut tasks = JoinSet::new();
    let swept = Swept { current: network::rule_set_hash(&platform.network), quiet: sweep_after };
    let namespaces = Namespaces::default();
    tasks.spawn(sweep::run(client.clone(), swept, namespaces.clone(), metrics.clone(), shutdown.clone()));
    Box::pin(reconcile_all(client, platform, namespaces, metrics, shutdown)).await;
    while tasks.join_next().await.is_some() {}
}

async fn reconcile_all(
    client: Client,
    platform: Platform,
    namespaces: Namespaces,
    metrics: Metrics,
    shutdown: CancellationToken,
) {
    let recorder = Recorder::new(client.clone(), Reporter::from(names::MANAGER));
    let context = Context {
        client: client.clone(),
        platform: Arc::new(platform),
        namespaces,
        recorder,
        metrics: metrics.clone(),
        memory: Arc::default(),
        cordons: Cordons::default(),
    };
    let cordons = context.cordons.clone();
    let state = Arc::new(State { context, failures: Mutex::default() });
    let sandboxes: Api<DeserializeGuard<Sandbox>> = Api::all(client.clone());
    let ours = watcher::Config::default().labels(&format!("{}={}", names::MANAGED_BY, names::MANAGER));
    let controller = Controller::new(sandboxes, watcher::Config::default());
    let known = controller.store();
    metrics.know(known.clone());
    controller
        .owns(Api::<Pod>::all(client.clone()), ours)
        .watches(Api::<Node>::all(client), watcher::Config::default(), move |node| {
            cordons.concerned(&node, &known)
        })
        .with_config(Config::default().concurrency(CONCURRENCY))
        .graceful_shutdown_on(async move { shutdown.cancelled().await })
        .run(pass, failed, state)
        .for_each(|result| {
            match result {
                // What a pass came to was logged where it failed; an object may be gone before its pass begins.
                Ok(_) | Err(Error::ReconcilerFailed(..) | Error::ObjectNotFound(_)) => {}
                Err(error) => {
                    tracing::warn!(
                        error = error_chain(&error),
                        "the cluster cannot be watched; it is tried again"
                    );
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
    match counted(&state.context, Box::pin(reconcile(sandbox, &state.context))).await {
        Ok(action) => {
            state.failures.lock().unwrap_or_else(PoisonError::into_inner).remove(&uid);
            Ok(action)
        }
        Err(error) => {
            Box::pin(note_failure(sandbox, &uid, &error, &state)).await;
            Err(error)
        }
    }
}

/// Tells of failures in the status, where they are not over within a second.
async fn note_failure(sandbox: &Sandbox, uid: &str, error: &ReconcileError, state: &State) {
    let before = state.failures.lock().unwrap_or_else(PoisonError::into_inner).get(uid).copied();
    if !is_told(before.unwrap_or(0), error.is_conflict()) {
        return;
    }
    let told = tokio::time::timeout(TELL, tell_failure(sandbox, &state.context, error)).await;
    let error = match told {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error_chain(&error),
        Err(late) => late.to_string(),
    };
    let (namespace, sandbox) = (&sandbox.metadata.namespace, &sandbox.metadata.name);
    tracing::debug!(namespace, sandbox, error, "a failure cannot be told in the status");
}

/// Whether a failure after so many others in a row is one to tell. Pure.
fn is_told(before: u32, is_conflict: bool) -> bool {
    before >= if is_conflict { 3 } else { 1 }
}

/// Counts a pass, and how long it takes.
async fn counted(
    context: &Context,
    pass: impl Future<Output = Result<Action, ReconcileError>>,
) -> Result<Action, ReconcileError> {
    let since = Instant::now();
    context.metrics.passing.inc();
    let result = pass.await;
    context.metrics.passing.dec();
    context.metrics.passed(result.is_ok(), since.elapsed().as_secs_f64());
    result
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
    let (namespace, sandbox, error, usual) =
        (&metadata.namespace, &metadata.name, error_chain(error), error.is_conflict() && attempt == 1);
    if usual {
        tracing::debug!(namespace, sandbox, error, "a sandbox was changed meanwhile; it is looked at again");
    } else {
        tracing::warn!(namespace, sandbox, attempt, error, "a sandbox was not reconciled; it is tried again");
    }
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

#[cfg(test)]
mod tests {
    use berth_api::{ConditionType, condition::find};
    use k8s_openapi::{
        apimachinery::pkg::apis::meta::v1::Time,
        jiff::{SignedDuration, Timestamp},
    };
    use serde_json::json;

    use super::*;
    use crate::{build::sample, fake};

    fn guarded(sandbox: &Sandbox) -> Arc<DeserializeGuard<Sandbox>> {
        Arc::new(DeserializeGuard(Ok(sandbox.clone())))
    }

    /// A sandbox that was ready.
    fn ready() -> Sandbox {
        let mut sandbox = sample::sandbox(json!({}));
        sandbox.metadata.finalizers = Some(vec![names::FINALIZER.to_owned()]);
        sandbox.status = serde_json::from_value(json!({ "observedGeneration": 2, "conditions": [
            { "type": "Ready", "status": "True", "reason": "Available", "message": "", "lastTransitionTime": "2026-11-30T12:00:00Z" },
            { "type": "PodReady", "status": "True", "reason": "Available", "message": "", "lastTransitionTime": "2026-11-30T12:00:00Z", "observedGeneration": 2 },
        ] }))
        .unwrap();
        sandbox
    }

    #[tokio::test]
    async fn passes_that_fail_are_told_in_the_status_instead_of_what_was_so_before() {
        let (context, calls) = fake::context(|call| match call.method.as_str() {
            "GET" => fake::refused(500, "etcdserver: request timed out"),
            "PATCH" => (200, serde_json::to_value(ready()).unwrap()),
            _ => (200, call.body.clone()),
        });
        let state = Arc::new(State { context, failures: Mutex::default() });
        let mut sandbox = ready();
        for attempt in 1..=4 {
            let error = pass(guarded(&sandbox), Arc::clone(&state)).await.unwrap_err();
            failed(guarded(&sandbox), &error, Arc::clone(&state));
            let told = calls.of("PATCH", "/status");
            assert_eq!(
                told.len(),
                usize::from(attempt > 1),
                "the first may pass, and more of the same is not told"
            );
            if let Some(told) = told.last() {
                sandbox.status = serde_json::from_value(told.body["status"].clone()).unwrap();
            }
        }
        let status = sandbox.status.unwrap();
        let told = |kind| find(&status.conditions, kind).unwrap();
        for (kind, holds) in [(ConditionType::Ready, "Unknown"), (ConditionType::Reconciled, "False")] {
            assert_eq!((told(kind).status.as_str(), told(kind).reason.as_str()), (holds, "ReconcileFailed"));
            let message = &told(kind).message;
            assert!(message.contains("read the pod") && message.contains("timed out"), "{message}");
        }
        assert_eq!(told(ConditionType::PodReady).status, "True", "it is as it was seen last");
        assert_eq!(status.observed_generation, Some(2), "the manifest of now was not looked at");
        let events = calls.of("POST", "/events");
        assert_eq!(events.iter().map(|event| &event.body["reason"]).collect::<Vec<_>>(), ["ReconcileFailed"]);
    }

    #[tokio::test]
    async fn one_whose_time_is_over_is_deleted_and_no_other() {
        for (lives, expected) in [("100d", 0), ("1m", 1)] {
            let (context, calls) = fake::context(|call| match call.method.as_str() {
                "DELETE" => (200, json!({ "kind": "Status", "status": "Success" })),
                "GET" if call.path.ends_with("-sandbox") => fake::refused(404, "none"),
                "POST" => (200, call.body.clone()),
                _ => fake::refused(500, "enough"),
            });
            let state = Arc::new(State { context, failures: Mutex::default() });
            let mut sandbox = ready();
            sandbox.spec.settings.expires_after = Some(lives.to_owned());
            sandbox.metadata.creation_timestamp = Some(Time(Timestamp::now() - SignedDuration::from_mins(2)));
            let _ = pass(guarded(&sandbox), Arc::clone(&state)).await;
            let deleted = calls.of("DELETE", "/sandboxes/one");
            assert_eq!(deleted.len(), expected, "{lives}");
            assert!(deleted.iter().all(|call| call.body["preconditions"]["uid"] == sample::UID));
            let told = calls.of("POST", "/events");
            assert_eq!(told.iter().filter(|event| event.body["reason"] == "Expired").count(), expected);
        }
    }

    #[test]
    fn what_passes_by_itself_is_not_told() {
        for (before, is_conflict, expected) in [
            (0, false, false),
            (1, false, true),
            (9, false, true),
            (0, true, false),
            (2, true, false),
            (3, true, true),
        ] {
            assert_eq!(is_told(before, is_conflict), expected, "{before} {is_conflict}");
        }
    }

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
