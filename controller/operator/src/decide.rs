//! What is to be done about the pod of a sandbox, by what is there under its name. Pure.
//!
//! No pod is ever made beside another one: both would write to the same claim. So a pod that is ending keeps its place
//! until it is gone; only one whose work is lost with it, on a node that is lost, is not waited for.

use std::time::Duration;

use berth_api::status::LastExit;
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::ResourceExt;

use crate::{
    judge,
    lifetime::{left, next_pod_at},
};

/// How long after its end was due a pod may be there that no node tells of, in seconds.
const OVERDUE: i64 = 60;

/// What is wanted of the pod.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wish<'a> {
    /// UID of the sandbox.
    pub owner: &'a str,
    /// The sandbox is to rest.
    pub suspended: bool,
    /// The workspace is lost with the pod.
    pub ephemeral: bool,
    /// How its pods and their containers ended, as the status tells, the last one first.
    pub exits: &'a [LastExit],
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodStep {
    /// There is none: make it.
    Create,
    /// There is none, and the ones before ended one after the other: make it after this time.
    Later(Duration),
    /// There is none, and there is to be none.
    Rest,
    /// It is the sandbox's: leave it.
    Keep,
    /// It is the sandbox's, which is to rest: end its turns, then remove the one of this UID.
    Stop(String),
    /// It ends: wait until it is gone, it keeps its name until then.
    Wait,
    /// It ended for good, and the status does not tell that yet.
    Tell,
    /// It ended for good: remove the one of this UID, and make another.
    Remove(String),
    /// Its node is lost, and so is its work: remove the one of this UID without waiting for the node.
    Force(String),
    /// It is somebody else's.
    Conflict,
}

/// Decides by the UID of the owner: a pod that another sandbox of the same name left behind is none of ours.
pub fn next_step(pod: Option<&Pod>, wish: &Wish<'_>, now: Timestamp) -> PodStep {
    let Some(pod) = pod else { return without_pod(wish, now) };
    let (metadata, ours) = (&pod.metadata, is_owned(pod, wish.owner));
    let uid = metadata.uid.clone().unwrap_or_default();
    if let Some(due) = &metadata.deletion_timestamp {
        let overdue = now.duration_since(due.0).as_secs() >= OVERDUE;
        let lost = ours && wish.ephemeral && overdue && judge::is_lost(pod);
        return if lost { PodStep::Force(uid) } else { PodStep::Wait };
    }
    if !ours {
        return PodStep::Conflict;
    }
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let told = || wish.exits.iter().any(|exit| exit.pod_uid == uid && exit.container == judge::POD);
    match phase {
        Some("Failed" | "Succeeded") if told() => PodStep::Remove(uid),
        Some("Failed" | "Succeeded") => PodStep::Tell,
        _ if wish.suspended => PodStep::Stop(uid),
        _ => PodStep::Keep,
    }
}

fn without_pod(wish: &Wish<'_>, now: Timestamp) -> PodStep {
    if wish.suspended {
        return PodStep::Rest;
    }
    match next_pod_at(wish.exits).and_then(|at| left(at, now)) {
        Some(pause) => PodStep::Later(pause),
        None => PodStep::Create,
    }
}

