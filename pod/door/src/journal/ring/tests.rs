//! The ring against what it promises, for all cursors and any order of events, evictions, epochs and updates that
//! supersede others.

use std::time::Duration;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::journal::frame::event_id;

mod captures;
mod load;

fn parse(payload: &serde_json::Value) -> Frame {
    Frame::parse(json!({"directory": "/w", "payload": payload}).to_string()).unwrap().unwrap()
}

fn frame(text: &str) -> Frame {
    parse(&json!({"type": "t", "properties": {"text": text}}))
}

/// An update of a tool part with output of this size.
fn tool(part: &str, status: &str, size: usize) -> Frame {
    let state = json!({"status": status, "metadata": {"output": "x".repeat(size)}});
    let part =
        json!({"id": part, "sessionID": "ses_1", "messageID": "msg_1", "type": "tool", "state": state});
    parse(
        &json!({"id": event_id(), "type": "message.part.updated", "properties": {"sessionID": "ses_1", "part": part}}),
    )
}

fn of_session(kind: &str, session: &str) -> Frame {
    parse(&json!({"type": kind, "properties": {"sessionID": session}}))
}

impl Ring {
    fn push(&mut self, frame: Frame) -> bool {
        self.append(frame, Instant::now())
    }

    fn held(&self) -> Vec<Arc<Entry>> {
        self.slots.iter().flatten().cloned().collect()
    }
}

fn ids<'a>(entries: impl IntoIterator<Item = &'a Arc<Entry>>) -> Vec<String> {
    entries.into_iter().map(|entry| entry.id().to_string()).collect()
}

/// Reads to the end, as a subscriber does.
fn read_all(ring: &Ring, mut position: u64) -> Result<Vec<Arc<Entry>>, Behind> {
    let mut all = Vec::new();
    loop {
        let batch = ring.read_after(position)?;
        let Some((last, _)) = batch.last() else { return Ok(all) };
        position = *last;
        all.extend(batch.into_iter().map(|(_, entry)| entry));
    }
}

