//! What the tests stand on: a running door, its clients, and an upstream that does what the test says.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Json, Router,
    body::Body,
    extract::{Query, Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{any, get, post},
};
use berth_door::DoorConfig;
use berth_serve::{Exit, ServeLink, ServePhase, ServeState};
pub(crate) use berth_testkit::wait::{BOUND, until, within};
use berth_wire::{
    door::ExitCause,
    problem::Problem,
    sse::{SseEvent, SseReader},
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    sync::{broadcast, watch},
    task::JoinSet,
};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Password at the door.
pub(crate) const PASSWORD: &str = "door password";

/// Password of the upstream.
pub(crate) const INTERNAL: &str = "internal password";

/// A door on a port of its own; shut down when it is dropped.
pub(crate) struct RunningDoor {
    pub(crate) address: SocketAddr,
    shutdown: CancellationToken,
    tasks: JoinSet<std::io::Result<()>>,
    _guard: DropGuard,
}

impl RunningDoor {
    pub(crate) async fn start(
        serve: watch::Receiver<ServeState>,
        change: impl FnOnce(&mut DoorConfig),
    ) -> Self {
        Self::start_at(ServeLink::telling(serve), change).await
    }

    /// A door that can also tell its supervisor what to do.
    pub(crate) async fn start_at(link: ServeLink, change: impl FnOnce(&mut DoorConfig)) -> Self {
        let mut config = DoorConfig::new(PASSWORD.into(), INTERNAL.into());
        // Most doors here find an opencode at work.
        config.settle = Duration::ZERO;
        change(&mut config);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind the door");
        let address = listener.local_addr().expect("address of the door");
        let shutdown = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(berth_door::run(listener, config, link, shutdown.clone()));
        Self { address, tasks, _guard: shutdown.clone().drop_guard(), shutdown }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Shuts it down and waits until it has returned.
    pub(crate) async fn stop(mut self) {
        self.shutdown.cancel();
        let result = within("end of the door", self.tasks.join_next()).await;
        result.expect("the door's task").expect("the door did not panic").expect("the door ended well");
    }

    pub(crate) fn get(&self, path: &str) -> reqwest::RequestBuilder {
        client().get(self.url(path)).basic_auth("opencode", Some(PASSWORD))
    }

    pub(crate) fn post(&self, path: &str) -> reqwest::RequestBuilder {
        client().post(self.url(path)).basic_auth("opencode", Some(PASSWORD))
    }

    pub(crate) fn put(&self, path: &str) -> reqwest::RequestBuilder {
        client().put(self.url(path)).basic_auth("opencode", Some(PASSWORD))
    }

    pub(crate) fn delete(&self, path: &str) -> reqwest::RequestBuilder {
        client().delete(self.url(path)).basic_auth("opencode", Some(PASSWORD))
    }

    /// Raises the fence, and gives the epoch.
    pub(crate) async fn raise(&self, fence: u64) -> String {
        let answer = self.put("/berth/fence").json(&json!({ "fence": fence })).send();
        let answer = within("raised fence", answer).await.expect("an answer");
        assert_eq!(answer.status(), 200);
        let state: Value = answer.json().await.expect("JSON");
        assert_eq!(state["fence"], fence);
        state["epoch"].as_str().expect("an epoch").to_owned()
    }

    /// Opens an event stream and takes its `server.connected`.
    pub(crate) async fn events(&self, path: &str, cursor: Option<&str>) -> Events {
        let mut request = self.get(path);
        if let Some(cursor) = cursor {
            request = request.header("last-event-id", cursor);
        }
        let response = within("event stream", request.send()).await.expect("event stream");
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let mut events =
            Events { reader: SseReader::new(response.bytes_stream()), global: path.starts_with("/global") };
        let (id, first) = events.next().await;
        assert_eq!((id, first["type"].as_str()), (None, Some("server.connected")), "{first}");
        events
    }

    /// Waits until requests pass.
    pub(crate) async fn ready(&self) {
        let probe = async {
            while !client().get(self.url("/doc")).send().await.is_ok_and(|answer| answer.status() == 200) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        within("readiness", probe).await;
    }

    /// Generation of the gate's last lease.
    pub(crate) async fn generation(&self) -> u64 {
        self.state().await["gate"]["generation"].as_u64().expect("a generation")
    }

    pub(crate) async fn state(&self) -> Value {
        self.get("/berth/state").send().await.expect("state").json().await.expect("state as JSON")
    }
}

/// A client without a pool, so that no test sees another's connection.
pub(crate) fn client() -> reqwest::Client {
    reqwest::Client::builder().pool_max_idle_per_host(0).no_proxy().build().expect("client")
}

/// The problem document of an answer.
pub(crate) async fn problem(response: reqwest::Response) -> Problem {
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    let status = response.status().as_u16();
    let problem: Problem = response.json().await.expect("a problem document");
    assert_eq!(problem.status, status);
    problem
}

/// A subscriber.
pub(crate) struct Events {
    reader: SseReader,
    global: bool,
}

impl Events {
    /// The next frame, or the stream's end.
    pub(crate) async fn frame(&mut self) -> Option<SseEvent> {
        within("event", self.reader.next()).await.and_then(Result::ok)
    }

    /// Id and payload of the next event.
    pub(crate) async fn next(&mut self) -> (Option<String>, Value) {
        let frame = self.frame().await.expect("an event and not the end");
        let mut json: Value = serde_json::from_str(&frame.data).expect("JSON");
        (frame.id, if self.global { json["payload"].take() } else { json })
    }

    /// Id and type of the next event that is no heartbeat.
    pub(crate) async fn kind(&mut self) -> (String, String) {
        loop {
            let (id, event) = self.next().await;
            let kind = event["type"].as_str().expect("a type").to_owned();
            if kind != "server.heartbeat" {
                return (id.expect("an id"), kind);
            }
        }
    }
}

/// An upstream under the test's control.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    pub(crate) shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

pub(crate) struct Shared {
    /// What event streams are sent; an empty one cuts them all.
    events: broadcast::Sender<String>,
    /// Event streams are answered while this is true.
    pub(crate) subscribable: watch::Sender<bool>,
    /// What becomes of a request to say something.
    echo: Mutex<Echo>,
    /// Requests to say something.
    pub(crate) echoes: AtomicUsize,
    /// Chunks that `/chunks` gives; an empty one breaks its connection.
    pub(crate) chunks: broadcast::Sender<Bytes>,
    /// Terminals that there are.
    pub(crate) terminals: AtomicUsize,
    /// Instances that were disposed of.
    pub(crate) disposals: AtomicUsize,
    /// Requests for the document.
    pub(crate) documents: AtomicUsize,
    /// Bodies of `/chunks` that are being given.
    pub(crate) open_chunks: AtomicUsize,
    /// While this is true, requests below `/session` and `/permission` are taken and not answered.
    pub(crate) hold: watch::Sender<bool>,
    /// Paths of those requests, in the order in which they came, each with its body.
    pub(crate) taken: Mutex<Vec<(String, Bytes)>>,
}

/// What becomes of a request to say something.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Echo {
    /// Every subscription hears it.
    Heard,
    /// It is lost, as it is at the beginning of opencode's streams.
    Lost,
    /// It is answered with this status.
    Refused(StatusCode),
}

impl Shared {
    /// From now on requests to say something end so.
    pub(crate) fn echo(&self, echo: Echo) {
        *self.echo.lock().expect("no test panicked") = echo;
    }

