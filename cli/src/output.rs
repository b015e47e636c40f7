//! Where pieces go: the agent's words to standard output, and the rest beside them. Does IO.
//!
//! On a terminal everything shares standard output. When standard output is a pipe or a file, it gets the agent's
//! text and nothing else, unchanged; thoughts, tools and notes go to standard error.

use std::io::{self, Write};

pub use berth_command::printer::Shape;
use berth_wire::event::Voice;

use crate::{
    render::{Pace, Piece, Tone},
    text::written,
};

/// When the agent's text is to be shown, on such streams.
pub fn pace(shape: Shape) -> Pace {
    if shape.out_terminal { Pace::Streaming } else { Pace::Settled }
}

/// One of the two streams.
struct Sink {
    writer: Box<dyn Write + Send>,
    terminal: bool,
    color: bool,
    /// The last thing written was not a line's end.
    open: bool,
}

impl Sink {
    fn write(&mut self, style: &str, text: &str) -> io::Result<()> {
        let text = written(text, self.terminal);
        if text.is_empty() {
            return Ok(());
        }
        if self.color && !style.is_empty() {
            write!(self.writer, "\x1b[{style}m{text}\x1b[0m")?;
        } else {
            self.writer.write_all(text.as_bytes())?;
        }
        self.open = !text.ends_with('\n');
        Ok(())
    }

    fn end_line(&mut self) -> io::Result<()> {
        if self.open {
            self.open = false;
            self.writer.write_all(b"\n")?;
        }
        Ok(())
    }

    fn line(&mut self, style: &str, text: &str) -> io::Result<()> {
        self.end_line()?;
        self.write(style, text)?;
        self.end_line()
    }
}

/// Standard output and standard error, as the reader sees them.
pub struct Output {
    out: Sink,
    err: Sink,
    shape: Shape,
}

impl std::fmt::Debug for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Output").field("shape", &self.shape).finish_non_exhaustive()
    }
}

impl Output {
    /// Output on the process's own streams.
    pub fn standard(shape: Shape) -> Self {
        Self::new(shape, Box::new(io::stdout()), Box::new(io::stderr()))
    }

    /// Output on the given streams.
    pub fn new(shape: Shape, out: Box<dyn Write + Send>, err: Box<dyn Write + Send>) -> Self {
        let sink = |writer, terminal| Sink { writer, terminal, color: shape.color && terminal, open: false };
        Self { out: sink(out, shape.out_terminal), err: sink(err, shape.err_terminal), shape }
    }

    /// What the streams are connected to.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Shows pieces and flushes.
    pub fn show(&mut self, pieces: &[Piece]) -> io::Result<()> {
        for piece in pieces {
            self.piece(piece)?;
        }
        self.flush()
    }

    fn piece(&mut self, piece: &Piece) -> io::Result<()> {
        match piece {
            Piece::Words { voice: Voice::Message, text } => self.out.write("", text),
            Piece::Words { voice: Voice::Thought, text } => self.side().write("2", text),
            Piece::Break => {
                self.out.end_line()?;
                self.err.end_line()
            }
            Piece::Line { tone, text } => self.side().line(tone.style(), text),
        }
    }

    /// A note beside the agent's words.
    pub fn note(&mut self, tone: Tone, text: &str) -> io::Result<()> {
        self.show(&[Piece::line(tone, text)])
    }

    /// The beginning of a line that somebody is to complete.
    pub fn prompt(&mut self, text: &str) -> io::Result<()> {
        let side = self.side();
        side.end_line()?;
        side.write("1", text)?;
        // What is typed ends the line.
        side.open = false;
        self.flush()
    }

    /// A line on standard output, exactly as given, for other programs to read.
    pub fn raw_line(&mut self, line: &str) -> io::Result<()> {
        self.out.writer.write_all(line.as_bytes())?;
        self.out.writer.write_all(b"\n")?;
        self.out.writer.flush()
    }

    /// Where all but the agent's text goes.
    fn side(&mut self) -> &mut Sink {
        if self.shape.out_terminal { &mut self.out } else { &mut self.err }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.writer.flush()?;
        self.err.writer.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl Buffer {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().map_err(|_| io::Error::other("poisoned"))?.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn shown(shape: Shape, pieces: &[Piece]) -> (String, String) {
        let (out, err) = (Buffer::default(), Buffer::default());
        let mut output = Output::new(shape, Box::new(out.clone()), Box::new(err.clone()));
        output.show(pieces).unwrap();
        (out.text(), err.text())
    }

    fn pieces() -> Vec<Piece> {
        let words = |voice, text: &str| Piece::Words { voice, text: text.to_owned() };
        vec![
            words(Voice::Thought, "hm"),
            Piece::Break,
            words(Voice::Message, "one\u{1b}[2J "),
            words(Voice::Message, "two"),
            Piece::line(Tone::Good, "✓ bash"),
            words(Voice::Message, "three\n"),
            Piece::Break,
            Piece::line(Tone::Bad, "✗ failed"),
        ]
    }

    #[test]
    fn a_pipe_gets_the_agents_text_alone_and_unchanged() {
        let shape = Shape { out_terminal: false, err_terminal: true, color: true };
        let (out, err) = shown(shape, &pieces());
        assert_eq!(out, "one\u{1b}[2J twothree\n");
        assert_eq!(err, "\u{1b}[2mhm\u{1b}[0m\n\u{1b}[32m✓ bash\u{1b}[0m\n\u{1b}[31m✗ failed\u{1b}[0m\n");
    }

    #[test]
    fn a_terminal_gets_everything_in_order_and_nothing_to_obey() {
        let shape = Shape { out_terminal: true, err_terminal: true, color: false };
        let (out, err) = shown(shape, &pieces());
        assert_eq!(out, "hm\none[2J two\n✓ bash\nthree\n✗ failed\n");
        assert_eq!(err, "");
    }
}
