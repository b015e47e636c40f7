//! Whatever dies in a pod: one cause, named rightly; no second opencode; no orphan; no hole and no double for subscribers
//! who come back with their cursor; each turn ends once; and then all works again.

use berth_testkit::Scale;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{
    matrix::{Before, Matrix, TURN, batches},
    pod::{Options, send},
    processes,
    wait::{some, until},
};

/// Who dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Opencode,
    WedgedOpencode,
    Supervisor,
    StandingSupervisor,
    Sidecar,
    StandingSidecar,
}

/// Lets somebody die at a point of a turn that the seed decides.
async fn kill(matrix: &mut Matrix, victim: Victim, seed: u64) -> Before {
    let before = matrix.go_to_a_point(seed).await;
    let pod = &mut matrix.pod;
    match victim {
        Victim::Opencode => send(matrix.opencode(), Signal::SIGKILL),
        Victim::WedgedOpencode => send(matrix.opencode(), Signal::SIGSTOP),
        Victim::Supervisor => {
            pod.supervisor.kill().await;
            pod.supervisor.start();
        }
        Victim::StandingSupervisor => {
            pod.supervisor.stand_still().await;
            pod.supervisor.kill().await;
            pod.supervisor.start();
        }
        Victim::Sidecar => {
            pod.sidecar.kill().await;
            pod.sidecar.start();
        }
        Victim::StandingSidecar => {
            pod.sidecar.stand_still().await;
            pod.sidecar.kill().await;
            pod.sidecar.start();
        }
    }
    before
}

fn seeds_of(victim: Victim, scale: Scale) -> u64 {
    let stands = matches!(victim, Victim::StandingSupervisor | Victim::StandingSidecar);
    if stands { scale.pick(2, 25) } else { scale.pick(5, 100) }
}

async fn points_of_a_turn(victim: Victim, test: &str, cause: &str, words: &str) {
    let scale = Scale::current();
    let seeds = seeds_of(victim, scale);
    // Only a wedged opencode should be found to be one, on a busy machine too.
    let health_deadline_ms = if victim == Victim::WedgedOpencode { 3_000 } else { 10_000 };
    for seeds in batches(seeds) {
        let mut matrix = Matrix::start(&Options { health_deadline_ms, ..Options::default() }).await;
        for seed in seeds {
            let before = kill(&mut matrix, victim, seed).await;
            matrix.expect_one_exit(&before, cause, words).await;
            matrix.expect_alive(&before, seed).await;
            let epoch = matrix.pod.state().await["epoch"].clone();
            assert_eq!(epoch, before.epoch.as_str(), "seed {seed}: the end of opencode loses no event");
        }
        assert_eq!(matrix.stop().await, 0);
    }
    scale.report(test, seeds, &[("kills", seeds)]);
}

#[tokio::test]
async fn opencode_is_killed_at_points_of_a_turn() {
    let test = "opencode_is_killed_at_points_of_a_turn";
    points_of_a_turn(Victim::Opencode, test, "Killed", "was killed (signal 9)").await;
}

#[tokio::test]
async fn opencode_is_wedged_at_points_of_a_turn() {
    let test = "opencode_is_wedged_at_points_of_a_turn";
    points_of_a_turn(Victim::WedgedOpencode, test, "Wedged", "did not answer").await;
}

#[tokio::test]
async fn the_supervisor_is_killed_at_points_of_a_turn() {
    let test = "the_supervisor_is_killed_at_points_of_a_turn";
    points_of_a_turn(Victim::Supervisor, test, "SupervisorLost", "supervisor").await;
}

#[tokio::test]
async fn a_supervisor_that_stands_still_is_killed_at_points_of_a_turn() {
    let test = "a_supervisor_that_stands_still_is_killed_at_points_of_a_turn";
    points_of_a_turn(Victim::StandingSupervisor, test, "SupervisorLost", "supervisor").await;
}

async fn new_doors_at_points_of_a_turn(victim: Victim, test: &str) {
    let scale = Scale::current();
    let seeds = seeds_of(victim, scale);
    for seeds in batches(seeds) {
        let mut matrix = Matrix::start(&Options::default()).await;
        let doors = seeds.end - seeds.start;
        for seed in seeds {
            let before = kill(&mut matrix, victim, seed).await;
            let state = matrix.pod.state_when("the same run", |state| state["phase"] == "ready").await;
            assert_eq!(state["boot_id"], before.boot_id.as_str(), "seed {seed}: opencode went on");
            assert_ne!(state["epoch"], before.epoch.as_str(), "seed {seed}");
            matrix.expect_alive_at_a_new_door(&before, seed).await;
            let exits = matrix.global.own("berth.serve.exited").len();
            assert_eq!(exits, before.exits, "seed {seed}: nothing ended");
        }
        assert_eq!(matrix.stop().await, doors, "one resync for each new door");
    }
    scale.report(test, seeds, &[("kills", seeds)]);
}

#[tokio::test]
async fn the_sidecar_is_killed_at_points_of_a_turn() {
    new_doors_at_points_of_a_turn(Victim::Sidecar, "the_sidecar_is_killed_at_points_of_a_turn").await;
}

#[tokio::test]
async fn a_sidecar_that_stands_still_is_killed_at_points_of_a_turn() {
    let test = "a_sidecar_that_stands_still_is_killed_at_points_of_a_turn";
    new_doors_at_points_of_a_turn(Victim::StandingSidecar, test).await;
}

#[tokio::test]
async fn both_programs_are_killed_at_once() {
    let mut matrix = Matrix::start(&Options::default()).await;
    let before = matrix.before().await;
    matrix.pod.prompt(&matrix.session, TURN).await;
    let point = matrix.global.count() + 20;
    until("some events of the turn", || matrix.global.count() >= point).await;
    matrix.pod.supervisor.kill().await;
    matrix.pod.sidecar.kill().await;
    matrix.pod.supervisor.start();
    matrix.pod.sidecar.start();
    let next = |state: &Value| state["phase"] == "ready" && state["boot_id"] != before.boot_id.as_str();
    matrix.pod.state_when("the next run", next).await;
    until("end of what the old run started", || processes::of_boot(&before.boot_id).is_empty()).await;
    matrix.pod.ready().await;
    matrix.pod.expect_alive(&matrix.session, "alive").await;
    some("a resync", async || (!matrix.global.own("berth.resync").is_empty()).then_some(())).await;
    assert_eq!(matrix.stop().await, 1);
}
