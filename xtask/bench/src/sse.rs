//! Reading server-sent events: the wire crate's reader against a plain split into lines of the same bytes.

use std::convert::Infallible;

use berth_wire::sse::{SseReader, write_event};
use bytes::Bytes;

use crate::measure::{Benchmark, Pass, Setting};

const FRAMES: usize = 5_000;
/// Size of the chunks that the stream comes in, as a socket read gives them.
const CHUNK: usize = 16 * 1024;

/// A turn of 5,000 deltas, as opencode 1.18.33 sends them.
pub(crate) const READER: Benchmark =
    Benchmark { name: "sse-reader", baseline_name: "split into lines", items: FRAMES, prepare };

#[expect(clippy::unnecessary_wraps, reason = "other benchmarks may fail to prepare")]
fn prepare(_: &Setting) -> anyhow::Result<(Pass, Pass)> {
    let chunks = chunks();
    let same = chunks.clone();
    Ok((Box::new(move || read_events(&chunks)), Box::new(move || Ok(split_lines(&same)))))
}

fn chunks() -> Vec<Bytes> {
    let mut stream = Vec::new();
    for index in 0..FRAMES {
        let delta = format!(
            r#"{{"id":"evt_22ace5b34001pzOAmDKYsge3oM","type":"message.part.delta","properties":{{"sessionID":"ses_dd531a54fffeeXBkhzq0nEPPW5","messageID":"msg_22ace5af3001w9YBtjN5uiorka","partID":"prt_22ace5b32001k12AoBPEpaUL8Y","field":"text","delta":"word{index} "}}}}"#
        );
        write_event(&mut stream, None, None, &delta);
    }
    stream.chunks(CHUNK).map(Bytes::copy_from_slice).collect()
}

fn read_events(chunks: &[Bytes]) -> anyhow::Result<usize> {
    // Cloning a chunk copies no bytes.
    let owned: Vec<Result<Bytes, Infallible>> = chunks.iter().cloned().map(Ok).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(async {
        let mut reader = SseReader::new(futures_util::stream::iter(owned));
        let mut seen = 0;
        while let Some(event) = reader.next().await {
            seen += usize::from(!std::hint::black_box(event?).data.is_empty());
        }
        Ok(seen)
    })
}

/// The least that any reader has to do: find each line's end across chunks and own its data.
fn split_lines(chunks: &[Bytes]) -> usize {
    let mut rest: Vec<u8> = Vec::new();
    let mut seen = 0;
    for chunk in chunks {
        let mut lines = chunk.split(|&byte| byte == b'\n');
        let last = lines.next_back().unwrap_or_default();
        for line in lines {
            rest.extend_from_slice(line);
            if let Some(data) = rest.strip_prefix(b"data: ") {
                std::hint::black_box(String::from_utf8_lossy(data).into_owned());
                seen += 1;
            }
            rest.clear();
        }
        rest.extend_from_slice(last);
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_passes_see_every_frame() {
        let chunks = chunks();
        assert_eq!(read_events(&chunks).unwrap(), FRAMES);
        assert_eq!(split_lines(&chunks), FRAMES);
    }
}
