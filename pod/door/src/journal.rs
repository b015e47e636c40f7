//! The event journal: what was heard of opencode, in order, with ids, within a bound of bytes. Pure but for its lock.
//!
//! Every event has a *position*, which counts from 1 over the door's whole life, and an id `<epoch>-<seq>` for the
//! outside, where `seq` counts from 1 in its epoch. An epoch ends when events may have been missed; its events stay
//! in the ring, so a subscriber that was behind reads them first, and then the `berth.resync` that begins the next.

use std::{
    collections::VecDeque,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use berth_wire::door::{Cursor, DoorEvent, ResyncReason};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::watch;
use uuid::Uuid;

use crate::turns::Seen;

/// What an event costs on top of its bytes.
const ENTRY_COST: usize = 256;

/// Events that one read gives at most.
const BATCH_EVENTS: usize = 256;

/// Bytes after which one read gives no further event.
const BATCH_BYTES: usize = 64 * 1024;

/// Kinds that belong to one connection or repeat others, and are not kept.
const NOT_KEPT: [&str; 3] = ["server.connected", "server.heartbeat", "sync"];

/// Directory name that opencode gives to events of the whole server.
const SERVER_LEVEL: &str = "global";

/// One event.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Its id.
    pub(crate) id: Cursor,
    /// The directory it belongs to; `None` for the whole server.
    pub(crate) directory: Option<String>,
    /// The frame of `/global/event`.
    envelope: Box<str>,
    /// Where the frame of `/event` stands in it.
    payload: Range<usize>,
}

impl Entry {
    /// The frame of `/global/event`.
    pub(crate) fn envelope(&self) -> &str {
        &self.envelope
    }

    /// The frame of `/event`.
    pub(crate) fn payload(&self) -> &str {
        self.envelope.get(self.payload.clone()).unwrap_or_default()
    }
}

/// A frame of `/global/event` that has been looked at.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) directory: Option<String>,
    envelope: Box<str>,
    payload: Range<usize>,
    /// What it says about turns.
    pub(crate) seen: Option<Seen>,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    directory: Option<String>,
    #[serde(borrow)]
    payload: &'a RawValue,
}

#[derive(Deserialize)]
struct Payload {
    #[serde(rename = "type")]
    kind: String,
}

impl Frame {
    /// Looks at a frame; `None` for one that is not kept.
    pub(crate) fn parse(text: String) -> Result<Option<Self>, serde_json::Error> {
        let envelope = text.into_boxed_str();
        let parsed: Envelope<'_> = serde_json::from_str(&envelope)?;
        let payload: Payload = serde_json::from_str(parsed.payload.get())?;
        if NOT_KEPT.contains(&payload.kind.as_str()) {
            return Ok(None);
        }
        let seen = Seen::read(&payload.kind, parsed.payload.get());
        let start = parsed.payload.get().as_ptr().addr() - envelope.as_ptr().addr();
        let payload = start..start + parsed.payload.get().len();
        let directory = parsed.directory.filter(|directory| directory != SERVER_LEVEL);
        Ok(Some(Self { directory, envelope, payload, seen }))
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

/// An id in the shape of opencode's event ids.
pub(crate) fn event_id() -> String {
    format!("evt_{}", Uuid::now_v7().simple())
}

/// The events that a subscriber asked for have left the ring.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Behind;

/// Where a subscriber begins.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Start {
    /// Position after which it reads.
    pub(crate) position: u64,
    /// When its cursor could not be honoured: what it is told first.
    pub(crate) resync: Option<Resync>,
}

/// Tells a subscriber that it is continued elsewhere than where it left.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Resync {
    /// Why.
    pub(crate) reason: ResyncReason,
    /// Oldest id held.
    pub(crate) oldest: Option<Cursor>,
    /// Id of the position from which it is continued.
    pub(crate) current: Cursor,
}

#[derive(Debug)]
struct Epoch {
    name: String,
    /// Position before its first event.
    base: u64,
}

/// The bounded log.
#[derive(Debug)]
struct Ring {
    entries: VecDeque<Arc<Entry>>,
    /// Position of the oldest entry, or of the next one when there is none.
    first: u64,
    bytes: usize,
    limit: usize,
    /// The epochs that have events in the ring, and the current one.
    epochs: VecDeque<Epoch>,
}

impl Ring {
    fn new(limit: usize, epoch: String) -> Self {
        let epochs = VecDeque::from([Epoch { name: epoch, base: 0 }]);
        Self { entries: VecDeque::new(), first: 1, bytes: 0, limit, epochs }
    }

    /// Position of the newest event, 0 before the first.
    fn last(&self) -> u64 {
        self.first + self.entries.len() as u64 - 1
    }

