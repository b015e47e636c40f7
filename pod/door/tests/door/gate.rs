//! The gate over real sockets, and before a real opencode.

use std::time::Duration;

use berth_door::Metrics;
use berth_testkit::Scale;
use berth_wire::problem::ProblemType;
use prometheus_client::registry::Registry;
use reqwest::RequestBuilder;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::watch,
    task::JoinSet,
    time::timeout,
};

use crate::{
    housekeeping::count,
    proxy::ready_door,
    real_opencode::{Sandbox, create_session, json_of},
    rig::{PASSWORD, RunningDoor, Upstream, problem, until, within},
};

fn lease(phase: &str, ttl_ms: u64) -> Value {
    json!({"owner": "snapshot", "reason": "nightly", "ttl_ms": ttl_ms, "phase": phase})
}

/// Takes, keeps or moves on the gate.
async fn hold(door: &RunningDoor, lease: &Value) -> Value {
    json_of(door.put("/berth/gate").json(lease)).await
}

fn authorization() -> String {
    let token =
        base64::Engine::encode(&base64::engine::general_purpose::STANDARD, format!("opencode:{PASSWORD}"));
    format!("Basic {token}")
}

fn generation(state: &Value) -> u64 {
    state["generation"].as_u64().expect("a generation")
}

async fn status(call: RequestBuilder) -> u16 {
    within("answer", call.send()).await.expect("an answer").status().as_u16()
}

async fn refusal(call: RequestBuilder) -> Option<ProblemType> {
    problem(within("answer", call.send()).await.expect("an answer")).await.problem_type()
}

#[tokio::test]
async fn a_gate_whose_owner_died_is_open_at_its_deadline_and_its_lease_is_broken() {
    let (door, _upstream, _serve) = ready_door().await;
    let mut events = door.events("/global/event", None).await;
    let held = hold(&door, &lease("closed", 300)).await;
    assert_eq!(held["phase"], "closed");
    let gated = door.post("/session/s/prompt_async").send().await.unwrap();
    assert_eq!(gated.headers()["retry-after"], "1");
    let gated = problem(gated).await;
    assert_eq!(gated.problem_type(), Some(ProblemType::Gated));
    assert!(gated.detail.contains("snapshot") && gated.detail.contains("nightly"), "{gated}");
    let mut told = Vec::new();
    while told.last().is_none_or(|phase| phase != "open") {
        let (_, event) = events.next().await;
        if event["type"] == "berth.gate" {
            assert_eq!(event["properties"]["generation"], held["generation"]);
            told.push(event["properties"]["phase"].clone());
        }
    }
    assert_eq!(told, ["draining", "closed", "open"]);
    assert_eq!(status(door.post("/session/s/prompt_async")).await, 200);
    let sealing = door.post("/berth/gate/seal").json(&json!({"generation": held["generation"]}));
    assert_eq!(refusal(sealing).await, Some(ProblemType::GateBroken));
    assert_ne!(hold(&door, &lease("draining", 60_000)).await["generation"], held["generation"]);
}

#[tokio::test]
async fn the_gate_has_one_holder_who_may_give_it_back() {
    let (door, _upstream, _serve) = ready_door().await;
    let held = hold(&door, &lease("draining", 60_000)).await;
    let other = json!({"owner": "upgrade", "ttl_ms": 1000, "phase": "closed"});
    let refused = problem(door.put("/berth/gate").json(&other).send().await.unwrap()).await;
    assert_eq!(refused.problem_type(), Some(ProblemType::GateHeld));
    assert_eq!(refused.extensions["gate"]["owner"], "snapshot");
    assert!(refused.extensions["gate"]["expires_in_ms"].as_u64().unwrap() > 30_000, "{refused:?}");
    let mut next = lease("closed", 60_000);
    next["generation"] = held["generation"].clone();
    assert_eq!(hold(&door, &next).await["phase"], "closed");
    assert_eq!(door.state().await["gate"]["phase"], "closed");
    assert_eq!(status(door.get("/head/x")).await, 418, "reads pass");
    next["phase"] = "draining".into();
    assert_eq!(refusal(door.put("/berth/gate").json(&next)).await, Some(ProblemType::Invalid));
    assert_eq!(refusal(door.delete("/berth/gate?generation=9")).await, Some(ProblemType::GateBroken));
    assert_eq!(refusal(door.delete("/berth/gate")).await, Some(ProblemType::InvalidParameter));
    let opened = json_of(door.delete(&format!("/berth/gate?generation={}", generation(&held)))).await;
    assert_eq!((&opened["phase"], opened.get("owner")), (&"open".into(), None));
    for wrong in [
        json!({"owner": "", "ttl_ms": 1, "phase": "closed"}),
        json!({"owner": "x", "ttl_ms": 0, "phase": "closed"}),
        json!({"owner": "x", "ttl_ms": 3_600_001, "phase": "closed"}),
        json!({"owner": "x", "ttl_ms": 1, "phase": "open"}),
    ] {
        assert_eq!(
            refusal(door.put("/berth/gate").json(&wrong)).await,
            Some(ProblemType::InvalidBody),
            "{wrong}"
        );
    }
    assert_eq!(status(door.post("/berth/gate")).await, 405);
}

