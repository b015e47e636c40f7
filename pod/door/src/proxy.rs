//! Passes requests to opencode and its answers back, unchanged and streaming both ways. IO.
//!
//! Changed are only what must not cross a hop: connection headers, `Host`, and the caller's credentials, in whose
//! place opencode gets the internal password.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use berth_serve::ServeState;
use berth_wire::{
    admission::{EPOCH_HEADER, FENCE_HEADER, KEY_HEADER},
    door::{ExitCause, TurnOrigin},
    problem::ProblemType,
};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header,
    request::Parts,
};
use http_body_util::{BodyExt, Empty};
use hyper::{
    body::{Bytes, Incoming},
    upgrade::{self, OnUpgrade},
};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use percent_encoding::percent_decode;
use tokio::time::{Instant, timeout, timeout_at};

use crate::upstream::{self, Sender};
use crate::{
    Door,
    admission::{Call, Refusal},
    auth::{TOKEN_PARAMETER, without_token},
    body::{Hooked, Upload, UploadCut},
    broken::Question,
    class::{Class, classify},
    connections::Place,
    control, directories, events,
    exchange::{self, Exchange},
    fence::Stamp,
    key::Key,
    mend,
    passage::Passage,
    refusal::{DoorBody, full, refuse},
    turns,
};

/// How long a refused connection may turn out to be opencode's end, in which case the request waits for the next.
const END_NOTICED: Duration = Duration::from_secs(1);

/// What to do instead of calling a route that is for nobody but the door.
const REFUSED_ROUTE: &str = "Configuration and lifetime of opencode are the sandbox's: change its manifest or its \
    configuration file, or restart it. The door disposes of idle directories by itself.";

/// Bound on opencode's answer to a preflight.
const PREFLIGHT_BOUND: Duration = Duration::from_secs(5);

/// What opencode looks at in a preflight.
const PREFLIGHT_HEADERS: [HeaderName; 3] =
    [header::ORIGIN, header::ACCESS_CONTROL_REQUEST_METHOD, header::ACCESS_CONTROL_REQUEST_HEADERS];

/// Headers that belong to one connection (RFC 9110, section 7.6.1, and older practice). `Trailer` is none: it tells
/// the next hop which fields come after the body.
const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// Where requests pass to now.
#[derive(Debug)]
pub(crate) struct Way {
    /// Where opencode listens.
    pub(crate) address: SocketAddr,
    /// Names the run of opencode.
    pub(crate) boot_id: String,
}

/// Waits until requests may pass, at most to `deadline`; the error is the answer to the caller.
pub(crate) async fn way(door: &Door, deadline: Instant) -> Result<Way, Response<DoorBody>> {
    let mut passage = door.passage.clone();
    let waiting = (*passage.borrow() == Passage::Starting).then(Instant::now);
    let opened = tokio::select! {
        biased;
        () = door.shutdown.cancelled() => return Err(shutting_down()),
        opened = timeout_at(deadline, passage.wait_for(|passage| *passage != Passage::Starting)) => opened,
    };
    if let Some(begun) = waiting {
        door.config.metrics.start_waits.observe(begun.elapsed().as_secs_f64());
    }
    let passage = match opened {
        Ok(Ok(passage)) => passage.clone(),
        // The subscription ends at shutdown alone.
        Ok(Err(_)) => return Err(shutting_down()),
        Err(_) => Passage::Starting,
    };
    match passage {
        Passage::Open { address, boot_id } => Ok(Way { address, boot_id }),
        Passage::Starting | Passage::Wedged | Passage::Unsupported(_) | Passage::Stopped => {
            Err(refuse_closed(door, &passage))
        }
    }
}

/// The answer of a door that closes.
pub(crate) fn shutting_down() -> Response<DoorBody> {
    refuse(ProblemType::ShuttingDown, "The door closes.")
}

/// Why requests cannot pass, as an answer.
pub(crate) fn refuse_closed(door: &Door, passage: &Passage) -> Response<DoorBody> {
    match passage {
        Passage::Stopped => refuse(ProblemType::Stopped, "It is not started again by itself."),
        Passage::Wedged => refuse(ProblemType::Wedged, "It is ended and started again."),
        Passage::Unsupported(seen) => {
            let detail =
                format!("Berth speaks to opencode 1.15 to 1.18, and found {seen}. Install one of those.");
            refuse(ProblemType::UnsupportedVersion, detail)
        }
        Passage::Starting | Passage::Open { .. } => {
            let last_exit = door.serve.borrow().last_exit().map(ToString::to_string);
            refuse(ProblemType::Starting, last_exit.unwrap_or_else(|| "Ask again in a moment.".to_owned()))
        }
    }
}

