//! Opens opencode's event stream, and knows when it hears. IO.
//!
//! opencode begins to listen some time after it has sent `server.connected`, and what happens meanwhile is lost: for
//! 20 to 300 ms on a quiet machine, for up to 4 s on a busy one where other requests were answered in 13 ms (measured
//! on opencode 1.18.33). No clock can tell, so opencode is asked to say something, until it is heard.

use std::{convert::Infallible, net::SocketAddr, time::Duration};

use berth_wire::sse::{MAX_FRAME, SseError, SseReader};
use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::time::{sleep, timeout};

use crate::{
    Door,
    upstream::{self, UpstreamError},
};

/// Bound on the answer to the subscription and on its first event.
const CONNECT_BOUND: Duration = Duration::from_secs(5);

/// Bound on the first thing that is heard. opencode's own heartbeat comes after 10 s, and is as good.
const HEARD_BOUND: Duration = Duration::from_secs(20);

/// Bound on a frame, below that of those who read it from the door, where it has an id too.
const FRAME_BOUND: usize = MAX_FRAME - 1024;

/// Directory in which opencode is asked to say something. It need not exist, and nobody works in it.
pub(crate) const ECHO_DIRECTORY: &str = "/.berth-door";

/// An event for terminals that are attached in a directory; it would add nothing to what is typed there.
const ECHO: &str = r#"{"type":"tui.prompt.append","properties":{"text":""}}"#;

/// Pause before it is asked, in which it may be heard anyway; doubles each time.
const PAUSE: Duration = Duration::from_millis(20);

/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

#[derive(Debug, thiserror::Error)]
pub(super) enum SubscribeError {
    #[error("it did not answer in time")]
    Timeout,
    #[error("it cannot be asked")]
    Upstream(#[source] UpstreamError),
    #[error("it answered with status {0} and not with an event stream")]
    Answer(StatusCode),
    #[error("nothing was heard on the stream in time")]
    Deaf,
    #[error("the stream ended before it was known to hear")]
    Ended,
    #[error("the stream broke before it was known to hear")]
    Stream(#[source] SseError),
}

/// Opens the stream and gives it with the first frame that was heard. An opencode that was started before the internal
/// password changed still wants the one before.
pub(super) async fn subscribe(
    door: &Door,
    address: SocketAddr,
) -> Result<(SseReader, String), SubscribeError> {
    let mut refused = SubscribeError::Answer(StatusCode::UNAUTHORIZED);
    for password in &door.config.secrets.held().internal {
        let authorization = upstream::basic(password);
        match connect(door, address, &authorization).await {
            Ok(mut events) => {
                door.upstream.set(authorization.clone());
                let first = hear(door, address, &authorization, &mut events).await?;
                return Ok((events, first));
            }
            Err(error @ SubscribeError::Answer(StatusCode::UNAUTHORIZED)) => refused = error,
            Err(error) => return Err(error),
        }
    }
    Err(refused)
}

/// Opens the stream and waits for its `server.connected`.
async fn connect(
    door: &Door,
    address: SocketAddr,
    authorization: &HeaderValue,
) -> Result<SseReader, SubscribeError> {
    let mut request = upstream::get("/global/event", address, authorization);
    request.headers_mut().insert(header::ACCEPT, HeaderValue::from_static("text/event-stream"));
    let answer = timeout(CONNECT_BOUND, upstream::send(address, request, &door.tracker)).await;
    let response = answer.map_err(|_| SubscribeError::Timeout)?.map_err(SubscribeError::Upstream)?;
    let content_type = response.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    if response.status() != StatusCode::OK
        || !content_type.is_some_and(|kind| kind.starts_with(b"text/event-stream"))
    {
        return Err(SubscribeError::Answer(response.status()));
    }
    let mut events = SseReader::with_limit(response.into_body().into_data_stream(), FRAME_BOUND);
    timeout(CONNECT_BOUND, next(&mut events)).await.map_err(|_| SubscribeError::Timeout)??;
    Ok(events)
}

/// Whatever comes after `server.connected` proves that the stream hears.
async fn hear(
    door: &Door,
    address: SocketAddr,
    authorization: &HeaderValue,
    events: &mut SseReader,
) -> Result<String, SubscribeError> {
    let heard = async {
        tokio::select! {
            first = next(events) => first,
            never = ask_for_echoes(door, address, authorization) => match never {},
        }
    };
    timeout(HEARD_BOUND, heard).await.map_err(|_| SubscribeError::Deaf)?
}

async fn next(events: &mut SseReader) -> Result<String, SubscribeError> {
    let event = events.next().await.ok_or(SubscribeError::Ended)?.map_err(SubscribeError::Stream)?;
    Ok(event.data)
}

async fn ask_for_echoes(door: &Door, address: SocketAddr, authorization: &HeaderValue) -> Infallible {
    let mut pause = PAUSE;
    loop {
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
        let answer = upstream::send(address, echo(address, authorization), &door.tracker).await;
        let status = answer.as_ref().map(|answer| answer.status().as_u16()).ok();
        tracing::debug!(status, "opencode was asked to say something");
    }
}

fn echo(address: SocketAddr, authorization: &HeaderValue) -> Request<Full<Bytes>> {
    let directory = utf8_percent_encode(ECHO_DIRECTORY, NON_ALPHANUMERIC);
    let path = format!("/tui/publish?directory={directory}");
    let mut request = upstream::get(&path, address, authorization).map(|_| Full::from(ECHO));
    *request.method_mut() = Method::POST;
    request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    request
}
