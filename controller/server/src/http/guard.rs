//! What stands before every handler: request ids, Host and Origin, the token, and a bound on time.

use std::{any::Any, sync::Arc, time::Instant};

use axum::{
    extract::{MatchedPath, Request, State},
    http::{HeaderMap, HeaderValue, Method, Uri, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use berth_wire::problem::{Problem, ProblemType};
use secrecy::{ExposeSecret, SecretString};
use subtle::ConstantTimeEq;
use tracing::Instrument;
use uuid::Uuid;

use super::{
    problem::{ApiError, problem_response},
    trace::Trace,
};
use crate::{
    app::App,
    metrics::{Answered, Metrics},
};

/// Response header that leads from an answer to the log.
const REQUEST_ID: &str = "x-request-id";

/// Gives each request an id, in the log, in a header, and in a problem document; places it in its trace; counts it.
pub(super) async fn identify(State(metrics): State<Metrics>, request: Request, next: Next) -> Response {
    let (id, begun) = (Uuid::now_v7(), Instant::now());
    let trace = Trace::of(request.headers(), id);
    let trace_id = format!("{:032x}", trace.id);
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str).to_owned();
    let method = method_name(request.method());
    let span =
        tracing::info_span!("request", request_id = %id, trace_id, method, path = request.uri().path());
    let answer = async {
        let response = next.run(request).await;
        let (elapsed, status) = (begun.elapsed(), response.status().as_u16());
        tracing::debug!(status, elapsed_ms = elapsed.as_millis(), "request answered");
        metrics.answered(&Answered { route, method, status }, elapsed.as_secs_f64());
        response
    };
    let mut response = trace.scope(answer.instrument(span)).await;
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        response = problem_response(problem.with("request_id", id.to_string()));
    }
    if let Ok(value) = HeaderValue::from_str(&id.to_string()) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}

/// Anybody may make a method up: as a label there is only a handful.
fn method_name(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        "OPTIONS" => "OPTIONS",
        _ => "other",
    }
}

/// Local mode listens on loopback, and a page in the user's browser can reach loopback too: a name that somebody
/// else resolves to it (DNS rebinding), and a page of another origin, are refused.
pub(super) async fn check_origin(request: Request, next: Next) -> Response {
    let host = host_of(&request);
    if !host.is_some_and(is_loopback) {
        return refuse("Host", "is not localhost, 127.0.0.1 or [::1]");
    }
    if !origin_is_ours(request.headers()) {
        return refuse("Origin", "is not this server's own");
    }
    next.run(request).await
}

fn refuse(header: &str, reason: &str) -> Response {
    ApiError::new(ProblemType::ForbiddenOrigin, format!("{header} {reason}")).into_response()
}

fn host_of(request: &Request) -> Option<&str> {
    let header = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    header.or_else(|| request.uri().authority().map(http::uri::Authority::as_str))
}

fn is_loopback(authority: &str) -> bool {
    let host = authority.parse::<http::uri::Authority>();
    host.is_ok_and(|host| matches!(host.host(), "localhost" | "127.0.0.1" | "[::1]"))
}

fn origin_is_ours(headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(header::ORIGIN) else { return true };
    let uri = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok());
    let authority = uri.as_ref().and_then(Uri::authority);
    authority.is_some_and(|authority| is_loopback(authority.as_str()))
}

/// Answers in the place of a handler that panicked. Its words stay in the log.
#[expect(clippy::needless_pass_by_value, reason = "the layer gives it away")]
pub(super) fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let words = panic.downcast_ref::<String>().map(String::as_str);
    let words = words.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default();
    tracing::error!(error = words, "handler panicked");
    ApiError::internal().into_response()
}

/// Requires `Authorization: Bearer <token>`.
pub(super) async fn require_token(
    State(token): State<Arc<SecretString>>,
    request: Request,
    next: Next,
) -> Response {
    let given = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let given = given.and_then(|value| value.split_once(' '));
    let matches = given.is_some_and(|(scheme, given)| {
        scheme.eq_ignore_ascii_case("bearer")
            && bool::from(given.trim().as_bytes().ct_eq(token.expose_secret().as_bytes()))
    });
    if matches {
        return next.run(request).await;
    }
    let detail = "send the header Authorization: Bearer <token>; `berth up` prints where the token's file is";
    ApiError::new(ProblemType::Unauthorized, detail).into_response()
}

/// Ends a request that takes longer than its bound, slow bodies included.
pub(super) async fn bound_time(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    if let Ok(response) = tokio::time::timeout(app.limits.request, next.run(request)).await {
        return response;
    }
    let seconds = app.limits.request.as_secs();
    ApiError::new(ProblemType::RequestTimeout, format!("the bound is {seconds} s")).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_names_are_hosts() {
        for good in ["localhost", "localhost:7447", "127.0.0.1:1", "[::1]:7447"] {
            assert!(is_loopback(good), "{good}");
        }
        for bad in [
            "",
            "evil.example",
            "localhost.evil.example:80",
            "127.0.0.1.evil.example",
            "::1",
            "a@localhost@b",
        ] {
            assert!(!is_loopback(bad), "{bad}");
        }
    }

    #[test]
    fn foreign_origins_are_refused() {
        let with = |origin: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ORIGIN, HeaderValue::from_str(origin).unwrap());
            headers
        };
        assert!(origin_is_ours(&HeaderMap::new()));
        assert!(origin_is_ours(&with("http://localhost:5173")));
        assert!(!origin_is_ours(&with("https://evil.example")));
        assert!(!origin_is_ours(&with("null")));
    }
}
