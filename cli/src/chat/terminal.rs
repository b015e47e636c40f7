//! The terminal itself: its mode, its size, and what is written to it. Does IO.

use std::io::{self, Write};

use crossterm::{event::EnableBracketedPaste, execute, terminal};
use nix::sys::signal::{Signal, raise};

/// A size that any terminal has, for one that does not say.
const USUAL: (u16, u16) = (80, 24);

/// A terminal whose keys come one by one. Goes back to what it was when dropped.
#[derive(Debug)]
pub(super) struct Terminal {
    taken: bool,
}

impl Terminal {
    /// Takes the terminal.
    pub(super) fn take() -> io::Result<Self> {
        let mut terminal = Self { taken: false };
        terminal.enter()?;
        Ok(terminal)
    }

    /// What is to be written before it is given back.
    pub(super) const FAREWELL: &str = "\x1b[?2004l";

    fn enter(&mut self) -> io::Result<()> {
        terminal::enable_raw_mode()?;
        self.taken = true;
        execute!(io::stdout(), EnableBracketedPaste)
    }

    /// Gives it back, after [`Self::FAREWELL`]. Writes nothing: a terminal that takes nothing can be left, too.
    pub(super) fn leave(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.taken) { terminal::disable_raw_mode() } else { Ok(()) }
    }

    /// Gives it to the shell, and takes it again once the shell lets this process go on.
    pub(super) fn suspend(&mut self) -> io::Result<()> {
        write(Self::FAREWELL.as_bytes())?;
        self.leave()?;
        raise(Signal::SIGTSTP)?;
        self.enter()
    }

    /// Columns and rows.
    pub(super) fn size() -> (usize, usize) {
        let (columns, rows) = terminal::size().ok().filter(|size| size.0 > 0 && size.1 > 0).unwrap_or(USUAL);
        (usize::from(columns), usize::from(rows))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // There is nobody to tell.
        let _ = self.leave();
    }
}

/// Writes all of it; blocks while the terminal does not take it.
pub(super) fn write(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}
