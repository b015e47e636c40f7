//! The door's own routes that decide what may pass: fence and gate. IO.

use std::{sync::Arc, time::Duration};

use berth_wire::{
    admission::{HeldPhase, HoldGate, RaiseFence, SealGate},
    problem::{Problem, ProblemType},
};
use http::{HeaderValue, Method, Request, Response, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde::de::DeserializeOwned;

use crate::{
    Door,
    admission::{CloseError, Pending, RaiseError, Refusal},
    body::{Upload, UploadCut},
    fence::Stale,
    gate::{GateError, Hold},
    refusal::{DoorBody, json, problem, refuse},
    turns::Idleness,
};

/// Bytes of a body; those that mean something have a few hundred.
const BODY_MAX: usize = 16 * 1024;

/// Longest lease.
const TTL_MAX: u64 = 60 * 60 * 1000;

/// Longest wait for the gate to be closed.
const WAIT_MAX: u64 = 10 * 60 * 1000;

/// Longest name of an owner, in characters.
const OWNER_MAX: usize = 128;

/// Longest reason, in characters.
const REASON_MAX: usize = 512;

type Answer = Result<Response<DoorBody>, Response<DoorBody>>;

/// `PUT /berth/fence`.
pub(crate) async fn fence(door: &Arc<Door>, request: Request<Incoming>) -> Answer {
    let RaiseFence { fence } = body(door, request).await?;
    if fence == 0 {
        return Err(refuse(ProblemType::InvalidBody, "A fence is a number from 1."));
    }
    match door.admission.raise(fence, door.config.fence_wait).await {
        Ok(state) => Ok(json(&state)),
        Err(RaiseError::Stale(_, state)) => {
            let detail = format!("The fence is {} already.", state.fence);
            Err(problem(&Problem::new(ProblemType::StaleFence, detail).with("fence", state.fence)))
        }
        Err(RaiseError::Busy(calls)) => {
            Err(busy("Calls under a lower fence still go on. The fence is raised: ask again.", &calls))
        }
    }
}

/// `PUT`, `GET` and `DELETE /berth/gate`, and `POST /berth/gate/seal`.
pub(crate) async fn gate(door: &Arc<Door>, request: Request<Incoming>) -> Answer {
    let seal = request.uri().path().ends_with("/seal");
    match *request.method() {
        Method::GET if !seal => {}
        Method::PUT if !seal => hold(door, request).await?,
        Method::DELETE if !seal => {
            let generation = generation(request.uri().query().unwrap_or_default()).ok_or_else(|| {
                refuse(ProblemType::InvalidParameter, "Say which lease: ?generation=<number>.")
            })?;
            door.admission.open(generation).map_err(|error| gate_error(door, error))?;
        }
        Method::POST if seal => {
            let SealGate { generation } = body(door, request).await?;
            door.admission.seal(generation).map_err(|error| gate_error(door, error))?;
        }
        _ => return Err(refuse(ProblemType::MethodNotAllowed, "")),
    }
    Ok(json(&door.admission.gate()))
}

async fn hold(door: &Arc<Door>, request: Request<Incoming>) -> Result<(), Response<DoorBody>> {
    let asked: HoldGate = body(door, request).await?;
    let invalid = |what: &str| refuse(ProblemType::InvalidBody, what);
    if !(1..=OWNER_MAX).contains(&asked.owner.chars().count()) || asked.reason.chars().count() > REASON_MAX {
        return Err(invalid("owner has 1 to 128 characters, reason at most 512."));
    }
    if !(1..=TTL_MAX).contains(&asked.ttl_ms) || asked.wait_ms > WAIT_MAX {
        return Err(invalid("ttl_ms is 1 to 3,600,000, wait_ms at most 600,000."));
    }
    let hold = Hold {
        owner: asked.owner,
        reason: asked.reason,
        ttl: Duration::from_millis(asked.ttl_ms),
        phase: asked.phase,
        generation: asked.generation,
    };
    let generation = door.admission.hold(&hold).map_err(|error| gate_error(door, error))?;
    if hold.phase == HeldPhase::Draining {
        return Ok(());
    }
    let turns = asked.idle.then_some(&door.turns);
    let closed = door.admission.close(generation, Duration::from_millis(asked.wait_ms), turns).await;
    closed.map_err(|error| match error {
        CloseError::Gate(error) => gate_error(door, error),
        CloseError::Busy(calls, running) => {
            let detail = format!("The gate drains under generation {generation}, and is not closed.");
            still_running(&detail, &calls, running)
        }
    })
}

/// The generation that a query names.
fn generation(query: &str) -> Option<u64> {
    let named = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "generation");
    named.and_then(|(_, value)| value.parse().ok())
}

