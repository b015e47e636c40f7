//! What a pod's status says, as one reason. Pure.

use berth_api::{Reason, layout};
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus, Pod, PodCondition,
};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

/// Why a pod does not come up by itself, or why it is no more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// The cause.
    pub reason: Reason,
    /// What the cluster says, and which container.
    pub message: String,
}

/// The name by which the end of a whole pod is remembered, beside those of containers.
pub(crate) const POD: &str = "pod";

/// Longest message of a container that is passed on, in characters.
const MESSAGE_MAX: usize = 512;

/// What keeps a pod from being ready, beside time; the gravest first.
pub fn trouble(pod: &Pod) -> Option<Trouble> {
    whole(pod).or_else(|| statuses(pod).find_map(container))
}

/// The condition of this type.
pub(super) fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

/// Whether every container runs.
pub(super) fn is_running(pod: &Pod) -> bool {
    let mut running =
        statuses(pod).map(|status| status.state.as_ref().is_some_and(|state| state.running.is_some()));
    statuses(pod).count() >= 2 && running.all(|running| running)
}

/// Since when a container runs; nothing where it does not.
pub(crate) fn running_since(pod: &Pod, name: &str) -> Option<Timestamp> {
    let running = statuses(pod).find(|status| status.name == name)?.state.as_ref()?.running.as_ref()?;
    // The time is not told at once.
    Some(running.started_at.as_ref().map_or(Timestamp::MAX, |time| time.0))
}

/// Whether a container is started again only after a while, or cannot be.
pub(crate) fn is_waiting(pod: &Pod, name: &str) -> bool {
    let status = statuses(pod).find(|status| status.name == name);
    status.is_some_and(|status| status.state.as_ref().is_some_and(|state| state.waiting.is_some()))
}

/// Whether the door lets requests pass.
pub(crate) fn is_sidecar_ready(pod: &Pod) -> bool {
    statuses(pod).any(|status| status.name == layout::SIDECAR && status.ready)
}

/// Since when the pod is ready, or not.
pub(crate) fn ready_since(pod: &Pod) -> Option<Timestamp> {
    condition(pod, "Ready")?.last_transition_time.as_ref().map(|time| time.0)
}

/// Whether the pod's node is not heard of.
pub(crate) fn is_lost(pod: &Pod) -> bool {
    disrupted(pod).is_some_and(|told| told.reason.as_deref() == Some(TAINTED))
        || node_not_ready(pod).is_some()
}

/// Whether the cluster wants the pod gone, as the reason of a deletion.
fn disrupted(pod: &Pod) -> Option<&PodCondition> {
    condition(pod, "DisruptionTarget").filter(|told| told.status == "True")
}

/// Reason of such a deletion: the node has a taint that the pod does not put up with, as one that is lost has.
const TAINTED: &str = "DeletionByTaintManager";

/// Why a pod ended as a whole, and when, where nobody asked for that.
pub(crate) fn end_of(pod: &Pod) -> Option<(Trouble, Option<Time>)> {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    if let Some("Failed" | "Succeeded") = phase {
        return whole(pod).map(|trouble| (trouble, last_moment(pod)));
    }
    pod.metadata.deletion_timestamp.as_ref()?;
    let told = disrupted(pod)?;
    let reason = if told.reason.as_deref() == Some(TAINTED) { Reason::NodeLost } else { Reason::Evicted };
    let message = told.message.clone().or_else(|| told.reason.clone()).unwrap_or_default();
    Some((Trouble { reason, message }, last_moment(pod)))
}

/// The last moment of which the pod tells: a pod that ended tells no newer ones.
fn last_moment(pod: &Pod) -> Option<Time> {
    let containers =
        statuses(pod).filter_map(|status| status.state.as_ref()?.terminated.as_ref()?.finished_at.clone());
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref()).into_iter().flatten();
    let turned = conditions.filter_map(|told| told.last_transition_time.clone());
    let begun = pod.status.as_ref().and_then(|status| status.start_time.clone());
    containers.chain(turned).chain(begun).chain(pod.metadata.creation_timestamp.clone()).max()
}

/// Containers that ended, with why and when: as they are now, or before they were started again.
pub(crate) fn ends_of_containers(pod: &Pod) -> impl Iterator<Item = (&str, Trouble, Option<Time>)> {
    statuses(pod).flat_map(|status| {
        let states = [status.state.as_ref(), status.last_state.as_ref()];
        let ended = states.into_iter().flatten().filter_map(|state| state.terminated.as_ref());
        ended.map(|ended| (status.name.as_str(), ends(status, ended), ended.finished_at.clone()))
    })
}

fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let sidecars = status.and_then(|status| status.init_container_statuses.as_ref());
    let containers = status.and_then(|status| status.container_statuses.as_ref());
    sidecars.into_iter().chain(containers).flatten()
}

