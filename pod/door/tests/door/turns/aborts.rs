//! Aborts at every moment of a turn.

use berth_testkit::Scale;

use super::*;
use crate::housekeeping::count;

/// What an agent that works sends.
fn is_work(event: &Value) -> bool {
    let part = &event["properties"]["part"];
    match event["type"].as_str() {
        Some("message.part.delta" | "permission.asked") => true,
        Some("message.part.updated") => {
            matches!(part["state"]["status"].as_str(), Some("pending" | "running"))
                || part["type"] == "step-start"
        }
        _ => false,
    }
}

/// One abort so long after the prompt in a cold directory: after the end nothing is done any more, and the next prompt
/// runs. Without the door, opencode swallows that one and every later one of the directory where the abort met an
/// instance that was still being made (measured on opencode 1.18.33).
async fn abort_after(rig: &Rig, events: &mut Events, delay: Duration) {
    let session = rig.cold_session().await;
    let script =
        format!("@stub {} >> say:done", bash("until [ -e go ]; do sleep 0.02; done; echo ran > ran"));
    let id = rig.script(&session, &script).await;
    tokio::time::sleep(delay).await;
    rig.abort(&session).await;
    let seen = turn(events, &id, "ended").await;
    assert_eq!(outcome(&seen), "aborted", "after {delay:?}: {}", story(&seen));
    // From here on a tool that still runs writes its file at once.
    std::fs::write(PathBuf::from(&session.directory).join("go"), "").expect("a file");
    let asked = rig.asked(&session);
    let marker = rig.script(&session, "@stub say:marker").await;
    let after = turn(events, &marker, "started").await;
    let work: Vec<&Value> = after
        .iter()
        .filter(|event| is_work(event) && event["properties"]["sessionID"] == session.id.as_str())
        .collect();
    assert_eq!(work, Vec::<&Value>::new(), "after {delay:?}");
    let end = turn(events, &marker, "ended").await;
    let told = [&seen[..], &after[..], &end[..]].concat();
    assert_eq!(outcome(&end), "idle", "after {delay:?} the next turn was not left alone: {}", story(&told));
    let written = PathBuf::from(&session.directory).join("ran");
    assert!(!written.exists(), "after {delay:?} the tool ran to its end");
    let again = rig.asked(&session);
    assert_eq!(again, asked + 1, "after {delay:?} the model of the next prompt: {}", story(&told));
    rig.dispose(&session).await;
}

#[tokio::test]
async fn an_abort_in_a_cold_directory_takes_effect_whenever_it_comes() {
    let rig = Rig::start().await;
    let mut events = rig.door.events("/global/event", None).await;
    let scale = Scale::current();
    let (rounds, delays) = (scale.pick(2, 30), [0, 25, 50, 100, 200, 300, 400, 600]);
    for _ in 0..rounds {
        for delay in delays {
            abort_after(&rig, &mut events, Duration::from_millis(delay)).await;
        }
    }
    let counts = [
        ("aborts", rounds * delays.len() as u64),
        ("directories_renewed", count(&rig.counters, "renewed_directories")),
    ];
    scale.report("an_abort_in_a_cold_directory_takes_effect_whenever_it_comes", 0, &counts);
    rig.idle().await;
    rig.stop().await;
}

#[tokio::test]
async fn an_abort_whose_caller_leaves_and_one_for_two_prompts() {
    let rig = Rig::start().await;
    let mut events = rig.door.events("/global/event", None).await;
    let session = rig.cold_session().await;
    let script =
        format!("@stub {} >> say:done", bash("until [ -e go ]; do sleep 0.02; done; echo ran > ran"));
    let first = rig.script(&session, &script).await;
    let second = rig.script(&session, &script).await;
    let left = timeout(Duration::from_millis(20), rig.call(&session, "abort").send()).await;
    assert!(left.is_err(), "the abort is held");
    let seen = turn(&mut events, &first, "ended").await;
    assert_eq!(outcome(&seen), "aborted", "{}", story(&seen));
    let told =
        |event: &Value| is_turn(event, "ended") && event["properties"]["message_id"] == second.as_str();
    if !seen.iter().any(told) {
        let seen = turn(&mut events, &second, "ended").await;
        assert_eq!(outcome(&seen), "aborted", "{}", story(&seen));
    }
    std::fs::write(PathBuf::from(&session.directory).join("go"), "").expect("a file");
    rig.mark(&session, &mut events).await;
    assert!(!PathBuf::from(&session.directory).join("ran").exists());
    rig.idle().await;
    rig.stop().await;
}

#[tokio::test]
async fn an_abort_with_a_permission_pending_ends_when_all_of_it_is_told() {
    let rig = Rig::start().await;
    let mut events = rig.door.events("/global/event", None).await;
    let session = rig.session_in(rig.sandbox.work.clone()).await;
    for _ in 0..Scale::current().pick(2, 20) {
        let id = rig.script(&session, &format!("@stub {} >> say:done", bash("touch ran"))).await;
        until(&mut events, "permission", |event| event["type"] == "permission.asked").await;
        rig.abort(&session).await;
        let seen = turn(&mut events, &id, "ended").await;
        assert_eq!(outcome(&seen), "aborted", "{}", story(&seen));
        let closed = seen.iter().any(|event| {
            let info = &event["properties"]["info"];
            info["role"] == "assistant" && info["error"]["name"] == "MessageAbortedError"
        });
        assert!(closed, "the answer is closed before the end: {}", story(&seen));
        let marker = rig.script(&session, "@stub say:marker").await;
        let after = turn(&mut events, &marker, "started").await;
        let late = after.iter().any(|event| event["properties"]["info"]["parentID"] == id.as_str());
        assert!(!late, "{}", story(&after));
        let seen = turn(&mut events, &marker, "ended").await;
        assert_eq!(outcome(&seen), "idle");
    }
    assert!(!rig.sandbox.work.join("ran").exists());
    rig.stop().await;
}
