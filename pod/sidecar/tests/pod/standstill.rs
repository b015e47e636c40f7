//! A program of the pod stands still at a point of a turn (SIGSTOP) and goes on later, as after a frozen node: nothing
//! is lost, nothing is double, nothing is called what it was not.

use berth_testkit::Scale;
use berth_wire::problem::{Problem, ProblemType};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{
    matrix::{Before, Matrix},
    pod::{Options, send},
    processes,
    wait::{some, until, within},
};

impl Matrix {
    /// No run of opencode ended meanwhile, and the door missed nothing.
    async fn expect_the_same_run(&self, before: &Before) {
        let same = |state: &Value| state["phase"] == "ready";
        let state = self.pod.state_when("the same run", same).await;
        assert_eq!(state["boot_id"], before.boot_id.as_str());
        assert_eq!(state["epoch"], before.epoch.as_str());
        assert_eq!(self.global.own("berth.serve.exited").len(), before.exits);
    }

    /// Asks opencode itself, past the door.
    async fn ask_opencode(&self, path: &str) -> Option<Value> {
        let url = format!("http://{}{path}", self.pod.addresses.opencode);
        let request = self.pod.client().get(url).basic_auth("opencode", Some(&self.pod.internal));
        request.send().await.ok()?.json().await.ok()
    }

    /// Waits until opencode has the whole turn behind it that was prompted after so many messages.
    async fn turn_is_over_at_opencode(&self, messages: usize) {
        let path = format!("/session/{}/message", self.session);
        some("the turn's end at opencode", async || {
            let told: Vec<Value> = serde_json::from_value(self.ask_opencode(&path).await?).ok()?;
            let newest = &told.last()?["info"];
            // A prompt, an answer with a tool, and one without.
            let is_over = told.len() >= messages + 3 && newest["time"]["completed"].is_number();
            let status = self.ask_opencode("/session/status").await?;
            (is_over && status.get(&self.session).is_none()).then_some(())
        })
        .await;
    }

    async fn messages(&self) -> usize {
        let path = format!("/session/{}/message", self.session);
        let told = some("the messages", async || self.ask_opencode(&path).await).await;
        told.as_array().expect("a list").len()
    }
}

#[tokio::test]
async fn the_supervisor_stands_still_at_points_of_a_turn() {
    let scale = Scale::current();
    let seeds = scale.pick(3, 25);
    let matrix = Matrix::start(&Options::default()).await;
    for seed in 0..seeds {
        let before = matrix.go_to_a_point(seed).await;
        matrix.pod.supervisor.stand_still().await;
        // The turn and another one do not need it.
        matrix.expect_alive(&before, seed).await;
        matrix.pod.supervisor.go_on();
        matrix.expect_the_same_run(&before).await;
    }
    // It watches again.
    let before = matrix.go_to_a_point(seeds).await;
    send(matrix.opencode(), Signal::SIGKILL);
    matrix.expect_one_exit(&before, "Killed", "was killed (signal 9)").await;
    matrix.expect_alive(&before, seeds).await;
    assert_eq!(matrix.stop().await, 0);
    scale.report("the_supervisor_stands_still_at_points_of_a_turn", seeds, &[("stops", seeds)]);
}

#[tokio::test]
async fn opencode_is_killed_while_the_supervisor_stands_still() {
    let scale = Scale::current();
    let seeds = scale.pick(2, 15);
    let matrix = Matrix::start(&Options::default()).await;
    for seed in 0..seeds {
        let before = matrix.go_to_a_point(seed).await;
        matrix.pod.supervisor.stand_still().await;
        let opencode = matrix.opencode();
        send(opencode, Signal::SIGKILL);
        until("its end", || !processes::is_alive(opencode)).await;
        // Nobody can tell yet what happened, and the door makes nothing up.
        matrix.pod.state().await;
        assert_eq!(matrix.global.own("berth.serve.exited").len(), before.exits);
        matrix.pod.supervisor.go_on();
        matrix.expect_one_exit(&before, "Killed", "was killed (signal 9)").await;
        matrix.expect_alive(&before, seed).await;
    }
    assert_eq!(matrix.stop().await, 0);
    scale.report("opencode_is_killed_while_the_supervisor_stands_still", seeds, &[("kills", seeds)]);
}

#[tokio::test]
async fn a_supervisor_that_stands_still_for_long_is_said_to_and_found_again() {
    let matrix = Matrix::start(&Options::default()).await;
    let before = matrix.go_to_a_point(1).await;
    matrix.pod.supervisor.stand_still().await;
    matrix.pod.state_when("word of its silence", |state| state["phase"] == "starting").await;
    let refused = within("an answer", matrix.pod.get("/session").send()).await.unwrap();
    let problem: Problem = refused.json().await.unwrap();
    assert_eq!(problem.problem_type(), Some(ProblemType::Wedged), "{problem:?}");
    assert_eq!(matrix.global.own("berth.serve.exited").len(), before.exits, "opencode did not end");
    matrix.pod.supervisor.go_on();
    let state = matrix.pod.state_when("the same run", |state| state["phase"] == "ready").await;
    assert_eq!(state["boot_id"], before.boot_id.as_str());
    matrix.expect_alive(&before, 1).await;
    assert_eq!(matrix.global.own("berth.serve.exited").len(), before.exits);
    let resyncs = matrix.stop().await;
    assert!(resyncs <= 1, "what may be missing is told once: {resyncs}");
}

#[tokio::test]
async fn the_sidecar_stands_still_at_points_of_a_turn() {
    let scale = Scale::current();
    let seeds = scale.pick(3, 25);
    let matrix = Matrix::start(&Options::default()).await;
    for seed in 0..seeds {
        let messages = matrix.messages().await;
        let before = matrix.go_to_a_point(seed).await;
        matrix.pod.sidecar.stand_still().await;
        matrix.turn_is_over_at_opencode(messages).await;
        matrix.pod.sidecar.go_on();
        matrix.expect_alive(&before, seed).await;
        matrix.expect_the_same_run(&before).await;
    }
    assert_eq!(matrix.stop().await, 0, "it missed nothing");
    scale.report("the_sidecar_stands_still_at_points_of_a_turn", seeds, &[("stops", seeds)]);
}
