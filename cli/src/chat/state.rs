//! A conversation at a terminal as a state machine: keys, events and answers go in, effects and frames come out.
//! Pure but for the history file.

use std::collections::{HashSet, VecDeque};

use berth_client::ClientError;
use berth_wire::{
    api::{CancelRequest, ModelChoice, PostMessage, Session},
    event::{EventPayload, SessionEvent},
    turn::TurnState,
};
use crossterm::event::KeyEvent;
use jiff::Timestamp;
use uuid::Uuid;

use self::{asking::Pending, listing::Listing, menu::Menu, picker::Picker};
use super::{
    editor::Editor,
    effect::{Effect, Opened},
    history::History,
    line::Line,
    markdown::Markdown,
    transcript::{Transcript, note, past_lines, prompt_text},
};
use crate::{config::AnswerPolicy, error::error_chain, render::Tone, text::clean_line};

mod asking;
mod done;
mod listing;
mod menu;
mod orders;
mod picker;
mod typing;
mod view;

/// Turns whose beginning is remembered, to tell a late answer to a prompt from an early one.
const REMEMBERED: usize = 256;

/// How a conversation is led.
#[derive(Debug, Clone, Copy)]
pub(super) struct Manner {
    /// Styles are wanted.
    pub(super) color: bool,
    /// What is answered when the agent asks.
    pub(super) answers: AnswerPolicy,
}

/// A prompt that waits behind the turn that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Waiting {
    turn: Uuid,
    text: String,
}

/// A prompt on its way to the server.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sending {
    key: Uuid,
    text: String,
}

/// The conversation.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "these are facts that do not depend on each other")]
pub(super) struct Chat {
    manner: Manner,
    session: Session,
    transcript: Transcript,
    editor: Editor,
    history: History,
    width: usize,
    height: usize,
    /// Lines for the scrollback that were not fetched yet.
    finished: Vec<Line>,
    effects: Vec<Effect>,
    sending: Vec<Sending>,
    waiting: Vec<Waiting>,
    /// Turns that were seen to begin or to end, newest last.
    begun: VecDeque<Uuid>,
    asks: VecDeque<Pending>,
    /// Somebody pressed Tab to answer, though a prompt is half typed.
    answering: bool,
    /// What is typed goes to the agent as words to the answer of what it asks; the prompt that was being typed.
    words: Option<String>,
    picker: Option<Picker>,
    menu: Menu,
    listing: Listing,
    model: Option<ModelChoice>,
    agent: Option<String>,
    thoughts: bool,
    away: bool,
    /// Ctrl-C was pressed with nothing to end.
    warned: bool,
    /// The turn that was cancelled from here.
    cancelling: Option<Uuid>,
    /// The turn that ended last, and how.
    last_end: Option<(Uuid, TurnState)>,
    /// Another session is on its way.
    opening: bool,
    /// The moment of the last key or frame.
    now: Timestamp,
}

impl Chat {
    /// A conversation in this session on a screen of this size.
    pub(super) fn new(manner: Manner, opened: Opened, history: History, width: usize, height: usize) -> Self {
        let transcript = Transcript::new(manner.color, &opened.session.directory, false);
        let mut chat = Self {
            manner,
            session: opened.session.clone(),
            transcript,
            editor: Editor::new(),
            history,
            width,
            height,
            finished: Vec::new(),
            effects: Vec::new(),
            sending: Vec::new(),
            waiting: Vec::new(),
            begun: VecDeque::new(),
            asks: VecDeque::new(),
            answering: false,
            words: None,
            picker: None,
            menu: Menu::default(),
            listing: Listing::default(),
            model: None,
            agent: None,
            thoughts: false,
            away: false,
            warned: false,
            cancelling: None,
            last_end: None,
            opening: false,
            now: Timestamp::UNIX_EPOCH,
        };
        chat.enter(opened);
        chat
    }

    /// The session.
    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// The screen has this size from now on.
    pub(super) fn resize(&mut self, width: usize, height: usize) {
        (self.width, self.height) = (width, height);
    }

    /// What is to be done; each only once.
    pub(super) fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// The next event of the session's log.
    pub(super) fn event(&mut self, event: &SessionEvent) {
        self.session.last_seq = event.seq;
        let turn = event.turn_id.unwrap_or_default();
        match &event.payload {
            EventPayload::TurnQueued(queued) => {
                let text = prompt_text(&queued.prompt);
                self.queue(turn, text);
            }
            EventPayload::TurnStarted(_) => {
                self.began(turn);
                self.asks.clear();
            }
            EventPayload::TurnEnded(_) if self.waiting.iter().any(|waiting| waiting.turn == turn) => {
                return self.dropped(turn);
            }
            EventPayload::TurnEnded(outcome) => {
                self.began(turn);
                self.last_end = Some((turn, outcome.state));
                if self.transcript.running().is_some_and(|running| running.turn == turn) {
                    self.asks.clear();
                    self.leave_words();
                }
                if self.cancelling == Some(turn) {
                    self.cancelling = None;
                }
            }
            payload => self.asked(event.turn_id, payload),
        }
        self.transcript.take(event);
    }

