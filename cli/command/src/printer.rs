//! Standard output for commands that print something and end: coloured and cut on a terminal, plain in a pipe. IO.

use std::io::{self, Write};

use crate::text::written;

/// What the two streams are connected to, and whether colour is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Standard output is a terminal.
    pub out_terminal: bool,
    /// Standard error is a terminal.
    pub err_terminal: bool,
    /// Colours and dimming are wanted on terminals.
    pub color: bool,
}

/// How a line is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// A tool call that begins.
    Tool,
    /// Something went well.
    Good,
    /// Something went wrong.
    Bad,
    /// Somebody has to decide.
    Ask,
    /// By the way.
    Note,
}

impl Tone {
    /// The parameters of the escape sequence that makes text look so; empty for how it looks anyway.
    pub fn style(self) -> &'static str {
        match self {
            Self::Tool => "",
            Self::Good => "32",
            Self::Bad => "31",
            Self::Ask => "1",
            Self::Note => "2",
        }
    }
}

/// Standard output.
pub struct Printer {
    out: Box<dyn Write + Send>,
    terminal: bool,
    color: bool,
    width: Option<usize>,
}

impl std::fmt::Debug for Printer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Printer")
            .field("terminal", &self.terminal)
            .field("color", &self.color)
            .finish_non_exhaustive()
    }
}

impl Printer {
    /// The process's own standard output.
    pub fn standard(shape: Shape) -> Self {
        let width = if shape.out_terminal { terminal_size::terminal_size() } else { None };
        Self {
            out: Box::new(io::BufWriter::new(io::stdout())),
            terminal: shape.out_terminal,
            color: shape.color && shape.out_terminal,
            width: width.map(|(width, _)| usize::from(width.0)),
        }
    }

    /// Columns of the terminal, if it is one.
    pub fn width(&self) -> Option<usize> {
        self.width
    }

    /// A line for a person.
    pub fn line(&mut self, tone: Tone, text: &str) -> io::Result<()> {
        let style = tone.style();
        let text = written(text, self.terminal);
        if self.color && !style.is_empty() && !text.is_empty() {
            writeln!(self.out, "\x1b[{style}m{text}\x1b[0m")
        } else {
            writeln!(self.out, "{text}")
        }
    }

    /// A line for another program, exactly as given.
    pub fn raw_line(&mut self, line: &str) -> io::Result<()> {
        self.raw(line.as_bytes())?;
        self.raw(b"\n")
    }

    /// A line that is not part of what was asked for: to standard error where standard output is read by a program.
    pub fn side(&mut self, text: &str) -> io::Result<()> {
        if self.terminal { self.line(Tone::Note, text) } else { self.aside(text) }
    }

    /// A line to standard error.
    pub fn aside(&mut self, text: &str) -> io::Result<()> {
        writeln!(io::stderr(), "{text}")
    }

    /// Bytes, exactly as given.
    pub fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)
    }

    /// Hands everything to whoever reads.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
