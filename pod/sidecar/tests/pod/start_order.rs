//! Who comes first, and who waits for whom.

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{
    pod::{Options, Pod, send},
    wait::{some, until},
};

#[tokio::test]
async fn the_supervisor_waits_for_the_sidecar_before_its_first_start() {
    let mut pod = Pod::prepare(&Options::default()).await;
    pod.supervisor.start();
    until("word that it waits", || pod.supervisor.log().contains("/ready")).await;
    assert_eq!(pod.servers(), Vec::<u32>::new());
    pod.sidecar.start();
    pod.ready().await;
    let session = pod.session().await;
    pod.expect_alive(&session, "alive").await;
    pod.stop().await;
}

#[tokio::test]
async fn the_sidecar_waits_for_the_supervisor() {
    let mut pod = Pod::prepare(&Options::default()).await;
    pod.sidecar.start();
    assert_eq!(pod.state().await["phase"], "starting");
    let mut waiting = tokio::task::JoinSet::new();
    waiting.spawn(pod.get("/session").send());
    let events = pod.follow_directory();
    pod.supervisor.start();
    let answer = some("an answer", async || waiting.join_next().await).await;
    assert_eq!(answer.unwrap().unwrap().status(), 200, "a request waits for the first start");
    pod.session().await;
    // The subscription came before anybody knew of which directory.
    until("an event of the directory", || !events.own("session.created").is_empty()).await;
    pod.stop().await;
}

#[tokio::test]
async fn the_sidecar_is_killed_while_opencode_restarts() {
    let mut pod = Pod::start(&Options::default()).await;
    let boot_id = pod.state().await["boot_id"].clone();
    pod.sidecar.kill().await;
    send(pod.servers()[0], Signal::SIGKILL);
    let waits = |pod: &Pod| pod.supervisor.log().matches("/ready").count() > 0;
    until("word that it waits", || waits(&pod)).await;
    assert_eq!(pod.servers(), Vec::<u32>::new(), "nothing starts before the way in is open");
    pod.sidecar.start();
    let next = |state: &Value| state["phase"] == "ready" && state["boot_id"] != boot_id;
    let state = pod.state_when("the next run", next).await;
    assert!(state["last_exit"].as_str().is_some_and(|told| told.contains("signal 9")), "{state}");
    let session = pod.session().await;
    pod.expect_alive(&session, "alive").await;
    pod.stop().await;
}