/// A JSON body.
async fn body<T: DeserializeOwned>(door: &Door, request: Request<Incoming>) -> Result<T, Response<DoorBody>> {
    let upload = Upload::new(door, request.into_body());
    let bytes =
        Limited::new(upload, BODY_MAX).collect().await.map_err(|error| unread(error.as_ref(), BODY_MAX))?;
    serde_json::from_slice(&bytes.to_bytes())
        .map_err(|error| refuse(ProblemType::InvalidBody, error.to_string()))
}

/// Why a body that had to be whole is not there.
pub(crate) fn unread(error: &(dyn std::error::Error + 'static), limit: usize) -> Response<DoorBody> {
    if error.is::<http_body_util::LengthLimitError>() {
        return too_large(limit);
    }
    if let Some(cut) = UploadCut::of(error) {
        return refuse(ProblemType::RequestTimeout, cut.to_string());
    }
    refuse(ProblemType::InvalidBody, "The body ended too early.")
}

/// The answer to a body with more than `limit` bytes.
pub(crate) fn too_large(limit: usize) -> Response<DoorBody> {
    let detail = format!("At most {limit} bytes.");
    problem(&Problem::new(ProblemType::BodyTooLarge, detail).with("limit_bytes", limit))
}

fn busy(detail: &str, calls: &[Pending]) -> Response<DoorBody> {
    still_running(detail, calls, None)
}

fn still_running(detail: &str, calls: &[Pending], running: Option<Idleness>) -> Response<DoorBody> {
    let calls = serde_json::to_value(calls).unwrap_or_default();
    let refusal = Problem::new(ProblemType::Busy, detail).with("calls", calls);
    problem(&match running {
        None | Some(Idleness::Idle) => refusal,
        Some(Idleness::Busy(sessions)) => refusal.with("sessions", sessions),
        Some(Idleness::Unknown) => refusal.with("activity", "unknown"),
    })
}

fn gate_error(door: &Door, error: GateError) -> Response<DoorBody> {
    let state = door.admission.gate();
    let (kind, detail) = match error {
        GateError::Held => (
            ProblemType::GateHeld,
            format!("{} holds it.", state.owner.as_deref().unwrap_or("Another owner")),
        ),
        GateError::Sealed => (ProblemType::GateHeld, "It is sealed and does not open any more.".to_owned()),
        GateError::Broken => (ProblemType::GateBroken, "What was done under it does not count.".to_owned()),
        GateError::Backwards => {
            (ProblemType::Invalid, "A closed gate does not go back to draining: open it.".to_owned())
        }
        GateError::NotClosed => (ProblemType::Invalid, "Only a closed gate can be sealed.".to_owned()),
    };
    let state = serde_json::to_value(state).unwrap_or_default();
    problem(&Problem::new(kind, detail).with("gate", state))
}

/// Why a request was not admitted, as an answer.
pub(crate) fn refused(refusal: Refusal) -> Response<DoorBody> {
    match refusal {
        Refusal::Stale(Stale::Epoch, state) => {
            let detail = "This door does not know the fence: raise it first.";
            problem(&Problem::new(ProblemType::StaleEpoch, detail).with("epoch", state.epoch))
        }
        Refusal::Stale(Stale::Fence, state) => {
            let detail = format!("The fence is {}: only its holder may change something.", state.fence);
            problem(&Problem::new(ProblemType::StaleFence, detail).with("fence", state.fence))
        }
        Refusal::Full => refuse(ProblemType::QueueFull, "opencode has not answered too many calls."),
        Refusal::Repeated => {
            refuse(ProblemType::Busy, "A call with this key still goes on: look again when it has ended.")
        }
        Refusal::Unsettled => refuse(
            ProblemType::Busy,
            "The door was started anew, and a call with this key may still go on: look again in some seconds.",
        ),
        Refusal::Reserved => refuse(ProblemType::Starting, "The door tidies up: ask again."),
        Refusal::Gated(state) => {
            let owner = state.owner.as_deref().unwrap_or_default();
            let reason = state.reason.as_deref().filter(|reason| !reason.is_empty());
            let detail =
                reason.map_or_else(|| format!("By {owner}."), |reason| format!("By {owner}: {reason}"));
            let expires = state.expires_in_ms;
            let gate = serde_json::to_value(state).unwrap_or_default();
            let mut answer = problem(&Problem::new(ProblemType::Gated, detail).with("gate", gate));
            match expires {
                Some(left) => {
                    answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(left.div_ceil(1000)))
                }
                None => answer.headers_mut().remove(header::RETRY_AFTER),
            };
            answer
        }
    }
}
