//! Text of a turn's parts: how much of each is in the log, and what an event adds to it. Pure.
//!
//! Only the length and a hash of what was logged are kept, so that the state stays small.

use std::collections::BTreeMap;

use berth_wire::event::{EventPayload, PartReplaced, PartVoided, Voice};
use serde::{Deserialize, Serialize};

use crate::model::TextPart;

/// Bound on the bytes kept of deltas whose part is not known yet, all parts together.
const MAX_HELD_BYTES: usize = 64 * 1024;
/// Bound on the number of such parts.
const MAX_HELD_PARTS: usize = 32;

/// Where a part comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// An event: in order with the deltas.
    Live,
    /// A snapshot: deltas that it covers may still come.
    Snapshot,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum State {
    /// Deltas follow on what was logged.
    Open,
    /// Something may have been missed: deltas wait for the whole text.
    Torn,
    /// opencode streams it anew in another part.
    Voided,
    /// The whole text was seen.
    Ended,
    /// Somebody removed it: later news of it is not shown.
    Removed,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    message: String,
    voice: Voice,
    state: State,
    /// Bytes in the log.
    logged: u64,
    /// Hash of those bytes.
    hash: u64,
}

/// Deltas of a part whose kind is not known yet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Held {
    text: String,
    /// Its beginning, or something of it, is missing.
    torn: bool,
}

/// The text parts of one turn.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Texts {
    parts: BTreeMap<String, Record>,
    held: BTreeMap<String, Held>,
    gap: bool,
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a, continued from `hash`: enough to notice that a text is another one, and can be stored.
pub(super) fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// FNV-1a of all of `bytes`.
pub(super) fn fnv_of(bytes: &[u8]) -> u64 {
    fnv(FNV_OFFSET, bytes)
}

impl Record {
    fn new(message: &str, voice: Voice, state: State) -> Self {
        Self { message: message.to_owned(), voice, state, logged: 0, hash: FNV_OFFSET }
    }

    fn append(&mut self, part: &str, text: &str) -> EventPayload {
        let payload = EventPayload::chunk(self.voice, part, self.logged, text);
        self.logged += text.len() as u64;
        self.hash = fnv(self.hash, text.as_bytes());
        payload
    }

    /// What of `whole` is not logged, if what was logged is its beginning.
    fn rest<'a>(&self, whole: &'a str) -> Option<&'a str> {
        let logged = usize::try_from(self.logged).ok()?;
        let (before, rest) = whole.split_at_checked(logged)?;
        (fnv_of(before.as_bytes()) == self.hash).then_some(rest)
    }

    /// Brings the log to `whole`.
    fn complete(&mut self, part: &str, whole: &str) -> Option<EventPayload> {
        let rest = if self.state == State::Voided { None } else { self.rest(whole) };
        match rest {
            Some("") => None,
            Some(rest) => Some(self.append(part, rest)),
            None => {
                self.logged = whole.len() as u64;
                self.hash = fnv_of(whole.as_bytes());
                let (part_id, text) = (part.to_owned(), whole.to_owned());
                Some(EventPayload::PartReplaced(PartReplaced { part_id, voice: self.voice, text }))
            }
        }
    }

    fn void(&mut self, part: &str) -> Option<EventPayload> {
        self.state = State::Voided;
        (self.logged > 0).then(|| EventPayload::PartVoided(PartVoided { part_id: part.to_owned() }))
    }

    fn is_open(&self) -> bool {
        matches!(self.state, State::Open | State::Torn)
    }
}

impl Texts {
    /// More of a part's text, in a message of the turn.
    pub(super) fn delta(&mut self, part: &str, text: &str) -> Option<EventPayload> {
        if text.is_empty() {
            return None;
        }
        if let Some(record) = self.parts.get_mut(part) {
            return (record.state == State::Open).then(|| record.append(part, text));
        }
        self.hold(part, text);
        None
    }

