//! A capture that comes over connections that break anywhere, in pieces of any size, with events sent again: its
//! translation is the same as of the whole one.

use std::{io, time::Instant};

use berth_opencode::{GlobalEvent, replay::SessionReplay};
use berth_testkit::Scale;
use berth_wire::{
    door::Cursor,
    sse::{SseReader, write_event},
};
use bytes::Bytes;
use futures_util::FutureExt;
use proptest::{prelude::*, sample::Index, test_runner::TestRunner};

use crate::replay::{Capture, Look, all, bytes};

/// A capture as a door would send it, and what comes out of it whole.
struct Sent {
    capture: Capture,
    /// Each event as it is sent, with its id.
    frames: Vec<Vec<u8>>,
    whole: String,
}

impl Sent {
    fn new(capture: Capture) -> Self {
        let file = capture.name.split('#').next().unwrap();
        let text = String::from_utf8(bytes(&format!("{file}.sse"))).unwrap();
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        let frames: Vec<Vec<u8>> = data.zip(1..).map(|(data, seq)| frame(seq, data)).collect();
        assert_eq!(frames.len(), capture.events.len());
        let whole = capture.whole().to_text();
        Self { capture, frames, whole }
    }
}

fn frame(seq: u64, data: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let cursor = Cursor { epoch: "e1".to_owned(), seq };
    write_event(&mut bytes, Some(&cursor.to_string()), None, data);
    bytes
}

/// One connection.
#[derive(Debug, Clone)]
struct Connection {
    /// The server is taken over first: what it had done since it stored its state last is done again.
    restored: bool,
    /// How many events that the reader has had are sent again.
    again: usize,
    /// How many bytes come, at most, before it breaks.
    bytes: usize,
    /// Sizes of the pieces, over and over.
    pieces: Vec<usize>,
    /// It ends as if nothing more came, instead of with an error.
    clean: bool,
    /// State is stored after so many events.
    stored_each: usize,
}

fn connection() -> impl Strategy<Value = Connection> {
    let size = prop_oneof![0..200_usize, 200..20_000_usize, Just(usize::MAX)];
    let piece = prop_oneof![1..4_usize, 1..300_usize, 300..9000_usize];
    (any::<bool>(), 0..5_usize, size, prop::collection::vec(piece, 1..6), any::<bool>(), 1..40_usize)
        .prop_map(|(restored, again, bytes, pieces, clean, stored_each)| Connection {
            restored,
            again,
            bytes,
            pieces,
            clean,
            stored_each,
        })
}

/// The server: a translator with its log, and the cursor that goes with them.
struct Server {
    live: SessionReplay,
    seq: usize,
    stored: (SessionReplay, usize),
}

impl Server {
    fn restore(&mut self) {
        (self.live, self.seq) = self.stored.clone();
        let text = serde_json::to_string(&self.live.translator).unwrap();
        self.live.translator = serde_json::from_str(&text).unwrap();
    }

    fn take(&mut self, seq: usize, event: &GlobalEvent, stored_each: usize) {
        if seq <= self.seq {
            return;
        }
        assert_eq!(seq, self.seq + 1, "the reader missed an event");
        self.live.apply(seq - 1, event);
        self.seq = seq;
        if seq.is_multiple_of(stored_each) {
            self.stored = (self.live.clone(), seq);
        }
    }
}

/// What arrives over a connection.
fn arriving(frames: &[Vec<u8>], connection: &Connection) -> Vec<Result<Bytes, io::Error>> {
    let mut bytes = Bytes::from(frames.concat());
    let broken = connection.bytes < bytes.len();
    bytes.truncate(connection.bytes);
    let mut chunks = Vec::new();
    for size in connection.pieces.iter().cycle() {
        if bytes.is_empty() {
            break;
        }
        chunks.push(Ok(bytes.split_to((*size).min(bytes.len()))));
    }
    if broken && !connection.clean {
        chunks.push(Err(io::Error::from(io::ErrorKind::ConnectionReset)));
    }
    chunks
}

fn over(sent: &Sent, connections: &[Connection]) -> SessionReplay {
    let live = SessionReplay::new(&sent.capture.root);
    let mut server = Server { live: live.clone(), seq: 0, stored: (live, 0) };
    let last = Connection {
        restored: false,
        again: 0,
        bytes: usize::MAX,
        pieces: vec![usize::MAX],
        clean: true,
        stored_each: 1,
    };
    for connection in connections.iter().chain([&last]) {
        if connection.restored {
            server.restore();
        }
        let from = server.seq.saturating_sub(connection.again);
        let chunks = arriving(&sent.frames[from..], connection);
        let mut reader = SseReader::new(futures_util::stream::iter(chunks));
        while let Some(Ok(frame)) = reader.next().now_or_never().flatten() {
            let cursor: Cursor = frame.id.unwrap().parse().unwrap();
            let event = GlobalEvent::parse(&frame.data).unwrap();
            server.take(usize::try_from(cursor.seq).unwrap(), &event, connection.stored_each);
        }
    }
    assert_eq!(server.seq, sent.frames.len(), "the last connection brings the rest");
    server.live
}

#[test]
fn cuts_anywhere_change_nothing() {
    let sent: Vec<Sent> = all().into_iter().map(Sent::new).collect();
    let (scale, begun) = (Scale::current(), Instant::now());
    let cases = scale.pick(300, 10_000);
    let mut runner =
        TestRunner::new(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases) });
    let strategy = (any::<Index>(), prop::collection::vec(connection(), 0..12));
    let result = runner.run(&strategy, |(index, connections)| {
        let sent = &sent[index.index(sent.len())];
        prop_assert_eq!(&over(sent, &connections).to_text(), &sent.whole, "{}", sent.capture.name);
        Ok(())
    });
    assert!(result.is_ok(), "{}", result.map_err(|error| error.to_string()).unwrap_err());
    let elapsed = u64::try_from(begun.elapsed().as_millis()).unwrap();
    scale.report("cuts_anywhere_change_nothing", 0, &[("cases", u64::from(cases)), ("elapsed_ms", elapsed)]);
}
