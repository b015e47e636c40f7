//! What is to be done about the pod of a sandbox, by what is there under its name. Pure.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodStep {
    /// There is none: make it.
    Create,
    /// It is the sandbox's: leave it.
    Keep,
    /// It ends: wait until it is gone, it keeps its name until then.
    Wait,
    /// It ended for good: remove the one of this UID, and make another.
    Remove(String),
    /// It is somebody else's.
    Conflict,
}

/// Decides by the UID of the owner: a pod that another sandbox of the same name left behind is none of ours.
pub fn next_step(pod: Option<&Pod>, owner: &str) -> PodStep {
    let Some(pod) = pod else { return PodStep::Create };
    let metadata = &pod.metadata;
    if metadata.deletion_timestamp.is_some() {
        return PodStep::Wait;
    }
    if !is_owned(pod, owner) {
        return PodStep::Conflict;
    }
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    match (phase, &metadata.uid) {
        (Some("Failed" | "Succeeded"), Some(uid)) => PodStep::Remove(uid.clone()),
        _ => PodStep::Keep,
    }
}

/// Whether an object is controlled by the sandbox of this UID.
pub fn is_owned(object: &impl kube::Resource, owner: &str) -> bool {
    let mut owners = object.owner_references().iter();
    owners.any(|reference| reference.controller == Some(true) && reference.uid == owner)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "tests write values where they are used")]
    fn pod(owner: &str, more: Value) -> Pod {
        let mut pod = json!({ "metadata": { "uid": "pod-1", "ownerReferences": [
            { "apiVersion": "berth.dev/v1alpha1", "kind": "Sandbox", "name": "one", "uid": owner, "controller": true },
        ] } });
        for (part, members) in more.as_object().unwrap() {
            for (name, value) in members.as_object().unwrap() {
                pod[part][name] = value.clone();
            }
        }
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn by_what_is_there() {
        let ending = json!({ "metadata": { "deletionTimestamp": "2026-11-30T12:00:00Z" } });
        let phase = |phase: &str| json!({ "status": { "phase": phase } });
        for (there, expected) in vec![
            (None, PodStep::Create),
            (Some(pod("mine", json!({}))), PodStep::Keep),
            (Some(pod("mine", phase("Pending"))), PodStep::Keep),
            (Some(pod("mine", phase("Running"))), PodStep::Keep),
            (Some(pod("mine", phase("Failed"))), PodStep::Remove("pod-1".to_owned())),
            (Some(pod("mine", phase("Succeeded"))), PodStep::Remove("pod-1".to_owned())),
            (Some(pod("mine", ending.clone())), PodStep::Wait),
            (Some(pod("before", ending)), PodStep::Wait),
            (Some(pod("before", json!({}))), PodStep::Conflict),
            (Some(Pod::default()), PodStep::Conflict),
        ] {
            assert_eq!(next_step(there.as_ref(), "mine"), expected, "{there:?}");
        }
    }
}
