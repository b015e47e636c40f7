//! A Markdown text that grows: which of its lines are final, and what the open rest looks like. Pure.

use std::ops::Range;

use pulldown_cmark::{Event, Tag};

use super::{Markdown, parser};
use crate::chat::line::Line;

/// Longest open rest that is rendered, in bytes: more than a screen holds. Of a longer one its end is shown as it is,
/// so that a line without an end does not cost more with each of its words.
const OPEN_LIMIT: usize = 64 * 1024;

/// A text and how much of it was given out.
#[derive(Debug, Default)]
pub(in crate::chat) struct Stream {
    text: String,
    /// Where the first block begins that is not wholly given out, in bytes.
    at: usize,
    /// Units of that block that were given out.
    units: usize,
    /// Something was given out.
    began: bool,
}

/// A block at the top level.
struct Block {
    range: Range<usize>,
    /// Its units become final one by one.
    grows: bool,
}

fn blocks(source: &str) -> Vec<Block> {
    let mut depth = 0_usize;
    let mut blocks = Vec::new();
    for (event, range) in parser(source).into_offset_iter() {
        if depth == 0 {
            let grows = matches!(event, Event::Start(Tag::List(_) | Tag::CodeBlock(_)));
            blocks.push(Block { range, grows });
        }
        match event {
            Event::Start(_) => depth += 1,
            Event::End(_) => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    blocks
}

fn end_of(source: &str, width: usize) -> Vec<Line> {
    let start = source.ceil_char_boundary(source.len() - OPEN_LIMIT);
    let lines = source[start..].lines().map(Line::plain);
    let none = Line::default();
    let rest = lines.flat_map(|line| line.wrapped(width, &none, &none));
    std::iter::once(Line::dim("…")).chain(rest).collect()
}

impl Stream {
    /// More of the text.
    pub(in crate::chat) fn push(&mut self, more: &str) {
        self.text.push_str(more);
    }

    /// Something of it was given out.
    pub(in crate::chat) fn began(&self) -> bool {
        self.began
    }

    /// The lines that became final since the last call; all that are left, once the text is `finished`.
    pub(in crate::chat) fn settle(
        &mut self,
        markdown: &mut Markdown,
        width: usize,
        finished: bool,
    ) -> Vec<Line> {
        // Only whole lines are judged: half of one can be read as something else than the whole.
        let end = if finished { self.text.len() } else { self.text.rfind('\n').map_or(0, |at| at + 1) };
        let base = self.at;
        let Some(source) = self.text.get(base..end).map(ToOwned::to_owned) else { return Vec::new() };
        let found = blocks(&source);
        let mut lines = Vec::new();
        for (index, block) in found.iter().enumerate() {
            let done = finished || index + 1 < found.len();
            if !done && !block.grows {
                break;
            }
            let units = markdown.units(&source[block.range.clone()], width, self.units);
            let ready = if done { units.len() } else { units.len().saturating_sub(1) };
            for unit in units.into_iter().take(ready).skip(self.units) {
                self.separate(&mut lines);
                lines.extend(unit);
                self.units += 1;
            }
            if !done {
                break;
            }
            (self.at, self.units) = (base + block.range.end, 0);
        }
        if finished {
            (self.at, self.units) = (self.text.len(), 0);
        }
        lines
    }

    /// What is not final yet, as it looks now.
    pub(in crate::chat) fn open(&self, markdown: &mut Markdown, width: usize) -> Vec<Line> {
        let source = &self.text[self.at..];
        if source.len() > OPEN_LIMIT {
            return end_of(source, width);
        }
        let (mut skip, mut began) = (self.units, self.began);
        let mut lines = Vec::new();
        for block in blocks(source) {
            let units = markdown.units(&source[block.range.clone()], width, skip);
            if skip == 0 && began && units.iter().any(|unit| !unit.is_empty()) {
                lines.push(Line::default());
            }
            lines.extend(units.into_iter().skip(skip).flatten());
            (skip, began) = (0, true);
        }
        lines
    }

    /// An empty line before each block but the first.
    fn separate(&mut self, lines: &mut Vec<Line>) {
        if self.units == 0 && self.began {
            lines.push(Line::default());
        }
        self.began = true;
    }
}
