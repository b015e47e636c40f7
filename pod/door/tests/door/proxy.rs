//! The door as a proxy: who passes, what passes, and what happens when there is nothing to pass to.

use std::{sync::atomic::Ordering, time::Duration};

use berth_serve::{ServePhase, ServeState};
use berth_wire::problem::ProblemType;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::{mpsc, watch},
    task::JoinSet,
    time::Instant,
};

use crate::rig::{BOUND, INTERNAL, PASSWORD, RunningDoor, Upstream, client, killed, problem, until, within};

/// A door that is ready before an upstream.
pub(crate) async fn ready_door() -> (RunningDoor, Upstream, watch::Sender<ServeState>) {
    let upstream = Upstream::start().await;
    let (serve, receiver) = watch::channel(upstream.ready(1));
    let door = RunningDoor::start(receiver, |_| {}).await;
    door.ready().await;
    (door, upstream, serve)
}

fn base64(text: &str) -> String {
    base64::Engine::encode(&base64::engine::general_purpose::STANDARD, text)
}

#[tokio::test]
async fn nobody_passes_without_the_password() {
    let (door, upstream, _serve) = ready_door().await;
    for path in ["/session", "/global/event", "/event", "/berth/state", "/", "/global/health"] {
        for request in [
            client().get(door.url(path)),
            client().get(door.url(path)).basic_auth("opencode", Some(INTERNAL)),
            client().get(door.url(path)).bearer_auth(PASSWORD),
            client().get(door.url(&format!("{path}?auth_token={}", base64("opencode:no")))),
        ] {
            let response = request.send().await.unwrap();
            assert!(response.headers()["www-authenticate"].to_str().unwrap().starts_with("Basic "), "{path}");
            assert_eq!(problem(response).await.problem_type(), Some(ProblemType::Unauthorized), "{path}");
        }
    }
    let wrong = client().get(door.url("/doc")).basic_auth("opencode", Some("no")).send().await.unwrap();
    assert_eq!(wrong.status(), 401, "a wrong password is not anonymous");
    assert_eq!(upstream.shared.documents.load(Ordering::SeqCst), 0);
    let probe: Value = client().get(door.url("/doc")).send().await.unwrap().json().await.unwrap();
    assert_eq!(probe, serde_json::json!({"status": "ready", "version": "1.18.33"}));
    door.stop().await;
}

#[tokio::test]
async fn heads_pass_but_for_the_hop_and_the_credentials() {
    let (door, _upstream, _serve) = ready_door().await;
    let token = base64(&format!("opencode:{PASSWORD}"));
    let request = client()
        .put(door.url(&format!("/head/a%2Fb?x=%20&auth_token={token}&y")))
        .header("x-opencode-directory", "/w")
        .header("connection", "x-hop")
        .header("x-hop", "1")
        .header("accept-encoding", "br");
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 418);
    assert_eq!(response.headers()["content-encoding"], "gzip");
    assert_eq!(response.headers().get_all("set-cookie").iter().count(), 2);
    assert!(!response.headers().contains_key("x-private"), "{:?}", response.headers());
    let seen: Value = response.json().await.unwrap();
    assert_eq!((&seen["method"], &seen["target"]), (&"PUT".into(), &"/head/a%2Fb?x=%20&y".into()));
    assert_eq!(
        seen["headers"]["authorization"],
        format!("Basic {}", base64(&format!("opencode:{INTERNAL}")))
    );
    assert_eq!(seen["headers"]["accept-encoding"], "br");
    assert_eq!(seen["headers"]["x-opencode-directory"], "/w");
    for gone in ["x-hop", "transfer-encoding", "content-length"] {
        assert_eq!(seen["headers"].get(gone), None, "{seen}");
    }
    assert!(!seen.to_string().contains(&token), "{seen}");
    door.stop().await;
}

