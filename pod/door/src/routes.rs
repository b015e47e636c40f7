//! Which request goes where, and who may send it.

use std::sync::Arc;

use berth_wire::{api::SandboxPhase, door::DoorState, problem::ProblemType};
use http::{HeaderValue, Method, Request, Response, header};
use hyper::body::Incoming;
use prometheus_client::metrics::counter::Counter;
use tokio::time::Instant;

use crate::{
    Door,
    auth::Caller,
    body::Hooked,
    control, document,
    events::{self, Scope},
    files,
    guests::Guest,
    metrics::Route,
    passage::Passage,
    proof, proxy,
    refusal::{DoorBody, json, refuse},
};

/// Answers one request.
pub(crate) async fn handle(
    door: Arc<Door>,
    guest: Arc<Guest>,
    request: Request<Incoming>,
) -> Response<Hooked<DoorBody, Counter>> {
    let _busy = guest.busy();
    let (begun, method, path) = (Instant::now(), request.method().clone(), request.uri().path().to_owned());
    let route = route(&method, &path);
    let caller = door.config.secrets.held().credentials.caller(request.headers(), request.uri().query());
    if caller == Caller::Authenticated {
        guest.is_known();
    }
    let is_chunked = request.headers().contains_key(header::TRANSFER_ENCODING);
    let mut response = match ambiguous(&request) {
        Some(refusal) => refusal,
        None => dispatch(&door, caller, request).await.unwrap_or_else(|refusal| refusal),
    };
    let (status, elapsed_ms) = (response.status().as_u16(), begun.elapsed().as_millis());
    // Of a request with two lengths hyper may show one alone: what stands after its body is no request.
    if is_chunked {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    tracing::debug!(%method, path, status, elapsed_ms, "the door answers");
    let refused = response.extensions().get::<ProblemType>().copied();
    door.config.metrics.answered(route, response.status(), refused);
    response.map(|body| Hooked::new(body, door.config.metrics.sent_bytes.clone()))
}

fn route(method: &Method, path: &str) -> Route {
    match path {
        _ if *method == Method::OPTIONS => Route::Preflight,
        "/doc" => Route::Document,
        "/event" | "/global/event" => Route::Events,
        _ if is_own(path) => Route::Door,
        _ => Route::Opencode,
    }
}

/// Whether this path is the door's own.
fn is_own(path: &str) -> bool {
    path.strip_prefix("/berth").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Refuses a request with two lengths: some other hop may have read it by the other one.
fn ambiguous(request: &Request<Incoming>) -> Option<Response<DoorBody>> {
    let headers = request.headers();
    if !headers.contains_key(header::TRANSFER_ENCODING) || !headers.contains_key(header::CONTENT_LENGTH) {
        return None;
    }
    Some(refuse(ProblemType::InvalidHeader, "Content-Length and Transfer-Encoding exclude each other."))
}

async fn dispatch(
    door: &Arc<Door>,
    caller: Caller,
    request: Request<Incoming>,
) -> Result<Response<DoorBody>, Response<DoorBody>> {
    let get = request.method() == Method::GET;
    match (request.uri().path(), caller) {
        ("/doc", Caller::Anonymous) if get => Ok(document::probe(door)),
        (proof::PATH, _) if request.method() == Method::POST => proof::serve(door, request.into_body()).await,
        (path, Caller::Anonymous) if request.method() == Method::OPTIONS && !is_own(path) => {
            proxy::preflight(door, &request.into_parts().0).await
        }
        (_, Caller::Anonymous | Caller::Rejected) => {
            door.config.metrics.authentication_failures.inc();
            Err(unauthorized(caller))
        }
        ("/doc", Caller::Authenticated) if get => document::serve(door).await,
        ("/berth/state", Caller::Authenticated) if get => Ok(json(&state(door))),
        ("/berth/turns", Caller::Authenticated) if get => Ok(json(&door.turns.view())),
        ("/berth/files", Caller::Authenticated) if get => files::list(door, request.uri().query()).await,
        ("/berth/files/content", Caller::Authenticated) if get => {
            files::content(door, request.uri().query()).await
        }
        ("/berth/fence", Caller::Authenticated) if request.method() == Method::PUT => {
            control::fence(door, request).await
        }
        ("/berth/gate" | "/berth/gate/seal", Caller::Authenticated) => control::gate(door, request).await,
        ("/global/event", Caller::Authenticated) if get => {
            let (parts, _) = request.into_parts();
            Ok(events::serve(Arc::clone(door), &parts, Scope::Global))
        }
        ("/event", Caller::Authenticated) if get => {
            let (parts, _) = request.into_parts();
            let scope = events::directory_scope(door, &parts).await?;
            Ok(events::serve(Arc::clone(door), &parts, scope))
        }
        (path, Caller::Authenticated) if is_own(path) => {
            Err(refuse(ProblemType::NotFound, "The door has no such route: see pod/README.md."))
        }
        (_, Caller::Authenticated) if [Method::CONNECT, Method::TRACE].contains(request.method()) => {
            Err(refuse(ProblemType::MethodNotAllowed, "The door is no tunnel, and repeats no request."))
        }
        (_, Caller::Authenticated) => proxy::forward(door, request).await,
    }
}

fn unauthorized(caller: Caller) -> Response<DoorBody> {
    let detail = match caller {
        Caller::Rejected => "The user name or the password is wrong.",
        Caller::Anonymous | Caller::Authenticated => {
            "Give user name opencode and the door's password by HTTP Basic."
        }
    };
    refuse(ProblemType::Unauthorized, detail)
}

/// Where opencode and the journal stand.
fn state(door: &Door) -> DoorState {
    let current = door.journal.current();
    let phase = match &*door.passage.borrow() {
        Passage::Starting | Passage::Wedged | Passage::Unsupported(_) => SandboxPhase::Starting,
        Passage::Open { .. } => SandboxPhase::Ready,
        Passage::Stopped => SandboxPhase::Stopped,
    };
    let serve = door.serve.borrow();
    DoorState {
        phase,
        boot: serve.boot,
        boot_id: serve.boot_id.clone(),
        pid: serve.pid,
        version: serve.version.clone(),
        epoch: current.epoch,
        seq: current.seq,
        fence: door.admission.fence(),
        gate: door.admission.gate(),
        last_exit: serve.last_exit().map(ToString::to_string),
    }
}