#[tokio::test]
async fn a_sealed_gate_stays_and_goes_with_the_door() {
    let (door, _upstream, serve) = ready_door().await;
    let held = hold(&door, &lease("closed", 200)).await;
    let seal = json!({"generation": generation(&held)});
    let opening = format!("/berth/gate?generation={}", generation(&held));
    let sealed = json_of(door.post("/berth/gate/seal").json(&seal)).await;
    assert_eq!((&sealed["phase"], sealed.get("expires_in_ms")), (&"sealed".into(), None));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(refusal(door.delete(&opening)).await, Some(ProblemType::GateHeld));
    let refused = door.post("/session/s/abort").send().await.unwrap();
    assert!(!refused.headers().contains_key("retry-after"));
    assert_eq!(problem(refused).await.problem_type(), Some(ProblemType::Gated));
    door.stop().await;
    let next = RunningDoor::start(serve.subscribe(), |_| {}).await;
    assert_eq!(next.state().await["gate"]["phase"], "open");
}

/// A holder who has not heard of the door's end must not take somebody else's lease for its own.
#[tokio::test]
async fn a_lease_of_the_door_before_is_broken() {
    let (door, _upstream, serve) = ready_door().await;
    let held = hold(&door, &lease("closed", 60_000)).await;
    door.stop().await;
    let next = RunningDoor::start(serve.subscribe(), |_| {}).await;
    next.ready().await;
    hold(&next, &lease("closed", 60_000)).await;
    let seal = next.post("/berth/gate/seal").json(&json!({"generation": generation(&held)}));
    assert_eq!(refusal(seal).await, Some(ProblemType::GateBroken));
    let opening = next.delete(&format!("/berth/gate?generation={}", generation(&held)));
    assert_eq!(refusal(opening).await, Some(ProblemType::GateBroken));
}

#[tokio::test]
async fn closing_waits_for_what_changes_something_and_says_what_does_not_end() {
    let (door, upstream, _serve) = ready_door().await;
    upstream.shared.hold.send_replace(true);
    let call = door.post("/session/s/message").body("{}");
    let mut calls = JoinSet::new();
    calls.spawn(async move { status(call).await });
    until("the call at opencode", || upstream.shared.paths().len() == 1).await;
    let busy = problem(door.put("/berth/gate").json(&lease("closed", 60_000)).send().await.unwrap()).await;
    assert_eq!(busy.problem_type(), Some(ProblemType::Busy));
    assert_eq!(busy.extensions["calls"][0]["session"], "s");
    assert_eq!(json_of(door.get("/berth/gate")).await["phase"], "draining");
    let mut patient = lease("closed", 60_000);
    patient["generation"] = door.generation().await.into();
    patient["wait_ms"] = 30_000.into();
    let closing = door.put("/berth/gate").json(&patient);
    calls.spawn(async move { status(closing).await });
    let closes = async {
        while status(door.post("/head/x")).await != 503 {
            tokio::task::yield_now().await;
        }
    };
    within("the closing at the door", closes).await;
    upstream.shared.hold.send_replace(false);
    while let Some(status) = within("ends", calls.join_next()).await {
        assert_eq!(status.unwrap(), 200);
    }
    assert_eq!(json_of(door.get("/berth/gate")).await["phase"], "closed");
}