#[tokio::test]
async fn bodies_stream_both_ways() {
    let (door, _upstream, _serve) = ready_door().await;
    let (sender, receiver) = mpsc::channel::<Result<Bytes, std::io::Error>>(1);
    let body = stream::unfold(receiver, |mut receiver| async { Some((receiver.recv().await?, receiver)) });
    let request = door.post("/echo").body(reqwest::Body::wrap_stream(body)).send();
    sender.send(Ok(Bytes::from_static(b"first"))).await.unwrap();
    let mut answer = within("head before the request's end", request).await.unwrap().bytes_stream();
    let first = within("chunk before the request's end", answer.next()).await.unwrap().unwrap();
    assert_eq!(first, "first");
    let chunk = Bytes::from(vec![7_u8; 1 << 16]);
    let mut sending = JoinSet::new();
    sending.spawn(async move {
        for _ in 0..512 {
            sender.send(Ok(chunk.clone())).await.unwrap();
        }
    });
    let mut bytes = 0;
    while let Some(chunk) = within("chunk", answer.next()).await {
        bytes += chunk.unwrap().len();
    }
    assert_eq!(bytes, 512 << 16);
    door.stop().await;
}

#[tokio::test]
async fn a_client_that_leaves_ends_its_request_upstream() {
    let (door, upstream, _serve) = ready_door().await;
    let mut answer = door.get("/chunks").send().await.unwrap().bytes_stream();
    upstream.shared.chunks.send(Bytes::from_static(b"one")).unwrap();
    assert_eq!(within("chunk", answer.next()).await.unwrap().unwrap(), "one");
    assert_eq!(upstream.shared.open_chunks.load(Ordering::SeqCst), 1);
    drop(answer);
    until("end of the upstream's work", || upstream.shared.open_chunks.load(Ordering::SeqCst) == 0).await;
    door.stop().await;
}

#[tokio::test]
async fn a_cut_before_the_head_is_a_problem_and_in_the_body_a_broken_body() {
    let (door, upstream, _serve) = ready_door().await;
    let response = door.get("/cut-head").send().await.unwrap();
    assert_eq!(problem(response).await.problem_type(), Some(ProblemType::BadGateway));
    let mut answer = door.get("/chunks").send().await.unwrap().bytes_stream();
    upstream.shared.chunks.send(Bytes::from_static(b"half")).unwrap();
    assert_eq!(within("chunk", answer.next()).await.unwrap().unwrap(), "half");
    upstream.shared.chunks.send(Bytes::new()).unwrap();
    assert!(within("end", answer.next()).await.unwrap().is_err(), "half a body is no body");
    door.stop().await;
}

#[tokio::test]
async fn an_upstream_that_is_not_there_is_a_bad_gateway() {
    let (door, upstream, _serve) = ready_door().await;
    // The subscription lives on, but nobody accepts.
    let (address, _shared) = upstream.stop_accepting();
    until("refused connection", || std::net::TcpStream::connect(address).is_err()).await;
    let response = within("refusal", door.get("/session").send()).await.unwrap();
    assert_eq!(problem(response).await.problem_type(), Some(ProblemType::BadGateway));
    door.stop().await;
}

#[tokio::test]
async fn requests_wait_for_the_start_and_are_served() {
    let upstream = Upstream::start().await;
    let (serve, receiver) = watch::channel(ServeState::new("/work".into()));
    let door = RunningDoor::start(receiver, |_| {}).await;
    let mut waiting = JoinSet::new();
    for _ in 0..20 {
        waiting.spawn(door.post("/echo").body("kept").send());
    }
    let probe = client().get(door.url("/doc")).send().await.unwrap();
    assert_eq!(problem(probe).await.problem_type(), Some(ProblemType::Starting), "the probe does not wait");
    assert_eq!(door.state().await["phase"], "starting");
    assert!(waiting.try_join_next().is_none());
    serve.send_replace(upstream.ready(1));
    while let Some(response) = within("answer", waiting.join_next()).await {
        assert_eq!(response.unwrap().unwrap().text().await.unwrap(), "kept");
    }
    door.stop().await;
}

