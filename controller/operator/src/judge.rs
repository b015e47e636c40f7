//! Conditions out of what was seen: one function for each. Pure.

mod pod;

use berth_api::{
    Reason, SandboxStatus,
    condition::{ConditionType, Finding, find},
    names,
    status::{LastExit, PodReference},
};
use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaim, Pod},
    jiff::Timestamp,
};

pub(crate) use pod::{
    POD, end_of, ends_of_containers, is_lost, is_sidecar_ready, is_waiting, ready_since, running_since,
};
pub use pod::{Trouble, trouble};

/// Why something could not be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocked {
    /// One of `NameConflict`, `AdmissionDenied`, `QuotaExceeded`, `Invalid`, `Creating`.
    pub reason: Reason,
    /// What the cluster said, or what is wrong in the manifest.
    pub message: String,
}

/// What was seen of a sandbox.
#[derive(Debug, Clone, Copy, Default)]
pub struct Seen<'a> {
    /// What stands in the way, if something does.
    pub blocked: Option<&'a Blocked>,
    /// The pod, if there is one, and it is this sandbox's.
    pub pod: Option<&'a Pod>,
    /// What the door told about an opencode that does not answer.
    pub door: Option<&'a Trouble>,
    /// The claim, where the workspace has one.
    pub claim: Option<&'a PersistentVolumeClaim>,
    /// The hash that a pod would have now, if one can be built.
    pub wanted: Option<&'a str>,
    /// The workspace is lost with the pod.
    pub ephemeral: bool,
    /// The sandbox is being deleted.
    pub deleting: bool,
    /// The sandbox is to rest.
    pub suspended: bool,
    /// When the next pod is made, in seconds from now, where the ones before ended one after the other.
    pub next_pod_in: Option<u64>,
    /// How its pods and their containers ended, the last one first.
    pub last_exits: &'a [LastExit],
    /// When the sandbox is to be deleted.
    pub expires_at: Option<Timestamp>,
    /// When the door's password became another one, if it did.
    pub password_changed_at: Option<Timestamp>,
    /// The status as it was before.
    pub before: Option<&'a SandboxStatus>,
}

/// All conditions, `Ready` first. Of a sandbox that is being deleted nothing is made any more: what is known of the
/// manifest stays as it was.
pub fn judge(seen: &Seen<'_>) -> Vec<Finding> {
    let of_manifest =
        |kind, find: fn(&Seen<'_>) -> Finding| match seen.before.and_then(|before| kept(before, kind)) {
            Some(before) if seen.deleting => before,
            _ => find(seen),
        };
    let accepted = of_manifest(ConditionType::Accepted, accepted);
    let parts = [accepted, scheduled(seen), pod_ready(seen), opencode_ready(seen)];
    let ready = ready(seen, &parts);
    let more = [
        of_manifest(ConditionType::WorkspaceIntact, workspace_intact),
        of_manifest(ConditionType::UpToDate, up_to_date),
        suspended(seen),
        Finding::yes(
            ConditionType::Reconciled,
            Reason::Reconciled,
            "The operator's last pass came to its end",
        ),
    ];
    std::iter::once(ready).chain(parts).chain(more).collect()
}

/// All conditions after a pass that failed, with `message`: what was found before may be old, so nobody is told any more
/// that the sandbox is ready, nor that it is not.
pub fn judge_failure(before: Option<&SandboxStatus>, message: &str) -> Vec<Finding> {
    let reason = Reason::ReconcileFailed;
    let find = |kind: &ConditionType| match kind {
        ConditionType::Ready => Some(Finding::unknown(*kind, reason, message)),
        ConditionType::Reconciled => Some(Finding::no(*kind, reason, message)),
        kind => kept(before?, *kind),
    };
    ConditionType::ALL.iter().filter_map(find).collect()
}

