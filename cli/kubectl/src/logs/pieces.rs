//! Lines of a log, with a bound on each: one that is longer comes in pieces. Reads a stream.

use std::io;

use futures_util::{AsyncBufRead, AsyncBufReadExt};

/// Longest piece, in bytes: the programs write shorter lines, but what an agent runs may write anything.
const PIECE: usize = 256 * 1024;

/// Lines of a stream.
pub(super) struct Pieces<R> {
    stream: R,
    begun: Vec<u8>,
}

impl<R: AsyncBufRead + Unpin> Pieces<R> {
    pub(super) fn new(stream: R) -> Self {
        Self { stream, begun: Vec::new() }
    }

    /// The next one, without its line's end; nothing when the stream is at its end.
    pub(super) async fn next(&mut self) -> io::Result<Option<String>> {
        loop {
            let buffer = self.stream.fill_buf().await?;
            if buffer.is_empty() {
                return Ok((!self.begun.is_empty()).then(|| self.take()));
            }
            let room = PIECE - self.begun.len();
            let end = buffer.iter().take(room).position(|byte| *byte == b'\n');
            let count = end.unwrap_or_else(|| buffer.len().min(room));
            self.begun.extend_from_slice(&buffer[..count]);
            self.stream.consume_unpin(count + usize::from(end.is_some()));
            if end.is_some() || self.begun.len() == PIECE {
                return Ok(Some(self.take()));
            }
        }
    }

    fn take(&mut self) -> String {
        let bytes = std::mem::take(&mut self.begun);
        let text = String::from_utf8_lossy(&bytes);
        text.strip_suffix('\r').unwrap_or(&text).to_owned()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::io::{BufReader, Cursor};

    use super::*;

    async fn pieces(bytes: &[u8], buffer: usize) -> Vec<String> {
        let mut pieces = Pieces::new(BufReader::with_capacity(buffer, Cursor::new(bytes)));
        let mut all = Vec::new();
        while let Some(piece) = pieces.next().await.unwrap() {
            all.push(piece);
        }
        all
    }

    #[tokio::test]
    async fn lines_are_whole_however_they_come() {
        for buffer in [1, 2, 3, 64] {
            assert_eq!(pieces(b"one\n\ntwo\r\nthree", buffer).await, ["one", "", "two", "three"]);
        }
        assert_eq!(pieces(b"", 4).await, Vec::<String>::new());
    }

    #[tokio::test]
    async fn a_line_without_an_end_is_cut_and_nothing_of_it_is_lost() {
        let bytes = vec![b'x'; PIECE * 2 + 5];
        let all = pieces(&bytes, 8_192).await;
        assert_eq!(all.iter().map(String::len).collect::<Vec<_>>(), [PIECE, PIECE, 5]);
    }
}
