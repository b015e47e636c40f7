//! One frame of `/global/event`: looked at, and kept in the form in which it is sent on. Pure.

use std::{borrow::Cow, ops::Range, sync::Arc};

use berth_wire::door::{Cursor, DoorEvent};
use hyper::body::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::Instant;
use uuid::Uuid;

use super::{
    cumulative::{News, Subject},
    origin::{Origin, Origins, SERVER_LEVEL},
};
use crate::{subscription::ECHO_DIRECTORY, turns::Seen};

/// Kinds that belong to one connection or repeat others, and are not kept.
const NOT_KEPT: [&str; 3] = ["server.connected", "server.heartbeat", "sync"];

/// What an event takes beyond its bytes, with its place in the ring: counted on 64 bits, with malloc's overhead.
const ENTRY_COST: usize = 176;

/// What a subject takes beyond that, with its place in the index.
const SUBJECT_COST: usize = 256;

/// One event in the ring.
#[derive(Debug)]
pub(crate) struct Entry {
    epoch: Arc<str>,
    /// Number in its epoch, from 1.
    pub(crate) seq: u64,
    /// When it was appended.
    pub(super) at: Instant,
    /// Where it comes from.
    pub(crate) origin: Arc<Origin>,
    /// The frame of `/event`: JSON on one line. In `/global/event` it stands in its origin's envelope.
    pub(crate) payload: Bytes,
    /// What it is the state of, for an update that later ones may supersede.
    pub(super) subject: Option<Arc<Subject>>,
    /// What it takes beyond the usual.
    extra: usize,
}

impl Entry {
    pub(super) fn new(
        (epoch, seq): (Arc<str>, u64),
        at: Instant,
        frame: &Frame,
        subject: Option<Arc<Subject>>,
        origins: &mut Origins,
    ) -> Self {
        let Frame { text, payload, .. } = frame;
        let (before, rest) = text.split_at(payload.start);
        let (payload, after) = rest.split_at(payload.len());
        let (origin, fresh) = origins.of(before, after);
        let extra = subject.as_ref().map_or(0, |_| SUBJECT_COST) + if fresh { origin.cost() } else { 0 };
        Self { epoch, seq, at, origin, payload: Bytes::copy_from_slice(payload.as_bytes()), subject, extra }
    }

    /// Its id.
    pub(crate) fn id(&self) -> Cursor {
        Cursor { epoch: self.epoch.to_string(), seq: self.seq }
    }

    /// The name of its epoch.
    pub(crate) fn epoch(&self) -> &str {
        &self.epoch
    }

    /// The frame of `/global/event`.
    #[cfg(test)]
    pub(crate) fn envelope(&self) -> String {
        format!("{}{}{}", self.origin.before, String::from_utf8_lossy(&self.payload), self.origin.after)
    }

    /// Bytes of memory that it takes, about.
    pub(super) fn cost(&self) -> usize {
        self.payload.len() + ENTRY_COST + self.extra
    }
}

/// A frame of `/global/event` that has been looked at.
#[derive(Debug)]
pub(crate) struct Frame {
    text: String,
    /// Where the frame of `/event` stands in it.
    payload: Range<usize>,
    pub(super) news: Option<News>,
    /// What it says about turns.
    pub(crate) seen: Option<Seen>,
    /// The directory that it comes from, for one that says something about turns.
    pub(crate) directory: Option<String>,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default)]
    directory: Option<Cow<'a, str>>,
    #[serde(borrow)]
    payload: &'a RawValue,
}

#[derive(Deserialize)]
struct Payload<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    properties: Option<&'a RawValue>,
}

impl Frame {
    /// Looks at a frame; `None` for one that is not kept, as none of the door's own directory is.
    pub(crate) fn parse(text: String) -> Result<Option<Self>, serde_json::Error> {
        let text = on_one_line(text);
        let Envelope { directory, payload } = serde_json::from_str(&text)?;
        let payload = payload.get();
        let Payload { kind, properties } = serde_json::from_str(payload)?;
        if NOT_KEPT.contains(&&*kind) || directory.as_deref() == Some(ECHO_DIRECTORY) {
            return Ok(None);
        }
        let news = properties.and_then(|properties| News::read(&kind, properties.get()));
        let seen = Seen::read(&kind, payload);
        let directory = directory.filter(|directory| seen.is_some() && directory != SERVER_LEVEL);
        let directory = directory.map(Cow::into_owned);
        let start = payload.as_ptr().addr() - text.as_ptr().addr();
        let payload = start..start + payload.len();
        Ok(Some(Self { text, payload, news, seen, directory }))
    }

    /// The directory whose instance was closed, for a frame that says so.
    pub(crate) fn disposed(&self) -> Option<&str> {
        let Some(Seen::Disposed { directory }) = &self.seen else { return None };
        directory.as_deref().or(self.directory.as_deref())
    }

    /// A frame for an event of the door's own, with an id as opencode's events have.
    pub(crate) fn own(event: &DoorEvent) -> Self {
        let mut json = event.to_global_json();
        json["payload"]["id"] = event_id().into();
        Self::parse(json.to_string())
            .ok()
            .flatten()
            .expect("an own event is an envelope of a kind that is kept")
    }
}

/// In JSON a line break is a space between tokens, and nothing else.
fn on_one_line(text: String) -> String {
    if text.contains(['\n', '\r']) { text.replace(['\n', '\r'], " ") } else { text }
}

/// An id in the shape of opencode's event ids.
pub(crate) fn event_id() -> String {
    format!("evt_{}", Uuid::now_v7().simple())
}