/// What was found before.
fn kept(before: &SandboxStatus, kind: ConditionType) -> Option<Finding> {
    let before = find(&before.conditions, kind)?;
    let reason = *Reason::ALL.iter().find(|reason| reason.as_str() == before.reason)?;
    let holds = match before.status.as_str() {
        "True" => Some(true),
        "False" => Some(false),
        _ => None,
    };
    Some(Finding { kind, holds, reason, message: before.message.clone() })
}

/// The pod as the status names it: the last one stays while there is none, so that a loss can be told.
pub fn reference(seen: &Seen<'_>) -> Option<PodReference> {
    let before = || seen.before.and_then(|before| before.pod.clone());
    let Some(pod) = seen.pod else { return before() };
    let ip = pod.status.as_ref().and_then(|status| status.pod_ip.clone());
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    match (&pod.metadata.name, &pod.metadata.uid) {
        (Some(name), Some(uid)) => Some(PodReference { name: name.clone(), uid: uid.clone(), ip, node }),
        _ => before(),
    }
}

/// The first of the others that does not hold, with its reason.
fn ready(seen: &Seen<'_>, parts: &[Finding]) -> Finding {
    if seen.deleting {
        return Finding::no(ConditionType::Ready, Reason::Deleting, "The sandbox is being deleted");
    }
    if seen.suspended && seen.pod.is_some() && seen.blocked.is_none() {
        return Finding::no(
            ConditionType::Ready,
            Reason::Suspending,
            "The sandbox is to rest: its turns are ended",
        );
    }
    match parts.iter().find(|part| part.holds != Some(true)) {
        Some(part) => Finding { kind: ConditionType::Ready, holds: Some(false), ..part.clone() },
        None => Finding::yes(ConditionType::Ready, Reason::Available, "The agent answers"),
    }
}

fn accepted(seen: &Seen<'_>) -> Finding {
    match seen.blocked {
        Some(Blocked { reason, message }) => Finding::no(ConditionType::Accepted, *reason, message),
        None => Finding::yes(ConditionType::Accepted, Reason::Valid, "The manifest is sound"),
    }
}

fn scheduled(seen: &Seen<'_>) -> Finding {
    let kind = ConditionType::PodScheduled;
    let Some(pod) = seen.pod else { return no_pod(kind, seen) };
    if pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some()) {
        return Finding::yes(kind, Reason::Scheduled, "The pod has a node");
    }
    let told = pod::condition(pod, "PodScheduled").filter(|told| told.status == "False");
    let message = told.and_then(|told| told.message.clone());
    if told.is_none() {
        return Finding::no(kind, Reason::Creating, "The pod waits for a node");
    }
    let message = message.unwrap_or_else(|| "No node takes the pod".to_owned());
    let claim_waits = seen.claim.is_some_and(|claim| {
        claim.status.as_ref().and_then(|status| status.phase.as_deref()) != Some("Bound")
    });
    if claim_waits && message.contains("PersistentVolumeClaim") {
        let message =
            format!("The claim has no volume: look at its events, and at its storage class. {message}");
        return Finding::no(kind, Reason::ClaimPending, message);
    }
    Finding::no(kind, Reason::Unschedulable, message)
}

fn pod_ready(seen: &Seen<'_>) -> Finding {
    let kind = ConditionType::PodReady;
    let Some(pod) = seen.pod else { return no_pod(kind, seen) };
    if let Some(Trouble { reason, message }) = trouble(pod) {
        return Finding::no(kind, reason, message);
    }
    if let Some(Trouble { reason, message }) = seen.door {
        return Finding::no(kind, *reason, message);
    }
    match pod::condition(pod, "Ready").filter(|told| told.status == "True") {
        Some(_) => Finding::yes(kind, Reason::Available, "All containers of the pod are ready"),
        None if pod::is_running(pod) => Finding::no(
            kind,
            Reason::OpencodeStarting,
            "The containers run, and opencode does not answer yet",
        ),
        None => Finding::no(kind, Reason::Starting, "The pod's containers are being started"),
    }
}

