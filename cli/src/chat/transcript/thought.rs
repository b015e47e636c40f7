//! What the agent thinks: a few dim lines while it does, one line afterwards. Pure.

use jiff::Timestamp;

use super::{in_short, notes::milliseconds};
use crate::{
    chat::line::{Line, Style},
    text::duration,
};

/// Lines of a thought that are shown while it goes on.
const OPEN_LINES: usize = 4;
/// Characters of a thought that its one line quotes.
const QUOTE: usize = 60;

#[derive(Debug)]
pub(super) struct Thought {
    part: String,
    text: String,
    began: Timestamp,
    ended: Option<Timestamp>,
}

impl Thought {
    pub(super) fn new(part: &str, text: &str, began: Timestamp) -> Self {
        Self { part: part.to_owned(), text: text.to_owned(), began, ended: None }
    }

    pub(super) fn is_open(&self, part: &str) -> bool {
        self.ended.is_none() && self.part == part
    }

    pub(super) fn ended(&self) -> bool {
        self.ended.is_some()
    }

    pub(super) fn push(&mut self, text: &str) {
        self.text.push_str(text);
    }

    pub(super) fn finish(&mut self, at: Timestamp) {
        self.ended.get_or_insert_with(|| at.max(self.began));
    }

    /// One line, or all of it.
    pub(super) fn finished(&self, width: usize, whole: bool) -> Vec<Line> {
        if whole {
            return thought_lines(&self.text, width);
        }
        let took = duration(milliseconds(self.began, self.ended.unwrap_or(self.began)));
        let quote = in_short(&self.text, QUOTE);
        vec![Line::dim(&format!("∴ thought for {took}: {quote}")).truncated(width)]
    }

    /// Its last lines.
    pub(super) fn open(&self, width: usize, now: Timestamp) -> Vec<Line> {
        let took = duration(milliseconds(self.began, now));
        let mut lines = vec![Line::dim(&format!("∴ thinking  {took}")).truncated(width)];
        let all = thought_lines(&self.text, width);
        lines.extend(all.into_iter().rev().take(OPEN_LINES).rev());
        lines
    }
}

/// A whole thought.
pub(in crate::chat) fn thought_lines(text: &str, width: usize) -> Vec<Line> {
    let indent = Line::plain("  ");
    let style = Style { italic: true, ..Style::DIM };
    text.trim().lines().flat_map(|line| Line::new(style, line).wrapped(width, &indent, &indent)).collect()
}
