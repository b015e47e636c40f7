//! A subscriber that behaves as a browser does: it comes back with the last id that it has seen. And what must hold of
//! all that it was given.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use berth_wire::door::{Cursor, DoorEvent};
use serde_json::Value;
use tokio::task::JoinHandle;

/// Pause before it comes back.
const PAUSE: Duration = Duration::from_millis(50);

/// Something that it was given.
#[derive(Debug, Clone)]
pub(crate) enum Seen {
    /// A frame with an id.
    Frame {
        /// Its id.
        cursor: Cursor,
        /// The directory that it belongs to, when it says so.
        directory: Option<String>,
        /// The event.
        payload: Value,
    },
    /// Numbers that were superseded and are left out.
    Superseded(u64, u64),
}

/// A subscriber; ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Subscriber {
    seen: Arc<Mutex<Vec<Seen>>>,
    task: JoinHandle<()>,
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Subscriber {
    /// Subscribes at this URL, and again whenever the stream ends.
    #[expect(clippy::disallowed_methods, reason = "the task ends with its owner, which aborts it")]
    pub(crate) fn start(client: reqwest::Client, url: String, password: String) -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let to = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            let mut last = None;
            loop {
                let mut request = client.get(&url).basic_auth("opencode", Some(&password));
                if let Some(last) = &last {
                    request = request.header("last-event-id", last);
                }
                if let Ok(response) = request.send().await
                    && response.status() == 200
                {
                    read(response, &to, &mut last).await;
                }
                tokio::time::sleep(PAUSE).await;
            }
        });
        Self { seen, task }
    }

    /// Everything so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// The events so far.
    pub(crate) fn events(&self) -> Vec<Value> {
        let payload = |seen| match seen {
            Seen::Frame { payload, .. } => Some(payload),
            Seen::Superseded(..) => None,
        };
        self.seen().into_iter().filter_map(payload).collect()
    }

    /// How many events so far.
    pub(crate) fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    /// The door's own events of this kind, each with its cursor.
    pub(crate) fn own(&self, kind: &str) -> Vec<Value> {
        self.events().into_iter().filter(|event| event["type"] == kind).collect()
    }

    /// Fails if there is a hole or a double that nothing explains; gives the number of resyncs.
    pub(crate) fn check_dense(&self) -> u64 {
        let mut last: Option<Cursor> = None;
        let mut covered = 0;
        let mut resyncs = 0;
        for seen in self.seen() {
            match seen {
                Seen::Superseded(from, to) => {
                    let at = last.as_ref().expect("nothing is superseded before the first").seq.max(covered);
                    assert!(from == at + 1 && to >= from, "superseded {from}-{to} after {last:?}");
                    covered = to;
                }
                Seen::Frame { cursor, payload, .. } => {
                    let is_resync =
                        matches!(serde_json::from_value(payload.clone()), Ok(DoorEvent::Resync { .. }));
                    resyncs += u64::from(is_resync);
                    if let Some(last) = &last
                        && !is_resync
                    {
                        assert_eq!(cursor.epoch, last.epoch, "another epoch without a resync: {payload}");
                        let next = last.seq.max(covered) + 1;
                        assert_eq!(cursor.seq, next, "a hole or a double: {payload}");
                    }
                    (last, covered) = (Some(cursor), 0);
                }
            }
        }
        resyncs
    }

    /// Fails unless this subscriber of one directory was given what `global` was, as far as it is of this directory or
    /// of the whole server, between the first and the last event that both saw of an epoch. An update may be missing
    /// where a later one of the same thing is there: those may be superseded, which is not told to one directory.
    pub(crate) fn check_against(&self, global: &Self, directory: &str) {
        let (mine, theirs) = (frames(self.seen()), frames(global.seen()));
        let mut epochs: Vec<&str> = mine.iter().map(|(cursor, ..)| cursor.epoch.as_str()).collect();
        epochs.dedup();
        for epoch in epochs {
            let of = |frames: &[Frame]| -> BTreeMap<u64, Value> {
                let concerns = |(cursor, of, payload): &&Frame| {
                    cursor.epoch == epoch
                        && of.as_deref().is_none_or(|of| of == directory || of == "global")
                        && payload["type"] != "berth.resync"
                };
                frames.iter().filter(concerns).map(|(cursor, _, event)| (cursor.seq, event.clone())).collect()
            };
            let (mine, theirs) = (of(&mine), of(&theirs));
            let bounds = |of: &BTreeMap<u64, Value>| Some((*of.keys().next()?, *of.keys().next_back()?));
            let (Some(one), Some(other)) = (bounds(&mine), bounds(&theirs)) else { continue };
            let both = one.0.max(other.0)..=one.1.min(other.1);
            for (seq, event) in theirs.range(both.clone()).filter(|(seq, _)| !mine.contains_key(seq)) {
                let later = mine.range(seq + 1..).any(|(_, later)| subject(later) == subject(event));
                assert!(later && subject(event).is_some(), "{epoch}-{seq} is missing: {event}");
            }
            for (seq, event) in mine.range(both.clone()) {
                let is_known = theirs.get(seq).is_none_or(|known| known == event);
                assert!(is_known, "{epoch}-{seq} is another: {event}");
            }
        }
    }
}

/// What an update is about: its kind and the id of the thing.
fn subject(event: &Value) -> Option<(&str, &str)> {
    let (kind, properties) = (event["type"].as_str()?, &event["properties"]);
    let id = properties["part"]["id"].as_str().or_else(|| properties["info"]["id"].as_str());
    let id = id.or_else(|| properties["sessionID"].as_str())?;
    (kind.ends_with(".updated") || kind == "session.diff").then_some((kind, id))
}

/// Cursor, directory and event of a frame.
type Frame = (Cursor, Option<String>, Value);

fn frames(seen: Vec<Seen>) -> Vec<Frame> {
    let frame = |seen| match seen {
        Seen::Frame { cursor, directory, payload } => Some((cursor, directory, payload)),
        Seen::Superseded(..) => None,
    };
    seen.into_iter().filter_map(frame).collect()
}

/// Reads a stream to its end.
async fn read(mut response: reqwest::Response, to: &Mutex<Vec<Seen>>, last: &mut Option<String>) {
    let mut rest = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        rest.extend_from_slice(&chunk);
        while let Some(end) = rest.windows(2).position(|two| two == b"\n\n") {
            let frame: Vec<u8> = rest.drain(..end + 2).collect();
            take(&String::from_utf8(frame).expect("UTF-8"), to, last);
        }
    }
}

/// Takes one frame, or a comment.
fn take(frame: &str, to: &Mutex<Vec<Seen>>, last: &mut Option<String>) {
    let mut id = None;
    for line in frame.lines() {
        if let Some(range) = line.strip_prefix(": superseded ") {
            let (from, end) = range.split_once('-').expect("a range");
            let range = Seen::Superseded(from.parse().expect("a number"), end.parse().expect("a number"));
            to.lock().unwrap().push(range);
        } else if let Some(given) = line.strip_prefix("id: ") {
            *last = Some(given.to_owned());
            id = Some(given.parse().expect("a cursor"));
        } else if let Some(data) = line.strip_prefix("data: ") {
            let Some(cursor) = id.take() else { continue };
            let mut json: Value = serde_json::from_str(data).expect("JSON");
            let directory = json["directory"].as_str().map(ToOwned::to_owned);
            let payload = if json["payload"].is_object() { json["payload"].take() } else { json };
            to.lock().unwrap().push(Seen::Frame { cursor, directory, payload });
        }
    }
}
