//! The ring against what it promises, for all cursors and any order of events, evictions and epochs.

use proptest::prelude::*;

use super::*;

fn frame(text: &str) -> Frame {
    let json = serde_json::json!({"directory": "/w", "payload": {"type": "t", "properties": {"text": text}}});
    Frame::parse(json.to_string()).unwrap().unwrap()
}

fn ids(entries: &[Arc<Entry>]) -> Vec<String> {
    entries.iter().map(|entry| entry.id.to_string()).collect()
}

/// Reads to the end, as a subscriber does.
fn read_all(ring: &Ring, mut position: u64) -> Result<Vec<Arc<Entry>>, Behind> {
    let mut all = Vec::new();
    loop {
        let batch = ring.read_after(position)?;
        if batch.is_empty() {
            return Ok(all);
        }
        position += batch.len() as u64;
        all.extend(batch);
    }
}

#[test]
fn frames_are_taken_apart_and_the_noise_is_dropped() {
    let text = r#"{"directory":"/w","project":"p", "payload": {"id":"evt_1","type":"session.idle","properties":{}} }"#;
    let frame = Frame::parse(text.to_owned()).unwrap().unwrap();
    assert_eq!(frame.directory.as_deref(), Some("/w"));
    let mut ring = Ring::new(1 << 20, "e".to_owned());
    ring.append(frame);
    let entries = ring.read_after(0).unwrap();
    assert_eq!(entries[0].envelope(), text);
    assert_eq!(entries[0].payload(), r#"{"id":"evt_1","type":"session.idle","properties":{}}"#);
    for kind in ["server.connected", "server.heartbeat", "sync"] {
        let text = format!(r#"{{"payload":{{"type":"{kind}"}}}}"#);
        assert_eq!(Frame::parse(text).unwrap(), None, "{kind}");
    }
    let server = r#"{"directory":"global","payload":{"type":"global.disposed","properties":{}}}"#;
    assert_eq!(Frame::parse(server.to_owned()).unwrap().unwrap().directory, None);
    for broken in ["", "null", "[]", "{}", r#"{"payload":1}"#, r#"{"payload":{"type":1}}"#, "{\"payload\":{}"]
    {
        assert!(Frame::parse(broken.to_owned()).is_err(), "{broken}");
    }
}

#[test]
fn own_events_look_like_opencodes() {
    let frame =
        Frame::own(&DoorEvent::ServeStarted { boot: 1, boot_id: "b".into(), version: "1.18.33".into() });
    let json: serde_json::Value = serde_json::from_str(&frame.envelope).unwrap();
    assert!(json["payload"]["id"].as_str().unwrap().starts_with("evt_"), "{json}");
    assert_eq!(json["payload"]["type"], "berth.serve.started");
    assert_eq!(frame.directory, None);
}

#[test]
fn cursors_that_cannot_be_honoured_say_why() {
    let mut ring = Ring::new(3 * (ENTRY_COST + 100), "one".to_owned());
    for n in 0..10 {
        ring.append(frame(&n.to_string()));
    }
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
    assert_eq!(resync.oldest, ring.entries.front().map(|entry| entry.id.clone()));
}

#[test]
fn a_subscriber_reads_the_old_epoch_out_before_the_new_one() {
    let mut ring = Ring::new(1 << 20, "one".to_owned());
    ring.append(frame("a"));
    ring.append(frame("b"));
    ring.begin_epoch("two".to_owned());
    ring.append(frame("c"));
    let start = ring.start(Some("one-1"));
    assert_eq!(start.resync, None);
    assert_eq!(ids(&read_all(&ring, start.position).unwrap()), ["one-2", "two-1"]);
    assert_eq!(ring.start(Some("one-2")).position, ring.start(Some("two-0")).position);
    assert_eq!(ring.start(Some("one-3")).resync.unwrap().reason, ResyncReason::InvalidCursor);
    assert_eq!(ring.current().to_string(), "two-1");
}

#[test]
fn the_newest_event_is_kept_whatever_its_size() {
    let mut ring = Ring::new(10, "e".to_owned());
    ring.append(frame(&"x".repeat(1000)));
    assert_eq!(ring.entries.len(), 1);
    ring.append(frame("y"));
    assert_eq!(ids(&ring.read_after(1).unwrap()), ["e-2"]);
    assert_eq!(ring.read_after(0), Err(Behind));
}

#[derive(Debug, Clone)]
enum Step {
    Append(usize),
    Epoch,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![9 => (0_usize..400).prop_map(Step::Append), 1 => Just(Step::Epoch)];
    prop::collection::vec(step, 0..120)
}

/// Plays the steps on a ring and on a list that forgets nothing.
fn play(steps: &[Step], limit: usize) -> (Ring, Vec<String>) {
    let mut ring = Ring::new(limit, "e0".to_owned());
    let (mut all, mut epoch, mut seq) = (Vec::new(), 0, 0);
    for step in steps {
        if let Step::Epoch = step {
            (epoch, seq) = (epoch + 1, 0);
            ring.begin_epoch(format!("e{epoch}"));
        }
        let size = if let Step::Append(size) = step { *size } else { 1 };
        ring.append(frame(&"x".repeat(size)));
        seq += 1;
        all.push(format!("e{epoch}-{seq}"));
    }
    (ring, all)
}

proptest! {
    #[test]
    fn resuming_at_any_cursor_gives_exactly_the_rest_or_says_that_it_cannot(steps in steps(), limit in 100_usize..20_000) {
        let (ring, all) = play(&steps, limit);
        let held = ids(&ring.entries.iter().cloned().collect::<Vec<_>>());
        prop_assert_eq!(&all[all.len() - held.len()..], &held[..], "the ring holds the newest, dense");
        let gone = all.len() - held.len();
        for (index, id) in all.iter().enumerate() {
            let start = ring.start(Some(id));
            match start.resync {
                None => {
                    prop_assert!(index + 1 >= gone);
                    prop_assert_eq!(&ids(&read_all(&ring, start.position).unwrap())[..], &all[index + 1..]);
                }
                Some(resync) => {
                    prop_assert!(index + 1 < gone, "{id} is held and was refused");
                    prop_assert!(matches!(resync.reason, ResyncReason::Expired | ResyncReason::EpochChanged));
                    prop_assert_eq!(resync.oldest.map(|id| id.to_string()), held.first().cloned());
                    prop_assert_eq!(read_all(&ring, start.position).unwrap().len(), 0);
                }
            }
        }
        let bytes: usize = ring.entries.iter().map(|entry| entry.envelope.len() + ENTRY_COST).sum();
        prop_assert_eq!(bytes, ring.bytes);
        prop_assert!(bytes <= limit || ring.entries.len() == 1);
        prop_assert!(ring.epochs.len() <= ring.entries.len() + 2);
    }

    #[test]
    fn no_cursor_and_no_frame_panics(cursor in "\\PC{0,40}", frame in "\\PC{0,80}") {
        let (ring, _) = play(&[Step::Append(1), Step::Epoch], 10_000);
        let _ = ring.start(Some(&cursor));
        let _ = Frame::parse(frame);
    }
}