/// The same for an anonymous caller, who is not told why the last run ended.
pub(crate) fn refuse_anonymous(door: &Door, passage: &Passage) -> Response<DoorBody> {
    match passage {
        Passage::Starting => refuse(ProblemType::Starting, ""),
        Passage::Open { .. } | Passage::Wedged | Passage::Unsupported(_) | Passage::Stopped => {
            refuse_closed(door, passage)
        }
    }
}

/// Passes one request on and gives opencode's answer.
pub(crate) async fn forward(
    door: &Arc<Door>,
    request: Request<Incoming>,
) -> Result<Response<DoorBody>, Response<DoorBody>> {
    let tunnel = *request.method() == Method::GET && is_websocket(request.headers());
    match classify(request.method(), request.uri().path()) {
        Class::Forbidden => Err(refuse(ProblemType::RefusedRoute, REFUSED_ROUTE)),
        _ if tunnel => open_tunnel(door, request).await,
        Class::Read | Class::Tunnel => read(door, request).await,
        class => change(door, request, &class).await,
    }
}

/// Passes on a request that changes nothing. One that looks for what another call still makes is refused, in the
/// instant in which it would be sent: what it would not find now might be there a moment later.
async fn read(
    door: &Arc<Door>,
    request: Request<Incoming>,
) -> Result<Response<DoorBody>, Response<DoorBody>> {
    let key = Key::of(request.headers()).map_err(invalid_header)?;
    let (parts, body) = request.into_parts();
    let directory = directory(door, &parts).await?;
    let (way, mut sender, call) = admitted(door, &Class::Read, None, &directory).await?;
    if key.is_some_and(|key| door.admission.is_kept(&key)) {
        return Err(control::refused(Refusal::Repeated));
    }
    let outgoing = outgoing(parts, way.address, &door.upstream.get(), false);
    let question = Question { boot_id: way.boot_id, directory, asked: Timestamp::now() };
    match sender.send_request(Request::from_parts(outgoing, Upload::new(door, body).boxed_unsync())).await {
        Ok(answer) => {
            let answer = mend::heard(door, &question, answer).await?;
            Ok(passed(answer.map(|body| Hooked::new(body, call).boxed_unsync())))
        }
        Err(error) => Err(unanswered(door, &question.boot_id, &error).await),
    }
}

/// Passes on a request that may change something, if it may, and carries it to its end.
///
/// The body of a fenced one is read whole first: an owner that froze in the middle of a request holds nobody up, and
/// is refused when it goes on.
async fn change(
    door: &Arc<Door>,
    request: Request<Incoming>,
    class: &Class,
) -> Result<Response<DoorBody>, Response<DoorBody>> {
    let stamp = Stamp::of(request.headers()).map_err(invalid_header)?;
    let key = Key::of(request.headers()).map_err(invalid_header)?;
    let (parts, body) = request.into_parts();
    let body = Upload::new(door, body);
    let (body, room) = if stamp.is_some() {
        let (whole, room) = door.room.whole(body).await?;
        (full(whole), Some(room))
    } else {
        (body.boxed_unsync(), None)
    };
    let kept =
        key.map(|key| door.admission.keep(key, stamp.as_ref())).transpose().map_err(control::refused)?;
    let directory = directory(door, &parts).await?;
    let (way, sender, call) = admitted(door, class, stamp.as_ref(), &directory).await?;
    let (call, abort) = turns::call::abort(door, class, &directory, call.keeping(kept)).await?;
    let origin = if stamp.is_some() { TurnOrigin::Berth } else { TurnOrigin::External };
    let turn = turns::call::Call::begin(door, class, &directory, origin, &way.boot_id)
        .map_err(turns::call::refuse_more)?;
    let body = Hooked::new(body, turn.as_ref().map(turns::call::Call::watcher)).boxed_unsync();
    let request = Request::from_parts(outgoing(parts, way.address, &door.upstream.get(), false), body);
    exchange::carry(door, Exchange { sender, request, room, call, abort, turn, way, directory })
        .await
        .map(passed)
}

