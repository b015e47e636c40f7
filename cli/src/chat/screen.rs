//! The lower end of a terminal's screen, drawn again and again, below a scrollback that is only added to. Pure: makes
//! the bytes that [`super::terminal`] writes.
//!
//! Lines that are final are printed once and belong to the terminal from then on. What still changes is the live
//! area: its lines are drawn over where they differ, within one synchronised update, so that nothing flickers. While
//! those are drawn the terminal does not wrap lines by itself, so a character that is wider than we think it is spoils
//! its own line and no other.

use std::fmt::Write;

use super::line::Line;

const BEGIN: &str = "\x1b[?2026h\x1b[?25l";
const END: &str = "\x1b[?25h\x1b[?2026l";
const NO_WRAP: &str = "\x1b[?7l";
const WRAP: &str = "\x1b[?7h";
/// Not for the whole screen: some terminals keep in the scrollback what is cleared so.
const CLEAR_BELOW: &str = "\x1b[J";
const SAVE: &str = "\x1b7";
const RESTORE: &str = "\x1b8";
const DOWN: &str = "\x1b[B";
const CLEAR_LINE: &str = "\x1b[K";

/// A place in the live area: row and column, from 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) row: usize,
    pub(super) column: usize,
}

/// What is to be seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Frame {
    /// Lines of the live area; no more than the screen has rows.
    pub(super) lines: Vec<Line>,
    /// Where the cursor is, within them.
    pub(super) cursor: Place,
}

/// A line as it was drawn.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Drawn {
    text: String,
    width: usize,
}

/// What the terminal shows of the live area.
#[derive(Debug)]
pub(super) struct Screen {
    color: bool,
    width: usize,
    height: usize,
    drawn: Vec<Drawn>,
    cursor: Place,
}

impl Screen {
    /// A screen of this size whose cursor is at the beginning of an empty line.
    pub(super) fn new(color: bool, width: usize, height: usize) -> Self {
        Self {
            color,
            width: width.max(1),
            height: height.max(1),
            drawn: Vec::new(),
            cursor: Place::default(),
        }
    }

    /// Draws `frame` below `finished` lines. Empty when nothing changes.
    pub(super) fn draw(&mut self, finished: &[Line], frame: &Frame) -> String {
        let lines: Vec<Drawn> = frame.lines.iter().take(self.height).map(|line| self.drawing(line)).collect();
        let row = frame.cursor.row.min(lines.len().saturating_sub(1));
        let cursor = Place { row, column: frame.cursor.column.min(self.width - 1) };
        if finished.is_empty() && lines == self.drawn && cursor == self.cursor {
            return String::new();
        }
        let mut out = BEGIN.to_owned();
        self.go_to_top(&mut out);
        for line in finished {
            out.push_str(CLEAR_LINE);
            line.write(self.color, &mut out);
            if line.width() < self.width {
                // Where the terminal is narrower than it says by now, the line goes on in a row that is not empty.
                out.push_str(CLEAR_LINE);
            }
            out.push_str("\r\n");
        }
        // Final lines have been written over what was known.
        let known = if finished.is_empty() { self.drawn.as_slice() } else { &[] };
        let left_over = self.drawn.len() > finished.len() + lines.len();
        out.push_str(NO_WRAP);
        write_lines(&lines, known, left_over, &mut out);
        out.push_str(WRAP);
        let below = lines.len().saturating_sub(1) - cursor.row;
        if below > 0 {
            let _ = write!(out, "\x1b[{below}A");
        }
        out.push('\r');
        if cursor.column > 0 {
            let _ = write!(out, "\x1b[{}C", cursor.column);
        }
        out.push_str(END);
        (self.drawn, self.cursor) = (lines, cursor);
        out
    }

    fn drawing(&self, line: &Line) -> Drawn {
        let line = line.truncated(self.width);
        let mut text = String::new();
        line.write(self.color, &mut text);
        Drawn { text, width: line.width() }
    }

    fn go_to_top(&self, out: &mut String) {
        if self.cursor.row > 0 {
            let _ = write!(out, "\x1b[{}A", self.cursor.row);
        }
        out.push('\r');
    }

    /// The terminal has another size. It has broken lines that no longer fit in two, as nearly all do, and the cursor
    /// is still at the same character: from there it is known where the live area begins. It is wiped away.
    pub(super) fn resize(&mut self, width: usize, height: usize) -> String {
        (self.width, self.height) = (width.max(1), height.max(1));
        let rows = |columns: usize| columns.saturating_sub(1) / self.width + 1;
        let above: usize = self.drawn.iter().take(self.cursor.row).map(|line| rows(line.width)).sum();
        let above = (above + self.cursor.column / self.width).min(self.height - 1);
        self.wipe(above)
    }

    /// Takes the live area away; the next frame is drawn in its place.
    pub(super) fn clear(&mut self) -> String {
        self.wipe(self.cursor.row)
    }

    /// Empties the whole screen; the scrollback stays.
    pub(super) fn clear_all(&mut self) -> String {
        self.drawn.clear();
        self.cursor = Place::default();
        "\x1b[H\x1b[2J".to_owned()
    }

