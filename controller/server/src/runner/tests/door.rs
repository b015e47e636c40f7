//! A door whose opencode does what a test says: it answers calls, keeps a journal, and can hold back or refuse calls.

use std::{
    collections::{BTreeSet, VecDeque},
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, put},
};
use berth_opencode::model::SESSION_METADATA;
use berth_wire::{
    problem::{PROBLEM_JSON, Problem, ProblemType},
    sse::write_event,
};
use futures_util::stream;
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    sync::{oneshot, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::rig::within;

/// One call that came.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    /// Method and path.
    pub(super) call: String,
    /// Its body; null when it had none.
    pub(super) body: Value,
    /// Its epoch and fence.
    pub(super) stamp: Option<(String, u64)>,
    /// The trace that it belongs to.
    pub(super) traceparent: Option<String>,
}

/// What a call gets instead of its plain answer, once.
#[derive(Debug)]
enum Fault {
    /// Wait until the token is cancelled, then answer plainly, or this.
    Hold(CancellationToken, Option<(u16, Value)>),
    /// Answer this.
    Refuse(u16, Value),
    /// Refuse as the door itself does.
    Problem(ProblemType),
}

#[derive(Debug, Default)]
struct Inner {
    epoch: String,
    fence: u64,
    boot_id: String,
    journal: Vec<Value>,
    seen: Vec<Seen>,
    faults: VecDeque<(String, Fault)>,
    sessions: Vec<Value>,
    /// How many were made; no id comes twice.
    made: usize,
    messages: Vec<Value>,
    status: Value,
    /// Of calls that are held back.
    keys: BTreeSet<String>,
}

#[derive(Debug)]
struct Shared {
    inner: Mutex<Inner>,
    changed: watch::Sender<u64>,
    /// Calls that are held back: as at a real door they go on when their callers leave.
    held: Mutex<JoinSet<()>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        let value = change(&mut self.lock());
        self.changed.send_modify(|count| *count += 1);
        value
    }
}

/// The door. Ends with its last value.
#[derive(Debug, Clone)]
pub(super) struct FakeDoor {
    pub(super) url: String,
    shared: Arc<Shared>,
    _tasks: Arc<JoinSet<()>>,
}