/// Passes on a request for a WebSocket, and its bytes after that.
async fn open_tunnel(
    door: &Arc<Door>,
    mut request: Request<Incoming>,
) -> Result<Response<DoorBody>, Response<DoorBody>> {
    let stamp = Stamp::of(request.headers()).map_err(invalid_header)?;
    let client = upgrade::on(&mut request);
    let place = request.extensions().get::<Place>().cloned();
    let (parts, body) = request.into_parts();
    let directory = directory(door, &parts).await?;
    let (way, mut sender, call) = admitted(door, &Class::Tunnel, stamp.as_ref(), &directory).await?;
    let outgoing = outgoing(parts, way.address, &door.upstream.get(), true);
    let outgoing = Request::from_parts(outgoing, Upload::new(door, body).boxed_unsync());
    let question = Question { boot_id: way.boot_id, directory, asked: Timestamp::now() };
    let answer = tokio::select! {
        answer = sender.send_request(outgoing) => answer,
        () = call.cut.cancelled() => return Err(control::refused(Refusal::Gated(door.admission.gate()))),
    };
    let mut answer = match answer {
        Ok(answer) => answer,
        Err(error) => return Err(unanswered(door, &question.boot_id, &error).await),
    };
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        return mend::heard(door, &question, answer).await.map(passed);
    }
    let tunnel = tunnel(client, upgrade::on(&mut answer));
    let shutdown = door.shutdown.clone();
    door.tracker.spawn(async move {
        tokio::select! {
            () = tunnel => {}
            () = call.cut.cancelled() => {}
            () = shutdown.cancelled() => {}
        }
        drop((call, place));
    });
    *answer.version_mut() = Version::HTTP_11;
    Ok(answer.map(|body| body.map_err(Into::into).boxed_unsync()))
}

/// The directory that a request is for, by its real name. opencode's own is known when that has started.
async fn directory(door: &Door, parts: &Parts) -> Result<String, Response<DoorBody>> {
    way(door, Instant::now() + door.config.start_wait).await?;
    Ok(events::directory(door, parts).await)
}

/// Connects to opencode and admits a request in the instant in which it can be sent.
async fn admitted(
    door: &Arc<Door>,
    class: &Class,
    stamp: Option<&Stamp>,
    directory: &str,
) -> Result<(Way, Sender<DoorBody>, Call), Response<DoorBody>> {
    mend::before(door, directory).await;
    loop {
        let prompt = matches!(class, Class::Prompt { .. });
        if prompt {
            directories::renew(door, directory).await;
        }
        let (way, sender) = connect(door).await?;
        match door.admission.admit(class, stamp, directory) {
            // An abort came just now.
            Ok(_) if prompt && door.turns.is_spoilt(directory) => {}
            Ok(call) => {
                door.directories.touch(&way.boot_id, directory);
                return Ok((way, sender, call));
            }
            // What was reserved for may end this opencode.
            Err(Refusal::Reserved) => door.admission.released().await,
            Err(refusal) => return Err(control::refused(refusal)),
        }
    }
}

/// Headers for the door that are wrong, as an answer.
fn invalid_header(error: impl std::error::Error) -> Response<DoorBody> {
    refuse(ProblemType::InvalidHeader, error.to_string())
}

/// An answer without what belongs to the hop that it came by.
fn passed(mut answer: Response<DoorBody>) -> Response<DoorBody> {
    remove_hop_by_hop(answer.headers_mut());
    *answer.version_mut() = Version::HTTP_11;
    answer
}

/// Gives opencode's answer to a preflight of an anonymous caller: it takes them without credentials, and gets none.
pub(crate) async fn preflight(
    door: &Door,
    request: &Parts,
) -> Result<Response<DoorBody>, Response<DoorBody>> {
    let passage = door.passage.borrow().clone();
    let Passage::Open { address, .. } = passage else { return Err(refuse_anonymous(door, &passage)) };
    let mut outgoing = Request::new(Empty::<Bytes>::new());
    *outgoing.method_mut() = Method::OPTIONS;
    *outgoing.uri_mut() = outgoing_uri(&request.uri);
    outgoing.headers_mut().insert(header::HOST, upstream::host(address));
    for name in PREFLIGHT_HEADERS {
        if let Some(value) = request.headers.get(&name) {
            outgoing.headers_mut().insert(name, value.clone());
        }
    }
    match timeout(PREFLIGHT_BOUND, upstream::send(address, outgoing, &door.tracker)).await {
        Ok(Ok(answer)) => Ok(passed(answer.map(|body| body.map_err(Into::into).boxed_unsync()))),
        Ok(Err(_)) | Err(_) => Err(refuse(ProblemType::BadGateway, "opencode did not answer.")),
    }
}

