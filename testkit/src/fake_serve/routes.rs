//! The HTTP routes of opencode serve that a turn needs, with the answers of 1.18.33.

use std::{collections::HashMap, sync::Arc};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{DefaultBodyLimit, FromRequestParts, Path, Query, Request, State},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{HeaderMap, HeaderName, Method, StatusCode, request::Parts};
use serde_json::{Value, json};

use super::{
    Shared,
    asks::AskKind,
    events::{Scope, Subscription},
    fault::{AnswerFault, Fault},
    now,
    prompts::{begin, read_prompt, stop},
    spoil::{page, spoil, unauthorized},
    turn::text_of,
};

/// Largest request body, in bytes.
const MAX_BODY: usize = 64 * 1024 * 1024;
/// Version that [`AnswerFault::OtherLine`] claims.
const OTHER_VERSION: &str = "2.0.0";

type Fake = State<Arc<Shared>>;

pub(super) fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/global/health", get(health))
        .route("/global/event", get(global_events))
        .route("/event", get(directory_events))
        .route("/tui/publish", post(publish))
        .route("/doc", get(describe))
        .route("/file", get(nothing))
        .route("/session", get(list_sessions).post(create_session))
        .route("/session/status", get(statuses))
        .route("/session/{id}", get(get_session).patch(patch_session).delete(delete_session))
        .route("/session/{id}/children", get(children))
        .route("/session/{id}/todo", get(nothing))
        .route("/session/{id}/diff", get(nothing))
        .route("/session/{id}/message", get(messages))
        .route("/session/{id}/prompt_async", post(prompt))
        .route("/session/{id}/abort", post(abort))
        .route("/session/{id}/permissions/{request}", post(reply_permission_old))
        .route("/permission", get(permissions))
        .route("/permission/{request}/reply", post(reply_permission))
        .route("/question", get(questions))
        .route("/question/{request}/reply", post(reply_question))
        .route("/question/{request}/reject", post(reject_question))
        .fallback(anything_else)
        .method_not_allowed_fallback(anything_else)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(from_fn_with_state(Arc::clone(&shared), guard))
        .with_state(shared)
}

/// Counts the request, checks the password, and spoils the answer.
async fn guard(State(shared): Fake, request: Request, next: Next) -> Response {
    shared.see(&request);
    if request.method() == Method::OPTIONS {
        return StatusCode::NO_CONTENT.into_response();
    }
    let fault = shared.answer_fault();
    if !matches!(fault, Some(fault) if fault != AnswerFault::OtherLine) && !shared.is_authorized(&request) {
        return unauthorized();
    }
    let boot = shared.boot();
    match fault {
        // The call has its effect, unless nobody would get as far as asking for it.
        Some(AnswerFault::Unauthorized(_)) => unauthorized(),
        Some(AnswerFault::OtherLine) if is_new_session(&request) => {
            (StatusCode::METHOD_NOT_ALLOWED, [(http::header::ALLOW, "GET")]).into_response()
        }
        Some(AnswerFault::OtherLine) if request.uri().path() == "/global/health" => {
            Json(health_of(OTHER_VERSION)).into_response()
        }
        Some(fault) => spoil(fault, next.run(request).await, boot).await,
        None => next.run(request).await,
    }
}

fn is_new_session(request: &Request) -> bool {
    request.method() == Method::POST && request.uri().path() == "/session"
}

/// The directory that a request is about.
struct Here(String);

impl FromRequestParts<Arc<Shared>> for Here {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Self, Self::Rejection> {
        let query = Query::<HashMap<String, String>>::try_from_uri(&parts.uri).unwrap_or_default();
        let header = || parts.headers.get("x-opencode-directory")?.to_str().ok();
        let named = query.get("directory").map(String::as_str).or_else(header);
        Ok(Self(named.unwrap_or(&shared.config.directory).to_owned()))
    }
}

/// An answer that is no success.
struct Refusal(StatusCode, Value);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, Json(self.1)).into_response()
    }
}

fn bad_request(message: &str) -> Refusal {
    let data = json!({ "message": message, "kind": "Payload" });
    Refusal(StatusCode::BAD_REQUEST, json!({ "name": "BadRequest", "data": data }))
}

/// What opencode says to JSON that is none, and to a session id that cannot be one.
fn unexpected() -> Refusal {
    let message = "Unexpected server error. Check server logs for details.";
    let data = json!({ "message": message, "ref": "err_00000000" });
    Refusal(StatusCode::INTERNAL_SERVER_ERROR, json!({ "name": "UnknownError", "data": data }))
}

fn no_session(id: &str) -> Refusal {
    if !id.starts_with("ses") {
        return unexpected();
    }
    let data = json!({ "message": format!("Session not found: {id}") });
    Refusal(StatusCode::NOT_FOUND, json!({ "name": "NotFoundError", "data": data }))
}

