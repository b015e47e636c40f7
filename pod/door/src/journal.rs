//! The event journal: what was heard of opencode, in order, with ids, within a bound of bytes. Pure but for its lock
//! and its clock.
//!
//! Every event has a *position*, which counts from 1 over the door's whole life, and an id `<epoch>-<seq>` for the
//! outside, where `seq` counts from 1 in its epoch. An epoch ends when events may have been missed; its events stay
//! in the ring, so a subscriber that was behind reads them first, and then the `berth.resync` that begins the next.
//!
//! `frame` looks at events, `cumulative` tells which of them make others superfluous, `origin` keeps what they have in common,
//! `ring` keeps them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use berth_wire::door::{Cursor, DoorEvent, ResyncReason};
use tokio::{sync::watch, time::Instant};
use uuid::Uuid;

mod cumulative;
mod frame;
mod origin;
mod ring;

use ring::Ring;

pub(crate) use self::{
    frame::{Entry, Frame, event_id},
    ring::{Behind, Placed, Resync, Start},
};
use crate::metrics::JournalMetrics;

/// The journal that the subscription writes and every subscriber reads, each at its own pace. There is no queue per
/// subscriber: one that does not read costs nothing but its connection.
#[derive(Debug)]
pub(crate) struct Journal {
    ring: Mutex<Ring>,
    newest: watch::Sender<u64>,
    metrics: JournalMetrics,
}

impl Journal {
    /// An empty journal in a new epoch, which keeps `limit` bytes.
    pub(crate) fn new(limit: usize, metrics: JournalMetrics) -> Self {
        metrics.epochs.inc();
        Self { ring: Mutex::new(Ring::new(limit, &new_epoch())), newest: watch::Sender::new(0), metrics }
    }

    /// Adds an event.
    pub(crate) fn append(&self, frame: Frame) {
        self.append_to(&mut self.lock(), frame);
    }

    /// Begins a new epoch with a `berth.resync` in it: events may have been missed.
    pub(crate) fn begin_epoch(&self) {
        let mut ring = self.lock();
        let oldest = ring.oldest().map(|entry| entry.id().to_string());
        ring.begin_epoch(&new_epoch());
        self.metrics.epochs.inc();
        self.metrics.resync(ResyncReason::UpstreamGap);
        let event = DoorEvent::Resync { reason: ResyncReason::UpstreamGap, oldest };
        self.append_to(&mut ring, Frame::own(&event));
    }

    fn append_to(&self, ring: &mut Ring, frame: Frame) {
        let now = Instant::now();
        let superseded = ring.append(frame, now);
        let held = ring.oldest().map_or(0.0, |oldest| (now - oldest.at).as_secs_f64());
        self.metrics.appended(superseded, ring.bytes(), held);
        self.newest.send_replace(ring.last());
    }

    /// Where a subscriber with this cursor begins; without one, from now on.
    pub(crate) fn start(&self, cursor: Option<&str>) -> Start {
        let start = self.lock().start(cursor);
        if let Some(resync) = &start.resync {
            self.metrics.resync(resync.reason);
        }
        start
    }

    /// Events after `position` and theirs, as many as fit a batch; empty when there are none yet.
    pub(crate) fn read_after(&self, position: u64) -> Result<Vec<Placed>, Behind> {
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
