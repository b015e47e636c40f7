//! The door's own answers: problem+json and small JSON. Pure.

use std::convert::Infallible;

use berth_wire::problem::{PROBLEM_JSON, Problem, ProblemType};
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::body::Bytes;

/// Why the streaming of a body ended early.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// Body of every answer of the door.
pub(crate) type DoorBody = UnsyncBoxBody<Bytes, BodyError>;

/// Seconds after which a refused caller should ask again.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("2");

/// A problem document as an answer; its type is in the answer's extensions, for the count of refusals.
pub(crate) fn problem(problem: &Problem) -> Response<DoorBody> {
    let body = serde_json::to_vec(problem).unwrap_or_default();
    let mut response = Response::new(full(body));
    *response.status_mut() =
        StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if let Some(kind) = problem.problem_type() {
        response.extensions_mut().insert(kind);
    }
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
    match response.status() {
        StatusCode::UNAUTHORIZED => {
            let challenge = HeaderValue::from_static("Basic realm=\"Berth\", charset=\"UTF-8\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
        StatusCode::SERVICE_UNAVAILABLE => {
            response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER);
        }
        _ => {}
    }
    response
}

/// A problem of this type as an answer.
pub(crate) fn refuse(kind: ProblemType, detail: impl Into<String>) -> Response<DoorBody> {
    problem(&Problem::new(kind, detail))
}

/// A JSON document as an answer.
pub(crate) fn json(value: &impl serde::Serialize) -> Response<DoorBody> {
    let mut response = Response::new(full(serde_json::to_vec(value).unwrap_or_default()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A body that is all there.
pub(crate) fn full(bytes: impl Into<Bytes>) -> DoorBody {
    Full::new(bytes.into()).map_err(|never: Infallible| match never {}).boxed_unsync()
}
