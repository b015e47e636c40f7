//! What must hold whatever happens: stops, gaps, nonsense.

use berth_opencode::{GlobalEvent, SessionTranslator, Snapshot, Translation, replay::SessionReplay};
use berth_wire::{
    event::{EventPayload, Voice},
    turn::{TurnError, TurnErrorReason},
};
use proptest::prelude::*;
use serde_json::Value;

use crate::replay::{Capture, Look, all};

fn stored_and_resumed(translator: &SessionTranslator) -> SessionTranslator {
    serde_json::from_str(&serde_json::to_string(translator).unwrap()).unwrap()
}

#[test]
fn a_stop_after_any_event_changes_nothing() {
    for capture in all() {
        let mut run = SessionReplay::new(&capture.root);
        for index in 0..capture.events.len() {
            let resumed = stored_and_resumed(&run.translator);
            assert_eq!(resumed, run.translator, "{} before event {index}", capture.name);
            run.translator = resumed;
            capture.apply(&mut run, index);
        }
        assert_eq!(run.to_text(), capture.whole().to_text(), "{}", capture.name);
    }
}

/// What `GET` would have answered after the first `count` events.
fn snapshot(capture: &Capture, count: usize) -> Snapshot {
    let mut snapshot = Snapshot::default();
    capture.events[..count].iter().for_each(|event| snapshot.take(&capture.root.id, &event.event));
    snapshot
}

/// Misses the events from `from` to `to`, then reads the state, and goes on.
fn with_gap(capture: &Capture, from: usize, to: usize) -> SessionReplay {
    let mut run = SessionReplay::new(&capture.root);
    (0..from).for_each(|index| capture.apply(&mut run, index));
    run.pass(from, to);
    run.translator.mark_gap();
    run.translator = stored_and_resumed(&run.translator);
    let out = run.translator.reconcile(&snapshot(capture, to));
    run.take(to, out);
    (to..capture.events.len()).for_each(|index| capture.apply(&mut run, index));
    for _ in 0..3 {
        if run.translator.in_doubt() {
            let out = run.translator.reconcile(&snapshot(capture, capture.events.len()));
            run.take(capture.events.len(), out);
        }
    }
    run
}

fn check_gap(capture: &Capture, from: usize, to: usize) {
    let (whole, cut) = (capture.whole(), with_gap(capture, from, to));
    let place = format!("{} without events {from}..{to}\n{}", capture.name, cut.to_text());
    if whole.outcomes().iter().all(|outcome| outcome.usage.is_some()) {
        for voice in [Voice::Message, Voice::Thought] {
            assert_eq!(cut.fold().text(voice), whole.fold().text(voice), "{place}");
        }
        assert_eq!(cut.ends(), whole.ends(), "{place}");
        let replaced = |run: &SessionReplay| {
            run.updates().any(|payload| matches!(payload, EventPayload::PartReplaced(_)))
        };
        assert!(replaced(&whole) || !replaced(&cut), "text was logged at the wrong place: {place}");
    } else {
        // Nothing but an event tells why a turn failed that has no assistant message.
        assert!(cut.outcomes().len() <= whole.outcomes().len(), "{place}");
    }
}

/// Captures of one prompt of ours: in a gap that holds the end of one turn and the begin of the next, the runner of the
/// capture would have sent the next prompt later.
fn of_one_turn() -> Vec<Capture> {
    all().into_iter().filter(|capture| capture.whole().outcomes().len() == 1).collect()
}

#[test]
fn one_missed_event_changes_no_text_and_no_end() {
    for capture in of_one_turn() {
        (0..capture.events.len()).for_each(|index| check_gap(&capture, index, index + 1));
    }
}

#[test]
fn every_gap_of_some_captures_changes_no_text_and_no_end() {
    for name in ["1.18.33-prov-drop-partial", "1.18.33-reasoning", "1.18.33-perm-new-once"] {
        let capture = Capture::load(name);
        let count = capture.events.len();
        (0..count).for_each(|from| (from..=count).for_each(|to| check_gap(&capture, from, to)));
    }
}

#[test]
fn a_gap_anywhere_changes_no_text_and_no_end() {
    let captures = of_one_turn();
    assert!(captures.len() > 60, "only {} captures", captures.len());
    proptest!(ProptestConfig::with_cases(1500), |(capture in 0..captures.len(), from: prop::sample::Index, to: prop::sample::Index)| {
        let capture = &captures[capture];
        let (a, b) = (from.index(capture.events.len() + 1), to.index(capture.events.len() + 1));
        check_gap(capture, a.min(b), a.max(b));
    });
}

#[derive(Debug, Clone)]
enum Step {
    Event(prop::sample::Index),
    Next,
    Gap,
    Reconcile(prop::sample::Index),
    Cancel,
    Exit,
    Fail,
    Begin,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => Just(Step::Next),
        6 => any::<prop::sample::Index>().prop_map(Step::Event),
        1 => Just(Step::Gap),
        1 => any::<prop::sample::Index>().prop_map(Step::Reconcile),
        1 => Just(Step::Cancel),
        1 => Just(Step::Exit),
        1 => Just(Step::Fail),
        1 => Just(Step::Begin),
    ]
}