    /// Paths that were taken so far.
    pub(crate) fn paths(&self) -> Vec<String> {
        self.taken.lock().expect("no test panicked").iter().map(|(path, _)| path.clone()).collect()
    }
}

impl Upstream {
    pub(crate) async fn start() -> Self {
        let shared = Arc::new(Shared {
            events: broadcast::Sender::new(4096),
            subscribable: watch::Sender::new(true),
            echo: Mutex::new(Echo::Heard),
            echoes: AtomicUsize::new(0),
            chunks: broadcast::Sender::new(64),
            terminals: AtomicUsize::new(0),
            disposals: AtomicUsize::new(0),
            documents: AtomicUsize::new(0),
            open_chunks: AtomicUsize::new(0),
            hold: watch::Sender::new(false),
            taken: Mutex::default(),
        });
        let router = Router::new()
            .route("/global/event", get(global_event))
            .route("/tui/publish", post(publish))
            .route("/pty", get(terminals))
            .route("/instance/dispose", post(dispose))
            .route("/doc", get(document))
            .route("/echo", post(|body: Body| async { Response::new(body) }))
            .route("/head/{*rest}", any(head))
            .route("/chunks", get(chunks))
            .route("/session/{*rest}", post(take))
            .route("/permission/{*rest}", post(take))
            .route("/cut-head", get(cut_head))
            .route("/upgrade", get(upgrade))
            .route("/never", get(never))
            .with_state(Arc::clone(&shared));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind the upstream");
        let address = listener.local_addr().expect("address of the upstream");
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { axum::serve(listener, router).await.expect("serve the upstream") });
        Self { address, shared, _tasks: tasks }
    }

