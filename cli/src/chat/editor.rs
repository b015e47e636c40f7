//! The line, or lines, that somebody types. Pure but for the history file, which [`super::history`] keeps.
//!
//! Editing is [`LineBuffer`]'s business: it knows characters of several code points, words and lines.

use rustyline::{
    At, Word,
    line_buffer::{ChangeListener, DeleteListener, Direction, LineBuffer},
};
use unicode_segmentation::UnicodeSegmentation;

use super::{
    line::{Line, Style, width_of},
    screen::Place,
};
use crate::text::clean;

/// Longest prompt that is typed, in bytes. The server takes 24 MiB with files; more text than this belongs in one.
const LIMIT: usize = 1024 * 1024;

/// Nobody listens to changes: there is no undo.
struct Quiet;

impl DeleteListener for Quiet {
    fn delete(&mut self, _: usize, _: &str, _: Direction) {}
}

impl ChangeListener for Quiet {
    fn insert_char(&mut self, _: usize, _: char) {}
    fn insert_str(&mut self, _: usize, _: &str) {}
    fn replace(&mut self, _: usize, _: &str, _: &str) {}
}

/// A change to the text, or a move in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Edit {
    Insert(char),
    Newline,
    Backspace,
    Delete,
    DeleteWordBefore,
    DeleteWordAfter,
    DeleteToStart,
    DeleteToEnd,
    Yank,
    Left,
    Right,
    WordLeft,
    WordRight,
    Home,
    End,
    Transpose,
}

/// What is typed, and where the cursor is.
#[derive(Debug)]
pub(super) struct Editor {
    buffer: LineBuffer,
    killed: String,
}

/// A text laid out in rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) lines: Vec<Line>,
    pub(super) cursor: Place,
}

impl Editor {
    pub(super) fn new() -> Self {
        Self { buffer: LineBuffer::with_capacity(LIMIT), killed: String::new() }
    }