    fn wipe(&mut self, above: usize) -> String {
        let mut out = String::new();
        if above > 0 {
            let _ = write!(out, "\x1b[{above}A");
        }
        out.push('\r');
        out.push_str(SAVE);
        out.push_str(CLEAR_LINE);
        for _ in 1..self.height {
            out.push_str(DOWN);
            out.push_str(CLEAR_LINE);
        }
        out.push_str(RESTORE);
        self.drawn.clear();
        self.cursor = Place::default();
        out
    }
}

/// Writes what differs from what is there, and clears what is left over below; the cursor is in the first line before,
/// and in the last one after.
fn write_lines(lines: &[Drawn], known: &[Drawn], left_over: bool, out: &mut String) {
    for (at, line) in lines.iter().enumerate() {
        if at > 0 {
            // In the last row, this makes the screen scroll.
            out.push_str("\r\n");
        }
        if known.get(at) != Some(line) {
            out.push_str(CLEAR_LINE);
            out.push_str(&line.text);
        }
    }
    if left_over && lines.is_empty() {
        out.push_str(CLEAR_BELOW);
    } else if left_over {
        // Not from where the cursor is: a line that did not change would lose its end.
        out.push_str("\r\n");
        out.push_str(CLEAR_BELOW);
        out.push_str("\x1b[A");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(lines: &[&str], row: usize, column: usize) -> Frame {
        let lines = lines.iter().map(|line| Line::plain(line)).collect();
        Frame { lines, cursor: Place { row, column } }
    }

    /// What is drawn between the sequences that begin and end a drawing.
    fn inner(bytes: &str) -> &str {
        bytes.strip_prefix(BEGIN).unwrap().strip_suffix(END).unwrap()
    }

    /// The same, readable.
    fn drawn(bytes: &str) -> String {
        let names =
            [(CLEAR_LINE, "<clear>"), (CLEAR_BELOW, "<clear below>"), (NO_WRAP, "<cut>"), (WRAP, "<wrap>")];
        let text = names.iter().fold(inner(bytes).to_owned(), |text, (code, name)| text.replace(code, name));
        text.replace("\r\n", "<next>").replace('\r', "<start>").replace("\x1b[", "<")
    }

    #[test]
    fn only_what_differs_is_drawn() {
        let mut screen = Screen::new(true, 20, 10);
        let first = screen.draw(&[], &frame(&["one", "two", "› "], 2, 2));
        let expected = "<start><cut><clear>one<next><clear>two<next><clear>› <wrap><start><2C";
        assert_eq!(drawn(&first), expected);
        assert_eq!(screen.draw(&[], &frame(&["one", "two", "› "], 2, 2)), "");
        let second = screen.draw(&[], &frame(&["one", "TWO", "› "], 2, 2));
        assert_eq!(drawn(&second), "<2A<start><cut><next><clear>TWO<next><wrap><start><2C");
    }

    #[test]
    fn finished_lines_push_the_live_area_down() {
        let mut screen = Screen::new(true, 20, 10);
        screen.draw(&[], &frame(&["open", "› "], 1, 2));
        let second = screen.draw(&[Line::plain("final")], &frame(&["open", "› "], 1, 2));
        let expected = "<1A<start><clear>final<clear><next><cut><clear>open<next><clear>› <wrap><start><2C";
        assert_eq!(drawn(&second), expected);
    }

    #[test]
    fn a_live_area_that_shrinks_leaves_nothing_behind() {
        let mut screen = Screen::new(true, 20, 10);
        screen.draw(&[], &frame(&["a", "b", "c", "d"], 0, 0));
        let second = screen.draw(&[], &frame(&["a", "b"], 1, 1));
        assert_eq!(drawn(&second), "<start><cut><next><next><clear below><A<wrap><start><1C");
        screen.draw(&[], &frame(&["a", "b", "c", "d"], 3, 0));
        let last = screen.draw(&[Line::plain("final")], &Frame::default());
        assert_eq!(drawn(&last), "<3A<start><clear>final<clear><next><cut><clear below><wrap><start>");
    }

    #[test]
    fn lines_never_reach_beyond_the_screen() {
        let mut screen = Screen::new(true, 5, 2);
        let first = screen.draw(&[], &frame(&["longer than five", "x", "left out"], 9, 99));
        assert_eq!(drawn(&first), "<start><cut><clear>long<2m…<0m<next><clear>x<wrap><start><4C");
    }

    #[test]
    fn after_a_resize_the_live_area_is_found_again() {
        let mut screen = Screen::new(true, 20, 10);
        screen.draw(&[], &frame(&["fifteen columns", "› abcdef"], 1, 8));
        // The first line takes two rows now, and the cursor is in the second row of its line.
        assert_eq!(
            screen.resize(8, 2),
            "\x1b[1A\r\x1b7\x1b[K\x1b[B\x1b[K\x1b8",
            "as far up as there are rows"
        );
        screen.draw(&[], &frame(&["fifteen columns", "› abcdef"], 1, 8));
        assert!(screen.resize(4, 10).starts_with("\x1b[3A\r\x1b7"), "two rows above its line, and one in it");
        assert_eq!(drawn(&screen.draw(&[], &frame(&["x"], 0, 0))), "<start><cut><clear>x<wrap><start>");
    }
}
