//! The door's event streams: ids, resuming, gaps, restarts, and subscribers that do not keep up.

use std::{sync::atomic::Ordering, time::Duration};

use berth_serve::{ServePhase, ServeState};
use berth_wire::problem::ProblemType;
use futures_util::future;
use http::StatusCode;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::watch,
    time::timeout,
};

use crate::rig::{Echo, PASSWORD, RunningDoor, Upstream, killed, problem, until, within};

/// A door with a journal of this size, ready before an upstream.
async fn door_with(ring_bytes: usize) -> (RunningDoor, Upstream, watch::Sender<ServeState>) {
    let upstream = Upstream::start().await;
    let (serve, receiver) = watch::channel(upstream.ready(1));
    let door = RunningDoor::start(receiver, |config| {
        config.ring_bytes = ring_bytes;
        config.write_wait = Duration::from_millis(500);
        config.connections = 3;
    })
    .await;
    door.ready().await;
    (door, upstream, serve)
}

#[tokio::test]
async fn ids_are_dense_and_a_cursor_gives_exactly_the_rest() {
    let (door, upstream, _serve) = door_with(1 << 20).await;
    let mut live = door.events("/global/event", None).await;
    for n in 0..20 {
        upstream.event(Some("/work"), "sync", &json!({}));
        upstream.event(Some("/work"), "session.updated", &json!({ "n": n }));
    }
    let mut seen = Vec::new();
    for _ in 0..20 {
        let (id, event) = live.next().await;
        assert_eq!(event["type"], "session.updated");
        seen.push((id.unwrap(), event["properties"]["n"].as_u64().unwrap()));
    }
    let epoch = door.state().await["epoch"].as_str().unwrap().to_owned();
    let expected: Vec<_> = (0..20).map(|n| (format!("{epoch}-{}", n + 2), n)).collect();
    assert_eq!(seen, expected, "number 1 is berth.serve.started");
    for after in [0, 7, 19] {
        let mut resumed = door.events("/global/event", Some(&seen[after].0)).await;
        for (id, n) in &seen[after + 1..] {
            let (resumed_id, event) = resumed.next().await;
            assert_eq!((resumed_id.as_ref(), &event["properties"]["n"]), (Some(id), &json!(n)));
        }
        upstream.event(None, "marker", &json!({}));
        assert_eq!(resumed.kind().await.1, "marker", "and then it is live");
    }
    let mut from_start = door.events(&format!("/global/event?last_event_id={epoch}-0"), None).await;
    assert_eq!(from_start.kind().await, (format!("{epoch}-1"), "berth.serve.started".to_owned()));
    door.stop().await;
}

#[tokio::test]
async fn a_directory_gets_its_own_events_and_the_servers() {
    let (door, upstream, _serve) = door_with(1 << 20).await;
    let mut default = door.events("/event", None).await;
    let mut named = door.events("/event?directory=%2Fother%20one", None).await;
    upstream.event(Some("/work"), "a", &json!({}));
    upstream.event(Some("/other one"), "b", &json!({}));
    upstream.event(Some("global"), "c", &json!({}));
    upstream.event(None, "d", &json!({}));
    upstream.event(Some("/work"), "e", &json!({}));
    let mut kinds = Vec::new();
    for _ in 0..4 {
        kinds.push(default.kind().await);
    }
    assert_eq!(kinds.iter().map(|(_, kind)| kind.as_str()).collect::<Vec<_>>(), ["a", "c", "d", "e"]);
    for expected in ["b", "c", "d"] {
        assert_eq!(named.kind().await.1, expected);
    }
    let mut resumed = door.events("/event", Some(&kinds[0].0)).await;
    assert_eq!(resumed.kind().await, kinds[1], "a cursor is the same on both routes");
    door.stop().await;
}

#[tokio::test]
async fn a_header_names_a_directory_too() {
    let (door, upstream, _serve) = door_with(1 << 20).await;
    let request = door.get("/event").header("x-opencode-directory", "%2Fa%2Bb");
    let response = request.send().await.unwrap();
    let mut reader = berth_wire::sse::SseReader::new(response.bytes_stream());
    within("server.connected", reader.next()).await.unwrap().unwrap();
    upstream.event(Some("/work"), "mine", &json!({}));
    upstream.event(Some("/a+b"), "theirs", &json!({}));
    let event = within("event", reader.next()).await.unwrap().unwrap();
    assert!(event.data.contains("theirs"), "{event:?}");
    door.stop().await;
}

