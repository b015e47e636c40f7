//! Server-sent events: the one reader, over the `sse-stream` crate with a bound on frames, and the one writer.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream::BoxStream};
use sse_stream::SseByteStream;

/// Default bound on one frame, in bytes. opencode's largest seen is 1.1 MB (a picture that the agent read).
pub const MAX_FRAME: usize = 16 * 1024 * 1024;

/// One event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SseEvent {
    /// `id:`, if the frame had one.
    pub id: Option<String>,
    /// `event:`, if the frame had one.
    pub event: Option<String>,
    /// `data:` lines, joined by newlines.
    pub data: String,
}

/// Why a stream of events ended before its end.
#[derive(Debug, thiserror::Error)]
pub enum SseError {
    /// The connection broke.
    #[error("the event stream broke")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The bytes are not an event stream.
    #[error("the event stream is malformed")]
    Malformed(#[source] sse_stream::Error),
    /// A frame is larger than the bound.
    #[error("a frame of the event stream is larger than {limit} bytes")]
    FrameTooLarge {
        /// The bound.
        limit: usize,
    },
}

/// Reads events from a stream of bytes. Frames without data, comments among them, are skipped and are no sign of life:
/// callers of [`SseReader::next`] bound the time between events themselves.
pub struct SseReader {
    events: SseByteStream<Bounded>,
}

impl std::fmt::Debug for SseReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SseReader").finish_non_exhaustive()
    }
}

impl SseReader {
    /// A reader with the default frame bound.
    pub fn new<E>(bytes: impl Stream<Item = Result<Bytes, E>> + Send + 'static) -> Self
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        Self::with_limit(bytes, MAX_FRAME)
    }

    /// A reader that refuses frames of more than `limit` bytes.
    pub fn with_limit<E>(bytes: impl Stream<Item = Result<Bytes, E>> + Send + 'static, limit: usize) -> Self
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        let bytes = bytes.map(|item| item.map_err(|e| BoundedError::Body(Box::new(e)))).boxed();
        Self { events: SseByteStream::new(Bounded { bytes, limit, line: 0, frame: 0, last: 0, over: false }) }
    }

    /// The next event that has data; `None` at the stream's clean end.
    pub async fn next(&mut self) -> Option<Result<SseEvent, SseError>> {
        loop {
            match self.events.next().await? {
                Ok(sse) => {
                    if let Some(data) = sse.data {
                        return Some(Ok(SseEvent { id: sse.id, event: sse.event, data }));
                    }
                }
                Err(error) => return Some(Err(classify(error))),
            }
        }
    }
}

fn classify(error: sse_stream::Error) -> SseError {
    match error {
        sse_stream::Error::Body(source) => match source.downcast::<BoundedError>() {
            Ok(bounded) => match *bounded {
                BoundedError::Body(source) => SseError::Body(source),
                BoundedError::TooLarge(limit) => SseError::FrameTooLarge { limit },
            },
            Err(source) => SseError::Body(source),
        },
        other => SseError::Malformed(other),
    }
}

#[derive(Debug, thiserror::Error)]
enum BoundedError {
    #[error("body")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("frame larger than {0} bytes")]
    TooLarge(usize),
}

/// Passes bytes on and fails when a frame (the bytes between two blank lines) outgrows the limit. What came before that
/// is passed on first, so that whole frames in the same chunk are not lost.
struct Bounded {
    bytes: BoxStream<'static, Result<Bytes, BoundedError>>,
    limit: usize,
    line: usize,
    frame: usize,
    last: u8,
    /// The limit was outgrown.
    over: bool,
}

impl Bounded {
    /// How many of these bytes are within the limit.
    fn admit(&mut self, chunk: &[u8]) -> usize {
        for (index, &byte) in chunk.iter().enumerate() {
            let ends_line = byte == b'\r' || (byte == b'\n' && self.last != b'\r');
            if ends_line && self.line == 0 {
                self.frame = 0;
            } else if byte != b'\n' && byte != b'\r' {
                self.line += 1;
                self.frame += 1;
                if self.frame > self.limit {
                    self.over = true;
                    return index;
                }
            }
            if ends_line {
                self.line = 0;
            }
            self.last = byte;
        }
        chunk.len()
    }
}

impl Stream for Bounded {
    type Item = Result<Bytes, BoundedError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.over {
            return Poll::Ready(Some(Err(BoundedError::TooLarge(self.limit))));
        }
        let item = std::task::ready!(self.bytes.poll_next_unpin(cx));
        Poll::Ready(item.map(|item| {
            let mut chunk = item?;
            chunk.truncate(self.admit(&chunk));
            Ok(chunk)
        }))
    }
}

