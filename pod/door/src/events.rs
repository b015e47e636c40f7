//! The event streams, served from the journal in opencode's own shapes. IO.
//!
//! `/global/event` gives every event in its envelope, `/event` the bare events of one directory and those of the whole
//! server. Unlike opencode's, the frames have ids, the streams honour `Last-Event-ID` (or `?last_event_id=`), outlive
//! a restart of opencode, and do not end when their directory's instance is disposed of.

use std::{
    borrow::Cow,
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use berth_wire::{door::DoorEvent, sse::write_event};
use futures_util::{Stream, stream};
use http::{HeaderValue, Response, Uri, header, request::Parts};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame};
use tokio::{
    sync::watch,
    time::{Instant, Interval, MissedTickBehavior, interval_at},
};

use crate::{
    Door,
    journal::{self, Placed, Resync},
    metrics::CutReason,
    refusal::DoorBody,
};

mod outgoing;
mod scope;

use outgoing::Outgoing;
pub(crate) use scope::{Scope, directory, directory_scope, real};

fn query<'a>(uri: &'a Uri, name: &str) -> Option<Cow<'a, str>> {
    let pairs = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
    pairs.into_iter().find(|(key, _)| key == name).map(|(_, value)| value)
}

/// The cursor that a request brings, if any.
pub(crate) fn cursor(request: &Parts) -> Option<String> {
    let header = request.headers.get("last-event-id").map(|value| String::from_utf8_lossy(value.as_bytes()));
    let cursor = header.or_else(|| query(&request.uri, "last_event_id"))?;
    (!cursor.is_empty()).then(|| cursor.into_owned())
}

/// Answers with the stream.
pub(crate) fn serve(door: Arc<Door>, request: &Parts, scope: Scope) -> Response<DoorBody> {
    if let Some(Subscribed(subscribed)) = request.extensions.get() {
        subscribed.store(true, Ordering::Relaxed);
    }
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

fn report_cut(door: &Door, reason: CutReason) {
    door.config.metrics.journal.cut(reason);
    tracing::warn!(?reason, "an event subscriber was too slow and is cut");
}

/// Whether a connection carries an event stream; an extension of its requests.
#[derive(Debug, Clone, Default)]
pub(crate) struct Subscribed(Arc<AtomicBool>);

impl Subscribed {
    /// The connection was cut because it took no bytes for too long.
    pub(crate) fn report_stalled(&self, door: &Door) {
        if self.0.load(Ordering::Relaxed) {
            report_cut(door, CutReason::Stalled);
        }
    }
}

/// One subscriber, at its own position.
struct Subscriber {
    door: Arc<Door>,
    scope: Scope,
    position: u64,
    newest: watch::Receiver<u64>,
    heartbeat: Interval,
    outgoing: Outgoing,
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
        let mut outgoing = Outgoing::default();
        outgoing.frames(&opening);
        let period = door.config.heartbeat;
        let mut heartbeat = interval_at(Instant::now() + period, period);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        door.config.metrics.journal.subscribers.inc();
        Self { door, scope, position: start.position, newest, heartbeat, outgoing }
    }

    fn into_stream(self) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send {
        stream::unfold(self, |mut subscriber| async move {
            let bytes = subscriber.next().await?;
            Some((Ok(Frame::data(bytes)), subscriber))
        })
    }

    /// The next bytes; `None` at shutdown, and for a subscriber that was too slow.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if self.door.shutdown.is_cancelled() {
                return None;
            }
            if let Some(bytes) = self.outgoing.next() {
                return Some(bytes);
            }
            let Ok(batch) = self.door.journal.read_after(self.position) else {
                report_cut(&self.door, CutReason::Behind);
                return None;
            };
            if !batch.is_empty() {
                self.take(&batch);
                tokio::task::consume_budget().await;
                continue;
            }
            tokio::select! {
                () = self.door.shutdown.cancelled() => return None,
                changed = self.newest.changed() => changed.ok()?,
                _ = self.heartbeat.tick() => {
                    let mut bytes = Vec::new();
                    write_own(&mut bytes, &self.scope, "server.heartbeat");
                    return Some(bytes.into());
                }
            }
        }
    }

    /// Puts what is in scope into the outgoing frames, with marks where the ids leap.
    fn take(&mut self, batch: &[Placed]) {
        for (position, entry) in batch {
            let holes = position - self.position - 1;
            self.position = *position;
            let enveloped = match &self.scope {
                Scope::Global => true,
                Scope::Directory(wanted) => match &entry.origin.directory {
                    Some(directory) if **directory != **wanted => continue,
                    _ => false,
                },
            };
            // The ids of one directory leap anyway.
            if enveloped && holes > 0 {
                self.outgoing.superseded(entry.seq - holes, entry.seq - 1);
            }
            self.outgoing.event(entry, enveloped);
        }
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.door.config.metrics.journal.subscribers.dec();
    }
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