/// Takes one step; the position in the capture moves on with [`Step::Next`].
fn take_step(run: &mut SessionReplay, capture: &Capture, position: &mut usize, step: &Step) {
    let count = capture.events.len();
    let out = match step {
        Step::Event(index) => run.translator.apply(&capture.events[index.index(count)]),
        Step::Next => {
            *position = (*position + 1) % count;
            run.translator.apply(&capture.events[*position])
        }
        Step::Gap => {
            run.translator.mark_gap();
            Vec::new()
        }
        Step::Reconcile(index) => run.translator.reconcile(&snapshot(capture, index.index(count))),
        Step::Cancel => {
            run.translator.request_cancel();
            Vec::new()
        }
        Step::Exit => run.translator.serve_exited("killed"),
        Step::Fail => {
            let (reason, message) = (TurnErrorReason::NotStarted, "never began".to_owned());
            run.translator.fail(TurnError { reason, message, retry_at: None, cause: None })
        }
        Step::Begin => {
            if run.translator.phase() == berth_opencode::TurnPhase::Idle {
                let prompt = capture.root.prompts.first().map_or("msg_x", |prompt| prompt.id.as_str());
                run.translator.begin_turn(prompt);
            }
            Vec::new()
        }
    };
    run.take(*position, out);
}

/// `Started` and `Ended` alternate, but a turn may end that never started.
fn check_ends(run: &SessionReplay) {
    let mut running = false;
    for told in &run.told {
        match &told.item {
            Translation::Started => assert!(!std::mem::replace(&mut running, true), "started twice"),
            Translation::Ended(_) => running = false,
            _ => {}
        }
    }
}

#[test]
fn nonsense_makes_no_hole_and_no_second_end() {
    let captures = all();
    proptest!(ProptestConfig::with_cases(400), |(capture in 0..captures.len(), steps in prop::collection::vec(step(), 0..120))| {
        let capture = &captures[capture];
        let mut run = SessionReplay::new(&capture.root);
        let mut position = 0;
        for step in &steps {
            take_step(&mut run, capture, &mut position, step);
        }
        run.fold();
        check_ends(&run);
    });
}

fn json() -> impl Strategy<Value = Value> {
    let key = prop_oneof![
        Just("type".to_owned()),
        Just("payload".to_owned()),
        Just("properties".to_owned()),
        Just("info".to_owned()),
        Just("part".to_owned()),
        Just("id".to_owned()),
        Just("sessionID".to_owned()),
        Just("status".to_owned()),
        "[a-z]{0,4}",
    ];
    let kind = prop_oneof![
        Just("message.updated"),
        Just("message.part.updated"),
        Just("session.status"),
        Just("session.error"),
        Just("berth.resync"),
        Just("todo.updated"),
        Just("permission.asked"),
        Just("text"),
        Just("tool"),
        Just("retry"),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,6}".prop_map(Value::from),
        kind.prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 64, 8, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key.clone(), inner), 0..6).prop_map(|pairs| pairs.into_iter().collect()),
        ]
    })
}

/// Sets the value at one path of a frame that opencode sent.
fn spoil(place: &mut Value, path: &[prop::sample::Index], with: Value) {
    let Some((step, rest)) = path.split_first() else {
        *place = with;
        return;
    };
    match place {
        Value::Object(map) if !map.is_empty() => {
            let index = step.index(map.len());
            spoil(map.values_mut().nth(index).expect("the index is below the length"), rest, with);
        }
        Value::Array(list) if !list.is_empty() => {
            let index = step.index(list.len());
            spoil(&mut list[index], rest, with);
        }
        _ => *place = with,
    }
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(text in ".{0,200}") {
        let _ = GlobalEvent::parse(&text);
    }

    #[test]
    fn no_json_makes_the_reader_panic(value in json()) {
        let _ = GlobalEvent::from_value(value);
    }

    #[test]
    fn a_spoilt_frame_makes_nothing_panic(
        frame in any::<prop::sample::Index>(),
        path in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        with in json(),
    ) {
        let text = include_str!("../captures/1.18.33-subagent-perm-config.sse");
        let frames: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("data:")).collect();
        let mut spoilt: Value = serde_json::from_str(frames[frame.index(frames.len())]).unwrap();
        spoil(&mut spoilt, &path, with);
        let capture = Capture::load("1.18.33-subagent-perm-config");
        let mut run = SessionReplay::new(&capture.root);
        (0..capture.events.len() / 2).for_each(|index| capture.apply(&mut run, index));
        if let Ok(event) = GlobalEvent::from_value(spoilt) {
            let out = run.translator.apply(&event);
            run.take(capture.events.len() / 2, out);
        }
        (capture.events.len() / 2..capture.events.len()).for_each(|index| capture.apply(&mut run, index));
        run.fold();
    }
}
