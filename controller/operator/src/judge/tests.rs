//! Tables of what was seen and what is told.

#![expect(clippy::needless_pass_by_value, reason = "tests write values where they are used")]

use berth_api::condition::follow;
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use serde_json::{Value, json};

use super::*;

fn pod(status: Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": { "name": "one-sandbox", "uid": "pod-1", "annotations": { "berth.dev/pod-hash": "h" } },
        "spec": { "nodeName": "node-1", "containers": [] },
        "status": status,
    }))
    .unwrap()
}

fn container(name: &str, ready: bool, state: Value) -> Value {
    json!({ "name": name, "ready": ready, "restartCount": 2, "image": "i", "imageID": "", "state": state })
}

/// A pod with both containers in these states.
fn pod_with(sidecar: Value, sandbox: Value, ready: bool) -> Pod {
    pod(json!({
        "phase": "Running", "podIP": "10.0.0.1",
        "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }],
        "initContainerStatuses": [container("sidecar", ready, sidecar)],
        "containerStatuses": [container("sandbox", true, sandbox)],
    }))
}

fn running() -> Value {
    json!({ "running": {} })
}

fn seen(pod: Option<&Pod>) -> Seen<'_> {
    Seen { pod, wanted: Some("h"), ..Seen::default() }
}

fn told(findings: &[Finding], kind: ConditionType) -> (&'static str, Reason) {
    let finding = findings.iter().find(|finding| finding.kind == kind).unwrap();
    (finding.status(), finding.reason)
}

#[test]
fn every_type_is_told_once_and_ready_first() {
    let findings = judge(&seen(None));
    let kinds: Vec<_> = findings.iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, ConditionType::ALL);
}

#[test]
fn ready_has_the_reason_of_what_is_missing() {
    let waiting = |reason: &str| json!({ "waiting": { "reason": reason, "message": "more about it" } });
    let ended = json!({ "terminated": { "exitCode": 137, "reason": "OOMKilled" } });
    let clean = json!({ "terminated": { "exitCode": 0, "reason": "OOMKilled" } });
    let status = |status: Value| pod(status);
    for (pod, expected) in vec![
        (pod_with(running(), running(), true), ("True", Reason::Available)),
        (pod_with(running(), running(), false), ("False", Reason::OpencodeStarting)),
        (pod_with(running(), waiting("ContainerCreating"), false), ("False", Reason::Starting)),
        (pod_with(running(), waiting("ImagePullBackOff"), false), ("False", Reason::ImagePullBackOff)),
        (
            pod_with(waiting("ErrImagePull"), waiting("PodInitializing"), false),
            ("False", Reason::ImagePullBackOff),
        ),
        (
            pod_with(running(), waiting("CreateContainerConfigError"), false),
            ("False", Reason::ConfigurationMissing),
        ),
        (pod_with(running(), waiting("CrashLoopBackOff"), false), ("False", Reason::OpencodeCrashLoop)),
        (pod_with(running(), ended, false), ("False", Reason::OOMKilled)),
        (pod_with(running(), clean, false), ("False", Reason::OpencodeCrashLoop)),
        (status(json!({ "phase": "Failed", "reason": "Evicted" })), ("False", Reason::Evicted)),
        (status(json!({ "phase": "Failed" })), ("False", Reason::PodEnded)),
        (
            status(
                json!({ "conditions": [{ "type": "Ready", "status": "False", "reason": "NodeNotReady" }] }),
            ),
            ("False", Reason::NodeLost),
        ),
        (status(json!({ "phase": "Pending" })), ("False", Reason::Starting)),
    ] {
        assert_eq!(told(&judge(&seen(Some(&pod))), ConditionType::Ready), expected, "{:?}", pod.status);
    }
    assert_eq!(told(&judge(&seen(None)), ConditionType::Ready), ("False", Reason::Creating));
}

#[test]
fn a_container_that_crashes_tells_its_last_words() {
    let mut pod = pod_with(running(), json!({ "waiting": { "reason": "CrashLoopBackOff" } }), false);
    let last = json!({ "terminated": { "exitCode": 78, "message": "{\"reason\":\"Configuration\"}" } });
    let statuses = pod.status.as_mut().unwrap().container_statuses.as_mut().unwrap();
    statuses[0].last_state = serde_json::from_value(last).unwrap();
    let trouble = trouble(&pod).unwrap();
    assert!(trouble.message.contains("78") && trouble.message.contains("Configuration"), "{trouble:?}");
}

