//! The requests of a session that wait for a person, and what opencode was told about them. Pure.

use std::collections::{BTreeMap, HashMap};

use berth_wire::event::{EventPayload, Resolution, ResolvedBy};
use jiff::{SignedDuration, Timestamp};

use super::super::asks::{self, Settlement};
use crate::store::{OpenAsk, SessionWork};

/// When the rejection of an ask is sent again that opencode refused.
const AGAIN: SignedDuration = SignedDuration::from_secs(30);

/// An ask that waits.
#[derive(Debug)]
struct Ask {
    request: EventPayload,
    expires_at: Timestamp,
    /// opencode refused the answer that it was given: the deadline is the next try.
    refused: bool,
}

/// The asks of a session.
#[derive(Debug, Default)]
pub(super) struct Asking {
    open: BTreeMap<String, Ask>,
    /// What was told to opencode, until it confirms.
    told: HashMap<String, Settlement>,
}

impl Asking {
    /// Asks as stored; whoever told opencode something about them is gone.
    pub(super) fn new(stored: &[OpenAsk]) -> Self {
        let mut asking = Self::default();
        for ask in stored {
            asking.open(&ask.id, ask.request.clone(), ask.expires_at);
        }
        asking
    }

    pub(super) fn open(&mut self, id: &str, request: EventPayload, expires_at: Timestamp) {
        self.open.insert(id.to_owned(), Ask { request, expires_at, refused: false });
    }

    /// The turn has ended.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    fn waiting(&self) -> impl Iterator<Item = (&String, &Ask)> {
        self.open.iter().filter(|(id, _)| !self.told.contains_key(*id))
    }

    /// What persons decided, and what their rules give.
    pub(super) fn decided(&self, work: &SessionWork) -> Vec<(String, Settlement)> {
        let answer = |id: &String| work.asks.iter().find(|ask| &ask.id == id)?.answer.as_ref();
        let settle = |(id, ask): (&String, &Ask)| {
            let by_person = answer(id).map(asks::by_person);
            let settlement = by_person.or_else(|| asks::by_rule(&ask.request, &work.rules))?;
            Some((id.clone(), settlement))
        };
        self.waiting().filter(|(_, ask)| !ask.refused).filter_map(settle).collect()
    }

    /// Asks that nobody has settled in time.
    pub(super) fn late(&self, clock: Timestamp) -> impl Iterator<Item = &String> {
        self.waiting().filter(move |(_, ask)| ask.expires_at <= clock).map(|(id, _)| id)
    }

    /// What the deadline decides.
    pub(super) fn expired(&self, clock: Timestamp) -> Vec<(String, Settlement)> {
        let by_deadline = |id: &String| {
            let (_, kind) = asks::ask_of(&self.open.get(id)?.request)?;
            Some((id.clone(), asks::by_deadline(kind)))
        };
        self.late(clock).filter_map(by_deadline).collect()
    }

    /// opencode is being told.
    pub(super) fn tell(&mut self, id: &str, settlement: Settlement) {
        self.told.insert(id.to_owned(), settlement);
    }

    /// opencode did not take the answer: it is due again where that can help, else the deadline's default is, and that
    /// again after a while.
    pub(super) fn not_taken(&mut self, id: &str, refused: bool, clock: Timestamp) {
        let told = self.told.remove(id);
        let Some(ask) = self.open.get_mut(id).filter(|_| refused) else { return };
        ask.refused = true;
        if told.is_some_and(|told| told.by == ResolvedBy::Deadline) {
            ask.expires_at = clock.saturating_add(AGAIN).unwrap_or(Timestamp::MAX);
        }
    }

    /// Forgets an ask; what we had decided about it, if we had and opencode tells the same, says how it ended and by
    /// whom. It tells otherwise when the ask ended with its turn, or was rejected along with another one.
    pub(super) fn close(&mut self, id: &str, resolution: &mut Resolution, by: &mut ResolvedBy) {
        self.open.remove(id);
        if let Some(told) = self.told.remove(id)
            && is_same(told.resolution, *resolution)
        {
            (*resolution, *by) = (told.resolution, told.by);
        }
    }
}

fn is_same(decided: Resolution, told: Resolution) -> bool {
    decided == told || (decided == Resolution::Always && told == Resolution::Once)
}
