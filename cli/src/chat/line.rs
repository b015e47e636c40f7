//! Lines of styled text: safe for a terminal by construction, measured in columns, and broken to a width. Pure.
//!
//! The only way to a [`Span`] is [`Span::new`], which lets nothing through that a terminal would obey: what an agent
//! says cannot move the cursor, change a title or hide a part of a command.

use std::fmt::Write;

use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

use crate::text::clean;

/// Columns that a tab is shown as.
const TAB: &str = "    ";
/// No line is broken to less than this: a character of two columns has to fit.
const LEAST_WIDTH: usize = 2;

/// Widest column of labels.
const WIDEST_COLUMN: usize = 36;

/// Colours that every terminal with colours has, in the reader's own palette.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Color {
    Red,
    Green,
    Yellow,
    Blue,
    Magenta,
    Cyan,
}

/// How text looks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "these are a terminal's own independent attributes")]
pub(super) struct Style {
    pub(super) bold: bool,
    pub(super) dim: bool,
    pub(super) italic: bool,
    pub(super) underline: bool,
    pub(super) strike: bool,
    pub(super) color: Option<Color>,
}

impl Style {
    pub(super) const PLAIN: Self =
        Self { bold: false, dim: false, italic: false, underline: false, strike: false, color: None };
    pub(super) const BOLD: Self = Self { bold: true, ..Self::PLAIN };
    pub(super) const DIM: Self = Self { dim: true, ..Self::PLAIN };

    pub(super) const fn of(color: Color) -> Self {
        Self { color: Some(color), ..Self::PLAIN }
    }

    /// This, with what `other` has on top.
    pub(super) fn with(self, other: Self) -> Self {
        Self {
            bold: self.bold || other.bold,
            dim: self.dim || other.dim,
            italic: self.italic || other.italic,
            underline: self.underline || other.underline,
            strike: self.strike || other.strike,
            color: other.color.or(self.color),
        }
    }

    /// The escape sequence that turns it on; empty when there is nothing to turn on.
    fn escape(self) -> String {
        let color = self.color.map(|color| match color {
            Color::Red => "31",
            Color::Green => "32",
            Color::Yellow => "33",
            Color::Blue => "34",
            Color::Magenta => "35",
            Color::Cyan => "36",
        });
        let flag = |on: bool, code: &'static str| on.then_some(code);
        let codes: Vec<&str> = [
            flag(self.bold, "1"),
            flag(self.dim, "2"),
            flag(self.italic, "3"),
            flag(self.underline, "4"),
            flag(self.strike, "9"),
            color,
        ]
        .into_iter()
        .flatten()
        .collect();
        if codes.is_empty() { String::new() } else { format!("\x1b[{}m", codes.join(";")) }
    }
}

/// Text in one style, on one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Span {
    style: Style,
    text: String,
}

impl Span {
    /// `text` without what a terminal would obey; line ends become blanks.
    pub(super) fn new(style: Style, text: &str) -> Self {
        Self { style, text: clean(text).replace('\n', " ").replace('\t', TAB) }
    }
}

/// One line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Line {
    spans: Vec<Span>,
}

impl Line {
    /// A line in one style.
    pub(super) fn new(style: Style, text: &str) -> Self {
        Self { spans: vec![Span::new(style, text)] }
    }

    pub(super) fn plain(text: &str) -> Self {
        Self::new(Style::PLAIN, text)
    }

    pub(super) fn dim(text: &str) -> Self {
        Self::new(Style::DIM, text)
    }

    /// Puts text behind it.
    pub(super) fn push(&mut self, style: Style, text: &str) {
        let span = Span::new(style, text);
        match self.spans.last_mut() {
            Some(last) if last.style == style => last.text.push_str(&span.text),
            _ => self.spans.push(span),
        }
    }

    /// The same with more behind it.
    #[must_use]
    pub(super) fn and(mut self, style: Style, text: &str) -> Self {
        self.push(style, text);
        self
    }

    pub(super) fn append(&mut self, other: Self) {
        for span in other.spans {
            self.push(span.style, &span.text);
        }
    }

    /// The same with `style` on top everywhere.
    #[must_use]
    pub(super) fn styled(mut self, style: Style) -> Self {
        for span in &mut self.spans {
            span.style = span.style.with(style);
        }
        self
    }

    /// Columns that it takes.
    pub(super) fn width(&self) -> usize {
        self.spans.iter().map(|span| width_of(&span.text)).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.spans.iter().all(|span| span.text.is_empty())
    }

    /// Its words, without styles.
    pub(super) fn text(&self) -> String {
        self.spans.iter().map(|span| span.text.as_str()).collect()
    }

