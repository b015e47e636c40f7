//! Pages of pictures that were put together by hand.

#![expect(clippy::needless_pass_by_value, reason = "tests write values where they are used")]

use serde_json::{Value, json};

use super::*;
use crate::sandboxes::Found;

fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().unwrap()
}

fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({ "type": kind, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-01-01T00:30:00Z" })
}

fn sandbox(conditions: Value) -> Found {
    let object = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "Sandbox",
        "metadata": { "namespace": "team", "name": "one", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z" },
        "spec": { "model": "anthropic/large" }, "status": { "conditions": conditions, "lastExits": [
            { "container": "sandbox", "podUid": "p", "boot": 4, "reason": "OOMKilled", "message": "code 137",
              "at": "2026-01-01T00:55:00Z" },
        ] },
    });
    Found::new(serde_json::from_value(object).unwrap())
}

fn killed_for_memory() -> Picture {
    let why = "Container sandbox ended with exit code 137 (3 restarts).";
    let conditions = json!([
        condition("Ready", "False", "OOMKilled", why),
        condition("PodScheduled", "True", "Scheduled", "The pod has a node"),
        condition("PodReady", "False", "OOMKilled", why),
        condition("UpToDate", "False", "SpecChanged", "The pod runs what an earlier manifest said"),
    ]);
    let pod = json!({
        "metadata": { "name": "one-sandbox", "creationTimestamp": "2026-01-01T00:10:00Z" },
        "spec": { "nodeName": "node-1", "containers": [] },
        "status": { "phase": "Running", "initContainerStatuses": [
            { "name": "sidecar", "ready": true, "restartCount": 0, "image": "", "imageID": "",
              "state": { "running": { "startedAt": "2026-01-01T00:10:05Z" } } },
        ], "containerStatuses": [
            { "name": "sandbox", "ready": false, "restartCount": 3, "image": "", "imageID": "",
              "state": { "waiting": { "reason": "CrashLoopBackOff" } },
              "lastState": { "terminated": { "exitCode": 137, "reason": "OOMKilled",
                  "finishedAt": "2026-01-01T00:55:00Z" } } },
        ] },
    });
    let claim = json!({ "metadata": { "name": "one-workspace" },
        "status": { "phase": "Bound", "capacity": { "storage": "10Gi" } } });
    let event = json!({
        "metadata": {}, "type": "Warning", "reason": "BackOff", "message": "Back-off restarting failed container",
        "involvedObject": { "kind": "Pod", "name": "one-sandbox" }, "count": 7,
        "lastTimestamp": "2026-01-01T00:56:00Z",
    });
    Picture {
        sandbox: sandbox(conditions),
        pod: serde_json::from_value(pod).unwrap(),
        claim: serde_json::from_value(claim).unwrap(),
        events: vec![serde_json::from_value(event).unwrap()],
        missing: Vec::new(),
    }
}

fn text(picture: &Picture, width: Option<usize>) -> String {
    let lines: Vec<_> = lines(picture, now(), width).into_iter().map(|line| line.text).collect();
    lines.join("\n")
}

#[test]
fn a_sandbox_in_trouble_says_why_and_what_to_do() {
    insta::assert_snapshot!(text(&killed_for_memory(), None));
}

#[test]
fn each_step_is_told_once_and_none_where_all_is_well() {
    let picture = killed_for_memory();
    assert_eq!(text(&picture, None).matches("raise spec.resources.limits.memory").count(), 1);
    let well = Picture { sandbox: sandbox(json!([condition("Ready", "True", "Available", "")])), ..picture };
    assert!(!text(&well, None).contains("What to do"));
}

#[test]
fn what_is_not_there_or_cannot_be_read_is_told() {
    let nothing = Picture {
        sandbox: sandbox(json!([])),
        pod: None,
        claim: None,
        events: Vec::new(),
        missing: vec!["cannot list events: forbidden".to_owned()],
    };
    let text = text(&nothing, None);
    for expected in
        ["Ready:      Unknown\n", "Pod:        there is none", "no claim", "Not read:\n  cannot list events"]
    {
        assert!(text.contains(expected), "{text}");
    }
    let odd = json!({ "apiVersion": "berth.dev/v1alpha1", "kind": "Sandbox", "metadata": { "name": "odd" },
        "spec": { "providers": 7 } });
    let odd = Picture { sandbox: Found::new(serde_json::from_value(odd).unwrap()), ..nothing };
    assert!(
        self::text(&odd, None).contains("Unknown, Unreadable\nBecause:    invalid type"),
        "{}",
        self::text(&odd, None)
    );
}

#[test]
fn a_page_fits_its_terminal() {
    for line in lines(&killed_for_memory(), now(), Some(72)) {
        // Columns but the last are never cut, and a command is not broken.
        assert!(line.text.chars().count() <= 90, "{}", line.text);
    }
}

#[test]
fn the_newest_events_are_shown_and_counted_as_the_cluster_counts_them() {
    let mut picture = killed_for_memory();
    let event = |index: usize| {
        let value = json!({ "metadata": { "creationTimestamp": "2026-01-01T00:50:00Z" }, "reason": format!("R{index}"),
            "involvedObject": {}, "eventTime": null, "series": { "count": 9, "lastObservedTime": "2026-01-01T00:59:30.000000Z" } });
        serde_json::from_value::<Event>(value).unwrap()
    };
    picture.events = (0..30).map(event).collect();
    let text = text(&picture, None);
    assert!(
        !text.contains(" R9\n") && text.contains("  30s   9      R10\n") && text.contains(" R29"),
        "{text}"
    );
}