/// Why a request that was sent has no answer, as an answer. When it has none because opencode ended, the supervisor
/// says so shortly after.
pub(crate) async fn unanswered(door: &Door, boot_id: &str, error: &hyper::Error) -> Response<DoorBody> {
    if let Some(cut) = UploadCut::of(error) {
        return refuse(ProblemType::RequestTimeout, cut.to_string());
    }
    let source = std::error::Error::source(error).map(ToString::to_string);
    tracing::warn!(%error, source, "opencode broke the connection of a request");
    let mut serve = door.serve.clone();
    let exit_of = |state: &ServeState| state.exits.iter().find(|exit| exit.boot_id == boot_id).cloned();
    let ended = timeout(END_NOTICED, serve.wait_for(|state| exit_of(state).is_some())).await;
    let exit = ended.ok().and_then(Result::ok).and_then(|state| exit_of(&state));
    let kind = match exit.as_ref().map(|exit| exit.cause) {
        Some(ExitCause::Wedged) => ProblemType::Wedged,
        _ => ProblemType::BadGateway,
    };
    let why = exit.map_or_else(|| "opencode broke the connection".to_owned(), |exit| exit.to_string());
    refuse(kind, format!("{why}. The request may have been carried out."))
}

/// Connects to opencode, waiting for it to start. A connection that opencode refuses because it has just ended has
/// carried nothing, so the request waits for the next start.
async fn connect(door: &Door) -> Result<(Way, Sender<DoorBody>), Response<DoorBody>> {
    let deadline = Instant::now() + door.config.start_wait;
    loop {
        let Way { address, boot_id } = way(door, deadline).await?;
        let error = match upstream::connect(address, &door.tracker).await {
            Ok(sender) => return Ok((Way { address, boot_id }, sender)),
            Err(error) => error,
        };
        door.config.metrics.upstream_connect_failures.inc();
        let mut passage = door.passage.clone();
        let same =
            |passage: &Passage| matches!(passage, Passage::Open { boot_id: open, .. } if *open == boot_id);
        if timeout(END_NOTICED, passage.wait_for(|passage| !same(passage))).await.is_err() {
            let source = std::error::Error::source(&error).map(ToString::to_string);
            tracing::warn!(%error, source, "a request cannot be passed on");
            return Err(refuse(ProblemType::BadGateway, "opencode does not accept connections."));
        }
    }
}

/// The request's head as opencode gets it.
pub(crate) fn outgoing(
    parts: Parts,
    address: SocketAddr,
    authorization: &HeaderValue,
    websocket: bool,
) -> Parts {
    let Parts { method, uri, mut headers, .. } = parts;
    let takes_trailers = options(&headers, &header::TE).any(|option| option.eq_ignore_ascii_case("trailers"));
    remove_hop_by_hop(&mut headers);
    if takes_trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    // The door itself says that it goes on, when it begins to read the body.
    headers.remove(header::EXPECT);
    if websocket {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    }
    for own in [EPOCH_HEADER, FENCE_HEADER, KEY_HEADER] {
        headers.remove(own);
    }
    headers.insert(header::HOST, upstream::host(address));
    headers.insert(header::AUTHORIZATION, authorization.clone());
    if headers.get(header::REFERER).is_some_and(names_token) {
        headers.remove(header::REFERER);
    }
    let (mut outgoing, ()) = Request::new(()).into_parts();
    outgoing.method = method;
    outgoing.uri = outgoing_uri(&uri);
    outgoing.headers = headers;
    outgoing
}

/// Path and query without the token. Every part comes from a URI that was parsed, so it parses again.
fn outgoing_uri(uri: &Uri) -> Uri {
    let target = match uri.query().map(without_token) {
        Some(Some(query)) => format!("{}?{query}", uri.path()),
        Some(None) | None => uri.path().to_owned(),
    };
    target.parse().unwrap_or_else(|_| Uri::from_static("/"))
}

