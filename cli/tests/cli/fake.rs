//! A server that plays one session: for each prompt the next script, with real event streams and answers.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use axum::{
    Json, Router,
    body::Body,
    extract::{Path, Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use berth_wire::{
    api::{
        CancelResponse, HistoryTurn, Page, PermissionAnswer, PermissionDecision, PostMessage, Session,
        SessionState, Turn,
    },
    event::{
        EventPayload, PermissionRequested, PermissionResolved, Resolution, ResolvedBy, SessionEvent,
        TurnStarted, Voice,
    },
    problem::{PROBLEM_JSON, Problem, ProblemType},
    sse::write_event,
    turn::{TurnErrorReason, TurnOutcome, TurnState, TurnStopReason, Usage},
};
use futures_util::stream::unfold;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch, task::JoinSet};
use uuid::Uuid;

pub(crate) const TOKEN: &str = "let-me-in";
pub(crate) const SESSION: Uuid = Uuid::from_u128(0x0198_f2c4_0000_7000_8000_0000_0000_0001);

/// What happens in a turn.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    /// This is logged.
    Emit(Box<EventPayload>),
    /// Nothing happens until the permission is answered; the resolution is logged, and a rejection ends the turn.
    Answer,
    /// Nothing happens until the turn is cancelled, which ends it.
    Cancel,
    /// Nothing happens until [`FakeServer::go_on`].
    Pause,
}

pub(crate) fn emit(payload: EventPayload) -> Act {
    Act::Emit(Box::new(payload))
}

/// A chunk of text of part `part`.
pub(crate) fn says(part: &str, offset: u64, text: &str) -> Act {
    emit(EventPayload::chunk(Voice::Message, part, offset, text))
}

pub(crate) fn thinks(text: &str) -> Act {
    emit(EventPayload::chunk(Voice::Thought, "thought", 0, text))
}

pub(crate) fn update(payload: Value) -> Act {
    let kind = payload["sessionUpdate"].as_str().unwrap().to_owned();
    emit(EventPayload::from_parts(&kind, payload))
}

pub(crate) fn asks(id: &str, command: &str) -> Act {
    emit(EventPayload::PermissionRequested(PermissionRequested {
        permission_id: id.to_owned(),
        permission: "bash".to_owned(),
        patterns: vec![command.to_owned()],
        always: vec!["touch *".to_owned()],
        tool_call_id: None,
        title: command.to_owned(),
        metadata: json!({}),
        expires_at: None,
    }))
}

pub(crate) fn ends(outcome: TurnOutcome) -> Act {
    emit(EventPayload::TurnEnded(outcome))
}

pub(crate) fn succeeds() -> Act {
    ends(TurnOutcome::succeeded(TurnStopReason::EndTurn))
}

/// One prompt's turn: a tool call that asks for a permission, between two texts.
pub(crate) fn permission_script() -> Vec<Act> {
    let call = |kind: &str, status: &str| {
        update(json!({ "sessionUpdate": kind, "toolCallId": "c", "title": "touch x", "status": status }))
    };
    vec![
        thinks("a file is wanted"),
        says("a", 0, "I make "),
        says("a", 7, "a file."),
        call("tool_call", "pending"),
        asks("per_1", "touch x"),
        Act::Answer,
        call("tool_call_update", "in_progress"),
        call("tool_call_update", "completed"),
        says("b", 0, "Done."),
        succeeds(),
    ]
}

#[derive(Default)]
struct Log {
    events: Vec<SessionEvent>,
    scripts: VecDeque<Vec<Act>>,
    /// What is left of the turn that runs.
    running: Option<(Uuid, VecDeque<Act>)>,
    prompts: Vec<String>,
    messages: Vec<PostMessage>,
    answers: Vec<PermissionAnswer>,
    cancels: usize,
    history: Vec<HistoryTurn>,
    /// How often all event streams were cut.
    cuts: usize,
    /// Event streams are cut at their beginning too.
    gone: bool,
}

impl Log {
    fn emit(&mut self, turn: Uuid, payload: EventPayload) {
        let seq = i64::try_from(self.events.len()).unwrap() + 1;
        let at = Timestamp::UNIX_EPOCH;
        self.events.push(SessionEvent { session_id: SESSION, seq, turn_id: Some(turn), at, payload });
    }

    /// Plays the script up to where it waits.
    fn advance(&mut self) {
        let Some((turn, mut acts)) = self.running.take() else { return };
        while let Some(act) = acts.pop_front() {
            match act {
                Act::Emit(payload) => self.emit(turn, *payload),
                Act::Answer | Act::Cancel | Act::Pause => {
                    acts.push_front(act);
                    self.running = Some((turn, acts));
                    return;
                }
            }
        }
    }

