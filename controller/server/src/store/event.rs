//! Entries of the log as a store hands them out: payloads stay the JSON text that was stored, since most readers only
//! pass it on. Pure.

use berth_wire::event::{EventPayload, PAYLOAD_VERSION, SessionEvent, to_current, unreadable};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

/// How much of a log is read at once; at least one entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogBounds {
    /// Most entries.
    pub entries: i64,
    /// Most bytes of payloads; the entry that passes the bound is the last.
    pub bytes: usize,
}

impl Default for LogBounds {
    fn default() -> Self {
        Self { entries: 512, bytes: 1024 * 1024 }
    }
}

/// Entries that were read at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogPage {
    /// In order.
    pub events: Vec<StoredEvent>,
    /// A bound ended it: there may be more. Where none did, there was no more at the time of the look.
    pub cut: bool,
}

/// An entry of a session's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEvent {
    /// The session.
    pub session_id: Uuid,
    /// Number in the session's log.
    pub seq: i64,
    /// The turn it belongs to, if any.
    pub turn_id: Option<Uuid>,
    /// When it was committed.
    pub at: Timestamp,
    /// Its kind.
    pub kind: String,
    /// Its payload as JSON text, in the form of this version.
    pub payload: String,
}

#[derive(Serialize)]
struct Head<'a> {
    session_id: Uuid,
    seq: i64,
    turn_id: Option<Uuid>,
    at: Timestamp,
    kind: &'a str,
}

impl StoredEvent {
    /// Takes a stored payload of any version: one of this version is left as it is.
    #[must_use]
    pub fn of_version(mut self, version: i64) -> Self {
        if version != PAYLOAD_VERSION {
            let (kind, payload) = match serde_json::from_str(&self.payload) {
                Ok(payload) => to_current(self.kind, version, payload),
                Err(_) => unreadable(&self.kind, version),
            };
            self.kind = kind;
            self.payload = payload.to_string();
        }
        self
    }

    /// The entry as JSON text: what [`SessionEvent`] is serialised to.
    pub fn to_json(&self) -> String {
        let Self { session_id, seq, turn_id, at, kind, payload } = self;
        let head = Head { session_id: *session_id, seq: *seq, turn_id: *turn_id, at: *at, kind };
        let mut text = serde_json::to_string(&head).expect("plain data serialises");
        text.truncate(text.len() - 1);
        text.reserve(payload.len() + 16);
        text.extend([",\"payload\":", payload, "}"]);
        text
    }

    /// The entry, read. A payload that is no JSON is not readable.
    pub fn into_event(self) -> SessionEvent {
        let payload = serde_json::from_str::<Value>(&self.payload).map_or_else(
            |_| {
                let (kind, payload) = unreadable(&self.kind, PAYLOAD_VERSION);
                EventPayload::from_parts(&kind, payload)
            },
            |payload| EventPayload::from_parts(&self.kind, payload),
        );
        let Self { session_id, seq, turn_id, at, .. } = self;
        SessionEvent { session_id, seq, turn_id, at, payload }
    }
}

#[cfg(test)]
mod tests {
    use berth_wire::event::Voice;

    use super::*;

    #[test]
    fn the_text_is_what_the_event_serialises_to() {
        let payload = EventPayload::chunk(Voice::Message, "prt_1", 7, "naïve \"🦀\"\n");
        let (kind, value) = payload.to_parts();
        for turn_id in [None, Some(Uuid::now_v7())] {
            let stored = StoredEvent {
                session_id: Uuid::now_v7(),
                seq: 3,
                turn_id,
                at: Timestamp::from_millisecond(1_700_000_000_123).unwrap(),
                kind: kind.clone(),
                payload: value.to_string(),
            };
            let text = stored.to_json();
            assert!(!text.contains('\n'), "one line: {text}");
            let event = stored.of_version(PAYLOAD_VERSION).into_event();
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), serde_json::to_value(&event).unwrap());
            assert_eq!(event.payload, payload);
        }
    }

    #[test]
    fn what_cannot_be_read_is_said_to_be_so() {
        let stored = |payload: &str| StoredEvent {
            session_id: Uuid::nil(),
            seq: 1,
            turn_id: None,
            at: Timestamp::UNIX_EPOCH,
            kind: "turn_ended".to_owned(),
            payload: payload.to_owned(),
        };
        for (payload, version) in
            [("{", PAYLOAD_VERSION), ("{", 0), ("{}", 99), ("{", 99), ("", -1), ("{}", -1)]
        {
            let event = stored(payload).of_version(version).into_event();
            let EventPayload::Unreadable(unreadable) = event.payload else {
                panic!("{payload} {version}: {event:?}")
            };
            assert_eq!((unreadable.kind.as_str(), unreadable.version), ("turn_ended", version));
        }
    }
}
