//! A sidecar that is started again over a living opencode.

use berth_wire::{
    admission::{EPOCH_HEADER, FENCE_HEADER},
    problem::{Problem, ProblemType},
};
use serde_json::{Value, json};

use crate::{
    pod::{Options, Pod},
    wait::{some, until, within},
};

/// Raises the fence; gives the door's instance.
async fn raise(pod: &Pod, fence: u64) -> String {
    let request = pod.client().put(pod.url("/berth/fence")).basic_auth("opencode", Some(&pod.password));
    let answer = within("the fence", request.json(&json!({ "fence": fence })).send()).await.unwrap();
    assert_eq!(answer.status(), 200);
    answer.json::<Value>().await.unwrap()["epoch"].as_str().expect("an epoch").to_owned()
}

/// Makes a session under a fence.
async fn create(pod: &Pod, epoch: &str, fence: u64) -> reqwest::Response {
    let request = pod.post("/session").header(EPOCH_HEADER, epoch).header(FENCE_HEADER, fence);
    within("an answer", request.json(&json!({})).send()).await.unwrap()
}

#[tokio::test]
async fn a_new_sidecar_over_a_living_opencode_finds_its_turn_and_refuses_the_old_fence() {
    let mut pod = Pod::start(&Options::default()).await;
    let (global, directory) = (pod.follow(), pod.follow_directory());
    let session = pod.session().await;
    let epoch = raise(&pod, 7).await;
    assert_eq!(create(&pod, &epoch, 7).await.status(), 200);
    let before = pod.state().await;
    pod.prompt(&session, "@stub text:n=400,d=20").await;
    let ended = || {
        let of_session = |turn: &&Value| turn["properties"]["session_id"] == session.as_str();
        let turns = global.own("berth.turn");
        turns.iter().filter(of_session).filter(|turn| turn["properties"]["phase"] == "ended").count()
    };
    let deltas = |count: usize| {
        let kind = "message.part.delta";
        global.own(kind).len() >= count && directory.own(kind).len() >= count
    };
    until("text at both", || deltas(5)).await;

    pod.sidecar.kill().await;
    pod.sidecar.start();
    let state = pod.state_when("the same run", |state| state["phase"] == "ready").await;
    assert_eq!(state["boot_id"], before["boot_id"]);
    assert_ne!(state["epoch"], before["epoch"]);
    for subscriber in [&global, &directory] {
        until("a resync", || !subscriber.own("berth.resync").is_empty()).await;
        let resyncs = subscriber.own("berth.resync");
        assert_eq!(resyncs.len(), 1);
        assert_eq!(resyncs[0]["properties"]["reason"], "epoch_changed");
    }
    let running = some("the running turn", async || {
        let turns: Value = pod.get("/berth/turns").send().await.ok()?.json().await.ok()?;
        turns.to_string().contains(&session).then_some(turns)
    })
    .await;
    assert!(running.to_string().contains("\"started\""), "{running}");

    let refused = create(&pod, &epoch, 7).await;
    assert_eq!(refused.status(), 412);
    let problem: Problem = refused.json().await.unwrap();
    assert_eq!(problem.problem_type(), Some(ProblemType::StaleEpoch));
    let again = raise(&pod, 7).await;
    assert_ne!(again, epoch);
    assert_eq!(create(&pod, &again, 7).await.status(), 200);
    assert_eq!(create(&pod, &again, 6).await.status(), 409);

    until("the end of the turn", || ended() > 0).await;
    let words = (0..400).fold(String::new(), |text, index| text + "word" + &index.to_string() + " ");
    some("the whole text", async || (pod.newest_text(&session).await? == words).then_some(())).await;
    pod.expect_alive(&session, "alive").await;
    until("the end of the next turn", || ended() > 1).await;
    assert_eq!(ended(), 2, "each turn ends once");
    assert_eq!(global.check_dense(), 1);
    directory.check_against(&global, pod.work.to_str().unwrap());
    assert_eq!(global.own("berth.serve.exited"), Vec::<Value>::new());
    pod.stop().await;
}
