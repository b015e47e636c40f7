//! One pass over one sandbox: fetch, prepare, build, apply, tell. IO; what it decides by is pure and elsewhere.

use std::{sync::Arc, time::Duration};

use berth_api::{
    ConditionType, Reason, Sandbox, SandboxStatus,
    condition::{Finding, find, follow},
    layout, names,
    settings::OnDelete,
};
use berth_wire::problem::error_chain;
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
    runtime::{
        controller::Action,
        events::{Event, EventType, Recorder},
    },
};
use rand::RngExt;
use serde_json::json;

use crate::{
    apply::{Applied, Known, apply, keep_claim},
    build::build,
    decide::{PodStep, is_owned},
    door, ending,
    error::{ReconcileError, cannot},
    exits,
    judge::{self, Blocked, Seen, judge, reference},
    lifetime,
    memory::Memory,
    metrics::Metrics,
    moving::{Cordons, move_away},
    namespaces::Namespaces,
    passwords,
    platform::Platform,
    prepare::{PreparedWorkspace, lives, prepare},
    refusal, rotation,
};

/// How often a sandbox is looked at that nothing happens to, in seconds; up to a fifth is added.
const STEADY: u64 = 300;

/// How often a door is asked why its opencode does not answer, in seconds; up to a fifth is added.
const LOOK: u64 = 20;

/// Reasons for which a sandbox is not ready and nothing is wrong.
const USUAL: &[Reason] = &[
    Reason::Creating,
    Reason::Starting,
    Reason::OpencodeStarting,
    Reason::Deleting,
    Reason::Suspending,
    Reason::Suspended,
];

/// Longest message of a failure, in characters.
const MESSAGE_MAX: usize = 1000;

/// What every pass needs.
#[derive(Clone)]
pub(crate) struct Context {
    /// The cluster.
    pub(crate) client: Client,
    /// What the operator was told.
    pub(crate) platform: Arc<Platform>,
    /// Kept from the sweep while a pass makes something in them.
    pub(crate) namespaces: Namespaces,
    /// Writes Events.
    pub(crate) recorder: Recorder,
    /// Where it is counted.
    pub(crate) metrics: Metrics,
    /// What is remembered from pass to pass.
    pub(crate) memory: Arc<Memory>,
    /// Nodes that take no new pods.
    pub(crate) cordons: Cordons,
}

/// One pass, and when the next one is due if nothing happens before.
pub(crate) async fn reconcile(sandbox: &Sandbox, context: &Context) -> Result<Action, ReconcileError> {
    let namespace = sandbox.namespace().ok_or(ReconcileError::Incomplete("namespace"))?;
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &namespace);
    let pod = pods.get_opt(&names::pod(&sandbox.name_any())).await.map_err(cannot("read the pod"))?;
    if sandbox.metadata.deletion_timestamp.is_some() {
        return end(sandbox, context, &namespace, pod).await;
    }
    let now = Timestamp::now();
    let expires_at = expires_at(sandbox);
    let lives_for = expires_at.map(|at| lifetime::left(at, now));
    if lives_for == Some(None) {
        return expire(sandbox, context, &namespace).await;
    }
    ending::hold(&context.client, sandbox, &namespace).await?;
    let (mut applied, wanted, ephemeral) = Box::pin(make(sandbox, context, pod)).await?;
    let told = match &applied.pod {
        Some(pod) => Box::pin(door::look(context, sandbox, &namespace, pod)).await,
        None => door::Told::default(),
    };
    if let (Some(PodStep::Stop(_)), Some(pod)) = (&applied.step, &applied.pod) {
        applied.again = Box::pin(ending::stop(context, sandbox, &namespace, pod)).await?;
    }
    if let (Some(PodStep::Keep), Some(pod), Some(claim)) = (&applied.step, &applied.pod, &applied.claim) {
        Box::pin(move_away(context, sandbox, &namespace, (pod, claim))).await?;
    }
    let known = sandbox.status.as_ref().map(|status| status.last_exits.as_slice()).unwrap_or_default();
    let last_exits = exits::remember(known, applied.pod.as_ref(), told.state.as_ref(), now);
    let (secret, exchange) = match applied.secret {
        Some(secret) => {
            let exchanged =
                passwords::exchange(context, sandbox, secret, applied.pod.as_ref(), told.trouble.as_ref());
            Box::pin(exchanged).await.map(|(secret, again)| (Some(secret), again))?
        }
        None => (None, None),
    };
    let again = applied.again.or_else(|| applied.pod.as_ref().and_then(look_again)).unwrap_or_else(steady);
    let seen = Seen {
        blocked: applied.blocked.as_ref(),
        pod: applied.pod.as_ref(),
        door: told.trouble.as_ref(),
        claim: applied.claim.as_ref(),
        wanted: wanted.as_deref(),
        ephemeral,
        deleting: false,
        suspended: matches!(applied.step, Some(PodStep::Rest | PodStep::Stop(_)))
            || (sandbox.spec.suspended == Some(true) && applied.step == Some(PodStep::Wait)),
        next_pod_in: match applied.step {
            Some(PodStep::Later(pause)) => Some(pause.as_secs()),
            _ => None,
        },
        last_exits: &last_exits,
        expires_at,
        password_changed_at: secret.as_ref().and_then(rotation::changed_at),
        before: sandbox.status.as_ref(),
    };
    tell(sandbox, context, &namespace, &seen).await?;
    let soonest = [Some(again), exchange, lives_for.flatten()].into_iter().flatten().min();
    Ok(Action::requeue(soonest.unwrap_or(again)))
}

