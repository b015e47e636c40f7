//! What the agent asks: who answers it, and which key means what. Pure.

use berth_wire::{
    event::{EventPayload, Question},
    turn::TurnState,
};
use crossterm::event::{KeyCode, KeyEvent};
use jiff::Timestamp;
use uuid::Uuid;

use super::{Chat, Effect};
use crate::{
    ask::{Ask, Reply, Step},
    chat::line::{Color, Line, Style},
    config::AnswerPolicy,
    render::Tone,
    text::clean_line,
};

/// For so long after it is first shown, keys are no answers, in milliseconds: they were meant for something else.
const GRACE_MS: i64 = 400;

/// A request of the agent that is not settled.
#[derive(Debug)]
pub(super) struct Pending {
    ask: Ask,
    payload: EventPayload,
    /// When it was first shown.
    shown: Option<Timestamp>,
    /// It can be answered by keys since it was drawn so.
    ready: bool,
    /// An answer is on its way.
    answered: bool,
    /// Options that are chosen so far, for a question where several may be.
    chosen: Vec<usize>,
    /// The option that Enter would choose.
    at: usize,
}

impl Pending {
    fn question(&self) -> Option<&Question> {
        match &self.ask {
            Ask::Question(request, answers) => request.questions.get(answers.len()),
            Ask::Permission(_) => None,
        }
    }
}

impl Chat {
    /// Takes note of a request, or of its end.
    pub(super) fn asked(&mut self, _turn: Option<Uuid>, payload: &EventPayload) {
        if let Some(ask) = Ask::of(payload) {
            self.asks.push_back(Pending {
                ask,
                payload: payload.clone(),
                shown: None,
                ready: false,
                answered: false,
                chosen: Vec::new(),
                at: 0,
            });
            return;
        }
        let front = self.asks.front().map(|pending| pending.ask.id().to_owned());
        self.asks.retain(|pending| !pending.ask.is_settled_by(payload));
        if self.asks.front().map(|pending| pending.ask.id().to_owned()) != front {
            self.leave_words();
            self.answering = false;
        }
    }

    /// Shows the first request that was not shown, or answers it by itself.
    pub(super) fn present(&mut self, now: Timestamp) {
        self.answer_by_policy();
        let Some(pending) = self.asks.front().filter(|pending| pending.shown.is_none() && !pending.answered)
        else {
            return;
        };
        let payload = pending.payload.clone();
        self.settle();
        let lines = self.transcript.request(&payload, self.width);
        self.finished.extend(lines);
        if let Some(pending) = self.asks.front_mut() {
            pending.shown = Some(now);
        }
    }

    fn answer_by_policy(&mut self) {
        let policy = self.manner.answers;
        let mut replies = Vec::new();
        for pending in self.asks.iter_mut().filter(|pending| !pending.answered) {
            let reply = match (policy, pending.ask.allowance()) {
                (AnswerPolicy::Allow { .. }, Some(allowance)) => allowance,
                (AnswerPolicy::Deny | AnswerPolicy::Nobody, _)
                | (AnswerPolicy::Allow { person: false }, None) => pending.ask.rejection(),
                (AnswerPolicy::Ask, _) | (AnswerPolicy::Allow { person: true }, None) => continue,
            };
            pending.answered = true;
            replies.push((pending.payload.clone(), pending.ask.id().to_owned(), reply));
        }
        for (payload, id, reply) in replies {
            self.settle();
            let lines = self.transcript.request(&payload, self.width);
            self.finished.extend(lines);
            self.effects.push(Effect::Answer { id, reply });
        }
    }

    /// The request that somebody is asked now.
    fn front(&self) -> Option<&Pending> {
        self.asks.front().filter(|pending| pending.shown.is_some() && !pending.answered)
    }

