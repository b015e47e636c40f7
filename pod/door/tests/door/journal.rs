//! The journal's streams over real sockets, with an upstream that does what the test says.

use std::time::Duration;

use berth_door::Metrics;
use berth_serve::ServeState;
use berth_testkit::Scale;
use berth_wire::sse::SseReader;
use prometheus_client::registry::Registry;
use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{Config, TestRunner},
};
use reqwest::header::HeaderValue;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    sync::watch,
    task::JoinSet,
    time::Instant,
};

use crate::{
    frames::{Frames, check},
    rig::{PASSWORD, RunningDoor, Upstream, until, within},
};

struct Rig {
    door: RunningDoor,
    upstream: Upstream,
    serve: watch::Sender<ServeState>,
    registry: Registry,
}

async fn rig(ring_bytes: usize) -> Rig {
    rig_with(ring_bytes, Duration::from_mins(10)).await
}

/// Clients may refuse to take bytes for so long.
async fn rig_with(ring_bytes: usize, write_wait: Duration) -> Rig {
    let upstream = Upstream::start().await;
    let (serve, receiver) = watch::channel(upstream.ready(1));
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let door = RunningDoor::start(receiver, |config| {
        config.ring_bytes = ring_bytes;
        config.metrics = metrics;
        config.write_wait = write_wait;
    })
    .await;
    door.ready().await;
    Rig { door, upstream, serve, registry }
}

impl Rig {
    /// The sum of a metric over its labels.
    fn metric(&self, name: &str) -> f64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).expect("text");
        let lines = text.lines().filter(|line| {
            line.strip_prefix("berth_door_")
                .and_then(|line| line.strip_prefix(name))
                .is_some_and(|rest| rest.starts_with([' ', '{']))
        });
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }
}

fn tool(status: &str, n: u32) -> Value {
    let part =
        json!({"id": "prt_1", "sessionID": "ses_1", "type": "tool", "state": {"status": status, "n": n}});
    json!({ "part": part })
}

#[tokio::test]
async fn a_late_subscriber_gets_marks_where_events_were_superseded() {
    let rig = rig(1 << 20).await;
    let mut live = Frames::open(&rig.door, None).await;
    for (n, status) in (0..).zip(["pending", "running", "running", "running", "running", "completed"]) {
        let properties = tool(status, n);
        rig.upstream.event(Some("/work"), "message.part.updated", &properties);
        // A subscriber that keeps up misses nothing.
        assert_eq!(live.next().await.payload["properties"], properties);
    }
    let epoch = rig.door.state().await["epoch"].as_str().expect("an epoch").to_owned();
    let cursor = format!("{epoch}-1").parse().expect("a cursor");
    let mut late = Frames::open(&rig.door, Some(&cursor)).await;
    let seen = late.until("end", |seen| seen.payload["properties"]["part"]["state"]["n"] == 5).await;
    check(&[&[live_one(&cursor)], &seen[..]].concat());
    let told: Vec<_> = seen.iter().map(|seen| (seen.id.seq, seen.superseded)).collect();
    assert_eq!(told, [(2, None), (3, None), (6, Some((4, 5))), (7, None)]);
    // Our own reader, and that of any SDK, skips the marks.
    let mut events = rig.door.events("/global/event", Some(&cursor.to_string())).await;
    let mut of_directory = rig.door.events("/event", Some(&cursor.to_string())).await;
    for seq in [2, 3, 6, 7] {
        assert_eq!(events.kind().await.0, format!("{epoch}-{seq}"));
        assert_eq!(of_directory.kind().await.0, format!("{epoch}-{seq}"));
    }
    assert!((rig.metric("journal_superseded_total") - 2.0).abs() < 0.1);
    assert!((rig.metric("journal_appended_total") - 7.0).abs() < 0.1);
    rig.door.stop().await;
}

/// An event at a cursor, as far as [`check`] looks at it.
fn live_one(cursor: &berth_wire::door::Cursor) -> crate::frames::Seen {
    let payload = json!({"id": "evt_before", "type": "t"});
    crate::frames::Seen { id: cursor.clone(), superseded: None, kind: "t".to_owned(), payload, bytes: 0 }
}

/// Subscribes with little room in the kernel for what is not read: less would make it slow to read the rest at last.
async fn narrow(door: &RunningDoor) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(64 << 10).expect("a small buffer");
    let mut socket = socket.connect(door.address).await.expect("the door");
    let token =
        base64::Engine::encode(&base64::engine::general_purpose::STANDARD, format!("opencode:{PASSWORD}"));
    let head = format!(
        "GET /global/event HTTP/1.1\r\nhost: x\r\nauthorization: Basic {token}\r\nconnection: close\r\n\r\n"
    );
    socket.write_all(head.as_bytes()).await.expect("sent");
    within("first bytes", socket.readable()).await.expect("first bytes");
    socket
}