/// When the sandbox is to be deleted: as far as its manifest can be read.
fn expires_at(sandbox: &Sandbox) -> Option<Timestamp> {
    let made_at = sandbox.metadata.creation_timestamp.as_ref().map(|time| time.0);
    lifetime::expires_at(made_at, lives(&sandbox.spec.settings).ok().flatten())
}

/// The sandbox's time is over: it is deleted as by a person.
async fn expire(sandbox: &Sandbox, context: &Context, namespace: &str) -> Result<Action, ReconcileError> {
    let event = Event {
        type_: EventType::Normal,
        reason: Reason::Expired.to_string(),
        note: Some("The time is over that the manifest gives the sandbox in spec.expiresAfter".to_owned()),
        action: "Delete".to_owned(),
        secondary: None,
    };
    publish(sandbox, context, &event).await;
    tracing::info!(namespace, sandbox = sandbox.name_any(), "a sandbox whose time is over is deleted");
    let api: Api<Sandbox> = Api::namespaced(context.client.clone(), namespace);
    let preconditions = Preconditions { uid: sandbox.uid(), resource_version: None };
    let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    match api.delete(&sandbox.name_any(), &parameters).await {
        Ok(_) => Ok(Action::await_change()),
        Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => Ok(Action::await_change()),
        Err(error) => Err(cannot("delete the sandbox, whose time is over")(error)),
    }
}

/// When to look again at a pod whose containers run and whose door is not ready: no watch tells what becomes of opencode.
fn look_again(pod: &Pod) -> Option<Duration> {
    let waits = judge::running_since(pod, layout::SIDECAR).is_some()
        && judge::running_since(pod, layout::SANDBOX).is_some()
        && !judge::is_sidecar_ready(pod);
    waits.then(|| Duration::from_secs(rand::rng().random_range(LOOK..=LOOK + LOOK / 5)))
}

fn steady() -> Duration {
    Duration::from_secs(rand::rng().random_range(STEADY..=STEADY + STEADY / 5))
}

/// Everything that the manifest asks for, the hash of the pod that it would have, and whether its work is lost with that.
async fn make(
    sandbox: &Sandbox,
    context: &Context,
    pod: Option<Pod>,
) -> Result<(Applied, Option<String>, bool), ReconcileError> {
    let prepared = match prepare(sandbox, &context.platform) {
        Ok(prepared) => prepared,
        Err(error) => {
            let blocked = Blocked { reason: Reason::Invalid, message: error.message() };
            let uid = sandbox.uid().unwrap_or_default();
            let pod = pod.filter(|pod| is_owned(pod, &uid));
            let ephemeral =
                sandbox.spec.settings.workspace.as_ref().is_some_and(|place| place.ephemeral.is_some());
            return Ok((Applied { pod, blocked: Some(blocked), ..Applied::default() }, None, ephemeral));
        }
    };
    let resources = build(&prepared, &context.platform);
    let wanted = resources.pod.annotations().get(names::POD_HASH).cloned();
    let ephemeral = matches!(prepared.workspace, PreparedWorkspace::Ephemeral { .. });
    let _inside = context.namespaces.enter(&prepared.namespace).await;
    let status = sandbox.status.as_ref();
    let known = Known {
        exits: status.map(|status| status.last_exits.as_slice()).unwrap_or_default(),
        at_work: status.is_some_and(|status| status.at_work_since.is_some()),
    };
    let applied = Box::pin(apply(&context.client, &prepared, resources, pod, known)).await?;
    Ok((applied, wanted, ephemeral))
}

