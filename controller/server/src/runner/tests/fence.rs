//! The owner under its fence: what its calls carry, and what it does when the door refuses them.

use std::time::Duration;

use berth_wire::{problem::ProblemType, turn::TurnState};

use super::rig::{Rig, limits, within};
use crate::store::Cancel;

#[tokio::test]
async fn every_call_that_changes_something_comes_after_the_raise_and_carries_the_fence() {
    let mut rig = Rig::started(limits()).await;
    let session = rig.session().await;
    let (turn, run) = rig.begin(session, 1).await;
    rig.store.request_cancel(session, Cancel::Oldest).await.unwrap();
    rig.door.wait_for("POST /abort", 1).await;
    run.aborted();
    rig.end_of(session, turn).await;
    rig.stop().await;
    rig.start();
    rig.begin(session, 2).await;
    rig.stop().await;
    let mut raised = 0;
    let mut stamped = 0;
    for seen in rig.door.all() {
        match (&*seen.call, seen.stamp) {
            ("PUT /berth/fence", _) => raised = seen.body["fence"].as_u64().unwrap(),
            (call, stamp) if !call.starts_with("GET ") => {
                assert_eq!(stamp, Some(("door1".to_owned(), raised)), "{call}");
                stamped += 1;
            }
            _ => {}
        }
    }
    assert!(raised >= 2, "the second owner has a higher fence");
    assert!(stamped >= 4, "{stamped} calls");
}

#[tokio::test]
async fn at_a_door_that_was_started_anew_the_fence_is_raised_again_and_the_call_repeated() {
    let mut rig = Rig::started(limits()).await;
    let session = rig.session().await;
    let (turn, run) = rig.begin(session, 1).await;
    rig.door.restart("door2", 0);
    rig.store.request_cancel(session, Cancel::Oldest).await.unwrap();
    let abort = rig.door.wait_for("POST /abort", 1).await;
    assert_eq!(abort.stamp, Some(("door2".to_owned(), 1)));
    run.aborted();
    assert_eq!(rig.end_of(session, turn).await.state, TurnState::Cancelled);
    rig.stop().await;
}

#[tokio::test]
async fn an_owner_whose_fence_is_stale_does_nothing_more_until_it_has_taken_the_sandbox_over_again() {
    let mut rig = Rig::started(limits()).await;
    let session = rig.session().await;
    rig.begin(session, 1).await;
    // Another server with another store holds the sandbox now.
    rig.door.restart("door1", 3);
    rig.store.request_cancel(session, Cancel::Oldest).await.unwrap();
    let fences = || -> Vec<u64> {
        rig.door.seen("PUT /berth/fence").iter().map(|seen| seen.body["fence"].as_u64().unwrap()).collect()
    };
    within("the next owners", async {
        while fences().last() != Some(&3) {
            // Whatever is wished wakes the runner.
            rig.store.request_cancel(session, Cancel::Oldest).await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    let abort = rig.door.wait_for("POST /abort", 1).await;
    assert_eq!(abort.stamp, Some(("door1".to_owned(), 3)), "no abort under a lower fence arrived");
    rig.stop().await;
}

#[tokio::test]
async fn a_prompt_that_the_gate_keeps_out_waits_and_is_handed_over_later() {
    let mut rig = Rig::started(limits()).await;
    let session = rig.session().await;
    rig.door.refuse_as("POST /prompt_async", ProblemType::Gated);
    let turn = rig.post(session, "go").await;
    let run = rig.begun(2).await;
    run.complete();
    run.idle();
    assert_eq!(rig.end_of(session, turn).await.state, TurnState::Succeeded);
    rig.stop().await;
}
