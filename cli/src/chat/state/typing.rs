//! Which key does what. Pure.

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use jiff::Timestamp;

use super::{
    Chat, Effect,
    picker::{Picked, Things},
};
use crate::{
    chat::{
        commands::{Typed, understand},
        editor::Edit,
    },
    render::Tone,
};

impl Chat {
    pub(super) fn pressed(&mut self, key: KeyEvent, now: Timestamp) {
        if key.kind == KeyEventKind::Release {
            return;
        }
        let warned = std::mem::take(&mut self.warned);
        if let (KeyCode::Char(letter), true) = (key.code, key.modifiers.contains(KeyModifiers::CONTROL)) {
            match letter {
                'c' => {
                    self.warned = warned;
                    return self.interrupt();
                }
                'l' => return self.effects.push(Effect::Clear),
                'z' => return self.effects.push(Effect::Suspend),
                'd' if self.editor.is_empty() => return self.leave_or_close(),
                _ => {}
            }
        }
        if self.picker.is_some() {
            return self.picker_key(key);
        }
        if self.answers_by_key(now) && self.answer_key(key) {
            return;
        }
        self.editor_key(key);
    }

    /// Ctrl-D closes what is open, and leaves when nothing is.
    fn leave_or_close(&mut self) {
        if self.picker.take().is_none() && !self.leave_words() {
            self.leave();
        }
    }

    fn picker_key(&mut self, key: KeyEvent) {
        let Some(picker) = &mut self.picker else { return };
        let things = picker.things;
        match picker.key(key) {
            Picked::Nothing => {}
            Picked::Closed => self.picker = None,
            Picked::Chosen(value) => {
                self.picker = None;
                match things {
                    Things::Sessions => match value.parse() {
                        Ok(id) if id == self.session.id => self.say(Tone::Note, "this is that session"),
                        Ok(id) => self.open(Some(id)),
                        Err(_) => {}
                    },
                    Things::Models => self.set_model(value.parse().ok()),
                    Things::Agents => self.set_agent(Some(value)),
                }
            }
        }
    }

    fn editor_key(&mut self, key: KeyEvent) {
        let (alt, control) =
            (key.modifiers.contains(KeyModifiers::ALT), key.modifiers.contains(KeyModifiers::CONTROL));
        let newline = alt || key.modifiers.contains(KeyModifiers::SHIFT);
        match key.code {
            KeyCode::Enter if newline => self.edit(Edit::Newline),
            KeyCode::Enter => self.enter_pressed(),
            KeyCode::Esc => {
                let _ = self.close_menu() || self.leave_words() || std::mem::take(&mut self.answering);
            }
            KeyCode::Tab => self.tab(),
            KeyCode::Up if alt => drop(self.take_back()),
            KeyCode::Up => self.vertical(true),
            KeyCode::Down => self.vertical(false),
            KeyCode::Char('p') if control => self.vertical(true),
            KeyCode::Char('n') if control => self.vertical(false),
            code => {
                if let Some(edit) = edit_of(code, control, alt) {
                    self.edit(edit);
                }
            }
        }
    }

    fn edit(&mut self, edit: Edit) {
        if !self.editor.edit(edit) {
            self.say(Tone::Bad, "a prompt holds at most 1 MiB");
        }
        self.reset_menu();
    }

    /// Completes, or turns to what the agent asks.
    fn tab(&mut self) {
        if !self.complete() && self.can_turn_to_answer() {
            self.answering = true;
        }
    }

    /// In the menu, in the text, or in the prompts of before.
    fn vertical(&mut self, up: bool) {
        if self.mark(up) || self.editor.move_line(up) || self.words.is_some() {
            return;
        }
        if let Some(text) = self.history.step(up, self.editor.text()) {
            self.editor.set(&text);
            self.menu.close_for(&text);
        }
    }

    fn enter_pressed(&mut self) {
        if self.words.is_some() {
            return self.submit_words();
        }
        if self.editor.text().ends_with('\\') && self.editor.position() == self.editor.text().len() {
            self.edit(Edit::Backspace);
            return self.edit(Edit::Newline);
        }
        let text = self.editor.text().to_owned();
        match understand(&text) {
            Typed::Nothing => return,
            Typed::Unknown(word) => {
                // What is marked in the menu is what is meant.
                if !self.complete() {
                    self.say(Tone::Bad, &format!("{word} is not a command; /help lists them"));
                }
                return;
            }
            Typed::Command(command, argument) => self.command(command, argument),
            Typed::Prompt(_) if self.opening => {
                self.say(Tone::Note, "another session is being opened; a moment");
                return;
            }
            Typed::Prompt(prompt) => self.post(prompt),
        }
        self.editor.set("");
        self.reset_menu();
        self.history.add(text.trim());
    }
}

fn edit_of(code: KeyCode, control: bool, alt: bool) -> Option<Edit> {
    Some(match code {
        KeyCode::Char('j') if control => Edit::Newline,
        KeyCode::Char('a') if control => Edit::Home,
        KeyCode::Char('e') if control => Edit::End,
        KeyCode::Char('b') if control => Edit::Left,
        KeyCode::Char('f') if control => Edit::Right,
        KeyCode::Char('d') if control => Edit::Delete,
        KeyCode::Char('h') if control => Edit::Backspace,
        KeyCode::Char('k') if control => Edit::DeleteToEnd,
        KeyCode::Char('u') if control => Edit::DeleteToStart,
        KeyCode::Char('w') if control => Edit::DeleteWordBefore,
        KeyCode::Char('y') if control => Edit::Yank,
        KeyCode::Char('t') if control => Edit::Transpose,
        KeyCode::Char('b') if alt => Edit::WordLeft,
        KeyCode::Char('f') if alt => Edit::WordRight,
        KeyCode::Char('d') if alt => Edit::DeleteWordAfter,
        KeyCode::Char(character) if !control && !alt => Edit::Insert(character),
        KeyCode::Backspace if alt || control => Edit::DeleteWordBefore,
        KeyCode::Backspace => Edit::Backspace,
        KeyCode::Delete => Edit::Delete,
        KeyCode::Left if alt || control => Edit::WordLeft,
        KeyCode::Right if alt || control => Edit::WordRight,
        KeyCode::Left => Edit::Left,
        KeyCode::Right => Edit::Right,
        KeyCode::Home => Edit::Home,
        KeyCode::End => Edit::End,
        _ => return None,
    })
}
