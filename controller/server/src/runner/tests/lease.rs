//! The owner and its lease: when it comes, when it goes, and what it does not do once it may have lost the sandbox.

use std::time::{Duration, Instant};

use berth_wire::{
    event::{Fold, Voice},
    turn::TurnState,
};
use uuid::Uuid;

use super::rig::{Rig, limits, sandbox, within};
use crate::store::{Acquired, Cancel, Fault, StoreError, small_disk::SmallDisk};

/// A lease that does not run out during a test.
const LONG: Duration = Duration::from_mins(1);

/// Takes the sandbox over for somebody else, as soon as its lease allows that; the fence.
async fn take_over(rig: &Rig, lease: Duration) -> i64 {
    let other = Uuid::now_v7();
    within("the lease's end", async {
        loop {
            match rig.store.acquire(&sandbox(), other, lease).await.unwrap() {
                Acquired::Taken(taken) => return taken.fence,
                Acquired::Held { remaining } => tokio::time::sleep(remaining).await,
            }
        }
    })
    .await
}

/// The fences that were raised at the door, in order.
fn raised(rig: &Rig) -> Vec<u64> {
    rig.door.seen("PUT /berth/fence").iter().map(|seen| seen.body["fence"].as_u64().unwrap()).collect()
}

#[tokio::test]
async fn a_runner_waits_for_the_end_of_anothers_lease() {
    let mut rig = Rig::new(limits()).await;
    let (lease, began) = (Duration::from_millis(400), Instant::now());
    let fence = take_over(&rig, lease).await;
    let session = rig.session().await;
    rig.post(session, "go").await;
    rig.start();
    rig.handed(1).await;
    assert!(began.elapsed() >= lease, "{:?}", began.elapsed());
    assert_eq!(raised(&rig).first(), Some(&(fence.unsigned_abs() + 1)));
    rig.stop().await;
}

#[tokio::test]
async fn a_lease_that_is_given_up_is_taken_at_once() {
    let mut rig = Rig::new(limits()).await;
    let fence = take_over(&rig, LONG).await;
    let session = rig.session().await;
    rig.post(session, "go").await;
    rig.start();
    rig.store.release(&sandbox(), fence).await.unwrap();
    rig.handed(1).await;
    rig.stop().await;
    let after = take_over(&rig, LONG).await;
    assert_eq!(after, fence + 2, "a runner that is stopped gives its own up, too");
}

#[tokio::test]
async fn an_owner_keeps_its_lease_while_it_has_nothing_to_do_but_wait() {
    let mut limits = limits();
    (limits.lease, limits.lease_renewal) = (Duration::from_millis(600), Duration::from_millis(100));
    let mut rig = Rig::started(limits.clone()).await;
    let session = rig.session().await;
    let (turn, run) = rig.begin(session, 1).await;
    let until = Instant::now() + limits.lease * 4;
    while Instant::now() < until {
        let other = rig.store.acquire(&sandbox(), Uuid::now_v7(), limits.lease).await.unwrap();
        assert!(matches!(other, Acquired::Held { .. }), "{other:?}");
        tokio::time::sleep(limits.lease_renewal).await;
    }
    run.complete();
    run.idle();
    assert_eq!(rig.end_of(session, turn).await.state, TurnState::Succeeded);
    rig.stop().await;
}

#[tokio::test]
async fn an_owner_whose_lease_has_run_out_asks_before_it_calls_the_door() {
    let mut limits = limits();
    (limits.lease, limits.lease_renewal) = (Duration::from_millis(300), Duration::from_mins(1));
    let mut rig = Rig::started(limits).await;
    let session = rig.session().await;
    rig.begin(session, 1).await;
    let fence = take_over(&rig, LONG).await;
    rig.store.request_cancel(session, Cancel::Oldest).await.unwrap();
    // The runner comes back when it is free again, which shows that the owner from before has stopped.
    rig.store.release(&sandbox(), fence).await.unwrap();
    let abort = rig.door.wait_for("POST /abort", 1).await;
    let expected = ("door1".to_owned(), fence.unsigned_abs() + 1);
    assert_eq!(abort.stamp, Some(expected), "no abort under the lost fence, which the door would have taken");
    rig.stop().await;
}

#[tokio::test]
async fn an_owner_that_was_taken_over_does_not_raise_its_fence_at_a_door_that_was_started_anew() {
    let mut rig = Rig::started(limits()).await;
    let session = rig.session().await;
    rig.begin(session, 1).await;
    let mine = raised(&rig).last().copied().unwrap();
    // Its own clock says that it owns the sandbox; the store knows better.
    rig.store.renew(&sandbox(), mine.cast_signed(), Duration::ZERO).await.unwrap();
    let fence = take_over(&rig, LONG).await;
    rig.door.restart("door2", 0);
    let before = raised(&rig).len();
    rig.store.request_cancel(session, Cancel::Oldest).await.unwrap();
    rig.store.release(&sandbox(), fence).await.unwrap();
    let abort = rig.door.wait_for("POST /abort", 1).await;
    let next = fence.unsigned_abs() + 1;
    assert_eq!(abort.stamp, Some(("door2".to_owned(), next)));
    assert!(raised(&rig)[before..].iter().all(|raised| *raised == next), "{:?}", raised(&rig));
    rig.stop().await;
}

#[tokio::test]
async fn a_full_disk_stops_the_owner_and_when_there_is_space_again_nothing_was_lost() {
    is_borne(SmallDisk::mount(), SmallDisk::fill, SmallDisk::clear, &[Fault::DiskFull]).await;
}

#[tokio::test]
async fn a_disk_that_turns_read_only_stops_the_owner_and_when_that_is_over_nothing_was_lost() {
    is_borne(SmallDisk::folder(), SmallDisk::freeze, SmallDisk::thaw, &[Fault::Disk, Fault::ReadOnly]).await;
}

/// A disk that cannot be written for a while: it is named, and what comes meanwhile is written when that is over.
async fn is_borne(disk: SmallDisk, spoil: fn(&SmallDisk), mend: fn(&SmallDisk), expected: &[Fault]) {
    let mut rig = Rig::on(disk.path(), limits()).await;
    rig.start();
    let session = rig.session().await;
    let (turn, run) = rig.begin(session, 1).await;
    spoil(&disk);
    let text = "0123456789abcdef".repeat(4096);
    run.say(&text);
    run.complete();
    run.idle();
    let refused = rig.store.rename_session(session, &text).await;
    let named = matches!(&refused, Err(StoreError::Unusable { fault, .. }) if expected.contains(fault));
    assert!(named, "the disk is named");
    let open = rig.turn(turn).await.state;
    assert_eq!(open, TurnState::Running, "its end cannot be written, and is not told");
    mend(&disk);
    assert_eq!(rig.end_of(session, turn).await.state, TurnState::Succeeded);
    let mut fold = Fold::default();
    let log = rig.log(session).await;
    for event in &log {
        fold.apply(&event.payload).unwrap();
    }
    assert_eq!(fold.text(Voice::Message), text);
    assert_eq!(
        log.iter().map(|event| event.seq).collect::<Vec<_>>(),
        (1..).take(log.len()).collect::<Vec<_>>()
    );
    rig.stop().await;
}
