//! A list from which one thing is chosen: by arrows, or by typing some of its letters. Pure.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::{
    chat::line::{Line, Style, choice_line, column_of},
    text::clean_line,
};

/// What the things are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Things {
    Sessions,
    Models,
    Agents,
}

/// One of the things.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Choice {
    /// What is chosen by it.
    pub(super) value: String,
    pub(super) label: String,
    pub(super) detail: String,
}

/// The list, what was typed, and which one is marked.
#[derive(Debug)]
pub(super) struct Picker {
    pub(super) things: Things,
    /// `None` while it is on its way.
    choices: Option<Vec<Choice>>,
    filter: String,
    at: usize,
}

/// What a key led to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Picked {
    Nothing,
    Closed,
    Chosen(String),
}

impl Picker {
    pub(super) fn new(things: Things, filter: &str) -> Self {
        Self { things, choices: None, filter: filter.to_owned(), at: 0 }
    }

    /// The list has come.
    pub(super) fn fill(&mut self, choices: Vec<Choice>) {
        self.choices = Some(choices);
        self.at = 0;
    }

    pub(super) fn paste(&mut self, text: &str) {
        self.filter.push_str(&clean_line(text, 200));
        self.at = 0;
    }

    fn found(&self) -> Vec<&Choice> {
        let words: Vec<String> = self.filter.split_whitespace().map(str::to_lowercase).collect();
        let fits = |choice: &&Choice| {
            let text = format!("{} {} {}", choice.value, choice.label, choice.detail).to_lowercase();
            words.iter().all(|word| text.contains(word))
        };
        self.choices.iter().flatten().filter(fits).collect()
    }

    pub(super) fn key(&mut self, key: KeyEvent) -> Picked {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Esc => return Picked::Closed,
            KeyCode::Enter | KeyCode::Tab => {
                let chosen = self.found().get(self.at).map(|choice| choice.value.clone());
                return chosen.map_or(Picked::Nothing, Picked::Chosen);
            }
            KeyCode::Up => self.at = self.at.saturating_sub(1),
            KeyCode::Char('p') if control => self.at = self.at.saturating_sub(1),
            KeyCode::Down => self.down(1),
            KeyCode::Char('n') if control => self.down(1),
            KeyCode::PageUp => self.at = self.at.saturating_sub(10),
            KeyCode::PageDown => self.down(10),
            KeyCode::Char('u') if control => self.refilter(String::new()),
            KeyCode::Backspace => {
                let mut filter = self.filter.clone();
                filter.pop();
                self.refilter(filter);
            }
            KeyCode::Char(letter) if !control && !key.modifiers.contains(KeyModifiers::ALT) => {
                self.refilter(format!("{}{letter}", self.filter));
            }
            _ => {}
        }
        Picked::Nothing
    }

    fn down(&mut self, by: usize) {
        self.at = (self.at + by).min(self.found().len().saturating_sub(1));
    }

    fn refilter(&mut self, filter: String) {
        (self.filter, self.at) = (filter, 0);
    }

    /// At most `rows` lines, the first of which is what was typed.
    pub(super) fn lines(&self, rows: usize) -> Vec<Line> {
        let name = match self.things {
            Things::Sessions => "session",
            Things::Models => "model",
            Things::Agents => "agent",
        };
        let mut head = Line::new(Style::BOLD, &format!("{name}: ")).and(Style::PLAIN, &self.filter);
        let found = self.found();
        if self.filter.is_empty() {
            head.push(Style::DIM, "type to search; Enter chooses, Esc closes");
        }
        let mut lines = vec![head];
        match &self.choices {
            None => lines.push(Line::dim("  …")),
            Some(all) if all.is_empty() => lines.push(Line::dim("  there is none")),
            Some(_) if found.is_empty() => lines.push(Line::dim("  nothing fits")),
            Some(_) => {}
        }
        let shown = rows.saturating_sub(1).max(1);
        let first = (self.at + 1).saturating_sub(shown);
        let rows: Vec<(usize, String, &Choice)> = found
            .iter()
            .enumerate()
            .skip(first)
            .take(shown)
            .map(|(number, choice)| (number, clean_line(&choice.label, 120), *choice))
            .collect();
        let column = column_of(rows.iter().map(|(_, label, _)| label.as_str()));
        lines.extend(rows.iter().map(|(number, label, choice)| {
            choice_line(*number == self.at, label, column, &clean_line(&choice.detail, 200))
        }));
        lines
    }

    /// Columns before the end of what was typed.
    pub(super) fn cursor(&self) -> usize {
        let head = self.lines(1);
        let hint = if self.filter.is_empty() { "type to search; Enter chooses, Esc closes".len() } else { 0 };
        head.first().map_or(0, |line| line.width().saturating_sub(hint))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(picker: &mut Picker, code: KeyCode) -> Picked {
        picker.key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn picker() -> Picker {
        let mut picker = Picker::new(Things::Models, "");
        let choice =
            |name: &str| Choice { value: name.to_owned(), label: name.to_owned(), detail: String::new() };
        picker.fill(["a/one", "a/two", "b/two"].map(choice).to_vec());
        picker
    }

    #[test]
    fn arrows_and_letters_choose() {
        let mut list = picker();
        assert_eq!(press(&mut list, KeyCode::Down), Picked::Nothing);
        assert_eq!(press(&mut list, KeyCode::Enter), Picked::Chosen("a/two".to_owned()));
        for letter in "two b".chars() {
            press(&mut list, KeyCode::Char(letter));
        }
        assert_eq!(press(&mut list, KeyCode::Enter), Picked::Chosen("b/two".to_owned()));
        press(&mut list, KeyCode::Char('x'));
        assert_eq!(press(&mut list, KeyCode::Enter), Picked::Nothing);
        assert_eq!(press(&mut list, KeyCode::Esc), Picked::Closed);
    }

    #[test]
    fn the_marked_one_is_always_in_sight() {
        let mut list = picker();
        for _ in 0..9 {
            press(&mut list, KeyCode::Down);
        }
        let texts: Vec<String> = list.lines(2).iter().map(|line| line.text().trim_end().to_owned()).collect();
        assert_eq!(texts[1..], ["› b/two"]);
        assert_eq!(list.cursor(), "model: ".len());
    }
}