#[tokio::test]
async fn a_cursor_that_cannot_be_honoured_is_told_first_and_then_it_is_live() {
    let (door, upstream, _serve) = door_with(1 << 20).await;
    for (cursor, reason) in [("otherepoch-3", "epoch_changed"), ("nonsense", "invalid_cursor")] {
        let mut events = door.events("/global/event", Some(cursor)).await;
        let (id, event) = events.next().await;
        assert_eq!(
            (event["type"].as_str(), event["properties"]["reason"].as_str()),
            (Some("berth.resync"), Some(reason))
        );
        upstream.event(None, "live", &json!({}));
        assert_eq!(events.kind().await.1, "live");
        let mut resumed = door.events("/global/event", id.as_deref()).await;
        assert_eq!(resumed.kind().await.1, "live", "the frame's id is where it goes on");
    }
    door.stop().await;
}

#[tokio::test]
async fn heartbeats_have_no_id() {
    let upstream = Upstream::start().await;
    let (_serve, receiver) = watch::channel(upstream.ready(1));
    let door = RunningDoor::start(receiver, |config| config.heartbeat = Duration::from_millis(30)).await;
    for path in ["/global/event", "/event"] {
        let mut events = door.events(path, None).await;
        for _ in 0..2 {
            let (id, event) = events.next().await;
            if event["type"] == "server.heartbeat" {
                assert_eq!(id, None);
                assert!(event["id"].as_str().unwrap().starts_with("evt_"));
            }
        }
    }
    door.stop().await;
}

/// A door whose subscription was taken and hears nothing of what is said on request.
async fn unheard_door(echo: Echo) -> (RunningDoor, Upstream, watch::Sender<ServeState>) {
    let upstream = Upstream::start().await;
    upstream.shared.echo(echo);
    let (serve, receiver) = watch::channel(upstream.ready(1));
    let door = RunningDoor::start(receiver, |_| {}).await;
    let asked = || upstream.shared.echoes.load(Ordering::SeqCst) > 0;
    until("a request for an echo", asked).await;
    (door, upstream, serve)
}

/// opencode begins to listen for a stream some time after it has said that it is connected.
#[tokio::test]
async fn nothing_passes_before_the_subscription_hears() {
    let (door, upstream, _serve) = unheard_door(Echo::Lost).await;
    let mut live = door.events("/global/event", None).await;
    let asked_early = door.get("/doc").send();
    let hears = async {
        let asked = upstream.shared.echoes.load(Ordering::SeqCst);
        until("more requests for an echo", || upstream.shared.echoes.load(Ordering::SeqCst) > asked + 4)
            .await;
        assert_eq!(upstream.shared.documents.load(Ordering::SeqCst), 0, "the request waits");
        upstream.shared.echo(Echo::Heard);
    };
    let (answer, ()) = within("an answer", future::join(asked_early, hears)).await;
    assert_eq!(answer.unwrap().status(), 200);
    upstream.event(None, "heard", &json!({}));
    let told = [live.kind().await.1, live.kind().await.1];
    assert_eq!(told, ["berth.serve.started", "heard"], "echoes are the door's own");
    door.stop().await;
}

/// What others cause proves as much, also where opencode says nothing on request.
#[tokio::test]
async fn whatever_is_heard_first_opens_the_passage_and_is_kept() {
    let (door, upstream, _serve) = unheard_door(Echo::Lost).await;
    let mut live = door.events("/global/event", None).await;
    upstream.event(None, "heard", &json!({}));
    door.ready().await;
    let told = [live.kind().await.1, live.kind().await.1];
    assert_eq!(told, ["berth.serve.started", "heard"]);
    door.stop().await;
}

/// An opencode that has no such route, or whose route fails, is heard by its heartbeat.
#[tokio::test]
async fn a_heartbeat_opens_the_passage_where_nothing_can_be_said_on_request() {
    for status in [StatusCode::NOT_FOUND, StatusCode::INTERNAL_SERVER_ERROR] {
        let (door, upstream, _serve) = unheard_door(Echo::Refused(status)).await;
        let mut live = door.events("/global/event", None).await;
        upstream.event(None, "server.heartbeat", &json!({}));
        door.ready().await;
        upstream.event(None, "heard", &json!({}));
        let told = [live.kind().await.1, live.kind().await.1];
        assert_eq!(told, ["berth.serve.started", "heard"], "{status}");
        door.stop().await;
    }
}