#[test]
fn frames_are_taken_apart_and_the_noise_is_dropped() {
    let text = r#"{"directory":"/w","project":"p", "payload": {"id":"evt_1","type":"session.idle","properties":{}} }"#;
    let frame = Frame::parse(text.to_owned()).unwrap().unwrap();
    let mut ring = Ring::new(1 << 20, "e");
    ring.push(frame);
    let entry = &read_all(&ring, 0).unwrap()[0];
    assert_eq!(entry.origin.directory.as_deref(), Some("/w"));
    assert_eq!(entry.envelope(), text);
    assert_eq!(entry.payload, r#"{"id":"evt_1","type":"session.idle","properties":{}}"#);
    for kind in ["server.connected", "server.heartbeat", "sync"] {
        let text = format!(r#"{{"payload":{{"type":"{kind}"}}}}"#);
        assert!(Frame::parse(text).unwrap().is_none(), "{kind}");
    }
    for text in [
        r#"{"directory":"global","payload":{"type":"global.disposed","properties":{}}}"#,
        r#"{"directory":null,"payload":{"type":"t"}}"#,
        "{\"payload\":\n{\"type\":\r\n\"t\"}}",
    ] {
        ring.push(Frame::parse(text.to_owned()).unwrap().unwrap());
        let entry = Arc::clone(ring.held().last().unwrap());
        assert_eq!(entry.origin.directory, None);
        assert!(!entry.envelope().contains(['\n', '\r']), "one line each");
    }
    for broken in ["", "null", "[]", "{}", r#"{"payload":1}"#, r#"{"payload":{"type":1}}"#, "{\"payload\":{}"]
    {
        assert!(Frame::parse(broken.to_owned()).is_err(), "{broken}");
    }
}

#[test]
fn own_events_look_like_opencodes() {
    let event =
        berth_wire::door::DoorEvent::ServeStarted { boot: 1, boot_id: "b".into(), version: "1.18.33".into() };
    let mut ring = Ring::new(1 << 20, "e");
    ring.push(Frame::own(&event));
    let entry = &read_all(&ring, 0).unwrap()[0];
    let json: serde_json::Value = serde_json::from_str(&entry.envelope()).unwrap();
    assert!(json["payload"]["id"].as_str().unwrap().starts_with("evt_"), "{json}");
    assert_eq!(json["payload"]["type"], "berth.serve.started");
    assert_eq!(entry.origin.directory, None);
}

#[test]
fn cursors_that_cannot_be_honoured_say_why() {
    let mut ring = Ring::new(700, "one");
    for n in 0..10 {
        ring.push(frame(&n.to_string()));
    }
    assert_eq!(ring.held().len(), 3);
    let reason = |cursor: &str| ring.start(Some(cursor)).resync.map(|resync| resync.reason);
    assert_eq!(reason("one-10"), None);
    assert_eq!(reason("one-11"), Some(ResyncReason::InvalidCursor));
    assert_eq!(reason("one-18446744073709551615"), Some(ResyncReason::InvalidCursor));
    assert_eq!(reason("nonsense"), Some(ResyncReason::InvalidCursor));
    assert_eq!(reason(""), Some(ResyncReason::InvalidCursor));
    assert_eq!(reason("one-0"), Some(ResyncReason::Expired));
    assert_eq!(reason("two-1"), Some(ResyncReason::EpochChanged));
    let start = ring.start(Some("two-1"));
    assert_eq!(start.position, 10);
    let resync = start.resync.unwrap();
    assert_eq!(resync.current.to_string(), "one-10");
    assert_eq!(resync.oldest, ring.oldest().map(|entry| entry.id()));
}

#[test]
fn a_subscriber_reads_the_old_epoch_out_before_the_new_one() {
    let mut ring = Ring::new(1 << 20, "one");
    ring.push(frame("a"));
    ring.push(frame("b"));
    ring.begin_epoch("two");
    ring.push(frame("c"));
    let start = ring.start(Some("one-1"));
    assert_eq!(start.resync, None);
    assert_eq!(ids(&read_all(&ring, start.position).unwrap()), ["one-2", "two-1"]);
    assert_eq!(ring.start(Some("one-2")).position, ring.start(Some("two-0")).position);
    assert_eq!(ring.start(Some("one-3")).resync.unwrap().reason, ResyncReason::InvalidCursor);
    assert_eq!(ring.current().to_string(), "two-1");
}

#[test]
fn the_newest_event_is_kept_whatever_its_size() {
    let mut ring = Ring::new(10, "e");
    ring.push(frame(&"x".repeat(1000)));
    assert_eq!(ring.held().len(), 1);
    ring.push(frame("y"));
    assert_eq!(ids(&read_all(&ring, 1).unwrap()), ["e-2"]);
    assert_eq!(ring.read_after(0).unwrap_err(), Behind);
}

#[test]
fn of_a_tools_updates_the_first_and_the_last_in_each_status_stay() {
    let mut ring = Ring::new(1 << 20, "e");
    let statuses = ["pending", "running", "running", "running", "running", "completed"];
    let holes: Vec<bool> = statuses.iter().map(|status| ring.push(tool("prt_1", status, 1000))).collect();
    assert_eq!(holes, [false, false, false, true, true, false]);
    ring.push(tool("prt_2", "running", 10));
    assert_eq!(ids(&read_all(&ring, 0).unwrap()), ["e-1", "e-2", "e-5", "e-6", "e-7"]);
    let start = ring.start(Some("e-3"));
    assert_eq!((start.position, &start.resync), (3, &None), "a cursor may stand on a hole");
    assert_eq!(ids(&read_all(&ring, start.position).unwrap()), ["e-5", "e-6", "e-7"]);
}

#[test]
fn a_tool_that_names_its_subagent_is_seen_to_before_the_subagents_events() {
    let mut ring = Ring::new(1 << 20, "e");
    let task = |linked: bool| {
        let metadata = if linked { json!({"sessionId": "ses_2"}) } else { json!({}) };
        let state = json!({"status": "running", "metadata": metadata});
        let part = json!({"id": "prt_1", "sessionID": "ses_1", "type": "tool", "state": state});
        parse(&json!({"type": "message.part.updated", "properties": {"part": part}}))
    };
    for linked in [false, false, true] {
        assert!(!ring.push(task(linked)));
    }
    ring.push(of_session("permission.asked", "ses_2"));
    ring.push(task(true));
    assert!(ring.push(task(true)));
    assert_eq!(ids(&read_all(&ring, 0).unwrap()), ["e-1", "e-2", "e-3", "e-4", "e-6"]);
}

#[test]
fn what_a_session_was_when_it_went_idle_stays() {
    let mut ring = Ring::new(1 << 20, "e");
    for kind in ["todo.updated", "session.updated", "session.diff"] {
        let first = ring.last() + 1;
        for _ in 0..3 {
            ring.push(of_session(kind, "ses_1"));
        }
        for idle in ["ses_2", "ses_1", "ses_1"] {
            ring.push(of_session("session.idle", idle));
        }
        for _ in 0..3 {
            ring.push(of_session(kind, "ses_1"));
        }
        let held: Vec<u64> =
            read_all(&ring, first - 1).unwrap().iter().map(|entry| entry.seq - first).collect();
        assert_eq!(held, [0, 2, 3, 4, 5, 6, 8], "{kind}");
    }
}

#[test]
fn a_message_is_seen_to_be_completed_where_it_was() {
    let mut ring = Ring::new(1 << 20, "e");
    let message = |completed: bool, finish: Option<&str>| {
        let time = if completed { json!({"created": 1, "completed": 2}) } else { json!({"created": 1}) };
        let info =
            json!({"id": "msg_1", "sessionID": "ses_1", "role": "assistant", "time": time, "finish": finish});
        parse(&json!({"type": "message.updated", "properties": {"info": info}}))
    };
    for _ in 0..3 {
        ring.push(message(false, None));
    }
    for _ in 0..3 {
        ring.push(message(true, Some("stop")));
    }
    assert_eq!(ids(&read_all(&ring, 0).unwrap()), ["e-1", "e-3", "e-4", "e-6"]);
}

#[test]
fn nothing_else_is_superseded() {
    let mut ring = Ring::new(1 << 20, "e");
    let text = json!({"id": "prt_1", "sessionID": "ses_1", "type": "text", "text": "t", "time": {"end": 1}});
    let kinds = [
        "session.status",
        "session.idle",
        "session.error",
        "permission.asked",
        "question.asked",
        "session.created",
    ];
    for _ in 0..4 {
        assert!(!ring.push(parse(&json!({"type": "message.part.updated", "properties": {"part": text}}))));
        assert!(!ring.push(parse(&json!({"type": "message.part.delta", "properties": {"partID": "prt_1"}}))));
        for kind in kinds {
            assert!(!ring.push(of_session(kind, "ses_1")), "{kind}");
        }
        for odd in [
            json!(null),
            json!({}),
            json!({"part": 1}),
            json!({"part": {"id": 1}}),
            json!({"info": {"id": "m"}}),
        ] {
            for kind in ["message.part.updated", "message.updated", "session.updated", "todo.updated"] {
                assert!(!ring.push(parse(&json!({"type": kind, "properties": odd}))), "{kind} {odd}");
            }
        }
    }
}

#[test]
fn a_new_epoch_supersedes_nothing_of_the_one_before() {
    let mut ring = Ring::new(1 << 20, "one");
    for _ in 0..3 {
        ring.push(tool("prt_1", "running", 10));
    }
    ring.begin_epoch("two");
    for _ in 0..3 {
        ring.push(tool("prt_1", "running", 10));
    }
    assert_eq!(ids(&read_all(&ring, 0).unwrap()), ["one-1", "one-3", "two-1", "two-3"]);
}

#[test]
fn holes_and_subjects_leave_with_the_ring() {
    let mut ring = Ring::new(100_000, "e");
    for n in 0..50_000 {
        ring.push(tool(&format!("prt_{}", n / 100), "running", 10));
        assert!(ring.bytes <= 100_000);
    }
    assert!(ring.slots.len() < 100_000 / HOLE_COST, "{}", ring.slots.len());
    assert!(ring.index.len() <= ring.held().len());
    // One subject for ever is no leak either.
    for _ in 0..50_000 {
        ring.push(tool("prt_last", "running", 10));
    }
    assert!(ring.slots.len() <= 100_000 / HOLE_COST + 2, "{}", ring.slots.len());
}

#[derive(Debug, Clone)]
enum Step {
    Append(usize),
    Update(u8, bool),
    Epoch,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => (0_usize..400).prop_map(Step::Append),
        4 => (0_u8..3, any::<bool>()).prop_map(|(part, runs)| Step::Update(part, runs)),
        1 => Just(Step::Epoch),
    ];
    prop::collection::vec(step, 0..120)
}

/// Plays the steps on a ring and on a list that forgets nothing.
fn play(steps: &[Step], limit: usize) -> (Ring, Vec<String>) {
    let mut ring = Ring::new(limit, "e0");
    let (mut all, mut epoch, mut seq) = (Vec::new(), 0, 0);
    for step in steps {
        if let Step::Epoch = step {
            (epoch, seq) = (epoch + 1, 0);
            ring.begin_epoch(&format!("e{epoch}"));
        }
        match step {
            Step::Append(size) => ring.push(frame(&"x".repeat(*size))),
            Step::Update(part, runs) => {
                ring.push(tool(&part.to_string(), if *runs { "running" } else { "pending" }, 100))
            }
            Step::Epoch => ring.push(frame("x")),
        };
        seq += 1;
        all.push(format!("e{epoch}-{seq}"));
    }
    (ring, all)
}

proptest! {
    #[test]
    fn resuming_at_any_cursor_gives_exactly_the_rest_or_says_that_it_cannot(steps in steps(), limit in 100_usize..20_000) {
        let (ring, all) = play(&steps, limit);
        prop_assert_eq!(ring.last(), all.len() as u64, "every id was used");
        let gone = all.len() - ring.slots.len();
        let held = ids(&ring.held());
        let there: Vec<&String> = all[gone..].iter().filter(|id| held.contains(id)).collect();
        prop_assert_eq!(there.len(), held.len(), "what is held has its own id, in order");
        for (index, id) in all.iter().enumerate() {
            let start = ring.start(Some(id));
            match start.resync {
                None => {
                    prop_assert!(index + 1 >= gone);
                    let rest: Vec<String> = all[index + 1..].iter().filter(|id| held.contains(id)).cloned().collect();
                    prop_assert_eq!(ids(&read_all(&ring, start.position).unwrap()), rest);
                }
                Some(resync) => {
                    prop_assert!(index + 1 < gone, "{id} is held and was refused");
                    prop_assert!(matches!(resync.reason, ResyncReason::Expired | ResyncReason::EpochChanged));
                    prop_assert_eq!(resync.oldest.map(|id| id.to_string()), held.first().cloned());
                    prop_assert_eq!(read_all(&ring, start.position).unwrap().len(), 0);
                }
            }
        }
        let bytes: usize = ring.slots.iter().map(|slot| slot.as_ref().map_or(HOLE_COST, |entry| entry.cost())).sum();
        prop_assert_eq!(bytes, ring.bytes);
        prop_assert!(bytes <= limit || ring.slots.len() == 1);
        prop_assert!(ring.epochs.len() <= ring.slots.len() + 2);
        prop_assert!(ring.index.len() <= held.len());
        prop_assert!(ring.slots.back().is_none_or(Option::is_some), "the newest is no hole");
    }

    #[test]
    fn no_cursor_and_no_frame_panics(cursor in "\\PC{0,40}", frame in "\\PC{0,80}") {
        let (ring, _) = play(&[Step::Append(1), Step::Epoch], 10_000);
        let start = ring.start(Some(&cursor));
        prop_assert_eq!(start.resync.map(|resync| resync.reason).is_some(), !["e0-0", "e0-1", "e1-0", "e1-1"].contains(&&*cursor));
        let _ = Frame::parse(frame);
    }

    #[test]
    fn a_cursor_near_a_real_one_is_honoured_or_refused_by_type(epoch in "e[0-3]|E0|e0{0,70}|", seq in "[0-9]{0,25}", mark in "-|--|_|") {
        let (ring, _) = play(&[Step::Append(1), Step::Update(1, true), Step::Epoch, Step::Append(9)], 10_000);
        let start = ring.start(Some(&format!("{epoch}{mark}{seq}")));
        prop_assert!(start.position <= ring.last());
        prop_assert!(read_all(&ring, start.position).is_ok());
    }

    #[test]
    fn no_update_panics(kind in "message.part.updated|message.updated|session.(updated|diff|idle)|todo.updated", properties in "[\\[{\"a-zA-Z:,}\\]0-9]{0,60}") {
        let _ = Frame::parse(format!(r#"{{"payload":{{"type":"{kind}","properties":{properties}}}}}"#));
    }
}
