//! Event streams read frame by frame, with the marks of what was superseded, and what must hold of every one of them.

use std::collections::HashSet;

use berth_wire::door::Cursor;
use futures_util::{Stream, StreamExt};
use serde_json::Value;
use tokio::time::{Duration, timeout};

use crate::rig::{BOUND, RunningDoor, within};

/// One event of `/global/event`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Seen {
    pub(crate) id: Cursor,
    /// Numbers before it that were superseded.
    pub(crate) superseded: Option<(u64, u64)>,
    pub(crate) kind: String,
    pub(crate) payload: Value,
    /// Bytes of its frame.
    pub(crate) bytes: usize,
}

/// A subscriber to `/global/event` that sees comments too.
pub(crate) struct Frames {
    bytes: std::pin::Pin<Box<dyn Stream<Item = reqwest::Result<bytes::Bytes>> + Send>>,
    buffer: Vec<u8>,
    /// How much of it is known to hold no end of a frame.
    searched: usize,
}

impl Frames {
    pub(crate) async fn open(door: &RunningDoor, cursor: Option<&Cursor>) -> Self {
        let mut request = door.get("/global/event");
        if let Some(cursor) = cursor {
            request = request.header("last-event-id", cursor.to_string());
        }
        let response = within("event stream", request.send()).await.expect("event stream");
        assert_eq!(response.status(), 200);
        Self { bytes: response.bytes_stream().boxed(), buffer: Vec::new(), searched: 0 }
    }

    async fn block(&mut self) -> Option<String> {
        loop {
            let from = self.searched;
            if let Some(end) = self.buffer[from..].windows(2).position(|pair| pair == b"\n\n") {
                let block: Vec<u8> = self.buffer.drain(..from + end + 2).collect();
                self.searched = 0;
                return Some(String::from_utf8(block).expect("UTF-8"));
            }
            self.searched = self.buffer.len().saturating_sub(1);
            self.buffer.extend_from_slice(&self.bytes.next().await?.ok()?);
        }
    }

    /// The next event with an id; `None` at the stream's end.
    async fn read(&mut self) -> Option<Seen> {
        loop {
            let block = self.block().await?;
            let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name));
            let mut data: Value = serde_json::from_str(field("data: ").expect("data")).expect("JSON");
            let Some(id) = field("id: ") else { continue };
            let superseded = field(": superseded ").map(|range| {
                let (from, to) = range.split_once('-').expect("a range");
                (from.parse().expect("a number"), to.parse().expect("a number"))
            });
            let payload = data["payload"].take();
            let kind = payload["type"].as_str().expect("a type").to_owned();
            return Some(Seen {
                id: id.parse().expect("an id"),
                superseded,
                kind,
                payload,
                bytes: block.len(),
            });
        }
    }

    pub(crate) async fn next(&mut self) -> Seen {
        within("event", self.read()).await.expect("an event and not the end")
    }

    /// Reads until one of this kind comes, which is included.
    pub(crate) async fn until(&mut self, what: &'static str, last: impl Fn(&Seen) -> bool) -> Vec<Seen> {
        let mut all = Vec::new();
        let reading = async {
            while !all.last().is_some_and(&last) {
                all.push(self.next().await);
            }
        };
        let read = timeout(BOUND * 2, reading).await.is_ok();
        let kinds: Vec<_> = all.iter().map(|seen| &seen.kind).collect();
        assert!(read, "no {what} in time: {kinds:?}");
        all
    }

    /// Waits for the stream's end.
    pub(crate) async fn end(&mut self, bound: Duration) {
        let reading = async { while self.read().await.is_some() {} };
        timeout(bound, reading).await.expect("the end in time");
    }
}

/// Nothing comes twice.
pub(crate) fn check_once(all: &[Seen]) {
    let mut events = HashSet::new();
    for seen in all {
        let id = seen.payload["id"].as_str().expect("opencode's id");
        assert!(events.insert(id), "{id} came twice");
    }
}

/// No number is missing but those that are marked, and a new epoch begins with the word that something may be missing.
pub(crate) fn check(all: &[Seen]) {
    for pair in all.windows(2) {
        let [before, after] = pair else { unreachable!("pairs") };
        if before.id.epoch != after.id.epoch {
            assert_eq!((after.id.seq, after.kind.as_str()), (1, "berth.resync"));
            continue;
        }
        let expected = (before.id.seq + 1 < after.id.seq).then_some((before.id.seq + 1, after.id.seq - 1));
        assert_eq!(after.superseded, expected, "{} after {}", after.id, before.id);
    }
}

/// Numbers of the stub's words in a session's deltas.
pub(crate) fn words(all: &[Seen], session: &str) -> Vec<u32> {
    let deltas = all.iter().filter(|seen| seen.kind == "message.part.delta");
    let deltas = deltas.map(|seen| &seen.payload["properties"]).filter(|delta| delta["sessionID"] == session);
    let text: String = deltas.filter_map(|delta| delta["delta"].as_str()).collect();
    text.split_whitespace().map(|word| word.trim_start_matches("word").parse().expect("a word")).collect()
}

/// One number after the other.
pub(crate) fn is_a_run(words: &[u32]) -> bool {
    words.windows(2).all(|pair| pair[0] + 1 == pair[1])
}
