//! What the word before the cursor can be completed to. Pure.

use super::Chat;
use crate::{
    chat::{
        commands::{Described, begun, mention},
        line::{Line, choice_line, column_of},
    },
    text::clean_line,
};

/// Completions that are shown at once.
const SHOWN: usize = 6;

/// Which completion is marked.
#[derive(Debug, Default)]
pub(super) struct Menu {
    at: usize,
    /// For which text it was closed, or where it does not open by itself.
    closed: Option<String>,
}

/// A completion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Completion {
    /// Where what it replaces begins, in bytes; it ends at the cursor.
    start: usize,
    text: String,
    /// How it is shown.
    label: String,
    detail: String,
}

impl Menu {
    /// Does not open for this text: it was not typed.
    pub(super) fn close_for(&mut self, text: &str) {
        (self.closed, self.at) = (Some(text.to_owned()), 0);
    }
}

impl Chat {
    /// Completions of what is before the cursor; asks for what is not known.
    pub(super) fn completions(&mut self) -> Vec<Completion> {
        let before = self.editor.text()[..self.editor.position()].to_owned();
        if self.words.is_some() || self.menu.closed.as_deref() == Some(before.as_str()) {
            return Vec::new();
        }
        self.menu.closed = None;
        let commands = begun(&before);
        if !commands.is_empty() {
            let completion = |known: &&'static Described| Completion {
                start: 0,
                text: format!("/{}", known.name),
                label: known.usage(),
                detail: known.help.to_owned(),
            };
            return commands.iter().map(completion).collect();
        }
        let Some((start, word)) = mention(&before) else { return Vec::new() };
        let wanted = self.listing.wants(word);
        self.effects.extend(wanted);
        let completions = self.listing.completions(word).into_iter();
        let completion = |(text, detail): (String, String)| {
            let text = format!("@{text}");
            Completion { start, label: clean_line(&text, 200), text, detail }
        };
        let mut completions: Vec<Completion> = completions.map(completion).collect();
        if completions.len() == 1 && completions[0].text == before[start..] {
            completions.clear();
        }
        completions
    }

    /// Takes the marked completion; false when there is none.
    pub(super) fn complete(&mut self) -> bool {
        let completions = self.completions();
        let at = self.menu.at.min(completions.len().saturating_sub(1));
        let Some(completion) = completions.get(at) else { return false };
        // A directory goes on, all else is complete.
        let blank = if completion.text.ends_with('/') { "" } else { " " };
        self.editor.complete(completion.start, &format!("{}{blank}", completion.text));
        self.menu.at = 0;
        true
    }

    /// Marks the completion before or after; false when there is no choice.
    pub(super) fn mark(&mut self, up: bool) -> bool {
        let count = self.completions().len();
        if count < 2 {
            return false;
        }
        self.menu.at = self.menu.at.min(count - 1);
        self.menu.at = if up { (self.menu.at + count - 1) % count } else { (self.menu.at + 1) % count };
        true
    }

    /// Closes the menu until the text is another one; false when it is closed.
    pub(super) fn close_menu(&mut self) -> bool {
        if self.completions().is_empty() {
            return false;
        }
        let before = self.editor.text()[..self.editor.position()].to_owned();
        self.menu.close_for(&before);
        true
    }

    /// The text changed.
    pub(super) fn reset_menu(&mut self) {
        self.menu.at = 0;
    }

    pub(super) fn menu_lines(&mut self) -> Vec<Line> {
        let completions = self.completions();
        let at = self.menu.at.min(completions.len().saturating_sub(1));
        let first = (at + 1).saturating_sub(SHOWN);
        let shown: Vec<(usize, &Completion)> =
            completions.iter().enumerate().skip(first).take(SHOWN).collect();
        let column = column_of(shown.iter().map(|(_, completion)| completion.label.as_str()));
        let mut lines: Vec<Line> = shown
            .iter()
            .map(|(number, completion)| {
                choice_line(*number == at, &completion.label, column, &completion.detail)
            })
            .collect();
        let hidden = completions.len().saturating_sub(first + lines.len());
        if hidden > 0 {
            lines.push(Line::dim(&format!("  … {hidden} more: go on typing, or Down")));
        }
        lines
    }
}