async fn end(
    sandbox: &Sandbox,
    context: &Context,
    namespace: &str,
    pod: Option<Pod>,
) -> Result<Action, ReconcileError> {
    let uid = sandbox.uid().unwrap_or_default();
    let pod = pod.filter(|pod| is_owned(pod, &uid));
    if sandbox.spec.settings.on_delete == Some(OnDelete::Retain) {
        keep_claim(&context.client, sandbox, namespace).await?;
    }
    let Some(again) = ending::end(&context.client, sandbox, namespace, pod.as_ref()).await? else {
        return Ok(Action::await_change());
    };
    let before = sandbox.status.as_ref();
    let last_exits = before.map(|before| before.last_exits.as_slice()).unwrap_or_default();
    let expires_at = expires_at(sandbox);
    let seen = Seen { pod: pod.as_ref(), deleting: true, last_exits, expires_at, before, ..Seen::default() };
    tell(sandbox, context, namespace, &seen).await?;
    Ok(Action::requeue(again))
}

/// Tells that passes over a sandbox fail, with the reason of the last one. Once: what differs in the words of the same
/// failure is not written, since each write brings the next pass at once.
pub(crate) async fn tell_failure(
    sandbox: &Sandbox,
    context: &Context,
    error: &ReconcileError,
) -> Result<(), ReconcileError> {
    let namespace = sandbox.namespace().ok_or(ReconcileError::Incomplete("namespace"))?;
    let before = sandbox.status.as_ref();
    let told = before.and_then(|before| find(&before.conditions, ConditionType::Reconciled));
    let again =
        told.is_some_and(|told| told.status == "False" && told.message.starts_with(&error.to_string()));
    if again {
        return Ok(());
    }
    let message: String = error_chain(error).chars().take(MESSAGE_MAX).collect();
    let findings = judge::judge_failure(before, &message);
    let status = failed_status(before, &findings, &Time(Timestamp::now()));
    write(sandbox, context, &namespace, &status, &findings).await
}

/// Writes the status when it differs.
async fn tell(
    sandbox: &Sandbox,
    context: &Context,
    namespace: &str,
    seen: &Seen<'_>,
) -> Result<(), ReconcileError> {
    let findings = judge(seen);
    let status = next_status(sandbox, seen, &findings, &Time(Timestamp::now()));
    if sandbox.status.as_ref() == Some(&status) {
        return Ok(());
    }
    write(sandbox, context, namespace, &status, &findings).await
}

/// Writes the status, and an Event when `Ready` turned or has another reason.
async fn write(
    sandbox: &Sandbox,
    context: &Context,
    namespace: &str,
    status: &SandboxStatus,
    findings: &[Finding],
) -> Result<(), ReconcileError> {
    let api: Api<Sandbox> = Api::namespaced(context.client.clone(), namespace);
    // What the server tells there is not ours to write.
    let status = SandboxStatus { at_work_since: None, ..status.clone() };
    let object = json!({
        "apiVersion": Sandbox::api_version(&()), "kind": Sandbox::kind(&()),
        "metadata": { "uid": sandbox.metadata.uid }, "status": status,
    });
    let parameters = PatchParams::apply(names::MANAGER).force();
    match api.patch_status(&sandbox.name_any(), &parameters, &Patch::Apply(&object)).await {
        Ok(_) => {}
        // It is gone meanwhile.
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
        Err(error) => return Err(cannot("write the status")(error)),
    }
    let Some((ready, event)) = transition(sandbox.status.as_ref(), findings) else { return Ok(()) };
    context.metrics.turned(ready.status(), ready.reason);
    publish(sandbox, context, &event).await;
    Ok(())
}