/// Well below the bound on the first thing that is heard, at which it would be looked at again.
const AT_ONCE: Duration = Duration::from_secs(12);

#[tokio::test]
async fn the_end_of_a_run_that_was_not_heard_yet_refuses_requests_at_once() {
    let mut unsupported = killed(1);
    unsupported.exits.back_mut().unwrap().unsupported = Some("0.9.0".to_owned());
    for (state, reason) in [
        (ServeState { phase: ServePhase::Wedged, ..ServeState::new("/work".into()) }, ProblemType::Wedged),
        (ServeState { phase: ServePhase::Stopped, ..killed(1) }, ProblemType::Stopped),
        (unsupported, ProblemType::UnsupportedVersion),
    ] {
        let (door, _upstream, serve) = unheard_door(Echo::Lost).await;
        let asked = door.get("/head/x").send();
        let (answer, _) =
            timeout(AT_ONCE, future::join(asked, async { serve.send_replace(state) })).await.unwrap();
        assert_eq!(problem(answer.unwrap()).await.problem_type(), Some(reason));
        door.stop().await;
    }
}

#[tokio::test]
async fn a_run_that_was_not_heard_does_not_keep_the_next_one_waiting() {
    let (door, first, serve) = unheard_door(Echo::Lost).await;
    let mut live = door.events("/global/event", None).await;
    let second = Upstream::start().await;
    let asked = door.get("/head/x").send();
    let next = async { serve.send_replace(ServeState { exits: killed(1).exits, ..second.ready(2) }) };
    let (answer, _) = timeout(AT_ONCE, future::join(asked, next)).await.unwrap();
    assert_eq!(answer.unwrap().status(), 418);
    assert_eq!(live.kind().await.1, "berth.serve.exited");
    assert_eq!(live.kind().await.1, "berth.serve.started");
    first.subscribed(0).await;
    door.stop().await;
}

#[tokio::test]
async fn a_broken_subscription_begins_a_new_epoch_after_the_old_one() {
    let (door, upstream, _serve) = door_with(1 << 20).await;
    let mut live = door.events("/global/event", None).await;
    upstream.event(None, "before", &json!({}));
    let (before, _) = live.kind().await;
    upstream.cut_events();
    upstream.subscribed(0).await;
    upstream.subscribed(1).await;
    door.ready().await;
    upstream.event(None, "after", &json!({}));
    let (gap, kind) = live.kind().await;
    assert_eq!(kind, "berth.resync");
    let epoch = door.state().await["epoch"].as_str().unwrap().to_owned();
    assert_eq!(gap, format!("{epoch}-1"));
    assert_eq!(live.kind().await, (format!("{epoch}-2"), "after".to_owned()));
    let mut resumed = door.events("/global/event", Some(&before)).await;
    assert_eq!(resumed.kind().await.0, gap, "the old epoch was read to its end");
    door.stop().await;
}

#[tokio::test]
async fn a_restart_is_told_in_the_same_epoch_after_all_that_was_said_before() {
    let (door, upstream, serve) = door_with(1 << 20).await;
    let mut live = door.events("/global/event", None).await;
    // The end is known before the stream ends, and more was still on its way.
    serve.send_replace(killed(1));
    upstream.event(None, "last words", &json!({}));
    upstream.cut_events();
    serve.send_replace(ServeState { exits: killed(1).exits, ..upstream.ready(2) });
    let mut told = Vec::new();
    for _ in 0..3 {
        told.push(live.kind().await);
    }
    let epoch = door.state().await["epoch"].as_str().unwrap().to_owned();
    let expected = ["last words", "berth.serve.exited", "berth.serve.started"];
    let expected: Vec<_> =
        (2..).zip(expected).map(|(seq, kind)| (format!("{epoch}-{seq}"), kind.to_owned())).collect();
    assert_eq!(told, expected);
    let mut state = killed(2);
    state.phase = ServePhase::Stopped;
    serve.send_replace(state);
    upstream.cut_events();
    assert_eq!(live.kind().await.1, "berth.serve.exited");
    door.stop().await;
}