/// Sends events that this many subscribers read, and waits until each has read them all.
async fn flood(rig: &Rig, subscribers: usize, count: u64) {
    let text = "x".repeat(4 << 10);
    let mut readers = JoinSet::new();
    for _ in 0..subscribers {
        let mut events = rig.door.events("/global/event", None).await;
        readers.spawn(async move {
            for n in 0..count {
                let event = loop {
                    let (_, event) = events.next().await;
                    if event["type"] != "server.heartbeat" {
                        break event;
                    }
                };
                assert_eq!(event["properties"]["n"], n, "{event}");
            }
        });
    }
    for n in 0..count {
        rig.upstream.event(None, "flood", &json!({ "n": n, "text": text }));
        tokio::task::yield_now().await;
    }
    while let Some(reader) = within("reader", readers.join_next()).await {
        reader.expect("nothing was lost");
    }
}

/// Sends large events, and waits until they are in the journal.
async fn stuff(rig: &Rig, count: u64) {
    let text = "x".repeat(64 << 10);
    let mut quick = rig.door.events("/global/event", None).await;
    for n in 0..count {
        rig.upstream.event(None, "stuffing", &json!({ "n": n, "text": text }));
        quick.kind().await;
    }
}

#[tokio::test]
async fn a_hundred_subscribers_two_of_which_do_not_keep_up() {
    let rig = rig(8 << 20).await;
    let mut never = narrow(&rig.door).await;
    let mut slow = narrow(&rig.door).await;
    let mut reading = JoinSet::new();
    reading.spawn(async move {
        let mut tick = tokio::time::interval(Duration::from_secs(1));
        while slow.read_u8().await.is_ok() {
            tick.tick().await;
        }
    });
    until("the two", || rig.metric("subscribers") > 1.5).await;
    // More than the kernel takes for them: from now on they are stuck, and the journal still has what they wait for.
    let stuffing = 100;
    stuff(&rig, stuffing).await;
    flood(&rig, 98, Scale::current().pick(250, 400)).await;
    // The others have everything, while the two hold their connections and wait for the stuffing.
    assert!(rig.metric("subscribers_cut_total") < 0.5);
    // Now the journal loses what they wait for, which one of them learns when it reads at last.
    stuff(&rig, 2 * stuffing).await;
    let mut bytes = Vec::new();
    let _ = within("end of the stream", never.read_to_end(&mut bytes)).await;
    let arrived = bytes.windows(17).filter(|window| window == b"\"type\":\"stuffing\"").count() as u64;
    assert!(arrived < stuffing, "{arrived} of {stuffing}");
    until("cut", || rig.metric("subscribers_cut_total") > 0.5).await;
    rig.door.stop().await;
}

#[tokio::test]
async fn a_subscriber_that_takes_nothing_for_too_long_is_cut_and_counted() {
    let rig = rig_with(32 << 20, Duration::from_millis(300)).await;
    let mut never = narrow(&rig.door).await;
    let stuffing = 200;
    stuff(&rig, stuffing).await;
    until("cut", || rig.metric("subscribers_cut_total") > 0.5).await;
    let mut bytes = Vec::new();
    let _ = within("end of the stream", never.read_to_end(&mut bytes)).await;
    assert!(bytes.len() < 200 << 16, "{} bytes", bytes.len());
    rig.door.stop().await;
}

/// The first event after `server.connected` for a cursor of these bytes.
async fn first_after(door: &RunningDoor, cursor: &[u8]) -> Option<Value> {
    let value = HeaderValue::from_bytes(cursor).ok()?;
    let response = within("answer", door.get("/global/event").header("last-event-id", value).send()).await;
    let response = response.expect("an answer");
    assert_eq!(response.status(), 200);
    let mut reader = SseReader::new(response.bytes_stream());
    within("event", reader.next()).await.expect("an event").expect("connected");
    let frame = within("event", reader.next()).await.expect("an event").expect("a resync");
    serde_json::from_str(&frame.data).ok()
}