    fn queue(&mut self, turn: Uuid, text: String) {
        let known = self.begun.contains(&turn) || self.waiting.iter().any(|waiting| waiting.turn == turn);
        if !known {
            self.waiting.push(Waiting { turn, text });
        }
    }

    /// A prompt that waited will not be sent.
    fn dropped(&mut self, turn: Uuid) {
        if let Some(waiting) = self.waiting.iter().find(|waiting| waiting.turn == turn) {
            let text = clean_line(&waiting.text, 200);
            self.say(Tone::Note, &format!("■ dropped: {text}"));
        }
        self.began(turn);
    }

    fn began(&mut self, turn: Uuid) {
        self.waiting.retain(|waiting| waiting.turn != turn);
        if !self.begun.contains(&turn) {
            self.begun.push_back(turn);
        }
        if self.begun.len() > REMEMBERED {
            self.begun.pop_front();
        }
    }

    /// The server answers, or does not.
    pub(super) fn reachable(&mut self, reachable: bool) {
        if self.away == reachable {
            self.away = !reachable;
            let text =
                if reachable { "the server is back" } else { "the server cannot be reached; trying again" };
            self.say(Tone::Note, text);
        }
    }

    /// Text was pasted.
    pub(super) fn paste(&mut self, text: &str) {
        self.warned = false;
        if let Some(picker) = &mut self.picker {
            picker.paste(text);
        } else if !self.editor.paste(text) {
            self.say(Tone::Bad, "this is more than a prompt may hold: 1 MiB");
        }
    }

    /// A key was pressed at `now`.
    pub(super) fn key(&mut self, key: KeyEvent, now: Timestamp) {
        self.now = now;
        self.pressed(key, now);
    }

    /// A line of the program's own, now.
    fn say(&mut self, tone: Tone, text: &str) {
        self.show(&[note(tone, text)]);
    }

    fn fail(&mut self, error: &ClientError) {
        self.say(Tone::Bad, &error_chain(error));
    }

    /// Lines of the program's own, behind what is final of the conversation.
    fn show(&mut self, lines: &[Line]) {
        self.settle();
        if self.transcript.interrupted() {
            self.finished.push(Line::default());
        }
        let (none, rest) = (Line::default(), Line::plain("  "));
        let lines = lines.iter().flat_map(|line| line.wrapped(self.width, &none, &rest));
        self.finished.extend(lines);
    }

    fn settle(&mut self) {
        let lines = self.transcript.settle(self.width);
        self.finished.extend(lines);
    }

    /// Hands a prompt in.
    fn post(&mut self, text: &str) {
        let key = Uuid::now_v7();
        let parts = self.listing.parts(text, &self.session.directory);
        let message = PostMessage { parts, model: self.model.clone(), agent: self.agent.clone() };
        self.sending.push(Sending { key, text: text.to_owned() });
        self.effects.push(Effect::Post { key, message });
    }

    fn leave(&mut self) {
        self.effects.push(Effect::Quit);
    }

    /// Ctrl-C: ends what runs, clears what is typed, and leaves when pressed twice.
    fn interrupt(&mut self) {
        if self.picker.take().is_some() || self.leave_words() {
            return;
        }
        let running = self.transcript.running().map(|running| running.turn);
        match running {
            Some(turn) if self.cancelling == Some(turn) => self.leave(),
            Some(turn) => {
                self.cancelling = Some(turn);
                self.effects.push(Effect::Cancel(CancelRequest::only(turn)));
            }
            None if !self.editor.is_empty() => {
                self.editor.set("");
                self.history.forget_place();
            }
            None if self.warned => self.leave(),
            None => self.warned = true,
        }
    }

    /// Begins with another session, or anew with this one.
    fn enter(&mut self, opened: Opened) {
        let Opened { session, history, more, events } = opened;
        self.transcript = Transcript::new(self.manner.color, &session.directory, self.thoughts);
        let (id, sandbox) = (session.id, format!("{}/{}", session.namespace, session.sandbox));
        self.session = session;
        (self.asks, self.waiting, self.words) = (VecDeque::new(), Vec::new(), None);
        (self.cancelling, self.last_end, self.answering) = (None, None, false);
        self.listing = Listing::default();
        let title = self.session.title.as_deref().map(|title| format!(" “{title}”")).unwrap_or_default();
        self.say(Tone::Note, &format!("{sandbox}{title}, session {id}"));
        if more {
            self.say(Tone::Note, "(earlier turns are not shown)");
        }
        let open: HashSet<Uuid> = events.iter().filter_map(|event| event.turn_id).collect();
        let ended: Vec<_> = history.into_iter().filter(|turn| !open.contains(&turn.turn.id)).collect();
        self.last_end = ended.last().map(|turn| (turn.turn.id, turn.turn.state));
        if !ended.is_empty() {
            let mut markdown = Markdown::new(self.manner.color);
            let mut lines = vec![Line::default()];
            lines.extend(past_lines(&ended, &mut markdown, self.width));
            self.finished.extend(lines);
        }
        for event in &events {
            self.event(event);
        }
    }
}

#[cfg(test)]
mod tests;