#[tokio::test]
async fn each_of_several_quick_deaths_is_told_once_and_tools_killed_for_memory_are() {
    let (door, upstream, serve) = door_with(1 << 20).await;
    let mut live = door.events("/global/event", None).await;
    serve.send_replace(ServeState { tool_oom_kills: 2, ..upstream.ready(1) });
    let (_, killed_tools) = live.next().await;
    assert_eq!(killed_tools["type"], "berth.tool.out_of_memory", "told while opencode lives");
    assert_eq!(killed_tools["properties"], json!({ "boot_id": "boot1", "count": 2 }));
    // The door sees none of the states in between.
    let mut state = ServeState { tool_oom_kills: 2, ..killed(1) };
    for boot in [2, 3] {
        state.record(killed(boot).last_exit().unwrap().clone());
    }
    (state.boot, state.boot_id) = (3, "boot3".to_owned());
    serve.send_replace(state.clone());
    upstream.cut_events();
    let mut told = Vec::new();
    for _ in 0..3 {
        let (_, event) = live.next().await;
        told.push((event["type"].as_str().unwrap().to_owned(), event["properties"].clone()));
    }
    for (boot, (kind, exit)) in (1..).zip(&told) {
        assert_eq!((kind.as_str(), &exit["boot"]), ("berth.serve.exited", &json!(boot)), "{told:?}");
    }
    serve.send_replace(ServeState { exits: state.exits, tool_oom_kills: 2, ..upstream.ready(4) });
    assert_eq!(live.kind().await.1, "berth.serve.started", "nothing is told twice");
    door.stop().await;
}

/// Opens an event stream and does not read it.
async fn never_reads(door: &RunningDoor) -> TcpStream {
    let mut socket = TcpStream::connect(door.address).await.unwrap();
    let token =
        base64::Engine::encode(&base64::engine::general_purpose::STANDARD, format!("opencode:{PASSWORD}"));
    let head = format!("GET /global/event HTTP/1.1\r\nhost: x\r\nauthorization: Basic {token}\r\n\r\n");
    socket.write_all(head.as_bytes()).await.unwrap();
    within("first bytes", socket.readable()).await.unwrap();
    socket
}

/// Sends events of 64 KiB one by one while a subscriber reads each, and gives the last one's number.
async fn flood(door: &RunningDoor, upstream: &Upstream, count: u64) {
    let mut quick = door.events("/global/event", None).await;
    let text = "x".repeat(64 << 10);
    for n in 0..count {
        upstream.event(None, "flood", &json!({ "n": n, "text": text }));
        let mut event = quick.next().await.1;
        // On a slow machine this takes longer than the time between two heartbeats.
        while event["type"] == "server.heartbeat" {
            event = quick.next().await.1;
        }
        if event["type"] == "flood" {
            assert_eq!(event["properties"]["n"], n, "the slow one costs the quick one nothing");
        }
    }
}

#[tokio::test]
async fn a_subscriber_that_never_reads_is_cut_and_slows_nobody() {
    for ring_bytes in [1 << 20, 256 << 20] {
        let (door, upstream, _serve) = door_with(ring_bytes).await;
        let mut slow = never_reads(&door).await;
        let count = 400;
        flood(&door, &upstream, count).await;
        // With the small journal it falls out of it; with the large one its connection takes no bytes for too long.
        // In both cases it can tell, since not all arrives before the end.
        let mut bytes = Vec::new();
        if ring_bytes > 1 << 20 {
            until_cut(&door).await;
        }
        let _ = within("end of the slow stream", slow.read_to_end(&mut bytes)).await;
        let arrived = bytes.windows(14).filter(|window| window == b"\"type\":\"flood\"").count() as u64;
        assert!(arrived < count, "{arrived} of {count}");
        let mut again = door.events("/global/event", None).await;
        upstream.event(None, "fine", &json!({}));
        assert_eq!(again.kind().await.1, "fine");
        door.stop().await;
    }
}

/// Waits until the slow subscriber's connection no longer counts: three at a time are allowed, and three can be had.
async fn until_cut(door: &RunningDoor) {
    let three = async {
        loop {
            let open = || door.get("/global/event").send();
            if let (Ok(one), Ok(two), Ok(three)) = tokio::join!(open(), open(), open()) {
                return [one, two, three];
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    drop(within("cut", three).await);
}
