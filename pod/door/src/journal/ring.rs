//! The bounded log behind the journal. Pure.
//!
//! What was superseded leaves a *hole*: its bytes are given back, its position stays used.

use std::{collections::VecDeque, sync::Arc};

use berth_wire::door::{Cursor, ResyncReason};
use tokio::time::Instant;

use super::{
    cumulative::Index,
    frame::{Entry, Frame},
    origin::Origins,
};

/// What a hole costs. It is more than its place takes, so that a ring full of holes stays quick to read.
const HOLE_COST: usize = 64;

/// Events that one read gives at most.
const BATCH_EVENTS: usize = 256;

/// Bytes after which one read gives no further event.
const BATCH_BYTES: usize = 64 * 1024;

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

/// An event and its position.
pub(crate) type Placed = (u64, Arc<Entry>);

#[derive(Debug)]
struct Epoch {
    name: Arc<str>,
    /// Position before its first event.
    base: u64,
}

#[derive(Debug)]
pub(super) struct Ring {
    /// Events, and holes where there was one. The newest is never a hole.
    slots: VecDeque<Option<Arc<Entry>>>,
    /// Position of the oldest slot, or of the next event when there is none.
    first: u64,
    bytes: usize,
    limit: usize,
    /// The epochs that have events in the ring, and the current one.
    epochs: VecDeque<Epoch>,
    index: Index,
    origins: Origins,
}

impl Ring {
    pub(super) fn new(limit: usize, epoch: &str) -> Self {
        let epochs = VecDeque::from([Epoch { name: epoch.into(), base: 0 }]);
        Self {
            slots: VecDeque::new(),
            first: 1,
            bytes: 0,
            limit,
            epochs,
            index: Index::default(),
            origins: Origins::default(),
        }
    }

    /// Position of the newest event, 0 before the first.
    pub(super) fn last(&self) -> u64 {
        self.first + self.slots.len() as u64 - 1
    }

    /// Bytes held, as they count for the limit.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The oldest event.
    pub(super) fn oldest(&self) -> Option<&Arc<Entry>> {
        self.slots.iter().flatten().next()
    }

    /// Adds an event; true when an earlier one became a hole for it.
    pub(super) fn append(&mut self, mut frame: Frame, at: Instant) -> bool {
        let position = self.last() + 1;
        let noted = frame.news.take().map(|news| self.index.note(news, position));
        let (subject, superseded) = noted.unzip();
        let place = self.place_at_end(position);
        let entry = Entry::new(place, at, &frame, subject, &mut self.origins);
        self.bytes += entry.cost();
        self.slots.push_back(Some(Arc::new(entry)));
        let hole = superseded.flatten().is_some_and(|superseded| self.make_hole(superseded));
        self.evict();
        hole
    }

    fn make_hole(&mut self, position: u64) -> bool {
        let index = position.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        let Some(entry) = index.and_then(|index| self.slots.get_mut(index)).and_then(Option::take) else {
            return false;
        };
        self.bytes = self.bytes - entry.cost() + HOLE_COST;
        true
    }

    /// Drops the oldest events beyond the limit, but never the newest one.
    fn evict(&mut self) {
        while self.bytes > self.limit && self.slots.len() > 1 {
            match self.slots.pop_front().flatten() {
                Some(entry) => {
                    self.bytes -= entry.cost();
                    if let Some(subject) = &entry.subject {
                        self.index.forget(subject, self.first);
                    }
                }
                None => self.bytes -= HOLE_COST,
            }
            self.first += 1;
        }
        while self.epochs.get(1).is_some_and(|next| next.base + 1 < self.first) {
            self.epochs.pop_front();
        }
    }

    /// Ends the current epoch. Nothing of it is superseded by what comes, so each hole has an event of its own epoch
    /// after it.
    pub(super) fn begin_epoch(&mut self, name: &str) {
        let base = self.last();
        self.epochs.push_back(Epoch { name: name.into(), base });
        self.index.clear();
    }

    /// Epoch and number of a position in the current epoch.
    fn place_at_end(&self, position: u64) -> (Arc<str>, u64) {
        let epoch = self.epochs.back().expect("there is always a current epoch");
        (Arc::clone(&epoch.name), position - epoch.base)
    }

    pub(super) fn current(&self) -> Cursor {
        let (epoch, seq) = self.place_at_end(self.last());
        Cursor { epoch: epoch.to_string(), seq }
    }

    pub(super) fn start(&self, cursor: Option<&str>) -> Start {
        let reason = match cursor.map(|cursor| self.position(cursor)) {
            None => return Start { position: self.last(), resync: None },
            Some(Ok(position)) => return Start { position, resync: None },
            Some(Err(reason)) => reason,
        };
        let oldest = self.oldest().map(|entry| entry.id());
        let resync = Resync { reason, oldest, current: self.current() };
        Start { position: self.last(), resync: Some(resync) }
    }

    fn position(&self, cursor: &str) -> Result<u64, ResyncReason> {
        let cursor: Cursor = cursor.parse().map_err(|_| ResyncReason::InvalidCursor)?;
        let epoch = self.epochs.iter().position(|epoch| *epoch.name == *cursor.epoch);
        let epoch = epoch.ok_or(ResyncReason::EpochChanged)?;
        let end = self.epochs.get(epoch + 1).map_or_else(|| self.last(), |next| next.base);
        let position = self.epochs.get(epoch).and_then(|epoch| epoch.base.checked_add(cursor.seq));
        match position.filter(|position| *position <= end) {
            None => Err(ResyncReason::InvalidCursor),
            Some(position) if position + 1 < self.first => Err(ResyncReason::Expired),
            Some(position) => Ok(position),
        }
    }

    /// Events after `position` with theirs, as many as fit a batch. A leap in the positions is holes.
    pub(super) fn read_after(&self, position: u64) -> Result<Vec<Placed>, Behind> {
        let skip = (position + 1).checked_sub(self.first).ok_or(Behind)?;
        let skip = usize::try_from(skip).map_or(self.slots.len(), |skip| skip.min(self.slots.len()));
        let mut bytes = 0;
        let within = |(_, entry): &Placed| {
            let fits = bytes < BATCH_BYTES;
            bytes += entry.cost();
            fits
        };
        let placed = (position + 1..).zip(self.slots.range(skip..));
        let events = placed.filter_map(|(position, slot)| Some((position, Arc::clone(slot.as_ref()?))));
        Ok(events.take(BATCH_EVENTS).take_while(within).collect())
    }
}

#[cfg(test)]
mod tests;
