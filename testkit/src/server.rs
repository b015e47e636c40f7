//! The HTTP server around the pure parts: routes, counters, the log, and the time that answers take.
//!
//! An answer is a stream that is polled by its connection and spawns nothing: a client that leaves drops it, and
//! with it all its work. Stopping the server ends what runs.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Json, Router,
    body::{Body, HttpBody as _},
    extract::{Request, State},
    response::{IntoResponse, Response},
    routing::{get, post},
    serve::ListenerExt,
};
use bytes::Bytes;
use http::{StatusCode, Uri, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use self::perform::{Performance, perform_whole};
use crate::{
    answer::Answer,
    beat::HANG,
    conversation::Conversation,
    log::{Entry, ModelLog, NewRequest, RequestOutcome},
    script::{Op, Status},
    wire::{self, Heading, ModelWire},
};

mod perform;

/// Largest request body, in bytes.
pub const MAX_BODY: usize = 64 * 1024 * 1024;
/// Number of counters of `times=` and `dropn` that are kept; when they are full all start anew.
const MAX_COUNTERS: usize = 100_000;
/// How long a request's body may take to arrive.
const BODY_BOUND: Duration = Duration::from_mins(1);
/// How long the connections have to end once the server is told to stop.
const STOP_BOUND: Duration = Duration::from_secs(5);
/// opencode names its session in this header of every request to a model (seen on 1.18.33).
const SESSION_HEADER: &str = "x-session-id";

/// The scripted model, bound to its address.
#[derive(Debug)]
pub struct ScriptedModel {
    listener: TcpListener,
    address: SocketAddr,
    log: ModelLog,
}

impl ScriptedModel {
    /// Binds the address; port 0 takes a free one.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address, log: ModelLog::new() })
    }

    /// The bound address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Handle to the requests so far; it outlives the server.
    pub fn log(&self) -> ModelLog {
        self.log.clone()
    }

    /// Serves until `shutdown`, then ends what runs and returns within five seconds.
    pub async fn run(self, shutdown: CancellationToken) -> io::Result<()> {
        let shared =
            Arc::new(Shared { log: self.log, counters: Mutex::default(), shutdown: shutdown.clone() });
        let listener = self.listener.tap_io(|connection| {
            if let Err(error) = connection.set_nodelay(true) {
                tracing::debug!(%error, "small packets will be held back");
            }
        });
        let serving =
            axum::serve(listener, router(shared)).with_graceful_shutdown(shutdown.clone().cancelled_owned());
        let too_long = async {
            shutdown.cancelled().await;
            tokio::time::sleep(STOP_BOUND).await;
        };
        tokio::select! {
            served = serving.into_future() => served,
            () = too_long => {
                tracing::warn!("connections were still open when the scripted model stopped");
                Ok(())
            }
        }
    }
}

#[derive(Debug)]
struct Shared {
    log: ModelLog,
    /// How often an operation with a bounded number of times has been met, by the hash of where that was.
    counters: Mutex<HashMap<u64, u32>>,
    shutdown: CancellationToken,
}

impl Shared {
    /// Counts one more meeting and tells how many there were, this one included.
    fn count(&self, place: u64) -> u32 {
        // A panic under this lock leaves whole counters behind.
        let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        if counters.len() >= MAX_COUNTERS && !counters.contains_key(&place) {
            tracing::warn!(counters = counters.len(), "too many counters, all start anew");
            counters.clear();
        }
        let count = counters.entry(place).or_default();
        *count = count.saturating_add(1);
        *count
    }

    fn reset(&self) {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.log.clear();
    }
}

fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(answer_openai))
        .route("/v1/messages", post(answer_anthropic))
        .route("/v1/models", get(list_models))
        .route("/log", get(show_log))
        .route("/reset", post(reset))
        .fallback(no_such_path)
        .with_state(shared)
}

async fn list_models() -> Response {
    let model = |id: &str| json!({"id": id, "object": "model", "created": 0, "owned_by": "berth"});
    Json(json!({"object": "list", "data": [model("m"), model("small")]})).into_response()
}

async fn show_log(State(shared): State<Arc<Shared>>) -> Response {
    let (requests, dropped) = (shared.log.requests(), shared.log.dropped());
    Json(json!({"dropped": dropped, "requests": requests})).into_response()
}

async fn reset(State(shared): State<Arc<Shared>>) -> Response {
    shared.reset();
    Json(json!({})).into_response()
}

async fn no_such_path(uri: Uri) -> Response {
    let message = format!("the scripted model has no path {}", uri.path());
    refuse(ModelWire::OpenAi, StatusCode::NOT_FOUND, &message)
}

async fn answer_openai(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    answer(shared, ModelWire::OpenAi, request).await
}

async fn answer_anthropic(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    answer(shared, ModelWire::Anthropic, request).await
}

async fn answer(shared: Arc<Shared>, wire: ModelWire, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = match read_body(body).await {
        Ok(body) => body,
        Err(error) => return refuse(wire, error.status(), &error.to_string()),
    };
    let conversation = match Conversation::read(&body) {
        Ok(conversation) => conversation,
        Err(error) => {
            return refuse(wire, StatusCode::BAD_REQUEST, &format!("the body is not a request: {error}"));
        }
    };
    let session = parts.headers.get(SESSION_HEADER).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let answer = Answer::to(&conversation);
    let place =
        Place { session: session.as_deref(), conversation: &conversation, script: answer.script.as_deref() };
    let opening = settle(answer.ops, |index| shared.count(place.hash(index)));
    let script = answer.script.as_deref();
    let entry =
        shared.log.add(NewRequest { wire, session, bytes: body.len(), conversation: &conversation, script });
    respond(&shared, wire, conversation, opening, entry).await
}