    fn append(&mut self, frame: Frame) -> u64 {
        let position = self.last() + 1;
        let Frame { directory, envelope, payload, seen: _ } = frame;
        self.bytes += envelope.len() + ENTRY_COST;
        let id = self.id_at_end(position);
        self.entries.push_back(Arc::new(Entry { id, directory, envelope, payload }));
        self.evict();
        position
    }

    /// Drops the oldest events beyond the limit, but never the newest one.
    fn evict(&mut self) {
        while self.bytes > self.limit && self.entries.len() > 1 {
            let Some(entry) = self.entries.pop_front() else { break };
            self.bytes -= entry.envelope.len() + ENTRY_COST;
            self.first += 1;
        }
        while self.epochs.get(1).is_some_and(|next| next.base + 1 < self.first) {
            self.epochs.pop_front();
        }
    }

    fn begin_epoch(&mut self, name: String) {
        let base = self.last();
        self.epochs.push_back(Epoch { name, base });
    }

    /// Id of a position in the current epoch.
    fn id_at_end(&self, position: u64) -> Cursor {
        let epoch = self.epochs.back().expect("there is always a current epoch");
        Cursor { epoch: epoch.name.clone(), seq: position - epoch.base }
    }

    fn current(&self) -> Cursor {
        self.id_at_end(self.last())
    }

    fn start(&self, cursor: Option<&str>) -> Start {
        let position = match cursor.map(|cursor| self.position(cursor)) {
            None => return Start { position: self.last(), resync: None },
            Some(Ok(position)) => return Start { position, resync: None },
            Some(Err(reason)) => reason,
        };
        let oldest = self.entries.front().map(|entry| entry.id.clone());
        let resync = Resync { reason: position, oldest, current: self.current() };
        Start { position: self.last(), resync: Some(resync) }
    }

    fn position(&self, cursor: &str) -> Result<u64, ResyncReason> {
        let cursor: Cursor = cursor.parse().map_err(|_| ResyncReason::InvalidCursor)?;
        let epoch = self.epochs.iter().position(|epoch| epoch.name == cursor.epoch);
        let epoch = epoch.ok_or(ResyncReason::EpochChanged)?;
        let end = self.epochs.get(epoch + 1).map_or_else(|| self.last(), |next| next.base);
        let position = self.epochs.get(epoch).and_then(|epoch| epoch.base.checked_add(cursor.seq));
        match position.filter(|position| *position <= end) {
            None => Err(ResyncReason::InvalidCursor),
            Some(position) if position + 1 < self.first => Err(ResyncReason::Expired),
            Some(position) => Ok(position),
        }
    }

    fn read_after(&self, position: u64) -> Result<Vec<Arc<Entry>>, Behind> {
        let skip = (position + 1).checked_sub(self.first).ok_or(Behind)?;
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        let mut bytes = 0;
        let within = |entry: &&Arc<Entry>| {
            let fits = bytes < BATCH_BYTES;
            bytes += entry.envelope.len();
            fits
        };
        Ok(self.entries.iter().skip(skip).take(BATCH_EVENTS).take_while(within).map(Arc::clone).collect())
    }
}

/// The journal that the subscription writes and every subscriber reads, each at its own pace. There is no queue per
/// subscriber: one that does not read costs nothing but its connection.
#[derive(Debug)]
pub(crate) struct Journal {
    ring: Mutex<Ring>,
    newest: watch::Sender<u64>,
}

impl Journal {
    /// An empty journal in a new epoch, which keeps `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self { ring: Mutex::new(Ring::new(limit, new_epoch())), newest: watch::Sender::new(0) }
    }

    /// Adds an event.
    pub(crate) fn append(&self, frame: Frame) {
        let mut ring = self.lock();
        let position = ring.append(frame);
        self.newest.send_replace(position);
    }

    /// Begins a new epoch with a `berth.resync` in it: events may have been missed.
    pub(crate) fn begin_epoch(&self) {
        let mut ring = self.lock();
        let oldest = ring.entries.front().map(|entry| entry.id.to_string());
        ring.begin_epoch(new_epoch());
        let event = DoorEvent::Resync { reason: ResyncReason::UpstreamGap, oldest };
        let position = ring.append(Frame::own(&event));
        self.newest.send_replace(position);
    }

    /// Where a subscriber with this cursor begins; without one, from now on.
    pub(crate) fn start(&self, cursor: Option<&str>) -> Start {
        self.lock().start(cursor)
    }

    /// Events after `position`, as many as fit a batch; empty when there are none yet.
    pub(crate) fn read_after(&self, position: u64) -> Result<Vec<Arc<Entry>>, Behind> {
        self.lock().read_after(position)
    }

    /// Id of the newest event; `seq` is 0 when its epoch has none.
    pub(crate) fn current(&self) -> Cursor {
        self.lock().current()
    }

    /// Changes with every event.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn new_epoch() -> String {
    Uuid::new_v4().simple().to_string()
}

#[cfg(test)]
mod tests;