fn no_request(tag: &str, kind: &str, id: &str) -> Refusal {
    let message = format!("{kind} request not found: {id}");
    Refusal(StatusCode::NOT_FOUND, json!({ "_tag": tag, "requestID": id, "message": message }))
}

fn read(body: &Bytes) -> Result<Value, Refusal> {
    if body.is_empty() {
        return Ok(json!({}));
    }
    serde_json::from_slice(body).ok().filter(Value::is_object).ok_or_else(unexpected)
}

async fn anything_else(method: Method) -> Response {
    match method {
        Method::GET | Method::HEAD => page(),
        _ => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn health(State(shared): Fake) -> Json<Value> {
    Json(health_of(&shared.config.version))
}

fn health_of(version: &str) -> Value {
    json!({ "healthy": true, "version": version })
}

async fn describe() -> Json<Value> {
    let info = json!({ "title": "opencode", "version": "1.0.0", "description": "opencode api" });
    Json(json!({ "openapi": "3.1.1", "info": info, "paths": {} }))
}

async fn nothing() -> Json<Value> {
    Json(json!([]))
}

async fn global_events(State(shared): Fake) -> Subscription {
    let fault = shared.stream_fault();
    Subscription::open(shared, Scope::Global, fault)
}

async fn directory_events(State(shared): Fake, Here(directory): Here) -> Subscription {
    let fault = shared.stream_fault();
    Subscription::open(shared, Scope::Directory(directory), fault)
}

/// Says what is asked for, in the directory's stream.
async fn publish(State(shared): Fake, Here(directory): Here, Json(event): Json<Value>) -> Json<bool> {
    let kind = event["type"].as_str().unwrap_or_default();
    shared.world().publish_in(Some(directory), kind, event["properties"].clone(), now());
    Json(true)
}

async fn create_session(
    State(shared): Fake,
    Here(directory): Here,
    body: Bytes,
) -> Result<Json<Value>, Refusal> {
    let body = read(&body)?;
    Ok(Json(shared.world().create(&directory, &body, now())))
}

async fn list_sessions(
    State(shared): Fake,
    Here(directory): Here,
    Query(query): Query<HashMap<String, String>>,
) -> Json<Value> {
    let limit = query.get("limit").and_then(|limit| limit.parse().ok()).unwrap_or(100);
    Json(Value::Array(shared.world().list(&directory, limit)))
}

async fn statuses(State(shared): Fake, Here(directory): Here) -> Json<Value> {
    Json(shared.world().statuses(&directory))
}

async fn get_session(State(shared): Fake, Path(id): Path<String>) -> Result<Json<Value>, Refusal> {
    let world = shared.world();
    world.sessions.get(&id).map(|session| Json(session.info.clone())).ok_or_else(|| no_session(&id))
}

async fn patch_session(
    State(shared): Fake,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Refusal> {
    let body = read(&body)?;
    let changed = shared.world().update(&id, now(), |info| {
        for key in ["title", "permission", "metadata"] {
            if !body[key].is_null() {
                info[key] = body[key].clone();
            }
        }
        info["time"]["updated"] = json!(now());
    });
    changed.map(Json).ok_or_else(|| no_session(&id))
}

async fn delete_session(State(shared): Fake, Path(id): Path<String>) -> Result<Json<bool>, Refusal> {
    if shared.world().delete(&id, now()) { Ok(Json(true)) } else { Err(no_session(&id)) }
}

async fn children(State(shared): Fake, Path(id): Path<String>) -> Result<Json<Value>, Refusal> {
    let world = shared.world();
    if !world.sessions.contains_key(&id) {
        return Err(no_session(&id));
    }
    Ok(Json(Value::Array(world.children(&id))))
}

async fn messages(
    State(shared): Fake,
    Path(id): Path<String>,
    Query(query): Query<HashMap<String, String>>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let limit = query.get("limit").and_then(|limit| limit.parse().ok()).filter(|limit| *limit > 0);
    let before = match query.get("before") {
        // Measured: a cursor that is none, and one without a limit, are refused in these words.
        Some(cursor) => Some(read_cursor(cursor).filter(|_| limit.is_some()).ok_or_else(bad_cursor)?),
        None => None,
    };
    let limit = limit.unwrap_or(usize::MAX);
    let found = shared.world().messages(&id, limit, before.as_deref());
    let (messages, more) = found.ok_or_else(|| no_session(&id))?;
    let oldest = messages.first().filter(|_| more).map(|message| message["info"].clone());
    let body = Json(Value::Array(messages));
    let Some(oldest) = oldest else { return Ok(body.into_response()) };
    let cursor = write_cursor(&oldest);
    let host = headers.get(http::header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let link = format!("<http://{host}/session/{id}/message?limit={limit}&before={cursor}>; rel=\"next\"");
    let headers = [
        (HeaderName::from_static("x-next-cursor"), cursor),
        (HeaderName::from_static("link"), link),
        (HeaderName::from_static("access-control-expose-headers"), "Link, X-Next-Cursor".to_owned()),
    ];
    Ok((headers, body).into_response())
}

fn bad_cursor() -> Refusal {
    Refusal(StatusCode::BAD_REQUEST, json!({ "_tag": "BadRequest" }))
}

/// Names the oldest message of a page.
fn write_cursor(info: &Value) -> String {
    URL_SAFE_NO_PAD.encode(json!({ "id": info["id"], "time": info["time"]["created"] }).to_string())
}

fn read_cursor(cursor: &str) -> Option<String> {
    let decoded: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(cursor).ok()?).ok()?;
    decoded["id"].as_str().map(str::to_owned)
}

async fn prompt(State(shared): Fake, Path(id): Path<String>, body: Bytes) -> Result<Response, Refusal> {
    let body = read(&body)?;
    if !shared.world().sessions.contains_key(&id) {
        return Err(no_session(&id));
    }
    let queued = read_prompt(&shared, &id, &body).map_err(|words| bad_request(&words))?;
    let spoiled = Fault::wanted_by(&text_of(&queued.parts)).into_iter().find_map(|fault| match fault {
        Fault::Answer(fault) => Some(fault),
        _ => None,
    });
    if matches!(spoiled, Some(AnswerFault::Unauthorized(_))) {
        return Ok(unauthorized());
    }
    begin(&shared, &id, queued);
    let answer = StatusCode::NO_CONTENT.into_response();
    Ok(match spoiled {
        Some(fault) => spoil(fault, answer, shared.boot()).await,
        None => answer,
    })
}

async fn abort(State(shared): Fake, Path(id): Path<String>) -> Result<Json<bool>, Refusal> {
    if !id.starts_with("ses") {
        return Err(unexpected());
    }
    stop(&shared, &id).await;
    Ok(Json(true))
}

async fn permissions(State(shared): Fake, Here(directory): Here) -> Json<Value> {
    Json(Value::Array(shared.world().open_asks(AskKind::Permission, &directory)))
}

async fn questions(State(shared): Fake, Here(directory): Here) -> Json<Value> {
    Json(Value::Array(shared.world().open_asks(AskKind::Question, &directory)))
}

async fn reply_permission(
    State(shared): Fake,
    Here(directory): Here,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<bool>, Refusal> {
    let body = read(&body)?;
    let message = body["message"].as_str().map(str::to_owned);
    answer_permission(&shared, Some(&directory), &id, &body["reply"], message)
}

/// The older form, which finds the directory by the session.
async fn reply_permission_old(
    State(shared): Fake,
    Path((_, id)): Path<(String, String)>,
    body: Bytes,
) -> Result<Json<bool>, Refusal> {
    let body = read(&body)?;
    answer_permission(&shared, None, &id, &body["response"], None)
}

fn answer_permission(
    shared: &Shared,
    directory: Option<&str>,
    id: &str,
    reply: &Value,
    message: Option<String>,
) -> Result<Json<bool>, Refusal> {
    let Some(reply @ ("once" | "always" | "reject")) = reply.as_str() else {
        let words = format!("Expected \"once\" | \"always\" | \"reject\", got {reply}\n  at [\"reply\"]");
        return Err(bad_request(&words));
    };
    let mut world = shared.world();
    if is_elsewhere(world.asks.get(id).map(|ask| ask.directory.as_str()), directory)
        || !world.reply_permission(id, reply, message, now())
    {
        return Err(no_request("PermissionNotFoundError", "Permission", id));
    }
    Ok(Json(true))
}

/// A request is open, but not in the directory that was named.
fn is_elsewhere(directory: Option<&str>, named: Option<&str>) -> bool {
    named.is_some() && directory.is_some() && directory != named
}

async fn reply_question(
    State(shared): Fake,
    Here(directory): Here,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<bool>, Refusal> {
    let body = read(&body)?;
    if !is_answers(&body["answers"]) {
        return Err(bad_request("Expected an array of arrays of strings\n  at [\"answers\"]"));
    }
    answer_question(&shared, &directory, &id, Some(&body["answers"]))
}

fn is_answers(answers: &Value) -> bool {
    let labels = |answer: &Value| answer.as_array().is_some_and(|labels| labels.iter().all(Value::is_string));
    answers.as_array().is_some_and(|answers| answers.iter().all(labels))
}

async fn reject_question(
    State(shared): Fake,
    Here(directory): Here,
    Path(id): Path<String>,
) -> Result<Json<bool>, Refusal> {
    answer_question(&shared, &directory, &id, None)
}

fn answer_question(
    shared: &Shared,
    directory: &str,
    id: &str,
    answers: Option<&Value>,
) -> Result<Json<bool>, Refusal> {
    let mut world = shared.world();
    if is_elsewhere(world.asks.get(id).map(|ask| ask.directory.as_str()), Some(directory))
        || !world.reply_question(id, answers, now())
    {
        return Err(no_request("QuestionNotFoundError", "Question", id));
    }
    Ok(Json(true))
}