/// Why a body did not come.
#[derive(Debug, thiserror::Error)]
enum BodyError {
    #[error("the body is larger than {MAX_BODY} bytes")]
    TooLarge,
    #[error("the body did not arrive within {} seconds", BODY_BOUND.as_secs())]
    TooSlow,
    #[error("the body broke off")]
    Broken,
}

impl BodyError {
    fn status(&self) -> StatusCode {
        match self {
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::Broken => StatusCode::BAD_REQUEST,
        }
    }
}

async fn read_body(body: Body) -> Result<Bytes, BodyError> {
    if usize::try_from(body.size_hint().lower()).is_ok_and(|announced| announced > MAX_BODY) {
        return Err(BodyError::TooLarge);
    }
    let read = tokio::time::timeout(BODY_BOUND, Limited::new(body, MAX_BODY).collect()).await;
    match read.map_err(|_| BodyError::TooSlow)? {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(BodyError::TooLarge),
        Err(_) => Err(BodyError::Broken),
    }
}

async fn respond(
    shared: &Shared,
    wire: ModelWire,
    conversation: Conversation,
    opening: Opening,
    mut entry: Entry,
) -> Response {
    let heading = Heading { number: entry.number(), model: conversation.model };
    match opening {
        Opening::Refuse(status) => {
            entry.settle(RequestOutcome::Refused(status.code));
            refuse_as_scripted(wire, status)
        }
        Opening::HoldHeaders => hold_headers(shared, wire, entry).await,
        Opening::Play(ops) if conversation.stream => {
            Performance::new(wire, heading, ops, entry, shared.shutdown.clone()).into_response()
        }
        Opening::Play(ops) => perform_whole(wire, heading, ops, entry, shared.shutdown.clone()).await,
    }
}

/// How an answer begins.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    Refuse(Status),
    HoldHeaders,
    Play(Vec<Op>),
}

/// Settles what depends on how often this place was met: `count` is asked with the operation's index.
pub(crate) fn settle(ops: Vec<Op>, mut count: impl FnMut(usize) -> u32) -> Opening {
    let mut playing = Vec::with_capacity(ops.len());
    let only_status = ops.len() == 1;
    for (index, op) in ops.into_iter().enumerate() {
        match op {
            Op::Status(status) => {
                if status.times.is_none_or(|times| count(index) <= times) {
                    return Opening::Refuse(status);
                }
                if only_status {
                    playing.push(Op::Say("recovered".to_owned()));
                }
            }
            Op::HoldHeaders => return Opening::HoldHeaders,
            Op::DropFirst(times) => {
                if count(index) <= times {
                    playing.push(Op::Drop);
                    break;
                }
            }
            other => playing.push(other),
        }
    }
    Opening::Play(playing)
}

/// Where an operation stands: counters of one turn of one session are its own.
struct Place<'a> {
    session: Option<&'a str>,
    conversation: &'a Conversation,
    script: Option<&'a str>,
}

impl Place<'_> {
    fn hash(&self, operation: usize) -> u64 {
        let mut hasher = DefaultHasher::new();
        let prompt = &self.conversation.prompt;
        (self.session, self.script, prompt.position, prompt.step, operation).hash(&mut hasher);
        hasher.finish()
    }
}

async fn hold_headers(shared: &Shared, wire: ModelWire, mut entry: Entry) -> Response {
    let outcome = tokio::select! {
        () = tokio::time::sleep(HANG) => RequestOutcome::Refused(504),
        () = shared.shutdown.cancelled() => RequestOutcome::Stopped,
    };
    entry.settle(outcome);
    refuse(wire, StatusCode::GATEWAY_TIMEOUT, "the scripted model held this request for as long as it could")
}

fn refuse_as_scripted(wire: ModelWire, status: Status) -> Response {
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = refuse(wire, code, &format!("the scripted model says {}", status.code));
    if let Some(seconds) = status.retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

fn refuse(wire: ModelWire, status: StatusCode, message: &str) -> Response {
    (status, Json(wire::error(wire, status.as_u16(), message))).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ops(step: &str) -> Vec<Op> {
        let mut script: crate::script::Script = step.parse().unwrap();
        script.steps.remove(0)
    }

    #[test]
    fn bounded_errors_and_drops_are_settled_by_their_count() {
        let at = |step: &str, count: u32| settle(ops(step), |_| count);
        let refused = |code, times| Opening::Refuse(Status { code, times, retry_after: None });
        let said = |text: &str| Op::Say(text.to_owned());
        assert_eq!(at("status:500 | say:a", 9), refused(500, None));
        assert_eq!(at("status:500,times=2 | say:a", 2), refused(500, Some(2)));
        assert_eq!(at("status:500,times=2 | say:a", 3), Opening::Play(vec![said("a")]));
        assert_eq!(at("status:500,times=2", 3), Opening::Play(vec![said("recovered")]));
        assert_eq!(at("status:500,times=2 | hangpre", 3), Opening::HoldHeaders);
        assert_eq!(at("say:a | dropn:1 | say:b", 1), Opening::Play(vec![said("a"), Op::Drop]));
        assert_eq!(at("say:a | dropn:1 | say:b", 2), Opening::Play(vec![said("a"), said("b")]));
    }
}