impl FakeDoor {
    /// Serves an opencode that is up, as its first boot.
    pub(super) async fn start() -> Self {
        let inner = Inner {
            epoch: "door1".to_owned(),
            boot_id: "boot-1".to_owned(),
            status: json!({}),
            ..Inner::default()
        };
        let shared = Arc::new(Shared {
            inner: Mutex::new(inner),
            changed: watch::channel(0).0,
            held: Mutex::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new()
            .route("/berth/state", get(state))
            .route("/berth/fence", put(raise))
            .route("/global/event", get(events))
            .fallback(answer)
            .with_state(Arc::clone(&shared));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, shared, _tasks: Arc::new(tasks) }
    }

    /// Adds an event of opencode's, or of the door's, to the journal.
    pub(super) fn emit(&self, payload: &Value) {
        self.shared.change(|inner| inner.journal.push(json!({ "directory": "/work", "payload": payload })));
    }

    /// opencode is started anew; the journal says so only where `told`.
    pub(super) fn reboot(&self, boot_id: &str, told: bool) {
        let before = self.shared.change(|inner| std::mem::replace(&mut inner.boot_id, boot_id.to_owned()));
        if told {
            let exited =
                json!({ "boot": 1, "boot_id": before, "exit": 1, "signal": null, "cause": "Exited" });
            self.emit(&json!({ "type": "berth.serve.exited", "properties": exited }));
        }
        let started = json!({ "boot": 2, "boot_id": boot_id, "version": "1.18.33" });
        self.emit(&json!({ "type": "berth.serve.started", "properties": started }));
    }

    /// The next call whose method and path end like this waits until the token is cancelled.
    pub(super) fn hold(&self, call: &str) -> CancellationToken {
        self.hold_and_answer(call, None)
    }

    /// As [`Self::hold`], then answers this.
    pub(super) fn hold_and_answer(&self, call: &str, then: Option<(u16, Value)>) -> CancellationToken {
        let token = CancellationToken::new();
        let fault = Fault::Hold(token.clone(), then);
        self.shared.change(|inner| inner.faults.push_back((call.to_owned(), fault)));
        token
    }

    /// The next call whose method and path end like this is answered with an error of opencode's.
    pub(super) fn refuse(&self, call: &str, status: u16, body: Value) {
        let fault = Fault::Refuse(status, body);
        self.shared.change(|inner| inner.faults.push_back((call.to_owned(), fault)));
    }

    /// The next call whose method and path end like this is refused by the door itself.
    pub(super) fn refuse_as(&self, call: &str, kind: ProblemType) {
        self.shared.change(|inner| inner.faults.push_back((call.to_owned(), Fault::Problem(kind))));
    }

    /// The door is another one from now on, which was given no fence, or was given this.
    pub(super) fn restart(&self, epoch: &str, fence: u64) {
        self.shared.change(|inner| (inner.epoch, inner.fence) = (epoch.to_owned(), fence));
    }

    /// opencode has a session that was made for this one of ours.
    pub(super) fn know_session(&self, id: &str, berth_session_id: Uuid) {
        let metadata = json!({ SESSION_METADATA: berth_session_id });
        let session = json!({ "id": id, "directory": "/work", "title": "", "metadata": metadata });
        self.shared.change(|inner| inner.sessions.push(session));
    }

    /// opencode's history is gone.
    pub(super) fn forget_sessions(&self) {
        self.shared.change(|inner| inner.sessions.clear());
    }

    /// What `GET /session/status` answers.
    pub(super) fn set_status(&self, status: Value) {
        self.shared.change(|inner| inner.status = status);
    }

    /// What `GET /session/{id}/message` answers.
    pub(super) fn set_messages(&self, messages: Vec<Value>) {
        self.shared.change(|inner| inner.messages = messages);
    }

    /// The calls so far whose method and path end like this.
    pub(super) fn seen(&self, call: &str) -> Vec<Seen> {
        let inner = self.shared.lock();
        inner.seen.iter().filter(|seen| matches(&seen.call, call)).cloned().collect()
    }

    /// All calls so far.
    pub(super) fn all(&self) -> Vec<Seen> {
        self.shared.lock().seen.clone()
    }

    /// Waits for the call number `count`, from 1.
    pub(super) async fn wait_for(&self, call: &str, count: usize) -> Seen {
        let mut changed = self.shared.changed.subscribe();
        within(call, async {
            loop {
                changed.borrow_and_update();
                if let Some(seen) = self.seen(call).get(count - 1) {
                    return seen.clone();
                }
                changed.changed().await.unwrap();
            }
        })
        .await
    }
}

fn matches(call: &str, wanted: &str) -> bool {
    let (method, path) = wanted.split_once(' ').unwrap();
    call.starts_with(&format!("{method} ")) && call.ends_with(path)
}

async fn state(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let inner = shared.lock();
    Json(json!({
        "phase": "ready", "boot": 1, "boot_id": inner.boot_id, "pid": 1, "version": "1.18.33",
        "epoch": "e", "seq": inner.journal.len(), "last_exit": null,
    }))
}

async fn raise(State(shared): State<Arc<Shared>>, Json(body): Json<Value>) -> Response {
    shared.change(|inner| {
        inner.seen.push(Seen {
            call: "PUT /berth/fence".to_owned(),
            body: body.clone(),
            stamp: None,
            traceparent: None,
        });
        let refused = inner.faults.iter().position(|(call, _)| call == "PUT /berth/fence");
        if let Some((_, Fault::Problem(kind))) = refused.and_then(|index| inner.faults.remove(index)) {
            return problem(kind);
        }
        let fence = body["fence"].as_u64().unwrap();
        if fence < inner.fence {
            return problem(ProblemType::StaleFence);
        }
        inner.fence = fence;
        Json(json!({ "epoch": inner.epoch, "fence": fence })).into_response()
    })
}

fn problem(kind: ProblemType) -> Response {
    let status = StatusCode::from_u16(kind.status()).unwrap();
    (status, [(header::CONTENT_TYPE, PROBLEM_JSON)], json!(Problem::new(kind, "")).to_string())
        .into_response()
}

/// Epoch and fence of a call; one without them is nobody's but a test's.
fn stamp(headers: &HeaderMap) -> Option<(String, u64)> {
    let text = |name: &str| headers.get(name)?.to_str().ok();
    Some((text("berth-epoch")?.to_owned(), text("berth-fence")?.parse().ok()?))
}

async fn events(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    let cursor =
        headers.get("last-event-id").and_then(|id| id.to_str().ok()?.strip_prefix("e-")?.parse().ok());
    let from = (shared.changed.subscribe(), cursor.unwrap_or(0_usize), shared);
    let frames = stream::unfold(from, |(mut changed, next, shared)| async move {
        loop {
            changed.borrow_and_update();
            let event = shared.lock().journal.get(next).cloned();
            if let Some(event) = event {
                let mut out = Vec::new();
                write_event(&mut out, Some(&format!("e-{}", next + 1)), None, &event.to_string());
                return Some((Ok::<_, Infallible>(Bytes::from(out)), (changed, next + 1, shared)));
            }
            changed.changed().await.ok()?;
        }
    });
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(frames)).into_response()
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let call = format!("{} {}", request.method(), request.uri().path());
    let stamp = stamp(request.headers());
    let traceparent = request.headers().get("traceparent").map(|value| value.to_str().unwrap().to_owned());
    let key = request.headers().get("berth-key").map(|value| value.to_str().unwrap().to_owned());
    let changes = request.method() != axum::http::Method::GET;
    let bytes = axum::body::to_bytes(request.into_body(), usize::MAX).await.unwrap();
    let body: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let (epoch, fence) = shared.change(|inner| (inner.epoch.clone(), inner.fence));
    match &stamp {
        Some((known, _)) if *known != epoch => return problem(ProblemType::StaleEpoch),
        Some((_, mine)) if *mine != fence => return problem(ProblemType::StaleFence),
        None if changes => panic!("{call} has no fence"),
        _ => {}
    }
    let repeated = shared.change(|inner| {
        inner.seen.push(Seen { call: call.clone(), body: body.clone(), stamp, traceparent });
        key.as_ref().is_some_and(|key| inner.keys.contains(key))
    });
    if repeated {
        return problem(ProblemType::Busy);
    }
    let fault = shared.change(|inner| {
        let index = inner.faults.iter().position(|(wanted, _)| matches(&call, wanted))?;
        inner.faults.remove(index).map(|(_, fault)| fault)
    });
    let refusal = match fault {
        Some(Fault::Hold(token, then)) => return held(shared, token, key, then, (call, body)).await,
        Some(Fault::Refuse(status, body)) => Some((status, body)),
        Some(Fault::Problem(kind)) => return problem(kind),
        None => None,
    };
    answer_with(&shared, refusal, &call, &body)
}