    /// Closes the listener and keeps the connections.
    pub(crate) fn stop_accepting(self) -> (SocketAddr, Arc<Shared>) {
        (self.address, self.shared)
    }

    /// Sends an event to every subscription.
    pub(crate) fn event(&self, directory: Option<&str>, kind: &str, properties: &Value) {
        let mut envelope = json!({"payload": {"id": "evt_1", "type": kind, "properties": properties}});
        if let Some(directory) = directory {
            envelope["directory"] = directory.into();
        }
        self.shared.events.send(envelope.to_string()).expect("somebody subscribes");
    }

    /// Cuts every subscription.
    pub(crate) fn cut_events(&self) {
        self.shared.events.send(String::new()).expect("somebody subscribes");
    }

    /// Waits until so many subscribe.
    pub(crate) async fn subscribed(&self, count: usize) {
        until("subscription", || self.shared.events.receiver_count() == count).await;
    }

    /// State of an opencode that answers here.
    pub(crate) fn ready(&self, boot: u64) -> ServeState {
        ServeState {
            phase: ServePhase::Ready,
            boot,
            boot_id: format!("boot{boot}"),
            pid: Some(1),
            address: Some(self.address),
            version: Some("1.18.33".to_owned()),
            ..ServeState::new("/work".into())
        }
    }
}

/// State after a boot was killed.
pub(crate) fn killed(boot: u64) -> ServeState {
    let exit = Exit {
        boot,
        boot_id: format!("boot{boot}"),
        exit: None,
        signal: Some(9),
        cause: ExitCause::Killed,
        detail: None,
        unsupported: None,
        at: jiff::Timestamp::now(),
        output_tail: String::new(),
    };
    let boot_id = format!("boot{boot}");
    let mut state = ServeState { boot, boot_id, ..ServeState::new("/work".into()) };
    state.record(exit);
    state
}

async fn global_event(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    if !is_internal(&headers) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let mut subscribable = shared.subscribable.subscribe();
    subscribable.wait_for(|yes| *yes).await.expect("the test goes on");
    let first = json!({"payload": {"type": "server.connected", "properties": {}}}).to_string();
    let events = stream::unfold(shared.events.subscribe(), |mut events| async move {
        let event = events.recv().await.ok().filter(|event| !event.is_empty())?;
        Some((event, events))
    });
    let frames = stream::once(async { first })
        .chain(events)
        .map(|event| Ok::<_, std::io::Error>(format!("data: {event}\n\n")));
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(frames)).into_response()
}

/// Says on every event stream what is asked for, in the directory that is named.
async fn publish(
    State(shared): State<Arc<Shared>>,
    Query(query): Query<HashMap<String, String>>,
    Json(mut payload): Json<Value>,
) -> Result<Json<bool>, StatusCode> {
    shared.echoes.fetch_add(1, Ordering::SeqCst);
    let echo = *shared.echo.lock().expect("no test panicked");
    payload["id"] = "evt_0".into();
    let event = json!({"directory": query["directory"], "project": "global", "payload": payload});
    match echo {
        // Nobody subscribes yet, or no more.
        Echo::Heard => drop(shared.events.send(event.to_string())),
        Echo::Lost => {}
        Echo::Refused(status) => return Err(status),
    }
    Ok(Json(true))
}

async fn terminals(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let terminals = shared.terminals.load(Ordering::SeqCst);
    Json((0..terminals).map(|number| json!({"id": format!("pty_{number}")})).collect())
}