fn names_token(value: &HeaderValue) -> bool {
    percent_decode(value.as_bytes()).decode_utf8_lossy().contains(TOKEN_PARAMETER)
}

fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = connection_options(headers).filter_map(|name| name.parse().ok()).collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

fn connection_options(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    options(headers, &header::CONNECTION)
}

/// The members of a list in all headers of this name.
fn options<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> + use<'a> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

fn is_websocket(headers: &HeaderMap) -> bool {
    let upgrades =
        headers.get(header::UPGRADE).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"));
    upgrades && connection_options(headers).any(|option| option.eq_ignore_ascii_case("upgrade"))
}

/// Copies both ways until either side ends.
async fn tunnel(client: OnUpgrade, server: OnUpgrade) {
    let (client, server) = match tokio::try_join!(client, server) {
        Ok(both) => both,
        Err(error) => {
            tracing::debug!(%error, "an upgrade did not come about");
            return;
        }
    };
    let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
    if let Err(error) = tokio::io::copy_bidirectional(&mut client, &mut server).await {
        tracing::debug!(%error, "an upgraded connection broke");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(request: Request<()>) -> Parts {
        let (parts, ()) = request.into_parts();
        let websocket = is_websocket(&parts.headers);
        outgoing(
            parts,
            "127.0.0.1:4095".parse().unwrap(),
            &HeaderValue::from_static("Basic internal"),
            websocket,
        )
    }

    #[test]
    fn what_belongs_to_the_hop_stays_and_the_rest_passes() {
        let request = Request::post("/session/a%2Fb?x=%20&auth_token=c2VjcmV0&y=+")
            .header("host", "door.example:4096")
            .header("authorization", "Basic c2VjcmV0")
            .header("connection", "keep-alive, X-Hop")
            .header("x-hop", "1")
            .header("keep-alive", "timeout=5")
            .header("te", "gzip;q=0.5")
            .header("expect", "100-continue")
            .header("upgrade", "h2c")
            .header("referer", "http://door.example/?auth_token=c2VjcmV0")
            .header("accept-encoding", "gzip")
            .header("x-opencode-directory", "/w")
            .header("set-cookie", "a")
            .header("set-cookie", "b");
        let parts = pass(request.body(()).unwrap());
        assert_eq!(parts.uri.to_string(), "/session/a%2Fb?x=%20&y=+");
        assert_eq!(parts.headers["host"], "127.0.0.1:4095");
        assert_eq!(parts.headers["authorization"], "Basic internal");
        assert_eq!(parts.headers["accept-encoding"], "gzip");
        assert_eq!(parts.headers["x-opencode-directory"], "/w");
        assert_eq!(parts.headers.get_all("set-cookie").iter().count(), 2);
        for gone in ["connection", "x-hop", "keep-alive", "te", "upgrade", "referer", "expect"] {
            assert!(!parts.headers.contains_key(gone), "{gone}");
        }
    }

    #[test]
    fn trailers_are_agreed_on_and_a_token_in_disguise_goes_too() {
        let request = Request::post("/a")
            .header("te", "deflate, Trailers")
            .header("trailer", "x-sum")
            .header("referer", "http://door.example/?auth%5Ftoken=c2VjcmV0");
        let parts = pass(request.body(()).unwrap());
        assert_eq!(parts.headers["te"], "trailers");
        assert_eq!(parts.headers["trailer"], "x-sum");
        assert!(!parts.headers.contains_key("referer"));
    }

    #[test]
    fn a_websocket_is_asked_for_again_and_only_the_token_leaves_the_target() {
        let request = Request::get("http://door/pty/1/connect?auth_token=x")
            .header("connection", "Upgrade")
            .header("upgrade", "WebSocket")
            .header("sec-websocket-key", "k");
        let parts = pass(request.body(()).unwrap());
        assert_eq!(parts.uri.to_string(), "/pty/1/connect");
        assert_eq!(parts.headers["upgrade"], "websocket");
        assert_eq!(parts.headers["connection"], "upgrade");
        assert_eq!(parts.headers["sec-websocket-key"], "k");
        for target in ["/", "/?", "/a?b", "/a?b=c&d", "*"] {
            assert_eq!(outgoing_uri(&target.parse().unwrap()).to_string(), target, "{target}");
        }
    }
}