/// The sidecar is ready when opencode answers in a version that it speaks.
fn opencode_ready(seen: &Seen<'_>) -> Finding {
    let kind = ConditionType::OpencodeReady;
    let Some(pod) = seen.pod else { return no_pod(kind, seen) };
    if pod::is_sidecar_ready(pod) {
        return Finding::yes(kind, Reason::Available, "opencode answers");
    }
    match trouble(pod).or_else(|| seen.door.cloned()) {
        Some(Trouble { reason, message }) => Finding::no(kind, reason, message),
        None => Finding::no(kind, Reason::OpencodeStarting, "opencode does not answer yet"),
    }
}

/// A loss stays told: what was lost does not come back.
fn workspace_intact(seen: &Seen<'_>) -> Finding {
    let kind = ConditionType::WorkspaceIntact;
    if !seen.ephemeral {
        return Finding::yes(kind, Reason::Persistent, "The workspace lives as long as the sandbox");
    }
    let told = seen.before.and_then(|before| find(&before.conditions, kind));
    if let Some(told) = told.filter(|told| told.status == "False") {
        return Finding::no(kind, Reason::WorkspaceLost, &*told.message);
    }
    let last = seen.before.and_then(|before| before.pod.as_ref());
    let uid = seen.pod.and_then(|pod| pod.metadata.uid.as_ref());
    match (last, uid) {
        (Some(last), Some(uid)) if last.uid != *uid => Finding::no(
            kind,
            Reason::WorkspaceLost,
            format!("The workspace was lost with the pod of UID {}, since it is ephemeral", last.uid),
        ),
        _ => Finding::yes(
            kind,
            Reason::Ephemeral,
            "The workspace lives as long as its pod, and nothing was lost",
        ),
    }
}

fn up_to_date(seen: &Seen<'_>) -> Finding {
    let kind = ConditionType::UpToDate;
    let has = seen.pod.and_then(|pod| pod.metadata.annotations.as_ref()?.get(names::POD_HASH));
    match (has, seen.wanted) {
        (None, _) => no_pod(kind, seen),
        (_, None) => Finding::unknown(kind, Reason::Invalid, "No pod can be made of the manifest"),
        (Some(has), Some(wanted)) if has == wanted => {
            Finding::yes(kind, Reason::Available, "The pod is as the manifest says")
        }
        (Some(_), Some(_)) => Finding::no(
            kind,
            Reason::SpecChanged,
            "The pod runs what an earlier manifest or platform said: delete the pod to have it made anew",
        ),
    }
}

fn suspended(seen: &Seen<'_>) -> Finding {
    let kind = ConditionType::Suspended;
    match (seen.suspended, seen.pod) {
        (false, _) => Finding::no(kind, Reason::NotSuspended, "The manifest does not ask for it"),
        (true, Some(_)) => Finding::no(kind, Reason::Suspending, "The pod ends its turns, and goes then"),
        (true, None) => Finding::yes(kind, Reason::Suspended, SUSPENDED),
    }
}

const SUSPENDED: &str = "The sandbox rests: it has no pod. Its password and its claim stay. Remove spec.suspended to have it back";

fn no_pod(kind: ConditionType, seen: &Seen<'_>) -> Finding {
    if seen.suspended {
        return Finding::no(kind, Reason::Suspended, SUSPENDED);
    }
    let Some(last) =
        seen.before.and_then(|before| before.last_exits.first()).filter(|_| seen.next_pod_in.is_some())
    else {
        return Finding::no(kind, Reason::Creating, "There is no pod yet");
    };
    let reason = Reason::ALL.iter().find(|reason| reason.as_str() == last.reason).copied();
    let message = format!(
        "Pods of this sandbox end one after the other, so the next one is made a while later. The last one: {}",
        last.message.as_deref().unwrap_or(&last.reason)
    );
    Finding::no(kind, reason.unwrap_or(Reason::PodEnded), message)
}

#[cfg(test)]
mod tests;
