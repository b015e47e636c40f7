//! The gate against a table, and against everything that anybody may ask of it in any order.

use proptest::prelude::*;

use super::*;

const MINUTE: Duration = Duration::from_mins(1);

fn ask(phase: HeldPhase, generation: Option<u64>) -> Hold {
    Hold { owner: "snapshot".to_owned(), reason: "nightly".to_owned(), ttl: MINUTE, phase, generation }
}

fn prompt() -> Class {
    Class::Prompt { session: None }
}

/// Which of prompt, tunnel, change, abort, reply and read pass.
fn passing(gate: &Gate) -> [bool; 6] {
    [
        prompt(),
        Class::Tunnel,
        Class::Change { session: None },
        Class::Abort { session: None },
        Class::Reply,
        Class::Read,
    ]
    .map(|class| gate.admits(&class))
}

#[test]
fn each_phase_keeps_out_what_it_should() {
    let (mut gate, now) = (Gate::default(), Instant::now());
    assert_eq!(passing(&gate), [true; 6]);
    let generation = gate.hold(now, &ask(HeldPhase::Draining, None)).unwrap();
    assert_eq!(passing(&gate), [false, false, true, true, true, true]);
    gate.hold(now, &ask(HeldPhase::Closed, Some(generation))).unwrap();
    assert_eq!(gate.phase(), GatePhase::Draining, "it closes when nothing is in flight");
    assert_eq!(passing(&gate), [false, false, false, true, true, true]);
    gate.relent(generation);
    assert_eq!(passing(&gate), [false, false, true, true, true, true]);
    gate.close(generation).unwrap();
    assert_eq!(passing(&gate), [false, false, false, false, false, true]);
    gate.open(generation).unwrap();
    assert_eq!(passing(&gate), [true; 6]);
}

#[test]
fn it_opens_at_its_deadline_and_the_lease_is_over_for_ever() {
    let (mut gate, now) = (Gate::default(), Instant::now());
    let first = gate.hold(now, &ask(HeldPhase::Draining, None)).unwrap();
    gate.close(first).unwrap();
    gate.expire(now + MINUTE / 2);
    assert_eq!(gate.state(now + MINUTE / 2).expires_in_ms, Some(30_000));
    gate.hold(now + MINUTE / 2, &ask(HeldPhase::Closed, Some(first))).unwrap();
    gate.expire(now + MINUTE);
    assert_eq!(gate.phase(), GatePhase::Closed, "it was kept");
    gate.expire(now + MINUTE * 3 / 2);
    assert_eq!(gate.phase(), GatePhase::Open);
    assert_eq!(gate.seal(first), Err(GateError::Broken));
    assert_eq!(gate.close(first), Err(GateError::Broken));
    assert_eq!(gate.hold(now, &ask(HeldPhase::Closed, Some(first))), Err(GateError::Broken));
    let second = gate.hold(now + MINUTE * 2, &ask(HeldPhase::Draining, None)).unwrap();
    assert!(second > first);
    assert_eq!(gate.seal(first), Err(GateError::Broken), "nor under the next");
}

#[test]
fn another_owner_waits_and_is_told_for_whom() {
    let (mut gate, now) = (Gate::default(), Instant::now());
    let generation = gate.hold(now, &ask(HeldPhase::Draining, None)).unwrap();
    assert_eq!(gate.hold(now, &ask(HeldPhase::Draining, None)), Err(GateError::Held));
    let other = Hold { owner: "upgrade".to_owned(), ..ask(HeldPhase::Closed, Some(generation)) };
    assert_eq!(gate.hold(now, &other), Err(GateError::Held));
    let state = gate.state(now);
    assert_eq!((state.owner.as_deref(), state.expires_in_ms), (Some("snapshot"), Some(60_000)));
    assert_eq!(gate.open(generation + 1), Err(GateError::Broken));
}

#[test]
fn a_closed_gate_does_not_go_back_and_only_a_closed_one_is_sealed() {
    let (mut gate, now) = (Gate::default(), Instant::now());
    let generation = gate.hold(now, &ask(HeldPhase::Draining, None)).unwrap();
    assert_eq!(gate.seal(generation), Err(GateError::NotClosed));
    gate.close(generation).unwrap();
    assert_eq!(gate.hold(now, &ask(HeldPhase::Draining, Some(generation))), Err(GateError::Backwards));
}

#[derive(Debug, Clone)]
enum Step {
    Hold(bool, HeldPhase, Option<u64>),
    Close(u64),
    Relent(u64),
    Open(u64),
    Seal(u64),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let generation = || 0..4_u64;
    let phase = prop_oneof![Just(HeldPhase::Draining), Just(HeldPhase::Closed)];
    prop_oneof![
        4 => (any::<bool>(), phase, proptest::option::of(generation())).prop_map(|(a, b, c)| Step::Hold(a, b, c)),
        4 => generation().prop_map(Step::Close),
        1 => generation().prop_map(Step::Relent),
        1 => generation().prop_map(Step::Open),
        1 => generation().prop_map(Step::Seal),
        3 => (0..90_u64).prop_map(Step::Wait),
    ]
}

proptest! {
    #[test]
    fn a_broken_lease_is_never_whole_again_and_a_sealed_gate_never_opens(steps in proptest::collection::vec(step(), 1..60)) {
        let (mut gate, mut now) = (Gate::default(), Instant::now());
        let (mut held, mut over, mut sealed) = (None, Vec::new(), false);
        for step in steps {
            let result = match step {
                Step::Hold(other, phase, generation) => {
                    let owner = if other { "other" } else { "snapshot" }.to_owned();
                    gate.hold(now, &Hold { owner, ..ask(phase, generation) }).inspect(|&taken| held = Some(taken))
                }
                Step::Close(generation) => gate.close(generation).map(|()| generation),
                Step::Relent(generation) => {
                    gate.relent(generation);
                    Err(GateError::NotClosed)
                }
                Step::Open(generation) => gate.open(generation).map(|()| generation),
                Step::Seal(generation) => gate.seal(generation).map(|()| generation),
                Step::Wait(seconds) => {
                    now += Duration::from_secs(seconds);
                    // Days, too, once nothing may change any more.
                    if sealed { now += Duration::from_hours(72); }
                    Err(GateError::NotClosed)
                }
            };
            gate.expire(now);
            if let Ok(generation) = result {
                prop_assert!(!over.contains(&generation), "{generation} was over");
            }
            if gate.is_open() && let Some(ended) = held.take() {
                over.push(ended);
            }
            prop_assert!(!sealed || gate.phase() == GatePhase::Sealed);
            sealed = gate.phase() == GatePhase::Sealed;
            prop_assert_eq!(gate.admits(&prompt()), gate.is_open());
        }
    }
}
