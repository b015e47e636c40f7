//! The end of a sandbox, or of the pod of one that is to rest: its turns are aborted, and when all is idle, or after a bound,
//! the finalizer goes, or the pod. IO, around [`decide`], which is pure.

use std::time::Duration;

use berth_api::{Sandbox, layout, names};
use berth_opencode::{ClientError, OpencodeClient};
use berth_wire::{
    admission::{HeldPhase, HoldGate},
    api::SandboxPhase,
    door::{Activity, DoorTurns},
    problem::error_chain,
};
use k8s_openapi::{
    api::core::v1::{Namespace, Pod},
    jiff::Timestamp,
};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::time::Instant;

use crate::{
    apply::remove,
    door,
    error::{ReconcileError, cannot},
    judge,
    reconcile::Context,
};

/// How long turns may take to end after the deletion was asked for, in seconds.
const BOUND: i64 = 20;

/// For how long prompts are kept out of a pod that is to go, in ms: longer than its turns may take to end.
const GATE: u64 = 60_000;

/// How soon it is looked again whether they have.
const AGAIN: Duration = Duration::from_secs(1);

/// How the end goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// The finalizer may go.
    Release,
    /// Turns still run, and have time left.
    Wait,
}

/// What a door told about its turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turns {
    /// Nothing runs.
    Idle,
    /// Something runs, or it is not known.
    Busy,
    /// Nobody is there to ask, or to be waited for.
    Gone,
}

fn decide(turns: Turns, seconds_since: i64) -> Ending {
    match turns {
        Turns::Idle | Turns::Gone => Ending::Release,
        Turns::Busy if seconds_since >= BOUND => Ending::Release,
        Turns::Busy => Ending::Wait,
    }
}

/// One step towards the end: when to look again, or `None` when the finalizer is off.
pub(crate) async fn end(
    client: &Client,
    sandbox: &Sandbox,
    namespace: &str,
    pod: Option<&Pod>,
) -> Result<Option<Duration>, ReconcileError> {
    if !sandbox.finalizers().iter().any(|name| name == names::FINALIZER) {
        return Ok(None);
    }
    let asked = sandbox.metadata.deletion_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
    let seconds = Timestamp::now().duration_since(asked).as_secs();
    let turns = if is_ending(client, namespace).await? {
        Turns::Gone
    } else {
        abort_turns(client, sandbox, namespace, pod).await?
    };
    if decide(turns, seconds) == Ending::Wait {
        return Ok(Some(AGAIN));
    }
    if turns == Turns::Busy {
        tracing::warn!(namespace, sandbox = sandbox.name_any(), "turns did not end within their bound");
    }
    release(client, sandbox, namespace).await?;
    Ok(None)
}

/// One step towards the end of the pod of a sandbox that is to rest: when to look again, or `None` when it was removed.
/// Prompts are kept out meanwhile, and wait at the server.
pub(crate) async fn stop(
    Context { client, memory, .. }: &Context,
    sandbox: &Sandbox,
    namespace: &str,
    pod: &Pod,
) -> Result<Option<Duration>, ReconcileError> {
    let Some(uid) = pod.metadata.uid.clone() else { return Ok(None) };
    let seconds = memory.ends_for(&uid, Instant::now());
    if seconds == 0 && can_be_asked(pod) {
        keep_out(client, sandbox, namespace, pod).await?;
    }
    let turns = abort_turns(client, sandbox, namespace, Some(pod)).await?;
    if decide(turns, seconds) == Ending::Wait {
        return Ok(Some(AGAIN));
    }
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    remove(&api, &pod.name_any(), uid, None).await?;
    Ok(None)
}

/// Has the door take no new prompts. One that is too old for that, or kept closed by somebody else, changes nothing.
async fn keep_out(
    client: &Client,
    sandbox: &Sandbox,
    namespace: &str,
    pod: &Pod,
) -> Result<(), ReconcileError> {
    let Some(door) = door::connect(client, sandbox, namespace, pod).await? else { return Ok(()) };
    let gate = HoldGate {
        owner: names::MANAGER.to_owned(),
        reason: "the sandbox is to rest".to_owned(),
        ttl_ms: GATE,
        phase: HeldPhase::Draining,
        generation: None,
        wait_ms: 0,
        idle: false,
    };
    if let Err(error) = door.hold_gate(&gate).await {
        tracing::debug!(
            namespace,
            sandbox = sandbox.name_any(),
            error = error_chain(&error),
            "the gate stays open"
        );
    }
    Ok(())
}

/// In a namespace that goes away everything goes at once: to hold it up would leave the namespace hanging.
async fn is_ending(client: &Client, namespace: &str) -> Result<bool, ReconcileError> {
    let api: Api<Namespace> = Api::all(client.clone());
    let namespace = api.get_opt(namespace).await.map_err(cannot("read the namespace"))?;
    Ok(namespace.is_none_or(|namespace| namespace.metadata.deletion_timestamp.is_some()))
}

async fn abort_turns(
    client: &Client,
    sandbox: &Sandbox,
    namespace: &str,
    pod: Option<&Pod>,
) -> Result<Turns, ReconcileError> {
    let Some(pod) = pod.filter(|pod| can_be_asked(pod)) else { return Ok(Turns::Gone) };
    let Some(door) = door::connect(client, sandbox, namespace, pod).await? else { return Ok(Turns::Gone) };
    match ask_door(&door).await {
        Ok(turns) => Ok(turns),
        Err(ClientError::PortTaken | ClientError::Unauthorized) => Ok(Turns::Gone),
        Err(error) => {
            tracing::debug!(namespace, error = %error, "the door cannot be asked about its turns");
            Ok(Turns::Busy)
        }
    }
}