/// Whether an object is controlled by the sandbox of this UID.
pub fn is_owned(object: &impl kube::Resource, owner: &str) -> bool {
    let mut owners = object.owner_references().iter();
    owners.any(|reference| reference.controller == Some(true) && reference.uid == owner)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::{Value, json};

    use super::*;

    const NOW: &str = "2026-11-30T12:10:00Z";

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

    fn step(pod: Option<&Pod>, wish: &Wish<'_>) -> PodStep {
        next_step(pod, &Wish { owner: "mine", ..*wish }, NOW.parse().unwrap())
    }

    fn phase(phase: &str) -> Value {
        json!({ "status": { "phase": phase } })
    }

    fn end(uid: &str, at: &str) -> LastExit {
        let at = Some(Time(at.parse().unwrap()));
        LastExit { container: judge::POD.to_owned(), pod_uid: uid.to_owned(), at, ..LastExit::default() }
    }

    #[test]
    fn by_what_is_there() {
        let ending = json!({ "metadata": { "deletionTimestamp": "2026-11-30T12:00:00Z" } });
        for (there, expected) in vec![
            (None, PodStep::Create),
            (Some(pod("mine", json!({}))), PodStep::Keep),
            (Some(pod("mine", phase("Pending"))), PodStep::Keep),
            (Some(pod("mine", phase("Running"))), PodStep::Keep),
            (Some(pod("mine", phase("Failed"))), PodStep::Tell),
            (Some(pod("mine", phase("Succeeded"))), PodStep::Tell),
            (Some(pod("mine", ending.clone())), PodStep::Wait),
            (Some(pod("before", ending)), PodStep::Wait),
            (Some(pod("before", json!({}))), PodStep::Conflict),
            (Some(Pod::default()), PodStep::Conflict),
        ] {
            assert_eq!(step(there.as_ref(), &Wish::default()), expected, "{there:?}");
        }
    }

    #[test]
    fn a_pod_that_ended_goes_once_its_end_is_told_and_the_next_one_waits_its_time() {
        let remove = PodStep::Remove("pod-1".to_owned());
        let (last, before) = (end("pod-1", "2026-11-30T12:09:50Z"), end("pod-0", "2026-11-30T12:09:00Z"));
        let later = PodStep::Later(Duration::from_secs(30));
        let failed = pod("mine", phase("Failed"));
        for (there, exits, expected) in [
            (Some(&failed), vec![before.clone()], PodStep::Tell),
            (Some(&failed), vec![last.clone()], remove.clone()),
            (None, vec![last.clone()], PodStep::Create),
            (None, vec![last.clone(), before.clone()], later),
            (None, vec![before.clone(), end("pod-9", "2026-11-30T12:08:59Z")], PodStep::Create),
        ] {
            assert_eq!(step(there, &Wish { exits: &exits, ..Wish::default() }), expected, "{exits:?}");
        }
    }

    #[test]
    fn one_that_is_to_rest_has_no_pod() {
        let wish = Wish { suspended: true, ..Wish::default() };
        let stop = PodStep::Stop("pod-1".to_owned());
        let ending = json!({ "metadata": { "deletionTimestamp": "2026-11-30T12:00:00Z" } });
        for (there, expected) in [
            (None, PodStep::Rest),
            (Some(pod("mine", phase("Pending"))), stop.clone()),
            (Some(pod("mine", phase("Running"))), stop),
            (Some(pod("mine", phase("Failed"))), PodStep::Tell),
            (Some(pod("mine", ending)), PodStep::Wait),
            (Some(pod("before", json!({}))), PodStep::Conflict),
        ] {
            assert_eq!(step(there.as_ref(), &wish), expected, "{there:?}");
        }
    }

    #[test]
    fn what_a_lost_node_may_still_write_to_has_no_second_writer() {
        let lost = |due: &str, reason: &str| {
            pod(
                "mine",
                json!({
                    "metadata": { "deletionTimestamp": due },
                    "status": { "conditions": [{ "type": "DisruptionTarget", "status": "True", "reason": reason }] },
                }),
            )
        };
        let (taint, force) = ("DeletionByTaintManager", PodStep::Force("pod-1".to_owned()));
        let overdue = "2026-11-30T12:09:00Z";
        for (there, ephemeral, expected) in [
            (lost(overdue, taint), true, force),
            (lost(overdue, taint), false, PodStep::Wait),
            (lost("2026-11-30T12:09:01Z", taint), true, PodStep::Wait),
            (lost(overdue, "EvictionByEvictionAPI"), true, PodStep::Wait),
        ] {
            assert_eq!(step(Some(&there), &Wish { ephemeral, ..Wish::default() }), expected, "{there:?}");
        }
    }
}