#[tokio::test]
async fn no_request_passes_before_the_journal_listens() {
    let upstream = Upstream::start().await;
    upstream.shared.subscribable.send_replace(false);
    let (_serve, receiver) = watch::channel(upstream.ready(1));
    let door = RunningDoor::start(receiver, |config| config.start_wait = Duration::from_millis(300)).await;
    let response = door.post("/echo").body("early").send().await.unwrap();
    assert_eq!(problem(response).await.problem_type(), Some(ProblemType::Starting));
    upstream.shared.subscribable.send_replace(true);
    door.ready().await;
    assert_eq!(door.post("/echo").body("now").send().await.unwrap().text().await.unwrap(), "now");
    door.stop().await;
}

#[tokio::test]
async fn a_request_that_cannot_wait_any_longer_says_why() {
    let (_serve, receiver) = watch::channel(killed(3));
    let door = RunningDoor::start(receiver, |config| config.start_wait = Duration::from_millis(50)).await;
    let response = door.get("/session").send().await.unwrap();
    assert_eq!(response.headers()["retry-after"], "2");
    let refusal = problem(response).await;
    assert_eq!(refusal.problem_type(), Some(ProblemType::Starting));
    assert!(refusal.detail.contains("signal 9"), "{refusal:?}");
    let probe = problem(client().get(door.url("/doc")).send().await.unwrap()).await;
    assert_eq!(probe.detail, "", "an anonymous caller is not told");
    assert_eq!(door.get("/doc").send().await.unwrap().status(), 503);
    door.stop().await;
}

/// Waits until an anonymous probe is refused.
async fn until_refused(door: &RunningDoor) {
    let refused = async {
        while client().get(door.url("/doc")).send().await.unwrap().status() == 200 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within("refusal", refused).await;
}

#[tokio::test]
async fn requests_pass_again_when_a_supervisor_that_was_lost_tells_of_the_same_run() {
    let (door, upstream, serve) = ready_door().await;
    let epoch = door.state().await["epoch"].clone();
    for phase in [ServePhase::Starting, ServePhase::Wedged] {
        serve.send_modify(|state| {
            state.phase = phase;
            state.address = None;
        });
        until_refused(&door).await;
        serve.send_replace(upstream.ready(1));
        door.ready().await;
        let answer = within("answer", door.post("/echo").body("again").send()).await.unwrap();
        assert_eq!(answer.text().await.unwrap(), "again");
        assert_eq!(door.state().await["epoch"], epoch, "the event stream was never cut");
    }
    door.stop().await;
}

#[tokio::test]
async fn an_anonymous_preflight_is_not_told_how_opencode_ended() {
    let (_serve, receiver) = watch::channel(killed(1));
    let door = RunningDoor::start(receiver, |_| {}).await;
    let preflight = client().request(reqwest::Method::OPTIONS, door.url("/session"));
    let refusal = problem(preflight.send().await.unwrap()).await;
    assert_eq!(refusal.problem_type(), Some(ProblemType::Starting));
    assert_eq!(refusal.detail, "");
    door.stop().await;
}

#[tokio::test]
async fn a_stopped_or_unsupported_opencode_is_refused_at_once() {
    let mut state = killed(1);
    state.phase = ServePhase::Stopped;
    let (serve, receiver) = watch::channel(state);
    let door = RunningDoor::start(receiver, |config| config.start_wait = BOUND * 10).await;
    let response = within("refusal", door.get("/session").send()).await.unwrap();
    assert_eq!(problem(response).await.problem_type(), Some(ProblemType::Stopped));
    assert_eq!(door.state().await["phase"], "stopped");
    let mut state = killed(2);
    state.exits.back_mut().unwrap().unsupported = Some("version 2.0.0".to_owned());
    serve.send_replace(state);
    let refused = async {
        loop {
            let refusal = problem(door.get("/session").send().await.unwrap()).await;
            if refusal.problem_type() == Some(ProblemType::UnsupportedVersion) {
                return refusal;
            }
        }
    };
    assert!(within("refusal", refused).await.detail.contains("2.0.0"));
    door.stop().await;
}

#[tokio::test]
async fn the_document_is_fetched_once_per_run() {
    let (door, upstream, serve) = ready_door().await;
    for _ in 0..3 {
        let document: Value = door.get("/doc").send().await.unwrap().json().await.unwrap();
        assert_eq!(document["openapi"], "3.1.1");
    }
    assert_eq!(upstream.shared.documents.load(Ordering::SeqCst), 1);
    serve.send_replace(killed(1));
    serve.send_replace(ServeState { exits: killed(1).exits, ..upstream.ready(2) });
    upstream.cut_events();
    let second = async {
        while upstream.shared.documents.load(Ordering::SeqCst) < 2 {
            assert_eq!(door.get("/doc").send().await.unwrap().status(), 200);
        }
    };
    within("second document", second).await;
    door.stop().await;
}

#[tokio::test]
async fn an_upgraded_connection_is_a_tunnel() {
    let (door, _upstream, _serve) = ready_door().await;
    let mut socket = TcpStream::connect(door.address).await.unwrap();
    let token = base64(&format!("opencode:{PASSWORD}"));
    let head = format!(
        "GET /upgrade HTTP/1.1\r\nhost: x\r\nauthorization: Basic {token}\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n"
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(within("head", socket.read_u8()).await.unwrap());
    }
    assert!(answer.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&answer));
    for message in [&b"ping"[..], &vec![0; 100_000]] {
        socket.write_all(message).await.unwrap();
        let mut echoed = vec![0; message.len()];
        within("echo", socket.read_exact(&mut echoed)).await.unwrap();
        assert_eq!(echoed, message);
    }
    door.stop().await;
    assert_eq!(within("end of the tunnel", socket.read(&mut [0; 1])).await.unwrap_or(0), 0);
}

