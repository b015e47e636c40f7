//! How a sandbox's pods, their containers and its opencode ended, as the status remembers it. Pure.

use berth_api::{Reason, layout, status::LastExit};
use berth_wire::{api::SandboxPhase, door::DoorState};
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use crate::judge::{self, Trouble};

/// How many are remembered.
const KEPT: usize = 5;

/// Longest message, in characters.
const MESSAGE_MAX: usize = 256;

/// What is remembered from now on, the last one first. What is known already stays as it was told.
pub(crate) fn remember(
    before: &[LastExit],
    pod: Option<&Pod>,
    door: Option<&DoorState>,
    now: Timestamp,
) -> Vec<LastExit> {
    let seen = pod.into_iter().flat_map(|pod| of_pod(pod).into_iter().chain(of_opencode(pod, door, now)));
    let known = |exit: &LastExit| before.iter().any(|old| is_same(old, exit));
    let mut exits: Vec<LastExit> = seen.filter(|exit| !known(exit)).collect();
    exits.extend_from_slice(before);
    exits.sort_by_key(|exit| std::cmp::Reverse(exit.at.as_ref().map(|at| at.0)));
    exits.truncate(KEPT);
    exits
}

fn is_same(one: &LastExit, other: &LastExit) -> bool {
    let thing = |exit: &LastExit| (exit.pod_uid.clone(), exit.container.clone(), exit.boot);
    // A pod ends once, and so does a run of opencode.
    let once = one.container == judge::POD || one.boot.is_some();
    thing(one) == thing(other) && (once || one.at == other.at)
}

/// Of the whole pod where it ended, else of containers; not of those that end with a pod that is deleted.
fn of_pod(pod: &Pod) -> Vec<LastExit> {
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    let exit = |container: &str, trouble: Trouble, at: Option<Time>| LastExit {
        container: container.to_owned(),
        pod_uid: uid.clone(),
        boot: None,
        reason: trouble.reason.to_string(),
        message: Some(short(&trouble.message)).filter(|message| !message.is_empty()),
        at,
    };
    if let Some((trouble, at)) = judge::end_of(pod) {
        return vec![exit(judge::POD, trouble, at)];
    }
    if pod.metadata.deletion_timestamp.is_some() {
        return Vec::new();
    }
    judge::ends_of_containers(pod).map(|(name, trouble, at)| exit(name, trouble, at)).collect()
}

/// Of the last run of opencode that ended, by the door's word: its words are the agent's pod's, and prove nothing.
fn of_opencode(pod: &Pod, door: Option<&DoorState>, now: Timestamp) -> Option<LastExit> {
    let door = door?;
    let words = door.last_exit.as_deref()?;
    // While one runs it is the one before that ended.
    let runs = door.pid.is_some() || door.phase == SandboxPhase::Ready;
    let boot = door.boot.checked_sub(u64::from(runs)).filter(|boot| *boot > 0)?;
    Some(LastExit {
        container: layout::SANDBOX.to_owned(),
        pod_uid: pod.metadata.uid.clone()?,
        boot: i64::try_from(boot).ok(),
        reason: reason_of(words).to_string(),
        message: Some(short(words)),
        at: Timestamp::from_second(now.as_second()).ok().map(Time),
    })
}

/// The cause in the supervisor's words, whose beginnings are fixed.
fn reason_of(words: &str) -> Reason {
    if words.starts_with("opencode was killed because the memory") {
        Reason::OOMKilled
    } else if words.starts_with("opencode did not answer") {
        Reason::Wedged
    } else {
        Reason::OpencodeExited
    }
}