fn whole(pod: &Pod) -> Option<Trouble> {
    let status = pod.status.as_ref()?;
    let (reason, phase) = (status.reason.as_deref(), status.phase.as_deref());
    let message = || status.message.clone().unwrap_or_default();
    let cause = match (reason, phase) {
        (Some("Evicted"), _) => Reason::Evicted,
        (Some("NodeLost"), _) | (_, Some("Unknown")) => Reason::NodeLost,
        (_, Some("Failed" | "Succeeded")) => Reason::PodEnded,
        _ => return node_not_ready(pod).or_else(|| node_lost(pod)),
    };
    Some(Trouble { reason: cause, message: format!("The pod ended; another one is made. {}", message()) })
}

/// The cluster wants the pod gone from a node that is not heard of, and that has to do it.
fn node_lost(pod: &Pod) -> Option<Trouble> {
    pod.metadata.deletion_timestamp.as_ref()?;
    let is_lost = disrupted(pod).is_some_and(|told| told.reason.as_deref() == Some(TAINTED));
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or("<name>");
    is_lost.then(|| Trouble {
        reason: Reason::NodeLost,
        message: format!(
            "The pod has to leave node {node} and does not: no other pod is made while that one may write to the \
             workspace. Bring the node back, or once it is off for sure: kubectl taint nodes {node} \
             node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
        ),
    })
}

/// The node's own controller says so when it does not hear of the node; the containers' states are old then.
fn node_not_ready(pod: &Pod) -> Option<Trouble> {
    condition(pod, "Ready").filter(|told| told.reason.as_deref() == Some("NodeNotReady")).map(|_| Trouble {
        reason: Reason::NodeLost,
        message: "The pod's node is not heard of; the pod stays there until the node is back or removed"
            .to_owned(),
    })
}

fn container(status: &ContainerStatus) -> Option<Trouble> {
    let state = status.state.as_ref()?;
    let last = status.last_state.as_ref().and_then(|last| last.terminated.as_ref());
    match state {
        ContainerState { waiting: Some(waiting), .. } => waits(status, waiting, last),
        ContainerState { terminated: Some(ended), .. } => Some(ends(status, ended)),
        _ => None,
    }
}

fn waits(
    status: &ContainerStatus,
    waiting: &ContainerStateWaiting,
    last: Option<&ContainerStateTerminated>,
) -> Option<Trouble> {
    let message = waiting.message.as_deref().unwrap_or_default();
    let reason = match waiting.reason.as_deref()? {
        "ImagePullBackOff" | "ErrImagePull" | "ErrImageNeverPull" | "InvalidImageName"
        | "ImageInspectError" => Reason::ImagePullBackOff,
        "CreateContainerConfigError" => Reason::ConfigurationMissing,
        "CrashLoopBackOff" => {
            return Some(last.map_or_else(|| crash_loop(status), |last| ends(status, last)));
        }
        "CreateContainerError" | "RunContainerError" | "StartError" => Reason::OpencodeCrashLoop,
        _ => return None,
    };
    Some(Trouble { reason, message: format!("Container {}: {}", status.name, short(message)) })
}

fn crash_loop(status: &ContainerStatus) -> Trouble {
    Trouble {
        reason: Reason::OpencodeCrashLoop,
        message: format!("Container {} ends again and again", status.name),
    }
}

/// The sidecar's exit code where it cannot listen: nothing else in the pod has a reason to take its ports.
const CANNOT_LISTEN: i32 = 69;

/// On version 1 of control groups the kubelet says `OOMKilled` of a clean exit too, once something was killed in the
/// container (measured on Kubernetes 1.36): only one by a signal counts.
fn ends(status: &ContainerStatus, ended: &ContainerStateTerminated) -> Trouble {
    if status.name == layout::SIDECAR && ended.exit_code == CANNOT_LISTEN {
        let message = format!(
            "Something else in the pod listens on port {} or {}, which are the door's: delete the pod to have it made anew",
            layout::DOOR_PORT,
            layout::ADMIN_PORT
        );
        return Trouble { reason: Reason::PortTaken, message };
    }
    let for_memory = ended.reason.as_deref() == Some("OOMKilled") && ended.exit_code != 0;
    let reason = if for_memory { Reason::OOMKilled } else { Reason::OpencodeCrashLoop };
    let words = ended.message.as_deref().map(short).unwrap_or_default();
    let message = format!(
        "Container {} ended with exit code {} ({} restarts). {words}",
        status.name, ended.exit_code, status.restart_count
    );
    Trouble { reason, message: message.trim_end().to_owned() }
}

fn short(message: &str) -> String {
    message.chars().take(MESSAGE_MAX).collect()
}