/// Appends one frame to `out`. `data` may hold newlines; `id` and `event` must not.
pub fn write_event(out: &mut Vec<u8>, id: Option<&str>, event: Option<&str>, data: &str) {
    for (name, value) in [("id", id), ("event", event)] {
        if let Some(value) = value.filter(|value| !value.contains(['\r', '\n', '\0'])) {
            push_field(out, name, value);
        }
    }
    for line in data.split('\n') {
        push_field(out, "data", line.strip_suffix('\r').unwrap_or(line));
    }
    out.push(b'\n');
}

fn push_field(out: &mut Vec<u8>, name: &str, value: &str) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value.as_bytes());
    out.push(b'\n');
}

/// A comment frame, which keeps a connection alive and is no event.
pub const KEEPALIVE: &[u8] = b": keepalive\n\n";

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    async fn read_all(chunks: Vec<Vec<u8>>, limit: usize) -> Result<Vec<SseEvent>, SseError> {
        let chunks = chunks.into_iter().map(|chunk| Ok::<_, Infallible>(Bytes::from(chunk)));
        let mut reader = SseReader::with_limit(futures_util::stream::iter(chunks), limit);
        let mut events = Vec::new();
        while let Some(event) = reader.next().await {
            events.push(event?);
        }
        Ok(events)
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    fn cut(bytes: &[u8], cuts: &[usize]) -> Vec<Vec<u8>> {
        let mut points: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
        points.extend([0, bytes.len()]);
        points.sort_unstable();
        points.windows(2).map(|pair| bytes[pair[0]..pair[1]].to_vec()).collect()
    }

    #[test]
    fn ct_6_line_endings_and_a_bom_at_chunk_borders() {
        let data = |text: &str| SseEvent { data: text.to_owned(), ..SseEvent::default() };
        let cases: [(&[&[u8]], Vec<SseEvent>); 5] = [
            (&[b"data: A\r\n", b"data: B\r", b"\n", b"data: C\r\n", b"\n", b"\r\n"], vec![data("A\nB\nC")]),
            (&[b"data: first\r\ndata: second\n\n"], vec![data("first\nsecond")]),
            (&[b"\xEF\xBB\xBF", b"data: x\n\n"], vec![data("x")]),
            (&[b"data:{\"t\":\"\xF0\x9F", b"\xA6\x80\"}\n\n"], vec![data("{\"t\":\"🦀\"}")]),
            (&[b"data: one\rdata: two\r\rdata: three\r\r"], vec![data("one\ntwo"), data("three")]),
        ];
        for (chunks, expected) in cases {
            let chunks = chunks.iter().map(|chunk| chunk.to_vec()).collect();
            assert_eq!(block_on(read_all(chunks, MAX_FRAME)).unwrap(), expected);
        }
    }

    #[test]
    fn a_frame_over_the_bound_is_a_typed_error() {
        let frame = format!("data: {}\n\n", "x".repeat(100));
        let small = block_on(read_all(vec![frame.clone().into_bytes(); 50], 200)).unwrap();
        assert_eq!(small.len(), 50, "the bound is per frame, not per stream");
        let error = block_on(read_all(vec![frame.into_bytes()], 50)).unwrap_err();
        assert!(matches!(error, SseError::FrameTooLarge { limit: 50 }), "{error:?}");
    }

    #[test]
    fn frames_before_one_over_the_bound_are_read_first() {
        let bytes = [b"data: one\n\n".as_slice(), b"data: ", &[b'x'; 100], b"\n\n"].concat();
        for chunks in [vec![bytes.clone()], bytes.chunks(1).map(<[u8]>::to_vec).collect()] {
            let chunks = chunks.into_iter().map(|chunk| Ok::<_, Infallible>(Bytes::from(chunk)));
            let mut reader = SseReader::with_limit(futures_util::stream::iter(chunks), 50);
            let first = block_on(reader.next()).unwrap().unwrap();
            assert_eq!(first.data, "one");
            let error = block_on(reader.next()).unwrap().unwrap_err();
            assert!(matches!(error, SseError::FrameTooLarge { limit: 50 }), "{error:?}");
            assert!(block_on(reader.next()).is_none());
        }
    }

    proptest! {
        #[test]
        fn any_chunking_reads_the_same(
            events in prop::collection::vec((prop::option::of("[a-z0-9-]{1,8}"), "[^\r\0]{0,40}"), 0..8),
            cuts in prop::collection::vec(any::<usize>(), 0..20),
        ) {
            let mut bytes = Vec::new();
            for (id, data) in &events {
                write_event(&mut bytes, id.as_deref(), None, data);
            }
            let read = block_on(read_all(cut(&bytes, &cuts), MAX_FRAME)).unwrap();
            let wanted: Vec<SseEvent> =
                events.into_iter().map(|(id, data)| SseEvent { id, event: None, data }).collect();
            prop_assert_eq!(read, wanted);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), cuts in prop::collection::vec(any::<usize>(), 0..8)) {
            let _ = block_on(read_all(cut(&bytes, &cuts), 300));
        }
    }
}