    /// Keys are answers.
    pub(super) fn answers_by_key(&self, now: Timestamp) -> bool {
        let waited =
            |shown: Timestamp| now.as_millisecond().saturating_sub(shown.as_millisecond()) >= GRACE_MS;
        let ready = self.front().is_some_and(|pending| pending.ready || pending.shown.is_some_and(waited));
        ready && self.words.is_none() && self.picker.is_none() && (self.editor.is_empty() || self.answering)
    }

    /// Somebody is asked, and keys go elsewhere.
    pub(super) fn can_turn_to_answer(&self) -> bool {
        self.front().is_some() && !self.editor.is_empty() && !self.answering && self.words.is_none()
    }

    /// A key while somebody is asked; false when it means nothing here.
    pub(super) fn answer_key(&mut self, key: KeyEvent) -> bool {
        let Some(pending) = self.asks.front_mut() else { return false };
        match pending.question().cloned() {
            Some(question) => self.question_key(key, &question),
            None => self.permission_key(key),
        }
    }

    fn permission_key(&mut self, key: KeyEvent) -> bool {
        let KeyCode::Char(letter) = key.code else { return false };
        match letter.to_ascii_lowercase() {
            'm' => self.enter_words(),
            letter @ ('y' | 'a' | 'n') => self.take_answer(&letter.to_string()),
            _ => {}
        }
        // Other letters are no answers, and no beginning of a prompt either: one of them may be a slip of the finger.
        true
    }

    fn question_key(&mut self, key: KeyEvent, question: &Question) -> bool {
        let Some(pending) = self.asks.front_mut() else { return false };
        let count = question.options.len();
        match key.code {
            KeyCode::Up => pending.at = pending.at.saturating_sub(1),
            KeyCode::Down => pending.at = (pending.at + 1).min(count.saturating_sub(1)),
            KeyCode::Char(' ') if question.multiple => toggle(&mut pending.chosen, pending.at),
            KeyCode::Char(digit @ '1'..='9') => {
                let option = digit as usize - '1' as usize;
                if option >= count {
                    return true;
                }
                pending.at = option;
                if question.multiple {
                    toggle(&mut pending.chosen, option);
                } else {
                    self.take_answer(&digit.to_string());
                }
            }
            KeyCode::Enter if count == 0 => self.enter_words(),
            KeyCode::Enter => {
                let chosen =
                    if pending.chosen.is_empty() { vec![pending.at] } else { pending.chosen.clone() };
                let numbers: Vec<String> = chosen.iter().map(|option| (option + 1).to_string()).collect();
                self.take_answer(&numbers.join(","));
            }
            KeyCode::Char('m' | 'M') => self.enter_words(),
            KeyCode::Char('n' | 'N') => self.take_answer(""),
            KeyCode::Char(_) => {}
            _ => return false,
        }
        true
    }

    /// A line that answers, in the words of [`Ask::take`].
    fn take_answer(&mut self, line: &str) {
        let Some(pending) = self.asks.front_mut() else { return };
        match pending.ask.take(line) {
            Step::Unclear(hint) => self.say(Tone::Note, hint.trim()),
            Step::More => (pending.chosen, pending.at) = (Vec::new(), 0),
            Step::Done(reply) => self.reply(reply),
        }
    }

    fn reply(&mut self, reply: Reply) {
        let Some(pending) = self.asks.front_mut() else { return };
        pending.answered = true;
        let id = pending.ask.id().to_owned();
        self.answering = false;
        self.effects.push(Effect::Answer { id, reply });
    }

    /// An answer did not arrive: it can be given again.
    pub(super) fn unanswered(&mut self, id: &str) {
        if let Some(pending) = self.asks.iter_mut().find(|pending| pending.ask.id() == id) {
            pending.answered = false;
        }
    }

    /// An answer came too late, or was given elsewhere.
    pub(super) fn settled(&mut self, id: &str) {
        self.asks.retain(|pending| pending.ask.id() != id);
    }

    fn enter_words(&mut self) {
        let draft = self.editor.take();
        self.words = Some(draft);
    }

    /// Back to the prompt that was being typed; false when words were not being typed.
    pub(super) fn leave_words(&mut self) -> bool {
        let Some(draft) = self.words.take() else { return false };
        self.editor.set(&draft);
        true
    }

