//! Any bytes, in pieces of any size, read as an event stream. What comes out must not depend on the pieces, and must be
//! what a plain reading of the whole text by the standard's rules gives.
//!
//! Input: a number of sizes (its lower four bits), the sizes of the pieces, used over and over, the bound on a frame in
//! units of four bytes (255 for the usual one), the stream.

use std::convert::Infallible;

use berth_wire::sse::{MAX_FRAME, SseError, SseEvent, SseReader};
use bytes::Bytes;
use futures_util::FutureExt;

use crate::input::Input;

/// Runs one input; panics when something does not hold.
pub fn run(input: &[u8]) {
    let mut input = Input(input);
    let count = usize::from(input.byte() & 0x0f);
    let sizes: Vec<usize> = input.bytes(count).iter().map(|size| usize::from(*size).max(1)).collect();
    let limit = Some(input.byte()).filter(|limit| *limit != u8::MAX);
    let limit = limit.map_or(MAX_FRAME, |limit| usize::from(limit) * 4);
    let (whole, end) = read(input.0, &[], limit);
    for sizes in [&sizes[..], &[1]] {
        let (cut, cut_end) = read(input.0, sizes, limit);
        assert_eq!(cut, whole, "in pieces of {sizes:?}");
        assert_eq!(cut_end, end, "in pieces of {sizes:?}");
    }
    if end == End::Clean
        && let Ok(text) = std::str::from_utf8(input.0)
    {
        assert_eq!(whole, plainly_read(text));
    }
}

/// How a stream ended.
#[derive(Debug, PartialEq)]
enum End {
    Clean,
    Malformed,
    TooLarge,
}

fn read(bytes: &[u8], sizes: &[usize], limit: usize) -> (Vec<SseEvent>, End) {
    let mut reader = SseReader::with_limit(futures_util::stream::iter(pieces(bytes, sizes)), limit);
    let mut events = Vec::new();
    loop {
        // Pieces that are all there never make the reader wait.
        match reader.next().now_or_never().expect("the reader waits for nothing") {
            Some(Ok(event)) => events.push(event),
            None => return (events, End::Clean),
            Some(Err(error)) => {
                assert!(reader.next().now_or_never().flatten().is_none(), "something follows an error");
                return (events, end(&error));
            }
        }
    }
}

fn end(error: &SseError) -> End {
    match error {
        SseError::Malformed(_) => End::Malformed,
        SseError::FrameTooLarge { .. } => End::TooLarge,
        SseError::Body(_) => panic!("a connection that did not break is said to be broken"),
    }
}

fn pieces(bytes: &[u8], sizes: &[usize]) -> Vec<Result<Bytes, Infallible>> {
    let mut rest = Bytes::copy_from_slice(bytes);
    let mut pieces = Vec::new();
    let mut sizes = sizes.iter().cycle();
    while !rest.is_empty() {
        let size = sizes.next().map_or(rest.len(), |size| (*size).min(rest.len()));
        pieces.push(Ok(rest.split_to(size)));
    }
    pieces
}

/// The rules of the WHATWG's "server-sent events", on the whole text at once. Differs from them as our reader does: an
/// id is the frame's own, and data may be empty.
fn plainly_read(text: &str) -> Vec<SseEvent> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text).replace("\r\n", "\n").replace('\r', "\n");
    let mut events = Vec::new();
    let mut frame = (None, None, None::<String>);
    // What follows the last line's end is no line.
    let (lines, _) = text.rsplit_once('\n').unwrap_or_default();
    let lines = if text.contains('\n') { lines.split('\n').collect() } else { Vec::new() };
    for line in lines {
        if line.is_empty() {
            let (id, event, data) = std::mem::take(&mut frame);
            events.extend(data.map(|data| SseEvent { id, event, data }));
            continue;
        }
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "id" if !value.contains('\0') => frame.0 = Some(value.to_owned()),
            "event" => frame.1 = Some(value.to_owned()),
            "data" => match &mut frame.2 {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => frame.2 = Some(value.to_owned()),
            },
            _ => {}
        }
    }
    events
}
