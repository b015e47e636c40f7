//! Spoiled HTTP answers.

use std::time::Duration;

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{StatusCode, header};
use tokio_util::sync::CancellationToken;

use super::{
    Broken, FLUSH,
    fault::{AnswerFault, HUGE_HEADER},
};

/// The beginning of a JSON document.
const HALF: &[u8] = b"{\"half\":[1,2,";
/// The beginning of a gzip stream.
const GZIP: &[u8] = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xab\x56";
/// Size of the pieces of a flood.
const PIECE: usize = 1024 * 1024;
const JSON: (header::HeaderName, &str) = (header::CONTENT_TYPE, "application/json");

/// opencode's web page, as far as it matters.
pub(super) fn page() -> Response {
    ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], "<!doctype html><title>opencode</title>")
        .into_response()
}

/// What is answered instead of `answer`; waits when that is the fault, until the server dies.
pub(super) async fn spoil(fault: AnswerFault, answer: Response, boot: CancellationToken) -> Response {
    use AnswerFault as A;
    match fault {
        // Where these apply, the routes see to them.
        A::OtherLine => answer,
        A::Unauthorized(_) => unauthorized(),
        A::NoAnswer => {
            boot.cancelled().await;
            broken()
        }
        A::Html => page(),
        A::Slow(ms) => slow(answer, Duration::from_millis(ms)),
        A::WrongType => {
            let mut answer = answer;
            answer.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/plain"));
            answer
        }
        A::Error500 => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        A::Empty => ([JSON], Body::empty()).into_response(),
        A::OtherJson => ([JSON], "{\"status\":\"ok\",\"items\":7}").into_response(),
        A::Redirect => (StatusCode::FOUND, [(header::LOCATION, "http://elsewhere.invalid/")]).into_response(),
        A::CutGzip => ([JSON, (header::CONTENT_ENCODING, "gzip")], GZIP).into_response(),
        A::NoEnd => ([JSON], half_then(async move { boot.cancelled().await })).into_response(),
        A::CutBody => ([JSON], half_then(tokio::time::sleep(FLUSH))).into_response(),
        A::Flood => ([JSON], flood()).into_response(),
        A::HugeHeader => {
            let padding = "a".repeat(HUGE_HEADER);
            ([("x-padding", padding)], answer).into_response()
        }
        A::NotHttp | A::Closed => broken(),
    }
}

/// What opencode answers without the right password.
pub(super) fn unauthorized() -> Response {
    (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Basic realm=\"Secure Area\"")]).into_response()
}

/// A body that breaks before its first byte.
fn broken() -> Response {
    Body::from_stream(stream::iter([Err::<Bytes, _>(Broken)])).into_response()
}

fn half_then(wait: impl Future<Output = ()> + Send + 'static) -> Body {
    let broken = async move {
        wait.await;
        Err(Broken)
    };
    Body::from_stream(stream::iter([Ok(Bytes::from_static(HALF))]).chain(stream::once(broken)))
}

fn flood() -> Body {
    let piece = Bytes::from(vec![b' '; PIECE]);
    Body::from_stream(stream::repeat_with(move || Ok::<_, Broken>(piece.clone())))
}

fn slow(answer: Response, pause: Duration) -> Response {
    let (parts, body) = answer.into_parts();
    let bytes = body.into_data_stream().flat_map(|chunk| {
        let bytes = chunk.unwrap_or_default();
        stream::iter((0..bytes.len()).map(move |index| bytes.slice(index..=index)))
    });
    let bytes = bytes.then(move |byte| async move {
        tokio::time::sleep(pause).await;
        Ok::<_, Broken>(byte)
    });
    Response::from_parts(parts, Body::from_stream(bytes))
}