async fn dispose(
    State(shared): State<Arc<Shared>>,
    Query(query): Query<HashMap<String, String>>,
) -> Json<bool> {
    shared.disposals.fetch_add(1, Ordering::SeqCst);
    shared.terminals.store(0, Ordering::SeqCst);
    let directory = &query["directory"];
    let payload = json!({"type": "server.instance.disposed", "properties": {"directory": directory}});
    let event = json!({"directory": directory, "payload": payload});
    shared.events.send(event.to_string()).expect("the door subscribes");
    Json(true)
}

fn is_internal(headers: &HeaderMap) -> bool {
    let expected =
        base64::Engine::encode(&base64::engine::general_purpose::STANDARD, format!("opencode:{INTERNAL}"));
    headers.get("authorization").is_some_and(|value| *value == format!("Basic {expected}"))
}

async fn document(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    shared.documents.fetch_add(1, Ordering::SeqCst);
    if !is_internal(&headers) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    Json(json!({"openapi": "3.1.1"})).into_response()
}

/// Tells what arrived, with a body that claims to be compressed.
async fn head(request: Request) -> Response {
    let headers: serde_json::Map<String, Value> = request
        .headers()
        .iter()
        .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into()))
        .collect();
    let seen =
        json!({"method": request.method().as_str(), "target": request.uri().to_string(), "headers": headers});
    let mut response = Json(seen).into_response();
    *response.status_mut() = StatusCode::IM_A_TEAPOT;
    response.headers_mut().insert("content-encoding", HeaderValue::from_static("gzip"));
    response.headers_mut().insert("connection", HeaderValue::from_static("x-private"));
    response.headers_mut().insert("x-private", HeaderValue::from_static("1"));
    response.headers_mut().append("set-cookie", HeaderValue::from_static("a=1"));
    response.headers_mut().append("set-cookie", HeaderValue::from_static("b=2"));
    response
}

struct Open(Arc<Shared>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open_chunks.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn chunks(State(shared): State<Arc<Shared>>) -> Response {
    shared.open_chunks.fetch_add(1, Ordering::SeqCst);
    let receiver = shared.chunks.subscribe();
    let open = Open(Arc::clone(&shared));
    let chunks = stream::unfold((receiver, open), |(mut receiver, open)| async move {
        let chunk = receiver.recv().await.ok()?;
        let chunk = if chunk.is_empty() { Err(std::io::Error::other("cut")) } else { Ok(chunk) };
        Some((chunk, (receiver, open)))
    });
    Response::new(Body::from_stream(chunks))
}

/// Takes a request, and answers it when the test says.
async fn take(State(shared): State<Arc<Shared>>, uri: axum::http::Uri, body: Bytes) -> Json<bool> {
    shared.taken.lock().expect("no test panicked").push((uri.path().to_owned(), body));
    let mut hold = shared.hold.subscribe();
    hold.wait_for(|hold| !hold).await.expect("the test goes on");
    Json(true)
}

/// Takes a request and never answers it.
async fn never(State(shared): State<Arc<Shared>>, uri: axum::http::Uri) -> Response {
    shared.taken.lock().expect("no test panicked").push((uri.path().to_owned(), Bytes::new()));
    std::future::pending().await
}

/// Ends the connection without an answer.
async fn cut_head() -> Response {
    panic!("the connection is cut on purpose")
}

/// Echoes on an upgraded connection.
async fn upgrade(mut request: Request) -> Response {
    assert_eq!(request.headers()["upgrade"], "websocket");
    let upgraded = hyper::upgrade::on(&mut request);
    let echo = async move {
        let io = hyper_util::rt::TokioIo::new(upgraded.await.expect("an upgrade"));
        let (mut reader, mut writer) = tokio::io::split(io);
        let _ = tokio::io::copy(&mut reader, &mut writer).await;
    };
    let mut tasks = JoinSet::new();
    tasks.spawn(echo);
    tasks.detach_all();
    let headers = [(header::CONNECTION, "upgrade"), (header::UPGRADE, "websocket")];
    (StatusCode::SWITCHING_PROTOCOLS, headers).into_response()
}
