//! Frames on their way to one subscriber. Pure.
//!
//! Small frames are copied into one buffer, so that many deltas are one write. Large ones are shared with the journal
//! and all other subscribers: a picture that the agent read is a megabyte, and a slow subscriber must not hold a copy.

use std::{collections::VecDeque, io::Write as _};

use hyper::body::Bytes;

use crate::journal::Entry;

/// Bytes from which on a frame is shared and not copied.
const SHARED_FROM: usize = 16 * 1024;

/// Bytes in order, in pieces.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    ready: VecDeque<Bytes>,
    buffer: Vec<u8>,
}

impl Outgoing {
    /// Adds whole frames that are written already.
    pub(crate) fn frames(&mut self, frames: &[u8]) {
        self.buffer.extend_from_slice(frames);
    }

    /// Adds the mark that these numbers of the epoch were superseded: a comment, so nobody has to know it.
    pub(crate) fn superseded(&mut self, from: u64, to: u64) {
        writeln!(self.buffer, ": superseded {from}-{to}").expect("a vector takes all bytes");
    }

    /// Adds an event as a frame, in its envelope or bare.
    pub(crate) fn event(&mut self, entry: &Entry, enveloped: bool) {
        write!(self.buffer, "id: {}-{}\ndata: ", entry.epoch(), entry.seq).expect("a vector takes all bytes");
        if enveloped {
            self.buffer.extend_from_slice(entry.origin.before.as_bytes());
        }
        if entry.payload.len() < SHARED_FROM {
            self.buffer.extend_from_slice(&entry.payload);
        } else {
            self.flush();
            self.ready.push_back(entry.payload.clone());
        }
        if enveloped {
            self.buffer.extend_from_slice(entry.origin.after.as_bytes());
        }
        self.buffer.extend_from_slice(b"\n\n");
    }

    fn flush(&mut self) {
        if !self.buffer.is_empty() {
            self.ready.push_back(std::mem::take(&mut self.buffer).into());
        }
    }

    /// The next piece.
    pub(crate) fn next(&mut self) -> Option<Bytes> {
        if self.ready.is_empty() {
            self.flush();
        }
        self.ready.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::journal::{Frame, Journal};

    #[test]
    fn pieces_are_the_frames_in_order_and_large_ones_are_not_copied() {
        let journal = Journal::new(1 << 20, crate::metrics::JournalMetrics::default());
        let large = "x".repeat(SHARED_FROM);
        for text in ["a", "b", &large, "c"] {
            let text = format!(r#"{{"payload":{{"type":"t","text":"{text}"}}}}"#);
            journal.append(Frame::parse(text).unwrap().unwrap());
        }
        let epoch = journal.current().epoch;
        for enveloped in [true, false] {
            let mut outgoing = Outgoing::default();
            let entries: Vec<Arc<Entry>> =
                journal.read_after(0).unwrap().into_iter().map(|(_, entry)| entry).collect();
            outgoing.superseded(3, 9);
            let mut expected = b": superseded 3-9\n".to_vec();
            for entry in &entries {
                outgoing.event(entry, enveloped);
                let bare = || String::from_utf8(entry.payload.to_vec()).unwrap();
                let data = if enveloped { entry.envelope() } else { bare() };
                write!(expected, "id: {epoch}-{}\ndata: {data}\n\n", entry.seq).unwrap();
            }
            let pieces: Vec<Bytes> = std::iter::from_fn(|| outgoing.next()).collect();
            assert_eq!(pieces.len(), 3);
            assert_eq!(pieces[1].as_ptr(), entries[2].payload.as_ptr(), "shared");
            assert_eq!(pieces.concat(), expected);
        }
    }
}
