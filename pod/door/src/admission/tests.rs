//! Fence, gate and calls in flight together, on a clock that stands still.

use std::time::Duration;

use berth_wire::admission::HeldPhase;
use futures_util::FutureExt;

use super::{housework::READ, *};

const MINUTE: Duration = Duration::from_mins(1);

fn admission() -> Arc<Admission> {
    Arc::new(Admission::new(Arc::new(Journal::new(1 << 20, crate::metrics::JournalMetrics::default()))))
}

fn stamp(admission: &Admission, fence: u64) -> Stamp {
    let mut headers = http::HeaderMap::new();
    headers.insert("berth-epoch", admission.fence().epoch.parse().unwrap());
    headers.insert("berth-fence", fence.into());
    Stamp::of(&headers).unwrap().unwrap()
}

fn prompt() -> Class {
    Class::Prompt { session: Some("ses_1".to_owned()) }
}

fn hold(phase: HeldPhase, generation: Option<u64>) -> Hold {
    let (owner, reason) = ("snapshot".to_owned(), "nightly".to_owned());
    Hold { owner, reason, ttl: MINUTE, phase, generation }
}

#[tokio::test(start_paused = true)]
async fn raising_waits_for_calls_of_lower_fences_and_for_no_others() {
    let admission = admission();
    admission.raise(1, MINUTE).await.unwrap();
    let old = admission.admit(&prompt(), Some(&stamp(&admission, 1)), "/w").unwrap();
    let _outside = admission.admit(&prompt(), None, "/w").unwrap();
    let mut raising = Box::pin(admission.raise(2, MINUTE));
    assert!(raising.as_mut().now_or_never().is_none());
    let late = admission.admit(&prompt(), Some(&stamp(&admission, 1)), "/w");
    assert!(matches!(late, Err(Refusal::Stale(Stale::Fence, _))), "refused from the first moment on");
    drop(old);
    assert_eq!(raising.await.unwrap().fence, 2);
    let _new = admission.admit(&prompt(), Some(&stamp(&admission, 2)), "/w").unwrap();
    let higher = admission.admit(&prompt(), Some(&stamp(&admission, 3)), "/w");
    assert!(matches!(higher, Err(Refusal::Stale(Stale::Fence, _))), "only raising raises");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_shortened_is_told_to_be_over_at_its_new_deadline() {
    let admission = admission();
    let lease = hold(HeldPhase::Draining, None);
    let generation = admission.hold(&lease).unwrap();
    let mut keeper = Box::pin(admission.keep_time());
    assert!(keeper.as_mut().now_or_never().is_none());
    admission.hold(&Hold { ttl: MINUTE / 10, generation: Some(generation), ..lease }).unwrap();
    let told = admission.journal.current().seq;
    assert!(tokio::time::timeout(MINUTE / 2, keeper).await.is_err());
    assert_eq!(admission.journal.current().seq, told + 1);
}

#[tokio::test(start_paused = true)]
async fn a_key_is_kept_by_one_call_at_a_time_and_by_none_of_a_lower_fence() {
    let admission = admission();
    admission.raise(1, MINUTE).await.unwrap();
    let mut headers = http::HeaderMap::new();
    headers.insert("berth-key", "made".parse().unwrap());
    let key = Key::of(&headers).unwrap().unwrap();
    let old = admission.keep(key.clone(), Some(&stamp(&admission, 1))).unwrap();
    assert!(admission.is_kept(&key));
    assert!(matches!(admission.keep(key.clone(), None), Err(Refusal::Repeated)));
    admission.raise(2, MINUTE).await.unwrap();
    assert!(!admission.is_kept(&key), "it was not admitted, and will not be");
    let new = admission.keep(key.clone(), Some(&stamp(&admission, 2))).unwrap();
    let stale = admission.keep(key.clone(), Some(&stamp(&admission, 1)));
    assert!(matches!(stale, Err(Refusal::Stale(Stale::Fence, _))), "it is told what is wrong");
    drop(old);
    assert!(admission.is_kept(&key), "by the new one");
    let call = admission.admit(&prompt(), Some(&stamp(&admission, 2)), "/w").unwrap().keeping(Some(new));
    assert!(admission.raise(3, Duration::ZERO).await.is_err());
    assert!(admission.is_kept(&key), "it goes on");
    drop(call);
    assert!(!admission.is_kept(&key));
    let _outside = admission.keep(key.clone(), None).unwrap();
    assert!(admission.is_kept(&key));
}

#[tokio::test(start_paused = true)]
async fn raising_says_what_does_not_end_and_can_be_asked_again() {
    let admission = admission();
    admission.raise(1, MINUTE).await.unwrap();
    let old = admission.admit(&prompt(), Some(&stamp(&admission, 1)), "/w").unwrap();
    let Err(RaiseError::Busy(calls)) = admission.raise(2, MINUTE).await else { panic!("it ended") };
    let call = &calls[0];
    assert_eq!(
        (call.class, call.session.as_deref(), call.fence, call.for_ms),
        ("prompt", Some("ses_1"), Some(1), 60_000)
    );
    drop(old);
    assert_eq!(admission.raise(2, MINUTE).await.unwrap().fence, 2);
    assert!(matches!(admission.raise(1, MINUTE).await, Err(RaiseError::Stale(Stale::Fence, _))));
}

#[tokio::test(start_paused = true)]
async fn another_instance_of_the_door_knows_no_fence_of_this_one() {
    let (before, after) = (admission(), admission());
    before.raise(1, MINUTE).await.unwrap();
    after.raise(1, MINUTE).await.unwrap();
    let refused = after.admit(&Class::Reply, Some(&stamp(&before, 1)), "/w");
    assert!(matches!(refused, Err(Refusal::Stale(Stale::Epoch, _))));
}

#[tokio::test(start_paused = true)]
async fn closing_waits_for_what_is_in_flight_and_cuts_terminals() {
    let admission = admission();
    let change = admission.admit(&Class::Change { session: None }, None, "/w").unwrap();
    let tunnel = admission.admit(&Class::Tunnel, None, "/w").unwrap();
    let generation = admission.hold(&hold(HeldPhase::Closed, None)).unwrap();
    let mut closing = Box::pin(admission.close(generation, MINUTE / 2, None));
    assert!(closing.as_mut().now_or_never().is_none());
    assert!(admission.admit(&Class::Change { session: None }, None, "/w").is_err(), "nothing new begins");
    let reply = admission.admit(&Class::Reply, None, "/w").unwrap();
    drop(change);
    assert!(closing.as_mut().now_or_never().is_none());
    assert!(!tunnel.cut.is_cancelled());
    drop(reply);
    assert!(closing.as_mut().now_or_never().is_none(), "the tunnel is being cut");
    assert!(tunnel.cut.is_cancelled());
    drop(tunnel);
    closing.await.unwrap();
    assert_eq!(admission.gate().phase, GatePhase::Closed);
    admission.open(generation).unwrap();
    assert!(!admission.admit(&Class::Tunnel, None, "/w").unwrap().cut.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn a_gate_that_cannot_be_closed_drains_again() {
    let admission = admission();
    let _change = admission.admit(&Class::Change { session: None }, None, "/w").unwrap();
    let generation = admission.hold(&hold(HeldPhase::Closed, None)).unwrap();
    let busy = admission.close(generation, MINUTE / 2, None).await;
    assert!(matches!(busy, Err(CloseError::Busy(calls, None)) if calls.len() == 1));
    admission.admit(&Class::Change { session: None }, None, "/w").unwrap();
    // Nor does it stay closing when its owner stops to wait.
    admission.hold(&hold(HeldPhase::Closed, Some(generation))).unwrap();
    assert!(admission.close(generation, MINUTE / 2, None).now_or_never().is_none());
    admission.admit(&Class::Change { session: None }, None, "/w").unwrap();
    // And a lease that ends while it is waited for is broken.
    admission.hold(&hold(HeldPhase::Closed, Some(generation))).unwrap();
    let late = tokio::join!(admission.close(generation, MINUTE * 2, None), async {
        tokio::select! {
            () = admission.keep_time() => {}
            () = tokio::time::sleep(MINUTE * 3) => {}
        }
    });
    assert_eq!(late.0, Err(CloseError::Gate(GateError::Broken)));
}

#[test]
fn calls_in_flight_have_a_bound() {
    let admission = admission();
    let mut calls: Vec<_> =
        (0..CALLS).map(|_| admission.admit(&prompt(), None, "/w").expect("a place")).collect();
    assert_eq!(admission.admit(&Class::Read, None, "/w").unwrap_err(), Refusal::Full);
    drop(calls.pop());
    admission.admit(&Class::Read, None, "/w").expect("a place");
}

fn closes(directory: &str) -> Housework {
    Housework::Directory { directory: directory.to_owned(), own: "/own".to_owned() }
}

#[tokio::test(start_paused = true)]
async fn what_the_door_does_itself_waits_for_calls_that_it_disturbs_and_keeps_the_next_ones_waiting() {
    let admission = admission();
    let call = admission.admit(&prompt(), None, "/w").unwrap();
    assert!(admission.reserve(closes("/w")).is_none());
    let reserved = admission.reserve(closes("/x")).unwrap();
    assert!(admission.reserve(closes("/y")).is_none(), "one at a time");
    for (class, directory) in [(Class::Reply, "/x"), (prompt(), "/x"), (prompt(), "/own")] {
        assert_eq!(admission.admit(&class, None, directory).unwrap_err(), Refusal::Reserved, "{class:?}");
    }
    for (class, directory) in [(Class::Read, "/x"), (Class::Reply, "/own"), (prompt(), "/w")] {
        admission.admit(&class, None, directory).expect("another directory's calls go on");
    }
    drop(call);
    let mut released = Box::pin(admission.released());
    assert!(released.as_mut().now_or_never().is_none());
    drop(reserved);
    released.await;
    admission.admit(&Class::Reply, None, "/x").unwrap();
    admission.hold(&hold(HeldPhase::Draining, None)).unwrap();
    assert!(admission.reserve(closes("/x")).is_none(), "not under a lease");
}

#[tokio::test(start_paused = true)]
async fn opencode_is_not_started_anew_under_a_read_that_is_no_stream() {
    let admission = admission();
    let read = admission.admit(&Class::Read, None, "/w").unwrap();
    assert!(admission.reserve(Housework::Opencode).is_none());
    tokio::time::advance(READ * 2).await;
    let reserved = admission.reserve(Housework::Opencode).unwrap();
    assert_eq!(admission.admit(&Class::Read, None, "/w").unwrap_err(), Refusal::Reserved, "it would be cut");
    drop((reserved, read));
    let _read = admission.admit(&Class::Read, None, "/w").unwrap();
    let generation = admission.hold(&hold(HeldPhase::Closed, None)).unwrap();
    admission.close(generation, Duration::ZERO, None).await.expect("reads pass a closed gate");
}

#[tokio::test(start_paused = true)]
async fn the_gate_does_not_close_while_the_door_itself_changes_something() {
    let admission = admission();
    let reserved = admission.reserve(Housework::Opencode).unwrap();
    let generation = admission.hold(&hold(HeldPhase::Closed, None)).unwrap();
    let busy = admission.close(generation, Duration::ZERO, None).await;
    assert!(matches!(busy, Err(CloseError::Busy(calls, None)) if calls[0].class == "housework"));
    admission.hold(&hold(HeldPhase::Closed, Some(generation))).unwrap();
    let mut closing = Box::pin(admission.close(generation, MINUTE / 2, None));
    assert!(closing.as_mut().now_or_never().is_none());
    drop(reserved);
    closing.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn every_step_of_the_gate_is_in_the_journal_and_a_sealed_one_stays() {
    let admission = admission();
    let first = admission.hold(&hold(HeldPhase::Draining, None)).unwrap();
    let kept = tokio::time::timeout(MINUTE * 2, admission.keep_time());
    kept.await.expect_err("it keeps time for ever");
    assert_eq!(admission.seal(first), Err(GateError::Broken));
    let second = admission.hold(&hold(HeldPhase::Closed, None)).unwrap();
    admission.close(second, MINUTE, None).await.unwrap();
    admission.seal(second).unwrap();
    tokio::time::advance(Duration::from_hours(240)).await;
    assert_eq!(admission.open(second), Err(GateError::Sealed));
    assert_eq!(admission.hold(&hold(HeldPhase::Closed, None)), Err(GateError::Sealed));
    assert!(
        matches!(admission.admit(&Class::Reply, None, "/w"), Err(Refusal::Gated(state)) if state.expires_in_ms.is_none())
    );
    let told: Vec<(String, u64)> = admission
        .journal
        .read_after(0)
        .unwrap()
        .iter()
        .map(|(_, entry)| {
            let event: serde_json::Value = serde_json::from_slice(&entry.payload).unwrap();
            let properties = &event["properties"];
            assert_eq!(
                (&properties["owner"], &properties["reason"]),
                (&"snapshot".into(), &"nightly".into())
            );
            (properties["phase"].as_str().unwrap().to_owned(), properties["generation"].as_u64().unwrap())
        })
        .collect();
    let expected =
        [("draining", first), ("open", first), ("draining", second), ("closed", second), ("sealed", second)];
    assert_eq!(told, expected.map(|(phase, generation)| (phase.to_owned(), generation)));
}
