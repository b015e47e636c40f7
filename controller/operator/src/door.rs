//! A sandbox's door, as the operator asks it: it proves itself before it is sent the password. IO, but for
//! [`read_state`] and [`is_late`].

use std::time::Duration;

use berth_api::{Reason, Sandbox, layout, names};
use berth_opencode::{ClientConfig, ClientError, OpencodeClient};
use berth_wire::{api::SandboxPhase, door::DoorState, problem::error_chain};
use k8s_openapi::{
    api::core::v1::{Pod, Secret},
    jiff::Timestamp,
};
use kube::{Api, Client, ResourceExt};
use secrecy::SecretString;
use tokio::time::Instant;

use crate::{
    error::{ReconcileError, cannot},
    judge::{self, Trouble},
    reconcile::Context,
};

/// Bound on one call to a door.
const CALL: Duration = Duration::from_secs(3);

/// How long containers may run before it is asked why opencode does not answer.
const LATE: i64 = 20;

/// Runs of opencode that ended before it answered, after which it is said to end again and again.
const RUNS: u64 = 3;

/// A client of the door of this pod; nothing where the pod has no address, or the sandbox no password.
pub(crate) async fn connect(
    client: &Client,
    sandbox: &Sandbox,
    namespace: &str,
    pod: &Pod,
) -> Result<Option<OpencodeClient>, ReconcileError> {
    let ip = pod.status.as_ref().and_then(|status| status.pod_ip.as_deref());
    let (Some(uid), Some(ip)) = (pod.metadata.uid.clone(), ip) else { return Ok(None) };
    let Some(password) = read_password(client, sandbox, namespace).await? else { return Ok(None) };
    let host = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
    let mut config = ClientConfig::new(format!("http://{host}:{}", layout::DOOR_PORT), password);
    (config.connect_timeout, config.request_timeout) = (CALL, CALL);
    (config.prove, config.pod_uid) = (true, Some(uid));
    // The address is the cluster's: what is wrong with it passes with the pod.
    Ok(OpencodeClient::new(config).ok())
}

async fn read_password(
    client: &Client,
    sandbox: &Sandbox,
    namespace: &str,
) -> Result<Option<SecretString>, ReconcileError> {
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let secret = api.get_opt(&names::secret(&sandbox.name_any())).await.map_err(cannot("read the secret"))?;
    let bytes = secret.and_then(|secret| secret.data?.remove(names::DOOR_PASSWORD));
    Ok(bytes.and_then(|bytes| String::from_utf8(bytes.0).ok()).map(SecretString::from))
}

/// What no watch shows.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// Why opencode does not answer.
    pub(crate) trouble: Option<Trouble>,
    /// How it stands.
    pub(crate) state: Option<DoorState>,
}

/// What shows at the door alone: asked when the containers have run for a while and the pod is not ready all the same, and
/// now and then. Nothing where it cannot be told.
pub(crate) async fn look(
    Context { client, memory, .. }: &Context,
    sandbox: &Sandbox,
    namespace: &str,
    pod: &Pod,
) -> Told {
    let late = is_late(pod, Timestamp::now());
    if !(late || memory.asks(pod, Instant::now())) {
        return Told::default();
    }
    match connect(client, sandbox, namespace, pod).await {
        Ok(None) => Told::default(),
        Ok(Some(door)) => {
            let state = door.door_state().await;
            Told { trouble: read_state(&state).filter(|_| late), state: state.ok() }
        }
        Err(error) => {
            tracing::warn!(
                namespace,
                sandbox = sandbox.name_any(),
                error = error_chain(&error),
                "the door cannot be asked"
            );
            Told::default()
        }
    }
}

/// Whether the containers have run for long without that the door lets requests pass.
pub(crate) fn is_late(pod: &Pod, now: Timestamp) -> bool {
    let since = judge::running_since(pod, layout::SANDBOX);
    let waits = since.is_some_and(|since| now.duration_since(since).as_secs() >= LATE);
    waits && judge::running_since(pod, layout::SIDECAR).is_some() && !judge::is_sidecar_ready(pod)
}

/// What the door's state says, or that it gave none.
fn read_state(state: &Result<DoorState, ClientError>) -> Option<Trouble> {
    let trouble = |reason, message: &str| Some(Trouble { reason, message: message.to_owned() });
    match state {
        Err(ClientError::PortTaken) => trouble(
            Reason::PortTaken,
            "What listens on the door's port does not prove that it is the door: delete the pod to have it made anew",
        ),
        Err(ClientError::Unauthorized) => trouble(
            Reason::Unauthorized,
            "The door does not take the password of the sandbox's Secret: delete the pod to have it made anew",
        ),
        Ok(DoorState { phase: SandboxPhase::Starting, boot, last_exit: Some(exit), .. }) if *boot >= RUNS => {
            let message =
                format!("opencode was started {boot} times and does not stay: {exit}. See the pod's log");
            Some(Trouble { reason: Reason::OpencodeCrashLoop, message })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn state(phase: &str, boot: u64, last_exit: &Value) -> DoorState {
        serde_json::from_value(json!({
            "phase": phase, "boot": boot, "boot_id": "b", "pid": null, "version": null, "epoch": "e", "seq": 0,
            "last_exit": last_exit,
        }))
        .unwrap()
    }

    #[test]
    fn the_doors_word_is_a_reason_where_it_is_more_than_patience() {
        let exit = json!("it exited with code 1");
        for (told, reason) in [
            (Ok(state("starting", 3, &exit)), Some(Reason::OpencodeCrashLoop)),
            (Ok(state("starting", 2, &exit)), None),
            (Ok(state("starting", 9, &Value::Null)), None),
            (Ok(state("ready", 9, &exit)), None),
            (Err(ClientError::PortTaken), Some(Reason::PortTaken)),
            (Err(ClientError::Unauthorized), Some(Reason::Unauthorized)),
            (Err(ClientError::Timeout { limit: CALL }), None),
        ] {
            assert_eq!(read_state(&told).map(|trouble| trouble.reason), reason, "{told:?}");
        }
    }

    #[test]
    fn a_door_is_asked_when_all_runs_and_nothing_is_ready_for_long() {
        let pod = |sidecar: Value, ready: bool, since: &str| -> Pod {
            let started = json!({ "running": { "startedAt": since } });
            let container = |name: &str, ready: bool, state: Value| json!({ "name": name, "ready": ready, "restartCount": 0, "image": "", "imageID": "", "state": state });
            serde_json::from_value(json!({ "metadata": {}, "status": {
                "initContainerStatuses": [container("sidecar", ready, sidecar)],
                "containerStatuses": [container("sandbox", true, started)],
            } }))
            .unwrap()
        };
        let waiting = json!({ "waiting": { "reason": "CrashLoopBackOff" } });
        let now = "2026-11-30T12:00:30Z".parse().unwrap();
        let (long, short) = ("2026-11-30T12:00:00Z", "2026-11-30T12:00:20Z");
        let started = json!({ "running": { "startedAt": long } });
        assert!(is_late(&pod(started.clone(), false, long), now));
        assert!(!is_late(&pod(started.clone(), false, short), now));
        assert!(!is_late(&pod(started, true, long), now));
        assert!(!is_late(&pod(waiting, false, long), now));
        assert!(!is_late(&Pod::default(), now));
    }
}