/// One line, without what a terminal would take for more than text.
fn short(message: &str) -> String {
    let plain = |letter: char| if letter.is_control() { ' ' } else { letter };
    message.trim().chars().map(plain).take(MESSAGE_MAX).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn pod(more: &Value) -> Pod {
        let mut pod = json!({ "metadata": { "uid": "pod-1" }, "status": {} });
        for (part, members) in more.as_object().unwrap() {
            for (name, value) in members.as_object().unwrap() {
                pod[part][name] = value.clone();
            }
        }
        serde_json::from_value(pod).unwrap()
    }

    fn ended(code: i32, reason: &str, time: &str) -> Value {
        json!({ "terminated": { "exitCode": code, "reason": reason, "finishedAt": time } })
    }

    fn container(name: &str, state: &Value, last: &Value) -> Value {
        json!({ "name": name, "ready": false, "restartCount": 1, "image": "", "imageID": "", "state": state, "lastState": last })
    }

    fn state(boot: u64, pid: Option<u32>, last_exit: &str) -> DoorState {
        serde_json::from_value(json!({
            "phase": if pid.is_some() { "ready" } else { "starting" }, "boot": boot, "boot_id": "b", "pid": pid,
            "version": null, "epoch": "e", "seq": 0, "last_exit": last_exit,
        }))
        .unwrap()
    }

    fn told(exits: &[LastExit]) -> Vec<(&str, Option<i64>, &str)> {
        exits.iter().map(|exit| (exit.container.as_str(), exit.boot, exit.reason.as_str())).collect()
    }

    #[test]
    fn containers_that_end_are_remembered_once_each() {
        let first =
            container("sandbox", &json!({ "running": {} }), &ended(137, "OOMKilled", "2026-11-30T12:00:00Z"));
        let pod_with = |sandbox: &Value| pod(&json!({ "status": { "containerStatuses": [sandbox] } }));
        let one = remember(&[], Some(&pod_with(&first)), None, at(0));
        assert_eq!(told(&one), [("sandbox", None, "OOMKilled")]);
        assert_eq!(remember(&one, Some(&pod_with(&first)), None, at(9)), one, "a second look at the same");
        let second = container("sandbox", &ended(1, "Error", "2026-11-30T12:05:00Z"), &json!({}));
        let both = remember(&one, Some(&pod_with(&second)), None, at(9));
        assert_eq!(told(&both), [("sandbox", None, "OpencodeCrashLoop"), ("sandbox", None, "OOMKilled")]);
        assert_eq!(remember(&both, None, None, at(10)), both, "they outlive their pod");
    }

    #[test]
    fn the_end_of_a_whole_pod_is_one() {
        let containers =
            json!([container("sandbox", &ended(137, "Error", "2026-11-30T12:00:00Z"), &json!({}))]);
        let evicted = pod(&json!({ "status": {
            "phase": "Failed", "reason": "Evicted", "message": "low on disk\u{1b}[2J", "containerStatuses": containers,
        } }));
        let exits = remember(&[], Some(&evicted), None, at(0));
        assert_eq!(told(&exits), [(judge::POD, None, "Evicted")]);
        assert!(exits[0].at.is_some() && !exits[0].message.as_ref().unwrap().contains('\u{1b}'), "{exits:?}");
        let deleted = pod(&json!({
            "metadata": { "deletionTimestamp": "2026-11-30T12:00:00Z" }, "status": { "containerStatuses": containers },
        }));
        assert_eq!(remember(&[], Some(&deleted), None, at(0)), [], "somebody wanted that");
        for (reason, expected) in
            [("PreemptionByScheduler", "Evicted"), ("DeletionByTaintManager", "NodeLost")]
        {
            let disrupted = json!([{ "type": "DisruptionTarget", "status": "True", "reason": reason }]);
            let moved = pod(&json!({
                "metadata": { "deletionTimestamp": "2026-11-30T12:00:00Z" }, "status": { "conditions": disrupted },
            }));
            assert_eq!(told(&remember(&[], Some(&moved), None, at(0))), [(judge::POD, None, expected)]);
        }
    }

    #[test]
    fn runs_of_opencode_are_told_by_their_number() {
        let there = pod(&json!({}));
        let memory = "opencode was killed because the memory of its container was used up (signal 9)";
        let first = remember(&[], Some(&there), Some(&state(2, Some(7), memory)), at(5));
        assert_eq!(told(&first), [("sandbox", Some(1), "OOMKilled")]);
        let same = remember(&first, Some(&there), Some(&state(2, Some(7), memory)), at(50));
        assert_eq!(same, first, "when it was first heard of stays");
        let wedged = state(2, None, "opencode did not answer and was ended (signal 9)");
        let second = remember(&first, Some(&there), Some(&wedged), at(60));
        assert_eq!(told(&second), [("sandbox", Some(2), "Wedged"), ("sandbox", Some(1), "OOMKilled")]);
        let none = state(1, Some(7), "odd");
        assert_eq!(remember(&[], Some(&there), Some(&none), at(5)), [], "there was no run before the first");
    }

    #[test]
    fn the_last_ones_are_kept() {
        let mut exits = Vec::new();
        for boot in 1..20 {
            let door = state(boot, None, "opencode ended by itself (exit code 1)");
            exits = remember(&exits, Some(&pod(&json!({}))), Some(&door), at(i64::try_from(boot).unwrap()));
        }
        let boots: Vec<_> = exits.iter().map(|exit| exit.boot).collect();
        assert_eq!(boots, [Some(19), Some(18), Some(17), Some(16), Some(15)]);
    }

    proptest! {
        #[test]
        fn whatever_a_door_says_is_bounded(words in ".{0,2000}", boot: u64, pid: Option<u32>) {
            let exits = remember(&[], Some(&pod(&json!({}))), Some(&state(boot, pid, &words)), at(0));
            prop_assert!(exits.len() <= 1);
            for exit in exits {
                let message = exit.message.unwrap();
                prop_assert!(message.chars().count() <= MESSAGE_MAX && !message.contains('\n'));
            }
        }
    }
}