/// Writes an Event, once: the status says the same, and a pass that is made again would not tell it again.
pub(crate) async fn publish(sandbox: &Sandbox, context: &Context, event: &Event) {
    match context.recorder.publish(event, &sandbox.object_ref(&())).await {
        Err(kube::Error::Api(status)) if refusal::is_of_a_gone_namespace(&status) => {}
        Err(error) => {
            let (namespace, sandbox, error) = (sandbox.namespace(), sandbox.name_any(), error_chain(&error));
            tracing::warn!(namespace, sandbox, error, "an event was not written");
        }
        Ok(()) => {}
    }
}

/// The status after a pass that failed: what nobody looked at stays. Pure.
fn failed_status(before: Option<&SandboxStatus>, findings: &[Finding], now: &Time) -> SandboxStatus {
    let status = before.cloned().unwrap_or_default();
    let conditions = follow(&status.conditions, findings, status.observed_generation, now);
    SandboxStatus { conditions, ..status }
}

/// The status that follows. Pure.
fn next_status(sandbox: &Sandbox, seen: &Seen<'_>, findings: &[Finding], now: &Time) -> SandboxStatus {
    let before = sandbox.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    SandboxStatus {
        observed_generation: sandbox.metadata.generation,
        conditions: follow(before, findings, sandbox.metadata.generation, now),
        pod: reference(seen),
        secret_name: Some(names::secret(&sandbox.name_any())),
        model: sandbox.spec.settings.model.clone(),
        password_changed_at: seen
            .password_changed_at
            .map(Time)
            .or_else(|| sandbox.status.as_ref()?.password_changed_at.clone()),
        last_exits: seen.last_exits.to_vec(),
        at_work_since: sandbox.status.as_ref().and_then(|status| status.at_work_since.clone()),
        expires_at: seen.expires_at.map(Time),
        ..SandboxStatus::default()
    }
}

/// A turn of `Ready`, or of its reason, and the Event for it. Pure.
fn transition<'a>(before: Option<&SandboxStatus>, findings: &'a [Finding]) -> Option<(&'a Finding, Event)> {
    let ready = findings.iter().find(|finding| finding.kind == ConditionType::Ready)?;
    let last = before.and_then(|before| find(&before.conditions, ConditionType::Ready));
    if last.is_some_and(|last| last.status == ready.status() && last.reason == ready.reason.as_str()) {
        return None;
    }
    let warning = ready.holds != Some(true) && !USUAL.contains(&ready.reason);
    let event = Event {
        type_: if warning { EventType::Warning } else { EventType::Normal },
        reason: ready.reason.to_string(),
        note: Some(ready.message.chars().take(1000).collect()),
        action: "Reconcile".to_owned(),
        secondary: None,
    };
    Some((ready, event))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::sample;

    fn status(seen: &Seen<'_>, sandbox: &Sandbox, second: i64) -> SandboxStatus {
        next_status(sandbox, seen, &judge(seen), &Time(Timestamp::from_second(second).unwrap()))
    }

    #[test]
    fn a_second_pass_over_the_same_writes_nothing() {
        let mut sandbox = sample::sandbox(json!({}));
        let first = status(&Seen::default(), &sandbox, 1);
        sandbox.status = Some(first.clone());
        let seen = Seen { before: sandbox.status.as_ref(), ..Seen::default() };
        assert_eq!(status(&seen, &sandbox, 2), first);
        assert_eq!(first.observed_generation, Some(3));
    }

    #[test]
    fn an_event_comes_with_a_transition_and_not_with_a_pass() {
        let mut sandbox = sample::sandbox(json!({}));
        let findings = judge(&Seen::default());
        let (_, event) = transition(None, &findings).unwrap();
        assert_eq!((event.type_, event.reason.as_str()), (EventType::Normal, "Creating"));
        sandbox.status = Some(status(&Seen::default(), &sandbox, 1));
        assert!(transition(sandbox.status.as_ref(), &findings).is_none());
        let blocked = Blocked { reason: Reason::QuotaExceeded, message: "m".repeat(5000) };
        let findings = judge(&Seen { blocked: Some(&blocked), ..Seen::default() });
        let (_, event) = transition(sandbox.status.as_ref(), &findings).unwrap();
        assert_eq!((event.type_, event.reason.as_str()), (EventType::Warning, "QuotaExceeded"));
        assert_eq!(event.note.unwrap().len(), 1000, "the cluster takes 1024");
    }
}