    fn begin(&mut self, message: &PostMessage) -> Turn {
        let id = Uuid::now_v7();
        let acts = self.scripts.pop_front().unwrap_or_else(|| vec![says("x", 0, "?"), succeeds()]);
        self.messages.push(message.clone());
        self.prompts.push(message.parts[0].summary().into_owned());
        self.emit(id, EventPayload::TurnStarted(TurnStarted { prompt: message.parts.clone() }));
        self.running = Some((id, acts.into()));
        self.advance();
        Turn {
            id,
            session_id: SESSION,
            ordinal: 1,
            state: TurnState::Running,
            prompt: message.parts.clone(),
            model: None,
            agent: None,
            retry_of: None,
            stop_reason: None,
            error: None,
            usage: None,
            created_at: Timestamp::UNIX_EPOCH,
            started_at: None,
            ended_at: None,
        }
    }

    fn answer(&mut self, id: String, answer: PermissionAnswer) -> bool {
        let Some((turn, acts)) = &mut self.running else { return false };
        let turn = *turn;
        if !matches!(acts.front(), Some(Act::Answer)) {
            return false;
        }
        acts.pop_front();
        let resolution = match answer.decision {
            PermissionDecision::Once => Resolution::Once,
            PermissionDecision::Always => Resolution::Always,
            PermissionDecision::Reject => Resolution::Rejected,
        };
        let by = ResolvedBy::User;
        self.answers.push(answer);
        self.emit(
            turn,
            EventPayload::PermissionResolved(PermissionResolved { permission_id: id, resolution, by }),
        );
        if resolution == Resolution::Rejected {
            let outcome =
                TurnOutcome::failed(TurnErrorReason::PermissionRejected, "a permission was rejected");
            self.emit(turn, EventPayload::TurnEnded(outcome));
            self.running = None;
        }
        self.advance();
        true
    }

    fn go_on(&mut self) {
        if let Some((_, acts)) = &mut self.running
            && matches!(acts.front(), Some(Act::Pause))
        {
            acts.pop_front();
            self.advance();
        }
    }

    fn cancel(&mut self) -> Vec<Uuid> {
        self.cancels += 1;
        let Some((turn, _)) = self.running.take() else { return Vec::new() };
        self.emit(turn, EventPayload::TurnEnded(TurnOutcome::cancelled()));
        vec![turn]
    }
}

#[derive(Clone)]
struct App {
    log: Arc<Mutex<Log>>,
    changed: watch::Sender<()>,
}

impl App {
    fn with<T>(&self, change: impl FnOnce(&mut Log) -> T) -> T {
        let result = change(&mut self.log.lock().unwrap());
        self.changed.send_replace(());
        result
    }
}

fn problem(kind: ProblemType, detail: &str) -> Response {
    let body = serde_json::to_string(&Problem::new(kind, detail)).unwrap();
    let status = StatusCode::from_u16(kind.status()).unwrap();
    (status, [(header::CONTENT_TYPE, PROBLEM_JSON)], body).into_response()
}

async fn authorise(request: Request, next: Next) -> Response {
    let expected = format!("Bearer {TOKEN}");
    if request
        .headers()
        .get(header::AUTHORIZATION)
        .is_none_or(|value| value.as_bytes() != expected.as_bytes())
    {
        return problem(ProblemType::Unauthorized, "the token is wrong");
    }
    next.run(request).await
}

fn session(app: &App) -> Session {
    Session {
        id: SESSION,
        namespace: "local".to_owned(),
        sandbox: "default".to_owned(),
        directory: "/x".to_owned(),
        title: None,
        opencode_session_id: None,
        state: SessionState::Idle,
        usage: Usage::default(),
        last_seq: app.with(|log| i64::try_from(log.events.len()).unwrap()),
        open_turns: Vec::new(),
        created_at: Timestamp::UNIX_EPOCH,
        updated_at: Timestamp::UNIX_EPOCH,
    }
}

async fn create(State(app): State<App>, Path((_, name)): Path<(String, String)>) -> Response {
    if name != "default" {
        return problem(ProblemType::NotFound, "there is no such sandbox");
    }
    Json(session(&app)).into_response()
}

async fn messages(State(app): State<App>, Json(message): Json<PostMessage>) -> (StatusCode, Json<Turn>) {
    (StatusCode::ACCEPTED, Json(app.with(|log| log.begin(&message))))
}

async fn permissions(
    State(app): State<App>,
    Path((_, id)): Path<(Uuid, String)>,
    Json(answer): Json<PermissionAnswer>,
) -> Response {
    if app.with(|log| log.answer(id, answer)) {
        StatusCode::NO_CONTENT.into_response()
    } else {
        problem(ProblemType::AlreadyResolved, "")
    }
}