#[test]
fn a_pod_without_a_node_says_why() {
    let unscheduled = |message: &str| {
        let told = json!({ "conditions": [
            { "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message },
        ] });
        let mut pod = pod(told);
        pod.spec.as_mut().unwrap().node_name = None;
        pod
    };
    let pod = unscheduled("0/1 nodes are available: 1 Insufficient cpu");
    assert_eq!(told(&judge(&seen(Some(&pod))), ConditionType::Ready), ("False", Reason::Unschedulable));
    let pod = unscheduled("pod has unbound immediate PersistentVolumeClaims");
    let claim = PersistentVolumeClaim::default();
    let seen = Seen { claim: Some(&claim), ..seen(Some(&pod)) };
    assert_eq!(told(&judge(&seen), ConditionType::Ready), ("False", Reason::ClaimPending));
}

#[test]
fn what_stands_in_the_way_goes_before_everything_but_the_deletion() {
    let pod = pod_with(running(), running(), true);
    let blocked = Blocked { reason: Reason::QuotaExceeded, message: "exceeded quota: team".to_owned() };
    let mut seen = Seen { blocked: Some(&blocked), ..seen(Some(&pod)) };
    assert_eq!(told(&judge(&seen), ConditionType::Ready), ("False", Reason::QuotaExceeded));
    seen.deleting = true;
    assert_eq!(told(&judge(&seen), ConditionType::Ready), ("False", Reason::Deleting));
}

#[test]
fn after_a_pass_that_failed_nothing_is_told_to_be_ready_and_the_rest_stays() {
    let pod = pod_with(running(), running(), true);
    let now = Time(Timestamp::from_second(1).unwrap());
    let before = SandboxStatus {
        conditions: follow(&[], &judge(&seen(Some(&pod))), None, &now),
        ..SandboxStatus::default()
    };
    let after = judge_failure(Some(&before), "cannot read the pod");
    assert_eq!(after.iter().map(|finding| finding.kind).collect::<Vec<_>>(), ConditionType::ALL);
    assert_eq!(told(&after, ConditionType::Ready), ("Unknown", Reason::ReconcileFailed));
    assert_eq!(told(&after, ConditionType::Reconciled), ("False", Reason::ReconcileFailed));
    assert_eq!(told(&after, ConditionType::PodReady), ("True", Reason::Available));
    assert_eq!(told(&judge(&seen(Some(&pod))), ConditionType::Reconciled), ("True", Reason::Reconciled));
    assert_eq!(judge_failure(None, "").len(), 2, "of the others nothing is known");
}

#[test]
fn one_that_is_to_rest_says_so_until_it_has_its_pod_again() {
    let pod = pod_with(running(), running(), true);
    for (suspended, pod, of_ready, of_suspended) in [
        (false, Some(&pod), ("True", Reason::Available), ("False", Reason::NotSuspended)),
        (true, Some(&pod), ("False", Reason::Suspending), ("False", Reason::Suspending)),
        (true, None, ("False", Reason::Suspended), ("True", Reason::Suspended)),
        (false, None, ("False", Reason::Creating), ("False", Reason::NotSuspended)),
    ] {
        let findings = judge(&Seen { suspended, ..seen(pod) });
        assert_eq!(told(&findings, ConditionType::Ready), of_ready);
        assert_eq!(told(&findings, ConditionType::Suspended), of_suspended);
    }
    let blocked = Blocked { reason: Reason::Invalid, message: "discardWorkspace".to_owned() };
    let findings = judge(&Seen { blocked: Some(&blocked), ..seen(Some(&pod)) });
    assert_eq!(told(&findings, ConditionType::Ready), ("False", Reason::Invalid));
}

#[test]
fn why_the_next_pod_comes_later_is_how_the_last_one_ended() {
    let last = LastExit {
        container: POD.to_owned(),
        reason: "Evicted".to_owned(),
        message: Some("low on disk".to_owned()),
        ..LastExit::default()
    };
    let before = SandboxStatus { last_exits: vec![last], ..SandboxStatus::default() };
    let findings = judge(&Seen { before: Some(&before), next_pod_in: Some(40), ..seen(None) });
    assert_eq!(told(&findings, ConditionType::Ready), ("False", Reason::Evicted));
    assert!(findings[0].message.contains("low on disk"), "{findings:?}");
}

#[test]
fn a_pod_that_cannot_leave_its_lost_node_says_what_a_person_can_do() {
    let mut pod = pod_with(running(), running(), false);
    pod.metadata.deletion_timestamp = Some(Time(Timestamp::from_second(1).unwrap()));
    let lost = json!({ "type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager" });
    let conditions = pod.status.as_mut().unwrap().conditions.as_mut().unwrap();
    conditions.push(serde_json::from_value(lost).unwrap());
    let findings = judge(&seen(Some(&pod)));
    assert_eq!(told(&findings, ConditionType::Ready), ("False", Reason::NodeLost));
    assert!(findings[0].message.contains("kubectl taint nodes node-1"), "{findings:?}");
}

#[test]
fn a_lost_workspace_stays_lost() {
    let kind = ConditionType::WorkspaceIntact;
    let pod = pod_with(running(), running(), true);
    let with = |uid: &str| SandboxStatus {
        pod: Some(PodReference { name: "one-sandbox".to_owned(), uid: uid.to_owned(), ip: None, node: None }),
        ..SandboxStatus::default()
    };
    let told_after = |before: &SandboxStatus, ephemeral: bool, pod: Option<&Pod>| {
        judge(&Seen { before: Some(before), ephemeral, ..seen(pod) })
    };
    let same = with("pod-1");
    assert_eq!(told(&told_after(&same, true, Some(&pod)), kind), ("True", Reason::Ephemeral));
    let other = with("pod-0");
    assert_eq!(told(&told_after(&other, false, Some(&pod)), kind), ("True", Reason::Persistent));
    assert_eq!(told(&told_after(&other, true, None), kind), ("True", Reason::Ephemeral), "not known yet");
    let lost = told_after(&other, true, Some(&pod));
    assert_eq!(told(&lost, kind), ("False", Reason::WorkspaceLost));
    let now = Time(Timestamp::from_second(1).unwrap());
    let after = SandboxStatus { conditions: follow(&[], &lost, None, &now), ..same };
    assert_eq!(told(&told_after(&after, true, Some(&pod)), kind), ("False", Reason::WorkspaceLost));
}

#[test]
fn the_last_pod_stays_named_while_there_is_none() {
    let pod = pod_with(running(), running(), true);
    let reference_of = |pod, before| reference(&Seen { before, ..seen(pod) });
    let first = reference_of(Some(&pod), None).unwrap();
    assert_eq!((first.uid.as_str(), first.ip.as_deref()), ("pod-1", Some("10.0.0.1")));
    let before = SandboxStatus { pod: Some(first.clone()), ..SandboxStatus::default() };
    assert_eq!(reference_of(None, Some(&before)), Some(first));
}

#[test]
fn a_pod_of_an_earlier_manifest_is_told() {
    let pod = pod_with(running(), running(), true);
    let seen = Seen { wanted: Some("other"), ..seen(Some(&pod)) };
    let findings = judge(&seen);
    assert_eq!(told(&findings, ConditionType::UpToDate), ("False", Reason::SpecChanged));
    assert_eq!(told(&findings, ConditionType::Ready), ("True", Reason::Available));
}

#[test]
fn a_port_that_was_taken_from_the_door_is_told() {
    let mut pod = pod_with(json!({ "waiting": { "reason": "CrashLoopBackOff" } }), running(), false);
    let statuses = pod.status.as_mut().unwrap().init_container_statuses.as_mut().unwrap();
    statuses[0].last_state = serde_json::from_value(json!({ "terminated": { "exitCode": 69 } })).unwrap();
    assert_eq!(told(&judge(&seen(Some(&pod))), ConditionType::Ready), ("False", Reason::PortTaken));
    let agent = pod_with(running(), json!({ "terminated": { "exitCode": 69 } }), false);
    assert_eq!(told(&judge(&seen(Some(&agent))), ConditionType::Ready), ("False", Reason::OpencodeCrashLoop));
}

#[test]
fn the_doors_word_is_told_where_the_pod_tells_nothing() {
    let pod = pod_with(running(), running(), false);
    let door = Trouble { reason: Reason::OpencodeCrashLoop, message: "it ends".to_owned() };
    let findings = judge(&Seen { door: Some(&door), ..seen(Some(&pod)) });
    for kind in [ConditionType::Ready, ConditionType::PodReady, ConditionType::OpencodeReady] {
        assert_eq!(told(&findings, kind), ("False", Reason::OpencodeCrashLoop));
    }
}

#[test]
fn what_is_known_of_the_manifest_stays_while_the_sandbox_is_deleted() {
    let pod = pod_with(running(), running(), true);
    let last = PodReference { name: "one-sandbox".to_owned(), uid: "pod-0".to_owned(), ip: None, node: None };
    let before = SandboxStatus { pod: Some(last), ..SandboxStatus::default() };
    let seen = Seen { before: Some(&before), ephemeral: true, wanted: Some("other"), ..seen(Some(&pod)) };
    let now = Time(Timestamp::from_second(1).unwrap());
    let findings = judge(&seen);
    let before = SandboxStatus { conditions: follow(&[], &findings, None, &now), ..before.clone() };
    let after = judge(&Seen { pod: Some(&pod), deleting: true, before: Some(&before), ..Seen::default() });
    for kind in [ConditionType::Accepted, ConditionType::WorkspaceIntact, ConditionType::UpToDate] {
        assert_eq!(told(&after, kind), told(&findings, kind));
    }
    assert_eq!(told(&after, ConditionType::WorkspaceIntact), ("False", Reason::WorkspaceLost));
    assert_eq!(told(&after, ConditionType::Ready), ("False", Reason::Deleting));
}
