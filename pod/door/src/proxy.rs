//! Passes requests to opencode and its answers back, unchanged and streaming both ways. IO.
//!
//! Changed are only what must not cross a hop: connection headers, `Host`, and the caller's credentials, in whose
//! place opencode gets the internal password. `hop` knows which, `way` where to, and `tunnel` passes web sockets.

use std::{sync::Arc, time::Duration};

use berth_wire::{door::TurnOrigin, problem::ProblemType};
use http::{HeaderName, Method, Request, Response, header, request::Parts};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use jiff::Timestamp;
use tokio::time::{Instant, timeout};

use crate::{
    Door,
    admission::{Call, Refusal},
    body::{Hooked, Upload},
    broken::Question,
    class::{Class, classify},
    control, events,
    exchange::{self, Exchange},
    fence::Stamp,
    key::Key,
    mend,
    passage::Passage,
    refusal::{DoorBody, full, refuse},
    renewal, turns,
    upstream::{self, Sender},
};

mod hop;
mod tunnel;
mod way;

pub(crate) use self::{
    hop::outgoing,
    way::{Way, refuse_anonymous, shutting_down, unanswered, way},
};

/// What to do instead of calling a route that is for nobody but the door.
const REFUSED_ROUTE: &str = "Configuration and lifetime of opencode are the sandbox's: change its manifest or its \
    configuration file, or restart it. The door disposes of idle directories by itself.";

/// Bound on opencode's answer to a preflight.
const PREFLIGHT_BOUND: Duration = Duration::from_secs(5);

/// What opencode looks at in a preflight.
const PREFLIGHT_HEADERS: [HeaderName; 3] =
    [header::ORIGIN, header::ACCESS_CONTROL_REQUEST_METHOD, header::ACCESS_CONTROL_REQUEST_HEADERS];

/// Passes one request on and gives opencode's answer.
pub(crate) async fn forward(
    door: &Arc<Door>,
    request: Request<Incoming>,
) -> Result<Response<DoorBody>, Response<DoorBody>> {
    let tunnel = *request.method() == Method::GET && hop::is_websocket(request.headers());
    match classify(request.method(), request.uri().path()) {
        Class::Forbidden => Err(refuse(ProblemType::RefusedRoute, REFUSED_ROUTE)),
        _ if tunnel => tunnel::open(door, request).await,
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
            Ok(hop::passed(answer.map(|body| Hooked::new(body, call).boxed_unsync())))
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
    let call = call.keeping(kept).map_err(control::refused)?;
    let (call, abort) = turns::call::abort(door, class, &directory, call).await?;
    let origin = if stamp.is_some() { TurnOrigin::Berth } else { TurnOrigin::External };
    let turn = turns::call::Call::begin(door, class, &directory, origin, &way.boot_id)
        .map_err(turns::call::refuse_more)?;
    let body = Hooked::new(body, turn.as_ref().map(turns::call::Call::watcher)).boxed_unsync();
    let request = Request::from_parts(outgoing(parts, way.address, &door.upstream.get(), false), body);
    exchange::carry(door, Exchange { sender, request, room, call, abort, turn, way, directory })
        .await
        .map(hop::passed)
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
            renewal::renew(door, directory).await?;
        }
        let (way, sender) = way::connect(door).await?;
        match door.admission.admit(class, stamp, directory) {
            // An abort came just now.
            Ok(_) if prompt && door.turns.spoil(directory).is_some() => {}
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

/// Gives opencode's answer to a preflight of an anonymous caller: it takes them without credentials, and gets none.
pub(crate) async fn preflight(
    door: &Door,
    request: &Parts,
) -> Result<Response<DoorBody>, Response<DoorBody>> {
    let passage = door.passage.borrow().clone();
    let Passage::Open { address, .. } = passage else { return Err(refuse_anonymous(door, &passage)) };
    let mut outgoing = Request::new(Empty::<Bytes>::new());
    *outgoing.method_mut() = Method::OPTIONS;
    *outgoing.uri_mut() = hop::outgoing_uri(&request.uri);
    outgoing.headers_mut().insert(header::HOST, upstream::host(address));
    for name in PREFLIGHT_HEADERS {
        if let Some(value) = request.headers.get(&name) {
            outgoing.headers_mut().insert(name, value.clone());
        }
    }
    match timeout(PREFLIGHT_BOUND, upstream::send(address, outgoing, &door.tracker)).await {
        Ok(Ok(answer)) => Ok(hop::passed(answer.map(|body| body.map_err(Into::into).boxed_unsync()))),
        Ok(Err(_)) | Err(_) => Err(refuse(ProblemType::BadGateway, "opencode did not answer.")),
    }
}