#[tokio::test]
async fn whatever_a_cursor_is_the_answer_says_what_is_wrong_with_it() {
    let rig = rig(1 << 20).await;
    let epoch = rig.door.state().await["epoch"].as_str().expect("an epoch").to_owned();
    let mut cursors: Vec<Vec<u8>> = [
        "-",
        "1",
        "-1",
        "a-",
        "a--1",
        "0x1-1",
        "\u{e9}-1",
        "a-99999999999999999999",
        "a, b-1",
        "null",
        "[object Object]",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec();
    cursors.push(b"\xff\xfe-1".to_vec());
    for end in ["-99", "-18446744073709551615", "-18446744073709551616", "-1 ", "-0x1", "-1-1", "", "-"] {
        cursors.push(format!("{epoch}{end}").into_bytes());
    }
    cursors.push("a".repeat(60_000).into_bytes());
    let mut runner = TestRunner::new(Config::default());
    for _ in 0..Scale::current().pick(30, 3_000) {
        let bytes =
            prop::collection::vec(0x20_u8..=0xff, 1..80).new_tree(&mut runner).expect("bytes").current();
        cursors.push(bytes);
    }
    for cursor in cursors {
        let words = String::from_utf8_lossy(&cursor).into_owned();
        // Spaces around a header's value do not belong to it, and an empty one is none.
        let trimmed = cursor.trim_ascii();
        if trimmed.is_empty() || trimmed == format!("{epoch}-1").as_bytes() {
            continue;
        }
        let Some(event) = first_after(&rig.door, &cursor).await else { continue };
        assert_eq!(event["payload"]["type"], "berth.resync", "{words}");
        let reason = event["payload"]["properties"]["reason"].as_str().expect("a reason");
        assert!(["invalid_cursor", "epoch_changed"].contains(&reason), "{words}: {reason}");
    }
    assert!(rig.metric("journal_resyncs_total") > 20.0);
    rig.door.stop().await;
}

#[tokio::test]
async fn streams_end_at_once_when_the_door_does() {
    let rig = rig(64 << 20).await;
    let mut streams = Vec::new();
    for _ in 0..10 {
        streams.push(Frames::open(&rig.door, None).await);
    }
    let text = "x".repeat(64 << 10);
    for n in 0..20 {
        rig.upstream.event(None, "flood", &json!({ "n": n, "text": text }));
    }
    streams[0].next().await;
    let begin = Instant::now();
    let ends = async {
        for stream in &mut streams {
            stream.end(Duration::from_secs(20)).await;
        }
    };
    tokio::join!(rig.door.stop(), ends);
    assert!(begin.elapsed() < Duration::from_millis(2_500), "less than the drain: {:?}", begin.elapsed());
    drop(rig.serve);
}

#[tokio::test]
async fn a_directory_may_be_named_in_any_way_that_opencode_takes() {
    let folder = tempfile::tempdir().expect("a directory");
    let root = folder.path().canonicalize().expect("a real path");
    let real = root.join("re al");
    std::fs::create_dir(&real).expect("a directory");
    std::os::unix::fs::symlink(&real, root.join("link")).expect("a link");
    let (root, real) = (root.display().to_string(), real.display().to_string());
    let rig = rig(1 << 20).await;
    let once = |path: &str| path.replace('/', "%2F").replace(' ', "%20");
    let named = |query: String, header: Option<String>, expected: &str| (query, header, expected.to_owned());
    let cases = [
        named(format!("?directory={root}/link"), None, &real),
        named(format!("?directory={}", once(&real)), None, &real),
        named(format!("?directory={}", once(&real).replace('%', "%25")), None, &real),
        named(format!("?directory={root}/link/"), None, &real),
        named(format!("?directory={root}/nowhere/../link"), None, &real),
        named(format!("?directory={root}/nowhere/"), None, &format!("{root}/nowhere")),
        named("?directory=".to_owned(), None, "/work"),
        named("?directory=".to_owned(), Some(once(&format!("{root}/link"))), &real),
        named(String::new(), Some(format!("{root}/link")), &real),
        named(String::new(), Some(String::new()), "/work"),
        named(format!("?directory={}", once(&real)), Some("/other".to_owned()), &real),
    ];
    for (query, header, expected) in cases {
        let mut request = rig.door.get(&format!("/event{query}"));
        if let Some(header) = &header {
            request = request.header("x-opencode-directory", header);
        }
        let response = within("answer", request.send()).await.expect("an answer");
        let mut reader = SseReader::new(response.bytes_stream());
        within("event", reader.next()).await.expect("an event").expect("connected");
        rig.upstream.event(Some("/elsewhere"), "theirs", &json!({}));
        rig.upstream.event(Some(&expected), "mine", &json!({}));
        let event = within("event", reader.next()).await.expect("an event").expect("an event");
        assert!(event.data.contains("mine"), "{query} {header:?}: {}", event.data);
    }
    rig.door.stop().await;
}