fn answer_with(shared: &Shared, refusal: Option<(u16, Value)>, call: &str, body: &Value) -> Response {
    match refusal {
        Some((status, body)) => (StatusCode::from_u16(status).unwrap(), Json(body)).into_response(),
        None => plain_answer(shared, call, body),
    }
}

/// Answers a call when its token is cancelled, and does what it asks for also when nobody hears the answer.
async fn held(
    shared: Arc<Shared>,
    token: CancellationToken,
    key: Option<String>,
    then: Option<(u16, Value)>,
    (call, body): (String, Value),
) -> Response {
    let (sender, answer) = oneshot::channel();
    shared.change(|inner| inner.keys.extend(key.clone()));
    let carried = Arc::clone(&shared);
    shared.held.lock().unwrap_or_else(PoisonError::into_inner).spawn(async move {
        token.cancelled().await;
        let answer = answer_with(&carried, then, &call, &body);
        carried.change(|inner| key.map(|key| inner.keys.remove(&key)));
        let _ = sender.send(answer);
    });
    answer.await.unwrap()
}

fn plain_answer(shared: &Shared, call: &str, body: &Value) -> Response {
    let mut inner = shared.lock();
    let segments: Vec<&str> = call.split(['/', ' ']).filter(|segment| !segment.is_empty()).collect();
    match segments.as_slice() {
        ["POST", "session"] => {
            inner.made += 1;
            let id = format!("ses_{}", inner.made);
            let session =
                json!({ "id": id, "directory": "/work", "title": "", "metadata": body["metadata"] });
            inner.sessions.push(session.clone());
            Json(session).into_response()
        }
        ["GET", "session"] => Json(Value::from(inner.sessions.clone())).into_response(),
        ["GET", "session", "status"] => Json(inner.status.clone()).into_response(),
        ["GET", "session", id] => {
            let error = json!({ "name": "NotFoundError", "data": { "message": "no such session" } });
            let found = inner.sessions.iter().find(|session| session["id"] == *id);
            found.map_or_else(
                || (StatusCode::NOT_FOUND, Json(error)).into_response(),
                |session| Json(session.clone()).into_response(),
            )
        }
        ["GET", "session", _, "message"] => Json(Value::from(inner.messages.clone())).into_response(),
        ["GET", "berth", "turns"] => {
            Json(json!({ "activity": "idle", "sessions": [], "omitted": 0 })).into_response()
        }
        ["GET", "global", "health"] => Json(json!({ "healthy": true, "version": "1.18.33" })).into_response(),
        ["GET", "permission" | "question" | "file"] => Json(json!([])).into_response(),
        ["POST", "session", _, "prompt_async"] => StatusCode::NO_CONTENT.into_response(),
        _ => Json(json!(true)).into_response(),
    }
}
