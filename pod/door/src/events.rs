//! The event streams, served from the journal in opencode's own shapes. IO.
//!
//! `/global/event` gives every event in its envelope, `/event` the bare events of one directory and those of the whole
//! server. Unlike opencode's, the frames have ids, the streams honour `Last-Event-ID` (or `?last_event_id=`), outlive
//! a restart of opencode, and do not end when their directory's instance is disposed of.

use std::{borrow::Cow, convert::Infallible, path::Path, sync::Arc};

use berth_wire::{door::DoorEvent, sse::write_event};
use futures_util::{Stream, stream};
use http::{HeaderMap, HeaderValue, Response, Uri, header, request::Parts};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame};
use percent_encoding::percent_decode_str;
use tokio::{
    sync::watch,
    time::{Instant, Interval, MissedTickBehavior, interval_at},
};

use crate::{
    Door,
    journal::{self, Entry, Resync},
    refusal::DoorBody,
};

/// Header that names a directory, raw or percent-encoded, as opencode takes it.
const DIRECTORY_HEADER: &str = "x-opencode-directory";

/// Which events a subscriber gets.
#[derive(Debug)]
pub(crate) enum Scope {
    /// All, in envelopes.
    Global,
    /// Those of a directory and of the whole server, bare.
    Directory(String),
}

/// The scope of a request for `/event`: its directory by query, by header, or opencode's own. Links are resolved where
/// the door sees the directory, since opencode names real paths in its events.
pub(crate) async fn directory_scope(door: &Door, request: &Parts) -> Scope {
    let directory = directory(door, request);
    let real = tokio::fs::canonicalize(Path::new(&directory)).await;
    Scope::Directory(real.map_or(directory, |real| real.to_string_lossy().into_owned()))
}

/// The directory that a request names, by query or by header, or opencode's own.
pub(crate) fn directory(door: &Door, request: &Parts) -> String {
    let named =
        query(&request.uri, "directory").map(Cow::into_owned).or_else(|| directory_header(&request.headers));
    match named.filter(|directory| !directory.is_empty()) {
        Some(directory) => directory,
        None => door.serve.borrow().directory.to_string_lossy().into_owned(),
    }
}

fn directory_header(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(DIRECTORY_HEADER)?.to_str().ok()?;
    Some(percent_decode_str(value).decode_utf8_lossy().into_owned())
}

fn query<'a>(uri: &'a Uri, name: &str) -> Option<Cow<'a, str>> {
    let pairs = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
    pairs.into_iter().find(|(key, _)| key == name).map(|(_, value)| value)
}

/// The cursor that a request brings, if any.
fn cursor(request: &Parts) -> Option<String> {
    let header = request.headers.get("last-event-id").map(|value| String::from_utf8_lossy(value.as_bytes()));
    let cursor = header.or_else(|| query(&request.uri, "last_event_id"))?;
    (!cursor.is_empty()).then(|| cursor.into_owned())
}

/// Answers with the stream.
pub(crate) fn serve(door: Arc<Door>, request: &Parts, scope: Scope) -> Response<DoorBody> {
    let subscriber = Subscriber::new(door, scope, cursor(request).as_deref());
    let frames = StreamBody::new(subscriber.into_stream());
    let mut response = Response::new(frames.map_err(|never| match never {}).boxed_unsync());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// One subscriber, at its own position.
struct Subscriber {
    door: Arc<Door>,
    scope: Scope,
    position: u64,
    newest: watch::Receiver<u64>,
    heartbeat: Interval,
    /// What is sent before anything else.
    opening: Option<Vec<u8>>,
}

impl Subscriber {
    fn new(door: Arc<Door>, scope: Scope, cursor: Option<&str>) -> Self {
        let newest = door.journal.subscribe();
        let start = door.journal.start(cursor);
        let mut opening = Vec::new();
        write_own(&mut opening, &scope, "server.connected");
        if let Some(resync) = &start.resync {
            write_resync(&mut opening, &scope, resync);
        }
        let period = door.config.heartbeat;
        let mut heartbeat = interval_at(Instant::now() + period, period);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { door, scope, position: start.position, newest, heartbeat, opening: Some(opening) }
    }

    fn into_stream(self) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send {
        stream::unfold(self, |mut subscriber| async move {
            let bytes = subscriber.next().await?;
            Some((Ok(Frame::data(Bytes::from(bytes))), subscriber))
        })
    }

    /// The next bytes; `None` at shutdown, and for a subscriber that was too slow.
    async fn next(&mut self) -> Option<Vec<u8>> {
        if let Some(opening) = self.opening.take() {
            return Some(opening);
        }
        loop {
            let Ok(batch) = self.door.journal.read_after(self.position) else {
                self.door.config.metrics.subscribers_cut.inc();
                tracing::warn!(
                    position = self.position,
                    "an event subscriber fell out of the journal and is cut"
                );
                return None;
            };
            self.position += batch.len() as u64;
            let bytes = encode(&self.scope, &batch);
            if !bytes.is_empty() {
                return Some(bytes);
            }
            if !batch.is_empty() {
                tokio::task::consume_budget().await;
                continue;
            }
            tokio::select! {
                () = self.door.shutdown.cancelled() => return None,
                changed = self.newest.changed() => changed.ok()?,
                _ = self.heartbeat.tick() => {
                    let mut bytes = Vec::new();
                    write_own(&mut bytes, &self.scope, "server.heartbeat");
                    return Some(bytes);
                }
            }
        }
    }
}

fn encode(scope: &Scope, batch: &[Arc<Entry>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in batch {
        let data = match scope {
            Scope::Global => entry.envelope(),
            Scope::Directory(wanted) => match &entry.directory {
                Some(directory) if directory != wanted => continue,
                _ => entry.payload(),
            },
        };
        write_event(&mut bytes, Some(&entry.id.to_string()), None, data);
    }
    bytes
}

/// An event of this connection alone, as opencode sends it.
fn write_own(out: &mut Vec<u8>, scope: &Scope, kind: &str) {
    let payload = serde_json::json!({"id": journal::event_id(), "type": kind, "properties": {}});
    write_event(out, None, None, &enveloped(scope, &payload));
}

/// Tells that the stream goes on from now and not from the cursor. The frame's id is where it goes on.
fn write_resync(out: &mut Vec<u8>, scope: &Scope, resync: &Resync) {
    let oldest = resync.oldest.as_ref().map(ToString::to_string);
    let event = DoorEvent::Resync { reason: resync.reason, oldest };
    let mut payload = event.to_global_json()["payload"].take();
    payload["id"] = journal::event_id().into();
    write_event(out, Some(&resync.current.to_string()), None, &enveloped(scope, &payload));
}

fn enveloped(scope: &Scope, payload: &serde_json::Value) -> String {
    match scope {
        Scope::Global => serde_json::json!({ "payload": payload }).to_string(),
        Scope::Directory(_) => payload.to_string(),
    }
}