#[tokio::test]
async fn connections_and_slow_heads_are_bounded() {
    let upstream = Upstream::start().await;
    let (_serve, receiver) = watch::channel(upstream.ready(1));
    let door = RunningDoor::start(receiver, |config| {
        config.connections = 1;
        config.head_wait = Duration::from_millis(300);
    })
    .await;
    let mut slow = TcpStream::connect(door.address).await.unwrap();
    let token = base64(&format!("opencode:{PASSWORD}"));
    let known =
        format!("GET /berth/state HTTP/1.1\r\nhost: x\r\nauthorization: Basic {token}\r\n\r\nGET / HT");
    slow.write_all(known.as_bytes()).await.unwrap();
    within("answer", slow.read_u8()).await.unwrap();
    let over = client().get(door.url("/doc")).send().await;
    assert!(over.is_err(), "{over:?}");
    let mut rest = Vec::new();
    let _ = within("end of the slow connection", slow.read_to_end(&mut rest)).await;
    drop(slow);
    door.ready().await;
    door.stop().await;
}

#[tokio::test]
async fn heads_are_bounded() {
    let (door, _upstream, _serve) = ready_door().await;
    let many = (0..200).fold(door.get("/session"), |request, n| request.header(format!("x-{n}"), "x"));
    assert_eq!(many.send().await.unwrap().status(), 431);
    door.stop().await;
}

#[tokio::test]
async fn shutdown_is_bounded_and_ends_what_waits() {
    let (serve, receiver) = watch::channel(ServeState::new("/work".into()));
    let door = RunningDoor::start(receiver, |config| config.drain = Duration::from_millis(200)).await;
    let mut waiting = JoinSet::new();
    waiting.spawn(door.get("/session").send());
    let mut events = door.events("/global/event", None).await;
    until("waiting request", || waiting.try_join_next().is_none()).await;
    let begun = Instant::now();
    door.stop().await;
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!(events.frame().await, None);
    if let Ok(response) = waiting.join_next().await.unwrap().unwrap() {
        assert_eq!(problem(response).await.problem_type(), Some(ProblemType::ShuttingDown));
    }
    drop(serve);
}