async fn events(State(app): State<App>, headers: HeaderMap) -> Response {
    let after: usize = headers["last-event-id"].to_str().unwrap().parse().unwrap();
    let changes = app.changed.subscribe();
    let cuts = app.with(|log| log.cuts);
    let stream = unfold((app, changes, after), move |(app, mut changes, mut sent)| async move {
        loop {
            let is_cut = |log: &Log| log.gone || log.cuts != cuts;
            if is_cut(&app.log.lock().unwrap()) {
                return Some((Err(std::io::Error::other("cut")), (app, changes, sent)));
            }
            changes.borrow_and_update();
            let fresh: Vec<SessionEvent> = app.log.lock().unwrap().events[sent..].to_vec();
            if fresh.is_empty() {
                changes.changed().await.ok()?;
                continue;
            }
            sent += fresh.len();
            let mut bytes = Vec::new();
            for event in fresh {
                let data = serde_json::to_string(&event).unwrap();
                write_event(&mut bytes, Some(&event.seq.to_string()), None, &data);
            }
            return Some((Ok(bytes), (app, changes, sent)));
        }
    });
    Response::new(Body::from_stream(stream))
}

async fn listed(State(app): State<App>) -> Json<Page<Session>> {
    Json(Page::whole(vec![session(&app)]))
}

/// Some items of a list, with only what has to be there.
async fn models() -> Json<Value> {
    let model = |name: &str| json!({ "id": { "provider_id": "test", "model_id": name }, "name": name, "provider": "Test" });
    Json(json!({ "items": [model("small"), model("large")] }))
}

async fn agents() -> Json<Value> {
    let agent = |name: &str, mode: &str| json!({ "name": name, "mode": mode });
    Json(
        json!({ "items": [agent("build", "primary"), agent("plan", "primary"), agent("scout", "subagent")] }),
    )
}

async fn files() -> Json<Value> {
    Json(json!({ "items": [{ "name": "notes.md", "path": "notes.md", "kind": "file" }] }))
}

async fn diff() -> Json<Value> {
    let patch = "--- notes.md\n+++ notes.md\n@@ -1 +1 @@\n-old\n+new\n";
    let change = json!({
        "path": "notes.md", "status": "modified", "additions": 1, "deletions": 1, "patch": patch,
    });
    Json(json!({ "items": [change] }))
}

/// A running server.
pub(crate) struct FakeServer {
    pub(crate) url: String,
    app: App,
    _tasks: JoinSet<()>,
}

impl FakeServer {
    /// A server that plays these scripts, one for each prompt.
    pub(crate) async fn start(scripts: Vec<Vec<Act>>) -> Self {
        let log = Log { scripts: scripts.into(), ..Log::default() };
        let app = App { log: Arc::new(Mutex::new(log)), changed: watch::Sender::new(()) };
        let router = Router::new()
            .route("/v1/sandboxes/{namespace}/{name}/sessions", post(create).get(listed))
            .route("/v1/sandboxes/{namespace}/{name}/models", get(models))
            .route("/v1/sandboxes/{namespace}/{name}/agents", get(agents))
            .route("/v1/sessions/{id}/files", get(files))
            .route("/v1/sessions/{id}/diff", get(diff))
            .route("/v1/sessions/{id}", get(async |State(app): State<App>| Json(session(&app))))
            .route(
                "/v1/sessions/{id}/messages",
                post(messages).get(async |State(app): State<App>| {
                    Json(Page::whole(app.with(|log| log.history.clone())))
                }),
            )
            .route("/v1/sessions/{id}/events", get(events))
            .route("/v1/sessions/{id}/permissions/{permission}", post(permissions))
            .route(
                "/v1/sessions/{id}/cancel",
                post(async |State(app): State<App>| Json(CancelResponse { turns: app.with(Log::cancel) })),
            )
            .layer(from_fn(authorise))
            .with_state(app.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, app, _tasks: tasks }
    }

    /// Lets the turn go on that pauses.
    pub(crate) fn go_on(&self) {
        self.app.with(Log::go_on);
    }

    /// Listens no more, and cuts all event streams, also those on connections that are still there.
    pub(crate) fn stop(self) {
        self.app.with(|log| log.gone = true);
    }

    /// Cuts all event streams.
    pub(crate) fn cut(&self) {
        self.app.with(|log| log.cuts += 1);
    }

    pub(crate) fn prompts(&self) -> Vec<String> {
        self.app.with(|log| log.prompts.clone())
    }

    pub(crate) fn messages(&self) -> Vec<PostMessage> {
        self.app.with(|log| log.messages.clone())
    }

    pub(crate) fn answers(&self) -> Vec<PermissionAnswer> {
        self.app.with(|log| log.answers.clone())
    }

    pub(crate) fn cancels(&self) -> usize {
        self.app.with(|log| log.cancels)
    }

    pub(crate) fn set_history(&self, history: Vec<HistoryTurn>) {
        self.app.with(|log| log.history = history);
    }
}
