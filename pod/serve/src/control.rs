//! The supervisor's control address, for the pod's sidecar: state, commands, memory, metrics. IO.
//!
//! | route | answers |
//! |---|---|
//! | `GET /state` | the [`crate::ServeState`] as JSON |
//! | `GET /watch` | server-sent events `state` with the same, at once and at each change, and `heartbeat` each 10 s |
//! | `POST /command` | takes a [`ServeCommand`] as JSON: 202 when it was heard |
//! | `GET /memory` | [`crate::ServeMemory`] as JSON, read for this answer |
//! | `GET /metrics` | metrics in the text format of Prometheus, anonymous |
//! | `GET /live` | 200, anonymous |
//!
//! The others want HTTP Basic with user `opencode` and the internal password. Refusals are problem+json.

use std::{convert::Infallible, io, sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use berth_wire::{
    problem::{PROBLEM_JSON, Problem, ProblemType},
    sse,
};
use futures_util::stream;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Bytes, Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::registry::Registry;
use secrecy::ExposeSecret;
use subtle::ConstantTimeEq;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};
use tokio_io_timeout::TimeoutStream;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{LinkError, Metrics, Password, ServeCommand, ServeLink, exchange::USER};

/// Connections at a time; more are closed at once.
const CONNECTIONS: usize = 32;

/// How long a request's head, and then its body, may take.
const REQUEST_BOUND: Duration = Duration::from_secs(10);

/// How long a client may take no bytes.
const WRITE_BOUND: Duration = Duration::from_secs(30);

/// Bytes of a head.
const HEAD_MAX: usize = 16 * 1024;

/// Headers of a request.
const HEADERS_MAX: usize = 64;

/// Bytes of a body.
const BODY_MAX: usize = 4 * 1024;

/// Time between two signs of life on `/watch`.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// Pause after a failure to accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// How long answers in flight may go on after shutdown began.
const DRAIN: Duration = Duration::from_secs(1);

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// What is served.
#[derive(Debug)]
struct Control {
    link: ServeLink,
    password: Password,
    metrics: Metrics,
    registry: Registry,
    shutdown: CancellationToken,
}

/// Serves the control address until `shutdown`, and returns when its connections have ended.
pub async fn serve_control(
    listener: TcpListener,
    link: ServeLink,
    password: Password,
    metrics: Metrics,
    shutdown: CancellationToken,
) {
    let mut registry = Registry::default();
    metrics.register(&mut registry);
    let control = Arc::new(Control { link, password, metrics, registry, shutdown });
    let (slots, tracker) = (Arc::new(Semaphore::new(CONNECTIONS)), TaskTracker::new());
    while let Some(accepted) = control.shutdown.run_until_cancelled(listener.accept()).await {
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "the control address cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else {
            control.metrics.refused_connections.inc();
            continue;
        };
        let control = Arc::clone(&control);
        tracker.spawn(async move {
            if let Err(error) = drive(control, stream).await {
                tracing::debug!(error = &*error, "a connection to the control address ended early");
            }
            drop(slot);
        });
    }
    tracker.close();
    if timeout(DRAIN * 2, tracker.wait()).await.is_err() {
        tracing::warn!(connections = tracker.len(), "connections to the control address do not end");
    }
}

async fn drive(
    control: Arc<Control>,
    stream: TcpStream,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    stream.set_nodelay(true)?;
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(WRITE_BOUND));
    let shutdown = control.shutdown.clone();
    let service = service_fn(move |request| {
        let control = Arc::clone(&control);
        async move { Ok::<_, Infallible>(handle(&control, request).await.unwrap_or_else(|refusal| refusal)) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_BOUND)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_MAX)
        .serve_connection(TokioIo::new(Box::pin(stream)), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        result = &mut connection => return Ok(result?),
        () = shutdown.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    timeout(DRAIN, connection)
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
        .map_err(Into::into)
}

async fn handle(control: &Control, request: Request<Incoming>) -> Result<Response<Body>, Response<Body>> {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let expected = match path.as_str() {
        "/live" | "/metrics" | "/state" | "/watch" | "/memory" => Method::GET,
        "/command" => Method::POST,
        _ => return Err(refuse(ProblemType::NotFound, "The control address has no such route.")),
    };
    if !matches!(path.as_str(), "/live" | "/metrics") && !is_authentic(control, request.headers()) {
        let detail = "Give user name opencode and the internal password by HTTP Basic.";
        return Err(refuse(ProblemType::Unauthorized, detail));
    }
    if method != expected {
        return Err(refuse(ProblemType::MethodNotAllowed, format!("This route takes {expected} only.")));
    }
    match path.as_str() {
        "/live" => Ok(answer("application/json", "{\"live\":true}")),
        "/metrics" => metrics(control).await,
        "/state" => Ok(json(&*control.link.state().borrow())),
        "/watch" => Ok(watch(control)),
        "/memory" => Ok(json(&control.link.memory().await.map_err(unheard)?)),
        _ => command(control, request).await,
    }
}

/// Compares in a time that depends on the lengths only.
fn is_authentic(control: &Control, headers: &HeaderMap) -> bool {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, token) = value.as_bytes().split_at_checked(6)?;
        scheme.eq_ignore_ascii_case(b"basic ").then_some(token)
    });
    let Some(given) = given.and_then(|token| STANDARD.decode(token.trim_ascii()).ok()) else { return false };
    match control.password.read() {
        Ok(password) => {
            let right = format!("{USER}:{}", password.expose_secret());
            given.ct_eq(right.as_bytes()).into()
        }
        Err(error) => {
            tracing::warn!(%error, "the file with the internal password cannot be read");
            false
        }
    }
}