    /// As a terminal takes it: with escape sequences when `color`, and without its end.
    pub(super) fn write(&self, color: bool, out: &mut String) {
        for span in &self.spans {
            let escape = if color { span.style.escape() } else { String::new() };
            if escape.is_empty() {
                out.push_str(&span.text);
            } else {
                let _ = write!(out, "{escape}{}\x1b[0m", span.text);
            }
        }
    }

    fn cells(&self) -> Vec<Cell<'_>> {
        self.spans
            .iter()
            .flat_map(|span| span.text.graphemes(true).map(move |text| (span.style, text)))
            .map(|(style, text)| Cell { style, text, width: text.width() })
            .collect()
    }

    fn of_cells(cells: &[Cell<'_>]) -> Self {
        let mut line = Self::default();
        for cell in cells {
            // Cells come from clean text.
            match line.spans.last_mut() {
                Some(last) if last.style == cell.style => last.text.push_str(cell.text),
                _ => line.spans.push(Span { style: cell.style, text: cell.text.to_owned() }),
            }
        }
        line
    }

    /// Broken between words to lines of at most `width` columns; `first` stands before the first one, `rest` before
    /// the others. A word that fits on no line is broken anywhere.
    pub(super) fn wrapped(&self, width: usize, first: &Self, rest: &Self) -> Vec<Self> {
        self.broken(width, first, rest, Break::Words)
    }

    /// Broken where the width ends, as code has to be.
    pub(super) fn folded(&self, width: usize, first: &Self, rest: &Self) -> Vec<Self> {
        self.broken(width, first, rest, Break::Anywhere)
    }

    fn broken(&self, width: usize, first: &Self, rest: &Self, how: Break) -> Vec<Self> {
        let room = |prefix: &Self| width.saturating_sub(prefix.width()).max(LEAST_WIDTH);
        let cells = self.cells();
        let mut left = cells.as_slice();
        let mut lines = Vec::new();
        loop {
            let prefix = if lines.is_empty() { first } else { rest };
            let (row, next) = split(left, room(prefix), how);
            let mut line = prefix.clone();
            line.spans.extend(Self::of_cells(row).spans);
            lines.push(line);
            if next.is_empty() {
                return lines;
            }
            left = next;
        }
    }

    /// Cut to `width` columns; what is cut off is marked.
    pub(super) fn truncated(&self, width: usize) -> Self {
        if self.width() <= width {
            return self.clone();
        }
        let cells = self.cells();
        let mut used = 0;
        let fits = |cell: &&Cell<'_>| {
            used += cell.width;
            used < width
        };
        let count = cells.iter().take_while(fits).count();
        let mut line = Self::of_cells(&cells[..count]);
        line.spans.push(Span { style: Style::DIM, text: "…".to_owned() });
        line
    }
}

/// Something to choose from: marked or not, what it is called in a column of `column` characters, and what it is.
pub(super) fn choice_line(marked: bool, label: &str, column: usize, detail: &str) -> Line {
    let (mark, style) = if marked { ("› ", Style::BOLD) } else { ("  ", Style::PLAIN) };
    let mut line = Line::new(Style::of(Color::Cyan), mark).and(style, label);
    if !detail.is_empty() {
        let gap = column.saturating_sub(width_of(label)) + 2;
        line.push(Style::DIM, &format!("{}{detail}", " ".repeat(gap)));
    }
    line
}

/// How wide the column of these labels is; a few that are longer than others do not push everything aside.
pub(super) fn column_of<'l>(labels: impl Iterator<Item = &'l str>) -> usize {
    labels.map(width_of).max().unwrap_or_default().min(WIDEST_COLUMN)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Break {
    Words,
    Anywhere,
}

#[derive(Debug, Clone, Copy)]
struct Cell<'a> {
    style: Style,
    text: &'a str,
    width: usize,
}

impl Cell<'_> {
    fn is_blank(self) -> bool {
        self.text == " "
    }
}

/// What fits into `room` columns, and what is left; at least one cell is taken.
fn split<'c, 't>(cells: &'c [Cell<'t>], room: usize, how: Break) -> (&'c [Cell<'t>], &'c [Cell<'t>]) {
    let mut used = 0;
    let overflow = cells.iter().position(|cell| {
        used += cell.width;
        used > room
    });
    let Some(overflow) = overflow else { return (cells, &[]) };
    let overflow = overflow.max(1);
    if overflow == cells.len() {
        return (cells, &[]);
    }
    if how == Break::Anywhere {
        return cells.split_at(overflow);
    }
    // A line may end before a blank, and between characters of two columns, as Chinese and Japanese do.
    let may_end = |at: usize| {
        cells[at].is_blank() || cells[at - 1].is_blank() || (cells[at].width == 2 && cells[at - 1].width == 2)
    };
    let end = (1..=overflow).rev().find(|&at| may_end(at) && !cells[..at].iter().all(|cell| cell.is_blank()));
    let end = end.unwrap_or(overflow);
    let trailing = cells[..end].iter().rev().take_while(|cell| cell.is_blank()).count();
    let leading = cells[end..].iter().take_while(|cell| cell.is_blank()).count();
    (&cells[..end - trailing.min(end - 1)], &cells[end + leading..])
}