#[tokio::test]
async fn a_terminal_is_cut_at_the_close_and_refused_before() {
    let (door, _upstream, _serve) = ready_door().await;
    let open = async || {
        let mut socket = TcpStream::connect(door.address).await.unwrap();
        let head = format!(
            "GET /upgrade HTTP/1.1\r\nhost: x\r\nauthorization: {}\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n",
            authorization()
        );
        socket.write_all(head.as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        within("head", socket.read_exact(&mut answer)).await.unwrap();
        (socket, String::from_utf8_lossy(&answer).into_owned())
    };
    let (mut socket, answer) = open().await;
    assert_eq!(answer, "HTTP/1.1 101");
    let held = hold(&door, &lease("draining", 60_000)).await;
    assert_eq!(open().await.1, "HTTP/1.1 503");
    socket.write_all(b"ping").await.unwrap();
    let mut next = lease("closed", 60_000);
    next["generation"] = held["generation"].clone();
    hold(&door, &next).await;
    let mut rest = Vec::new();
    // A cut may look like a reset.
    let _ = within("end of the terminal", socket.read_to_end(&mut rest)).await;
}

#[tokio::test]
async fn a_terminal_that_opencode_does_not_open_does_not_keep_the_gate_from_closing() {
    let (door, upstream, _serve) = ready_door().await;
    let opening = door.get("/never").header("connection", "upgrade").header("upgrade", "websocket");
    let mut calls = JoinSet::new();
    calls.spawn(async move { refusal(opening).await });
    until("the call at opencode", || upstream.shared.paths().len() == 1).await;
    assert_eq!(hold(&door, &lease("closed", 60_000)).await["phase"], "closed");
    let refused = within("the refusal", calls.join_next()).await.expect("it was asked for");
    assert_eq!(refused.expect("no panic"), Some(ProblemType::Gated));
}

#[tokio::test]
async fn a_prompt_that_comes_in_drips_keeps_the_gate_from_closing_for_a_bounded_time() {
    let upstream = Upstream::start().await;
    let (_serve, state) = watch::channel(upstream.ready(1));
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let door = RunningDoor::start(state, |config| {
        config.metrics = metrics;
        config.upload_bound = Duration::from_millis(500);
    })
    .await;
    door.ready().await;
    let mut caller = TcpStream::connect(door.address).await.unwrap();
    let head = format!(
        "POST /session/s/prompt_async HTTP/1.1\r\nhost: x\r\nauthorization: {}\r\ncontent-length: 1000000\r\n\r\n",
        authorization()
    );
    caller.write_all(head.as_bytes()).await.unwrap();
    let mut drips = JoinSet::new();
    drips.spawn(async move {
        let mut answer = [0; 12];
        loop {
            // Nothing more is sent once there is an answer: it could be lost then.
            match timeout(Duration::from_millis(10), caller.read_exact(&mut answer)).await {
                Ok(read) => return read.map(|_| String::from_utf8_lossy(&answer).into_owned()),
                Err(_) => caller.write_all(b" ").await?,
            }
        }
    });
    // What was received was admitted.
    until("a first drip", || count(&registry, "received_bytes") > 0).await;
    let mut closing = lease("closed", 60_000);
    closing["wait_ms"] = 60_000.into();
    assert_eq!(hold(&door, &closing).await["phase"], "closed");
    let answer = within("the answer to the drips", drips.join_next()).await.unwrap().unwrap();
    assert_eq!(answer.unwrap(), "HTTP/1.1 408");
    assert!(upstream.shared.paths().is_empty(), "opencode got no whole prompt");
}

/// A message id that opencode takes, later than those before.
fn message_id(number: u64) -> String {
    let now = u64::try_from(jiff::Timestamp::now().as_millisecond()).expect("after 1970");
    format!("msg_{:012x}{number:014}", (now * 0x1000 + number) & 0xffff_ffff_ffff)
}

async fn messages(door: &RunningDoor, session: &str) -> Vec<String> {
    let messages = json_of(door.get(&format!("/session/{session}/message"))).await;
    let ids = messages.as_array().expect("a list").iter();
    ids.map(|message| message["info"]["id"].as_str().expect("an id").to_owned()).collect()
}

#[tokio::test]
async fn prompts_at_the_instant_of_the_close_are_wholly_before_it_or_refused() {
    let scale = Scale::current();
    let sandbox = Sandbox::start().await;
    let door = sandbox.door().await;
    let session = create_session(&door).await;
    let path = format!("/session/{session}/prompt_async");
    let note = |id: &str, text: &str| json!({"messageID": id, "noReply": true, "parts": [{"type": "text", "text": text}]});
    let first = message_id(0);
    assert_eq!(status(door.post(&path).json(&note(&first, "warm"))).await, 204);
    let mut prompts = JoinSet::new();
    for number in 0..scale.pick(50, 200) {
        let id = message_id(number + 1);
        let call = door.post(&path).json(&note(&id, "race"));
        prompts.spawn(async move {
            let answer = within("answer", call.send()).await.expect("an answer");
            (id, answer.status().as_u16())
        });
        if number == scale.pick(10, 40) {
            let mut closing = lease("closed", 60_000);
            closing["wait_ms"] = 20_000.into();
            let closing = door.put("/berth/gate").json(&closing);
            prompts.spawn(async move { (String::new(), status(closing).await) });
        }
        tokio::task::yield_now().await;
    }
    let (mut before, mut refused) = (vec![first], Vec::new());
    while let Some(ended) = prompts.join_next().await {
        match ended.expect("no panic") {
            (id, 204) => before.push(id),
            (id, 503) => refused.push(id),
            (id, 200) => assert_eq!(id, ""),
            (id, status) => panic!("{id}: {status}"),
        }
    }
    assert!(!refused.is_empty() && before.len() > 1, "{} before, {} refused", before.len(), refused.len());
    let counts = [("before", before.len() as u64), ("refused", refused.len() as u64)];
    scale.report("prompts_at_the_instant_of_the_close_are_wholly_before_it_or_refused", 0, &counts);
    let found = async {
        loop {
            let stored = messages(&door, &session).await;
            if before.iter().all(|id| stored.contains(id)) {
                return stored;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let stored = within("every admitted prompt", found).await;
    assert_eq!(stored.len(), before.len(), "nothing of what was refused");
    let generation = door.generation().await;
    json_of(door.delete(&format!("/berth/gate?generation={generation}"))).await;
    let last = message_id(900);
    assert_eq!(status(door.post(&path).json(&note(&last, "after"))).await, 204);
    before.push(last);
    let found = async {
        while messages(&door, &session).await.len() < before.len() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within("the prompt after it", found).await;
    assert_eq!(messages(&door, &session).await.len(), before.len());
}