    fn hold(&mut self, part: &str, text: &str) {
        let bytes: usize = self.held.values().map(|held| held.text.len()).sum();
        if self.held.len() >= MAX_HELD_PARTS && !self.held.contains_key(part) {
            // Nothing is lost: the part's whole text comes when it ends.
            return;
        }
        let held = self.held.entry(part.to_owned()).or_default();
        held.torn |= self.gap || bytes + text.len() > MAX_HELD_BYTES;
        if held.torn {
            held.text = String::new();
        } else {
            held.text.push_str(text);
        }
    }

    /// A text or reasoning part, whole, of a message of the turn.
    pub(super) fn part(
        &mut self,
        part: &str,
        message: &str,
        voice: Voice,
        text: &TextPart,
        source: Source,
    ) -> Option<EventPayload> {
        let held = self.held.remove(part);
        let fresh = if source == Source::Live { State::Open } else { State::Torn };
        let record = self.parts.entry(part.to_owned()).or_insert_with(|| Record::new(message, voice, fresh));
        if record.state == State::Removed {
            return None;
        }
        let ended = text.time.end.is_some();
        if text.text.is_empty() && !ended {
            return Self::begin(record, part, &held.unwrap_or_default(), source);
        }
        let payload = record.complete(part, &text.text);
        record.state = match (ended, source) {
            (true, _) => State::Ended,
            (false, Source::Live) => State::Open,
            (false, Source::Snapshot) => State::Torn,
        };
        payload
    }

    /// A part that is open and shows no text: its deltas follow. Never replaces anything.
    fn begin(record: &mut Record, part: &str, held: &Held, source: Source) -> Option<EventPayload> {
        if source == Source::Snapshot || record.logged > 0 || !record.is_open() {
            return None;
        }
        record.state = if held.torn { State::Torn } else { State::Open };
        (!held.text.is_empty()).then(|| record.append(part, &held.text))
    }

    /// Deltas may have been missed.
    pub(super) fn mark_gap(&mut self) {
        self.gap = true;
        for record in self.parts.values_mut().filter(|record| record.state == State::Open) {
            record.state = State::Torn;
        }
        for held in self.held.values_mut() {
            *held = Held { text: String::new(), torn: true };
        }
    }

    /// A snapshot was taken: every part that had begun is known.
    pub(super) fn gap_closed(&mut self) {
        self.gap = false;
    }

    /// The provider is called again: what is open is streamed anew in other parts.
    pub(super) fn void_open(&mut self) -> Vec<EventPayload> {
        self.void_where(|_, _| true)
    }

    /// A call of the model begins in `message` with this step part: what it had open before was cut off.
    pub(super) fn void_before(&mut self, message: &str, step: &str) -> Vec<EventPayload> {
        self.void_where(|part, record| record.message == message && part < step)
    }

    /// The part, or its message, was removed.
    pub(super) fn remove(&mut self, part: Option<&str>, message: &str) -> Vec<EventPayload> {
        let wanted = |id: &String, record: &Record| part.map_or(record.message == message, |part| id == part);
        let mut payloads = Vec::new();
        for (id, record) in self.parts.iter_mut().filter(|(id, record)| wanted(id, record)) {
            if !matches!(record.state, State::Voided | State::Removed) {
                payloads.extend(record.void(id));
            }
            record.state = State::Removed;
        }
        payloads
    }

    fn void_where(&mut self, wanted: impl Fn(&str, &Record) -> bool) -> Vec<EventPayload> {
        let open = self.parts.iter_mut().filter(|(part, record)| record.is_open() && wanted(part, record));
        open.filter_map(|(part, record)| record.void(part)).collect()
    }

    /// The part turned out to be something else than text.
    pub(super) fn not_text(&mut self, part: &str) {
        self.held.remove(part);
    }

    /// Something may have been missed, and no snapshot was taken since.
    pub(super) fn has_gap(&self) -> bool {
        self.gap
    }

    /// No part of the message waits for more.
    pub(super) fn is_settled(&self, message: &str) -> bool {
        !self.gap && !self.parts.values().any(|record| record.message == message && record.is_open())
    }

    /// Forgets the message's parts.
    pub(super) fn forget(&mut self, message: &str) {
        self.parts.retain(|_, record| record.message != message);
    }
}