/// Columns of a text that is safe for a terminal.
pub(super) fn width_of(text: &str) -> usize {
    text.graphemes(true).map(UnicodeWidthStr::width).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn texts(lines: &[Line]) -> Vec<String> {
        lines.iter().map(Line::text).collect()
    }

    fn wrapped(text: &str, width: usize) -> Vec<String> {
        texts(&Line::plain(text).wrapped(width, &Line::default(), &Line::default()))
    }

    #[test]
    fn words_stay_whole_where_they_can() {
        assert_eq!(wrapped("the quick brown fox", 10), ["the quick", "brown fox"]);
        assert_eq!(wrapped("the quick", 9), ["the quick"]);
        assert_eq!(wrapped("a incomprehensibilities b", 8), ["a", "incompre", "hensibil", "ities b"]);
        assert_eq!(wrapped("", 8), [""]);
        assert_eq!(wrapped("trailing   ", 8), ["trailing"]);
    }

    #[test]
    fn wide_characters_take_two_columns() {
        assert_eq!(wrapped("世界世界世", 5), ["世界", "世界", "世"]);
        assert_eq!(wrapped("世", 1), ["世"]);
        // A vowel sign that stands alone is wider than all the room there is.
        assert_eq!(wrapped("ㄱ\u{b4b}", 2).concat(), "ㄱ\u{b4b}");
        assert_eq!(Line::plain("🦀e\u{301}").width(), 3);
    }

    #[test]
    fn prefixes_count() {
        let lines = Line::plain("one two three").wrapped(7, &Line::plain("• "), &Line::plain("  "));
        assert_eq!(texts(&lines), ["• one", "  two", "  three"]);
    }

    #[test]
    fn code_breaks_anywhere() {
        let lines = Line::plain("let x = 1;").folded(6, &Line::plain("  "), &Line::plain("  "));
        assert_eq!(texts(&lines), ["  let ", "  x = ", "  1;"]);
    }

    #[test]
    fn what_is_cut_is_marked() {
        assert_eq!(Line::plain("abcdef").truncated(4).text(), "abc…");
        assert_eq!(Line::plain("abcd").truncated(4).text(), "abcd");
        assert_eq!(Line::plain("世界世界").truncated(4).text(), "世…");
    }

    #[test]
    fn choices_stand_in_columns() {
        let labels = ["a", "世界", &"x".repeat(50)];
        assert_eq!(column_of(labels[..2].iter().copied()), 4);
        assert_eq!(column_of(labels.iter().copied()), WIDEST_COLUMN);
        assert_eq!(choice_line(true, "a", 4, "first").text(), "› a     first");
        assert_eq!(choice_line(false, "世界", 4, "second").text(), "  世界  second");
        assert_eq!(choice_line(false, "longer", 4, "x").text(), "  longer  x");
        assert_eq!(choice_line(false, "alone", 9, "").text(), "  alone");
    }

    #[test]
    fn styles_are_turned_on_and_off() {
        let line = Line::plain("a").and(Style::of(Color::Red).with(Style::BOLD), "b");
        let mut out = String::new();
        line.write(true, &mut out);
        assert_eq!(out, "a\u{1b}[1;31mb\u{1b}[0m");
        out.clear();
        line.write(false, &mut out);
        assert_eq!(out, "ab");
    }

    proptest! {
        #[test]
        fn no_line_is_wider_than_it_may_be_and_nothing_is_lost(text in "[a-z 世🦀]{0,60}", width in 2_usize..30) {
            let line = Line::plain(&text);
            for how in [Break::Words, Break::Anywhere] {
                let lines = line.broken(width, &Line::default(), &Line::default(), how);
                prop_assert!(lines.iter().all(|line| line.width() <= width), "{lines:?}");
                let words = |text: &str| text.split_whitespace().collect::<String>();
                prop_assert_eq!(words(&texts(&lines).concat()), words(&text));
            }
            prop_assert!(line.truncated(width).width() <= width);
        }

        #[test]
        fn nothing_from_outside_is_obeyed(text in any::<String>(), width in 1_usize..20) {
            let line = Line::plain(&text);
            for line in line.wrapped(width, &Line::default(), &Line::default()) {
                let mut out = String::new();
                line.write(false, &mut out);
                prop_assert!(!out.chars().any(char::is_control), "{out:?}");
            }
        }
    }
}
