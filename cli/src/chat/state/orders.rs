//! What commands do. Pure: they say so, or ask for effects.

use berth_wire::api::{CancelRequest, ModelChoice};
use uuid::Uuid;

use super::{
    Chat, Effect,
    picker::{Picker, Things},
};
use crate::{
    chat::{
        commands::{COMMANDS, Command, KEYS},
        line::{Color, Line, Style},
        transcript::thought_lines,
    },
    render::Tone,
};

/// What stands for no choice of one's own.
const DEFAULT: &str = "default";
/// Columns of what is explained.
const HELP_COLUMN: usize = 28;
/// Longest title of a session, in characters.
const TITLE_LIMIT: usize = 200;

impl Chat {
    pub(super) fn command(&mut self, command: Command, argument: &str) {
        match command {
            Command::Sessions => {
                self.picker = Some(Picker::new(Things::Sessions, argument));
                self.effects.push(Effect::ListSessions);
            }
            Command::New => self.open(None),
            Command::Model => self.choose_model(argument),
            Command::Agent => self.choose_agent(argument),
            Command::Diff => self.diff(argument),
            Command::Cancel => self.cancel_all(),
            Command::Drop => self.drop_waiting(argument),
            Command::Retry => self.retry(),
            Command::Rename => self.rename(argument),
            Command::Thoughts => self.toggle_thoughts(),
            Command::Help => self.help(),
            Command::Quit => self.leave(),
        }
    }

    pub(super) fn open(&mut self, session: Option<Uuid>) {
        self.opening = true;
        self.effects.push(Effect::Open(session));
    }

    fn choose_model(&mut self, argument: &str) {
        match argument {
            "" => {
                self.picker = Some(Picker::new(Things::Models, ""));
                self.effects.push(Effect::ListModels);
            }
            DEFAULT => self.set_model(None),
            name => match name.parse::<ModelChoice>() {
                Ok(model) => self.set_model(Some(model)),
                Err(error) => self.say(Tone::Bad, &error.to_string()),
            },
        }
    }

    pub(super) fn set_model(&mut self, model: Option<ModelChoice>) {
        let text = match &model {
            Some(model) => format!("what you ask next is answered by {model}"),
            None => "what you ask next is answered by the session's own model".to_owned(),
        };
        self.model = model;
        self.say(Tone::Note, &text);
    }

    fn choose_agent(&mut self, argument: &str) {
        match argument {
            "" => {
                self.picker = Some(Picker::new(Things::Agents, ""));
                self.effects.push(Effect::ListAgents);
            }
            DEFAULT => self.set_agent(None),
            name => self.set_agent(Some(name.to_owned())),
        }
    }

    pub(super) fn set_agent(&mut self, agent: Option<String>) {
        let text = match &agent {
            Some(agent) => format!("what you ask next is for the agent {agent}"),
            None => "what you ask next is for the default agent".to_owned(),
        };
        self.agent = agent;
        self.say(Tone::Note, &text);
    }

    fn diff(&mut self, argument: &str) {
        let turn = self
            .transcript
            .running()
            .map(|running| running.turn)
            .or_else(|| self.last_end.map(|(turn, _)| turn));
        match (argument, turn) {
            ("", _) => self.effects.push(Effect::Diff(None)),
            ("turn", Some(turn)) => self.effects.push(Effect::Diff(Some(turn))),
            ("turn", None) => self.say(Tone::Note, "no turn has run yet"),
            _ => self.say(Tone::Bad, "/diff or /diff turn"),
        }
    }

    fn cancel_all(&mut self) {
        self.cancelling = self.transcript.running().map(|running| running.turn);
        self.effects.push(Effect::Cancel(CancelRequest::all()));
    }

    fn drop_waiting(&mut self, argument: &str) {
        let count = self.waiting.len();
        let number = if argument.is_empty() { Some(count) } else { argument.parse().ok() };
        let waiting = number.and_then(|number: usize| self.waiting.get(number.checked_sub(1)?));
        match waiting.map(|waiting| waiting.turn) {
            Some(turn) => self.effects.push(Effect::Cancel(CancelRequest::only(turn))),
            None if count == 0 => self.say(Tone::Note, "no prompt waits"),
            None => self.say(Tone::Bad, &format!("there are prompts 1 to {count}")),
        }
    }

    /// Takes the last waiting prompt back into the editor; false when none waits.
    pub(super) fn take_back(&mut self) -> bool {
        if !self.editor.is_empty() || self.words.is_some() {
            return false;
        }
        let Some(waiting) = self.waiting.last().cloned() else { return false };
        self.effects.push(Effect::Cancel(CancelRequest::only(waiting.turn)));
        self.editor.set(&waiting.text);
        true
    }

    fn retry(&mut self) {
        match self.retryable() {
            Some(turn) => self.effects.push(Effect::Retry { key: Uuid::now_v7(), turn }),
            None => self.say(Tone::Note, "nothing failed or was cancelled last"),
        }
    }

    fn rename(&mut self, title: &str) {
        match title.chars().count() {
            0 => self.say(Tone::Bad, "/rename and a title"),
            1..=TITLE_LIMIT => self.effects.push(Effect::Rename(title.to_owned())),
            _ => self.say(Tone::Bad, &format!("a title has at most {TITLE_LIMIT} characters")),
        }
    }

    fn toggle_thoughts(&mut self) {
        self.thoughts = !self.thoughts;
        self.transcript.show_thoughts(self.thoughts);
        if !self.thoughts {
            self.say(Tone::Note, "thoughts are shown as one line");
            return;
        }
        self.say(Tone::Note, "thoughts are shown whole");
        let thoughts = self.transcript.thoughts().join("\n\n");
        let lines = thought_lines(&thoughts, self.width);
        self.finished.extend(lines);
    }

    fn help(&mut self) {
        let indent = Line::plain(&" ".repeat(if self.width > 2 * HELP_COLUMN { HELP_COLUMN + 1 } else { 2 }));
        let width = self.width;
        let entry = |name: &str, help: &str| {
            let line = Line::new(Style::of(Color::Cyan), &format!("{name:<HELP_COLUMN$}"))
                .and(Style::PLAIN, &format!(" {help}"));
            line.wrapped(width, &Line::default(), &indent)
        };
        let mut lines = Vec::new();
        for known in COMMANDS {
            lines.extend(entry(&known.usage(), known.help));
        }
        lines.push(Line::default());
        lines.extend(KEYS.iter().flat_map(|(keys, help)| entry(keys, help)));
        self.show(&lines);
    }
}