/// Whether turns can run in the pod, and somebody is there to be asked about them, or will be soon.
fn can_be_asked(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none()
        && judge::running_since(pod, layout::SANDBOX).is_some()
        && !judge::is_waiting(pod, layout::SIDECAR)
}

async fn ask_door(door: &OpencodeClient) -> Result<Turns, ClientError> {
    // Nothing runs in an opencode that does not run: in one that ends again and again nothing ever will.
    if door.door_state().await?.phase != SandboxPhase::Ready {
        return Ok(Turns::Idle);
    }
    let turns = door.door_turns().await?;
    for (directory, session) in running(&turns) {
        door.abort(directory, session).await?;
    }
    Ok(if turns.activity == Activity::Idle { Turns::Idle } else { Turns::Busy })
}

/// The sessions to abort: a subagent's ends with the one for which it works.
fn running(turns: &DoorTurns) -> impl Iterator<Item = (&str, &str)> {
    turns.sessions.iter().filter(|session| session.parent_id.is_none()).map(|session| {
        (session.directory.as_deref().unwrap_or(layout::DIRECTORY), session.session_id.as_str())
    })
}

/// Takes our finalizer off, and no other; only from the object as it was seen.
async fn release(client: &Client, sandbox: &Sandbox, namespace: &str) -> Result<(), ReconcileError> {
    let rest: Vec<&String> = sandbox.finalizers().iter().filter(|name| *name != names::FINALIZER).collect();
    write_finalizers(client, sandbox, namespace, &json!(rest), "take the finalizer off").await
}

/// Puts our finalizer on; not on one that is being deleted, the cluster refuses that.
pub(crate) async fn hold(client: &Client, sandbox: &Sandbox, namespace: &str) -> Result<(), ReconcileError> {
    if sandbox.finalizers().iter().any(|name| name == names::FINALIZER) {
        return Ok(());
    }
    let all: Vec<&str> = sandbox.finalizers().iter().map(String::as_str).chain([names::FINALIZER]).collect();
    write_finalizers(client, sandbox, namespace, &json!(all), "put the finalizer on").await
}

async fn write_finalizers(
    client: &Client,
    sandbox: &Sandbox,
    namespace: &str,
    finalizers: &serde_json::Value,
    what: &'static str,
) -> Result<(), ReconcileError> {
    let api: Api<Sandbox> = Api::namespaced(client.clone(), namespace);
    let change = json!({ "metadata": {
        "resourceVersion": sandbox.metadata.resource_version, "uid": sandbox.metadata.uid, "finalizers": finalizers,
    } });
    match api.patch_metadata(&sandbox.name_any(), &PatchParams::default(), &Patch::Merge(&change)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(cannot(what)(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_have_until_the_bound() {
        for (turns, seconds, expected) in [
            (Turns::Idle, 0, Ending::Release),
            (Turns::Gone, 0, Ending::Release),
            (Turns::Busy, BOUND - 1, Ending::Wait),
            (Turns::Busy, BOUND, Ending::Release),
        ] {
            assert_eq!(decide(turns, seconds), expected, "{turns:?} {seconds}");
        }
    }

    #[test]
    fn where_opencode_does_not_run_there_are_no_turns_to_wait_for() {
        let running = || json!({ "running": { "startedAt": "2026-11-30T12:00:00Z" } });
        let waiting = || json!({ "waiting": { "reason": "CrashLoopBackOff" } });
        let ended = || json!({ "terminated": { "exitCode": 1 } });
        let pod = |sidecar: serde_json::Value, sandbox: serde_json::Value| -> Pod {
            let container = |name: &str, state: serde_json::Value| json!({ "name": name, "ready": false, "restartCount": 0, "image": "", "imageID": "", "state": state });
            serde_json::from_value(json!({ "metadata": {}, "status": {
                "initContainerStatuses": [container("sidecar", sidecar)],
                "containerStatuses": [container("sandbox", sandbox)],
            } }))
            .unwrap()
        };
        assert!(can_be_asked(&pod(running(), running())));
        assert!(can_be_asked(&pod(ended(), running())), "it is started again at once");
        assert!(!can_be_asked(&pod(waiting(), running())), "it will not be started soon");
        for state in [waiting(), ended(), json!({ "waiting": { "reason": "ContainerCreating" } })] {
            assert!(!can_be_asked(&pod(running(), state)));
        }
        assert!(!can_be_asked(&Pod::default()), "no container was started yet");
    }

    #[test]
    fn subagents_end_with_whom_they_work_for() {
        let turns: DoorTurns =
            serde_json::from_value(json!({ "activity": "busy", "omitted": 0, "sessions": [
            { "session_id": "ses_1", "directory": "/w", "parent_id": null, "busy": true, "turns": [] },
            { "session_id": "ses_2", "directory": "/w", "parent_id": "ses_1", "busy": true, "turns": [] },
            { "session_id": "ses_3", "directory": null, "parent_id": null, "busy": true, "turns": [] },
        ] }))
            .unwrap();
        assert_eq!(running(&turns).collect::<Vec<_>>(), [("/w", "ses_1"), (layout::DIRECTORY, "ses_3")]);
    }
}