    /// The words to an answer are complete.
    pub(super) fn submit_words(&mut self) {
        let text = self.editor.take().trim().to_owned();
        self.leave_words();
        if text.is_empty() {
            return;
        }
        let Some(pending) = self.asks.front() else { return };
        let line = if pending.question().is_some() { text } else { format!("n {text}") };
        self.take_answer(&line);
    }

    /// What stands before the words to an answer.
    pub(super) fn words_prompt(&self) -> Option<&'static str> {
        self.words.as_ref()?;
        let question = self.front().is_some_and(|pending| pending.question().is_some());
        Some(if question { "your answer: " } else { "reject and say: " })
    }

    /// The choices that somebody has.
    pub(super) fn choices(&mut self, now: Timestamp) -> Vec<Line> {
        let by_key = self.answers_by_key(now);
        if self.words.is_some() || self.front().is_none() {
            return Vec::new();
        }
        if !by_key {
            let text = if self.editor.is_empty() { "…" } else { "Tab: answer what the agent asks" };
            return vec![Line::new(Style::of(Color::Yellow), text)];
        }
        let Some(pending) = self.asks.front_mut() else { return Vec::new() };
        pending.ready = true;
        match pending.question() {
            Some(question) => question_choices(pending, question),
            None => permission_choices(&pending.ask),
        }
    }

    /// Something is asked, and who waits for whom.
    pub(super) fn waits_for_person(&self) -> bool {
        self.front().is_some()
    }

    /// The turn that ended last can be asked for again.
    pub(super) fn retryable(&self) -> Option<Uuid> {
        let (turn, state) = self.last_end?;
        matches!(state, TurnState::Failed | TurnState::Cancelled | TurnState::Unknown).then_some(turn)
    }
}

fn toggle(chosen: &mut Vec<usize>, option: usize) {
    match chosen.iter().position(|&known| known == option) {
        Some(at) => drop(chosen.remove(at)),
        None => chosen.push(option),
    }
}

fn key_line(keys: &[(&str, &str)]) -> Line {
    let mut line = Line::default();
    for (at, (key, meaning)) in keys.iter().enumerate() {
        if at > 0 {
            line.push(Style::PLAIN, "  ");
        }
        line.push(Style::of(Color::Yellow).with(Style::BOLD), &format!("[{key}]"));
        line.push(Style::PLAIN, &format!(" {meaning}"));
    }
    line
}

fn permission_choices(ask: &Ask) -> Vec<Line> {
    let Ask::Permission(request) = ask else { return Vec::new() };
    let always = clean_line(&request.always.join(", "), 1000);
    let always = format!("always: {always}");
    let mut keys = vec![("y", "once")];
    if !request.always.is_empty() {
        keys.push(("a", always.as_str()));
    }
    keys.extend([("n", "reject"), ("m", "reject and say why")]);
    vec![key_line(&keys)]
}

fn question_choices(pending: &Pending, question: &Question) -> Vec<Line> {
    let mut lines = Vec::new();
    for (number, option) in question.options.iter().enumerate() {
        let here = number == pending.at;
        let mark = if here { "› " } else { "  " };
        let chosen = match (question.multiple, pending.chosen.contains(&number)) {
            (false, _) => "",
            (true, true) => "☑ ",
            (true, false) => "☐ ",
        };
        let style = if here { Style::BOLD } else { Style::PLAIN };
        let label = clean_line(&option.label, 200);
        lines.push(
            Line::new(Style::of(Color::Yellow), mark).and(style, &format!("{chosen}{}. {label}", number + 1)),
        );
    }
    let enter = match (question.options.is_empty(), question.multiple) {
        (true, _) => ("Enter", "answer"),
        (false, true) => ("Space, Enter", "choose"),
        (false, false) => ("Enter", "choose"),
    };
    lines.push(key_line(&[enter, ("m", "own words"), ("n", "no answer")]));
    lines
}