    pub(super) fn text(&self) -> &str {
        self.buffer.as_str()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Bytes before the cursor.
    pub(super) fn position(&self) -> usize {
        self.buffer.pos()
    }

    /// Another text, with the cursor at its end.
    pub(super) fn set(&mut self, text: &str) {
        let text = fitting(text);
        self.buffer.update(text, text.len(), &mut Quiet);
    }

    /// Takes the text away.
    pub(super) fn take(&mut self) -> String {
        let text = self.text().to_owned();
        self.set("");
        text
    }

    /// Text that was pasted; false when it is too long.
    pub(super) fn paste(&mut self, text: &str) -> bool {
        let text = clean(&text.replace("\r\n", "\n").replace('\r', "\n"));
        self.insert(&text)
    }

    fn insert(&mut self, text: &str) -> bool {
        if self.buffer.len() + text.len() > LIMIT {
            return false;
        }
        let at = self.buffer.pos();
        self.buffer.insert_str(at, text, &mut Quiet);
        self.buffer.set_pos(at + text.len());
        true
    }

    /// Replaces the bytes from `start` to the cursor.
    pub(super) fn complete(&mut self, start: usize, text: &str) {
        let start = start.min(self.buffer.pos());
        self.buffer.delete_range(start..self.buffer.pos(), &mut Quiet);
        self.buffer.set_pos(start);
        self.insert(text);
    }

    /// Does it; false when the text is too long for it.
    pub(super) fn edit(&mut self, edit: Edit) -> bool {
        let buffer = &mut self.buffer;
        match edit {
            Edit::Insert(character) => return self.insert(&clean(character.encode_utf8(&mut [0; 4]))),
            Edit::Newline => return self.insert("\n"),
            Edit::Yank => {
                let killed = self.killed.clone();
                return self.insert(&killed);
            }
            Edit::Backspace => drop(buffer.backspace(1, &mut Quiet)),
            Edit::Delete => drop(buffer.delete(1, &mut Quiet)),
            Edit::Left => drop(buffer.move_backward(1)),
            Edit::Right => drop(buffer.move_forward(1)),
            Edit::WordLeft => drop(buffer.move_to_prev_word(Word::Emacs, 1)),
            Edit::WordRight => drop(buffer.move_to_next_word(At::AfterEnd, Word::Emacs, 1)),
            Edit::Home => drop(buffer.move_home()),
            Edit::End => drop(buffer.move_end()),
            Edit::Transpose => drop(buffer.transpose_chars(&mut Quiet)),
            Edit::DeleteWordBefore | Edit::DeleteWordAfter | Edit::DeleteToStart | Edit::DeleteToEnd => {
                self.kill(edit);
            }
        }
        true
    }

    fn kill(&mut self, edit: Edit) {
        let (before, at) = (self.text().to_owned(), self.position());
        let buffer = &mut self.buffer;
        match edit {
            Edit::DeleteWordBefore => drop(buffer.delete_prev_word(Word::Big, 1, &mut Quiet)),
            Edit::DeleteWordAfter => drop(buffer.delete_word(At::AfterEnd, Word::Emacs, 1, &mut Quiet)),
            Edit::DeleteToStart => drop(buffer.discard_line(&mut Quiet)),
            _ => drop(buffer.kill_line(&mut Quiet)),
        }
        let gone = before.len() - self.text().len();
        let start = self.position().min(at);
        if gone > 0 {
            before.get(start..start + gone).unwrap_or_default().clone_into(&mut self.killed);
        }
    }

    /// One line up or down in a text of several; false at its end.
    pub(super) fn move_line(&mut self, up: bool) -> bool {
        let (text, at) = (self.text(), self.position());
        let start = text[..at].rfind('\n').map_or(0, |before| before + 1);
        let column = text[start..at].graphemes(true).count();
        let target = if up {
            let Some(end) = start.checked_sub(1) else { return false };
            text[..end].rfind('\n').map_or(0, |before| before + 1)
        } else {
            let Some(next) = text[at..].find('\n') else { return false };
            at + next + 1
        };
        let line = text[target..].split('\n').next().unwrap_or_default();
        let offset: usize = line.graphemes(true).take(column).map(str::len).sum();
        self.buffer.set_pos(target + offset);
        true
    }

    /// Rows of at most `width` columns, `prompt` before the first.
    pub(super) fn layout(&self, width: usize, prompt: &Line) -> Layout {
        let indent = prompt.width();
        let width = width.max(indent + 2);
        let blank = Line::plain(&" ".repeat(indent));
        let (mut lines, mut line, mut column) = (Vec::new(), prompt.clone(), indent);
        let mut cursor = None;
        for (at, character) in self.text().grapheme_indices(true) {
            let shown = if character == "\t" { "    " } else { character };
            let columns = width_of(shown);
            // A row is left one column short, so that the cursor has a place behind its last character.
            if character != "\n" && column + columns >= width {
                lines.push(std::mem::replace(&mut line, blank.clone()));
                column = indent;
            }
            if at == self.position() {
                cursor = Some(Place { row: lines.len(), column });
            }
            if character == "\n" {
                lines.push(std::mem::replace(&mut line, blank.clone()));
                column = indent;
            } else {
                line.push(Style::PLAIN, shown);
                column += columns;
            }
        }
        let cursor = cursor.unwrap_or(Place { row: lines.len(), column });
        lines.push(line);
        Layout { lines, cursor }
    }
}

/// As much of a text as is taken.
fn fitting(text: &str) -> &str {
    let mut end = text.len().min(LIMIT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn editor(text: &str) -> Editor {
        let mut editor = Editor::new();
        editor.set(text);
        editor
    }

    fn edited(text: &str, edits: &[Edit]) -> String {
        let mut editor = editor(text);
        for edit in edits {
            editor.edit(*edit);
        }
        let (before, after) = editor.text().split_at(editor.position());
        format!("{before}|{after}")
    }

    #[test]
    fn edits() {
        let cases: [(&str, &[Edit], &str); 9] = [
            ("helo", &[Edit::Left, Edit::Insert('l')], "hell|o"),
            ("one two", &[Edit::DeleteWordBefore], "one |"),
            ("one two", &[Edit::DeleteWordBefore, Edit::Home, Edit::Yank], "two|one "),
            ("one two", &[Edit::WordLeft, Edit::DeleteToEnd, Edit::Yank, Edit::Yank], "one twotwo|"),
            ("one two", &[Edit::WordLeft, Edit::DeleteToStart], "|two"),
            ("e\u{301}", &[Edit::Backspace], "|"),
            ("a\nb", &[Edit::Home, Edit::Delete], "a\n|"),
            ("ab", &[Edit::Transpose], "ba|"),
            ("", &[Edit::Insert('\u{1b}'), Edit::Newline], "\n|"),
        ];
        for (text, edits, result) in cases {
            assert_eq!(edited(text, edits), result, "{text:?} {edits:?}");
        }
    }

    #[test]
    fn a_paste_keeps_its_lines_and_nothing_that_a_terminal_obeys() {
        let mut editor = Editor::new();
        assert!(editor.paste("one\r\ntwo\rthree\u{1b}[2J"));
        assert_eq!(editor.text(), "one\ntwo\nthree[2J");
        assert!(!editor.paste(&"x".repeat(LIMIT)));
    }

    #[test]
    fn up_and_down_keep_the_column() {
        let mut editor = editor("long line\nab\nthird");
        assert!(editor.move_line(true));
        assert_eq!(editor.position(), "long line\nab".len());
        assert!(editor.move_line(true));
        assert_eq!(editor.position(), 2);
        assert!(!editor.move_line(true));
        assert!(editor.move_line(false) && editor.move_line(false));
        assert!(!editor.move_line(false));
    }

    #[test]
    fn rows_and_cursor() {
        let layout = editor("abcdef\n世").layout(6, &Line::plain("› "));
        let texts: Vec<String> = layout.lines.iter().map(Line::text).collect();
        assert_eq!(texts, ["› abc", "  def", "  世"]);
        assert_eq!(layout.cursor, Place { row: 2, column: 4 });
    }

    proptest! {
        #[test]
        fn the_cursor_is_always_within_the_rows(
            text in any::<String>(),
            width in 0_usize..30,
            moves in 0_usize..20,
        ) {
            let mut editor = Editor::new();
            editor.paste(&text);
            for _ in 0..moves {
                editor.edit(Edit::Left);
            }
            let layout = editor.layout(width, &Line::plain("› "));
            prop_assert!(layout.cursor.row < layout.lines.len());
            // A character may be wider than a narrow screen; a terminal cuts that off.
            prop_assert!(layout.cursor.column <= layout.lines[layout.cursor.row].width());
        }
    }
}
