//! The door's turn table behind its lock: fed by requests and by opencode's events, read by everyone who must know
//! what runs. What follows from it is journaled right after the event that caused it, and done by [`work`].
//!
//! The table itself is pure: see [`table`] and [`session`]. IO: clocks, the journal, a queue of actions.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use berth_wire::door::{DoorEvent, DoorTurns};
use jiff::Timestamp;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use crate::{
    journal::{Frame, Journal},
    metrics::TurnMetrics,
};

pub(crate) mod call;
mod peek;
mod probe;
mod seen;
mod session;
mod spoilt;
mod table;
mod turn;
mod work;

pub(crate) use seen::Seen;
pub(crate) use spoilt::Spoil;
pub(crate) use table::{Idleness, LiveDirectory};
pub(crate) use work::run;

use session::{Evidence, Listed, Plan};
use table::{Table, TooMany, Working};
use turn::{Action, Admission, Now, Out, Ticket};

/// The table, shared.
#[derive(Debug)]
pub(crate) struct Turns {
    inner: Mutex<Inner>,
    origin: Instant,
    version: watch::Sender<u64>,
    /// Rung after every change: there may be actions, or another deadline.
    changed: Notify,
    metrics: TurnMetrics,
}

#[derive(Debug)]
struct Inner {
    table: Table,
    /// What is to be done. Bounded by the table: one question and one abort at a time for each session.
    actions: Vec<Action>,
}

impl Turns {
    /// An empty table. A prompt that opencode took must begin within `start_bound`.
    pub(crate) fn new(start_bound: Duration, metrics: TurnMetrics) -> Self {
        Self {
            inner: Mutex::new(Inner { table: Table::new(start_bound), actions: Vec::new() }),
            origin: Instant::now(),
            version: watch::Sender::new(0),
            changed: Notify::new(),
            metrics,
        }
    }

    /// Takes a frame of opencode's and journals it, with what follows from it behind it.
    pub(crate) fn keep(&self, journal: &Journal, mut frame: Frame) {
        let Some(seen) = frame.seen.take() else { return journal.append(frame) };
        let directory = frame.directory.clone();
        self.change(journal, |table, now, out| {
            table.observe(directory.as_deref(), &seen, now, out);
            journal.append(frame);
        });
    }

    /// A run of opencode is subscribed to. See [`Table::hears`].
    pub(crate) fn hears(&self, journal: &Journal, boot_id: &str, whole: bool) {
        self.change(journal, |table, now, out| table.hears(boot_id, whole, now, out));
    }

    /// That run is over.
    pub(crate) fn exited(&self, journal: &Journal, boot_id: &str) {
        self.change(journal, |table, _, out| table.exited(boot_id, out));
    }

    /// The instance of a directory was closed.
    pub(crate) fn disposed(&self, journal: &Journal, directory: &str) {
        let seen = Seen::Disposed { directory: Some(directory.to_owned()) };
        self.change(journal, |table, now, out| table.observe(Some(directory), &seen, now, out));
    }

    /// Whether the instance of a directory is spoilt, as far as that is known: a prompt there would be swallowed.
    pub(crate) fn spoil(&self, directory: &str) -> Option<Spoil> {
        self.lock().table.spoil(directory)
    }

    /// A spoilt directory cannot be renewed now: prompts pass all the same.
    pub(crate) fn forgive(&self, directory: &str) {
        self.lock().table.forgive(directory);
    }

    /// What runs in opencode, as it said after event `count`.
    fn seed(&self, journal: &Journal, working: &[Working], count: u64) {
        self.change(journal, |table, now, out| table.seed(working, count, now, out));
    }

    fn confirmed(&self, journal: &Journal, session: &str, evidence: &Evidence) {
        self.change(journal, |table, now, out| table.confirmed(session, evidence, now, out));
    }

    fn abort_returned(&self, journal: &Journal, session: &str) {
        self.change(journal, |table, now, out| table.abort_returned(session, now, out));
    }

    fn tick(&self, journal: &Journal) {
        self.change(journal, Table::tick);
    }

    fn change<T>(&self, journal: &Journal, change: impl FnOnce(&mut Table, Now, &mut Out) -> T) -> T {
        let mut inner = self.lock();
        let mut out = Out::default();
        let now = Now { elapsed: self.origin.elapsed(), unix: Timestamp::now() };
        let result = change(&mut inner.table, now, &mut out);
        for event in out.events {
            journal.append(Frame::own(&DoorEvent::Turn(event)));
        }
        inner.actions.append(&mut out.actions);
        self.metrics.forgotten_sessions.inc_by(std::mem::take(&mut inner.table.forgotten));
        drop(inner);
        self.version.send_modify(|version| *version += 1);
        self.changed.notify_one();
        result
    }

    fn take_actions(&self) -> Vec<Action> {
        std::mem::take(&mut self.lock().actions)
    }

    fn deadline(&self) -> Option<Instant> {
        self.lock().table.deadline().map(|elapsed| self.origin + elapsed)
    }

    /// Whether anything runs.
    pub(crate) fn idleness(&self) -> Idleness {
        self.lock().table.idleness()
    }

    /// Changes whenever the table may have.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// The directories in use, with their last use on the clock of [`Turns::elapsed`].
    pub(crate) fn live_directories(&self) -> Vec<LiveDirectory> {
        self.lock().table.live_directories()
    }

    /// The table's clock.
    pub(crate) fn elapsed(&self) -> Duration {
        self.origin.elapsed()
    }

    /// What `GET /berth/turns` answers.
    pub(crate) fn view(&self) -> DoorTurns {
        self.lock().table.view()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