async fn command(control: &Control, request: Request<Incoming>) -> Result<Response<Body>, Response<Body>> {
    let body = timeout(REQUEST_BOUND, Limited::new(request.into_body(), BODY_MAX).collect()).await;
    let body = body
        .map_err(|_| refuse(ProblemType::RequestTimeout, "The body did not arrive in time."))?
        .map_err(|error| {
            if error.is::<LengthLimitError>() {
                return refuse(ProblemType::BodyTooLarge, format!("A command has at most {BODY_MAX} bytes."));
            }
            refuse(ProblemType::InvalidBody, "The body broke off.")
        })?;
    let command: ServeCommand = serde_json::from_slice(&body.to_bytes())
        .map_err(|error| refuse(ProblemType::InvalidBody, format!("This is no command: {error}.")))?;
    control.link.command(command).await.map_err(unheard)?;
    let mut response = answer("application/json", "{\"heard\":true}");
    *response.status_mut() = StatusCode::ACCEPTED;
    Ok(response)
}

fn unheard(error: LinkError) -> Response<Body> {
    refuse(ProblemType::Stopped, format!("{error}."))
}

async fn metrics(control: &Control) -> Result<Response<Body>, Response<Body>> {
    let phase = control.link.state().borrow().phase;
    control.metrics.look(phase, control.link.memory().await.unwrap_or_default());
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &control.registry)
        .map_err(|_| refuse(ProblemType::Internal, "The metrics cannot be written."))?;
    Ok(answer("application/openmetrics-text; version=1.0.0; charset=utf-8", text))
}

/// The states as they come. A reader that is slow misses those in between, and no end of a run.
fn watch(control: &Control) -> Response<Body> {
    let (mut state, shutdown) = (control.link.state(), control.shutdown.clone());
    state.mark_changed();
    let frames = stream::unfold(state, move |mut state| {
        let shutdown = shutdown.clone();
        async move {
            let changed = shutdown.run_until_cancelled(timeout(HEARTBEAT, state.changed())).await?;
            let bytes = match changed {
                Ok(changed) => {
                    changed.ok()?;
                    frame("state", &*state.borrow_and_update())
                }
                Err(_) => frame("heartbeat", &serde_json::json!({})),
            };
            Some((Ok(Frame::data(bytes)), state))
        }
    });
    let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn frame(event: &str, data: &impl serde::Serialize) -> Bytes {
    let mut out = Vec::new();
    sse::write_event(&mut out, None, Some(event), &serde_json::to_string(data).unwrap_or_default());
    out.into()
}

fn json(value: &impl serde::Serialize) -> Response<Body> {
    match serde_json::to_vec(value) {
        Ok(text) => answer("application/json", text),
        Err(_) => refuse(ProblemType::Internal, "The answer cannot be written."),
    }
}

fn answer(content_type: &'static str, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Full::new(body.into()).boxed_unsync());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

fn refuse(kind: ProblemType, detail: impl Into<String>) -> Response<Body> {
    let problem = Problem::new(kind, detail);
    let mut response = answer(PROBLEM_JSON, serde_json::to_vec(&problem).unwrap_or_default());
    *response.status_mut() =
        StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if kind == ProblemType::Unauthorized {
        let challenge = HeaderValue::from_static("Basic realm=\"Berth\", charset=\"UTF-8\"");
        response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
    }
    response
}
