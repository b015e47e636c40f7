//! Markdown as lines for a terminal, also while it is still being written. Pure.
//!
//! [`Stream`] takes a text that grows and gives out each block once no later word can change it, so that finished
//! blocks become part of the scrollback and only the open one is drawn again.

use std::collections::HashMap;

use pulldown_cmark::{Event, Options, Parser};
use synoptic::Highlighter;

use super::line::Line;

mod code;
mod stream;
mod table;
mod walk;

pub(super) use stream::Stream;
use walk::Walk;

/// Deepest nesting of lists and quotes that is indented.
const DEEPEST: usize = 6;

/// Renders Markdown. Holds what is costly to make: the highlighters of the languages that were seen.
pub(super) struct Markdown {
    /// Emphasis and code are shown by their marks, since there are no styles to show them.
    marks: bool,
    highlighters: HashMap<String, Highlighter>,
}

impl std::fmt::Debug for Markdown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Markdown").field("marks", &self.marks).finish_non_exhaustive()
    }
}

fn parser(source: &str) -> Parser<'_> {
    let options = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS;
    Parser::new_ext(source, options)
}

impl Markdown {
    /// With styles, or with marks instead of them.
    pub(super) fn new(color: bool) -> Self {
        Self { marks: !color, highlighters: HashMap::new() }
    }

    /// The first block of `source`, in units of which each is final once another follows it: the items of a list,
    /// the lines of a code block. Units before `skip` may come out empty.
    fn units(&mut self, source: &str, width: usize, skip: usize) -> Vec<Vec<Line>> {
        let events: Vec<Event<'_>> = parser(source).collect();
        Walk::new(self, events).top(width, skip)
    }
}

#[cfg(test)]
mod tests;
