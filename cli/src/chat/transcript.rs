//! What a session's events look like: what is final and goes to the scrollback, and what still changes. Pure.
//!
//! [`Transcript::take`] takes events in their order, [`Transcript::settle`] gives out lines that will not change any
//! more, and [`Transcript::open`] what comes after them, as it looks at the moment.

use std::collections::{HashMap, VecDeque};

use berth_wire::{
    event::{EventPayload, Fold, PartReplaced, SessionEvent, Voice, acp},
    turn::TurnOutcome,
};
use jiff::Timestamp;
use uuid::Uuid;

use self::{thought::Thought, tool::Tool};
use super::{
    line::{Color, Line, Style},
    markdown::{Markdown, Stream},
};
use crate::text::clean_line;

mod asks;
mod notes;
mod past;
mod thought;
mod tool;

use notes::prompt_lines;
pub(super) use notes::{note, prompt_text};
pub(super) use past::past_lines;
pub(super) use thought::thought_lines;

/// What stands in the transcript; decides where an empty line goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Prompt,
    Words,
    Thought,
    Tool,
    Note,
    End,
}

/// True where an empty line makes two things easier to tell apart.
fn apart(before: Option<Kind>, next: Kind) -> bool {
    match (before, next) {
        (None, _) | (Some(Kind::Prompt), Kind::Note) => false,
        (_, Kind::Words | Kind::Prompt) | (Some(Kind::Words | Kind::Prompt), _) => true,
        _ => false,
    }
}

#[derive(Debug)]
enum Item {
    Words { part: String, stream: Stream, finished: bool },
    Thought(Thought),
    Tool(Tool),
    Lines(Kind, Vec<Line>),
}

/// The turn that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Running {
    /// Its id.
    pub(super) turn: Uuid,
    /// When it began, by the server's clock.
    pub(super) since: Timestamp,
}

/// The events of a session as lines.
#[derive(Debug)]
pub(super) struct Transcript {
    markdown: Markdown,
    items: VecDeque<Item>,
    fold: Fold,
    /// The kind of what was given out last.
    last: Option<Kind>,
    running: Option<Running>,
    /// For each permission that a tool waits for, the tool.
    waiting: HashMap<String, String>,
    /// The session's directory: paths beneath it are shown from there.
    directory: String,
    /// Thoughts are shown whole, not as one line.
    thoughts: bool,
    /// The thoughts of the turn that runs or ran last.
    thought: Vec<String>,
    /// The models that turns were asked to be answered by, as far as that is known.
    models: HashMap<Uuid, String>,
}

impl Transcript {
    /// Of a session with this working directory; `thoughts`: whole.
    pub(super) fn new(color: bool, directory: &str, thoughts: bool) -> Self {
        Self {
            markdown: Markdown::new(color),
            items: VecDeque::new(),
            fold: Fold::default(),
            last: None,
            running: None,
            waiting: HashMap::new(),
            directory: directory.to_owned(),
            thoughts,
            thought: Vec::new(),
            models: HashMap::new(),
        }
    }

    /// The turn that runs.
    pub(super) fn running(&self) -> Option<Running> {
        self.running
    }

    /// Shows thoughts whole from now on, or as one line each.
    pub(super) fn show_thoughts(&mut self, shown: bool) {
        self.thoughts = shown;
    }

    /// The turn is answered by this model.
    pub(super) fn answered_by(&mut self, turn: Uuid, model: String) {
        self.models.insert(turn, model);
    }

    /// The thoughts of the turn that runs or ran last.
    pub(super) fn thoughts(&self) -> &[String] {
        &self.thought
    }

    /// Takes the next event.
    pub(super) fn take(&mut self, event: &SessionEvent) {
        if let Some((voice, position, text)) = event.payload.as_chunk() {
            self.chunk(voice, &position.id, text, event.at);
        } else {
            self.other(event);
        }
        if let Err(error) = self.fold.apply(&event.payload) {
            self.note(Color::Red, &format!("the server's log has a fault: {error}"));
        }
    }

    fn other(&mut self, event: &SessionEvent) {
        match &event.payload {
            EventPayload::TurnStarted(started) => {
                self.end_turn();
                self.thought.clear();
                self.running = event.turn_id.map(|turn| Running { turn, since: event.at });
                self.lines(Kind::Prompt, prompt_lines(&started.prompt));
            }
            EventPayload::TurnEnded(outcome) => self.ended(event.turn_id, outcome, event.at),
            EventPayload::Update(update) => self.update(update, event.at),
            EventPayload::PartVoided(voided) => self.voided(&voided.part_id, event.at),
            EventPayload::PartReplaced(replaced) => self.replaced(replaced, event.at),
            EventPayload::PermissionRequested(request) => {
                if let Some(tool) = &request.tool_call_id {
                    self.waiting.insert(request.permission_id.clone(), tool.clone());
                    self.tool_waits(tool, true, event.at);
                }
            }
            EventPayload::PermissionResolved(resolved) => {
                if let Some(tool) = self.waiting.remove(&resolved.permission_id) {
                    self.tool_waits(&tool, false, event.at);
                }
                self.resolved(asks::resolution_line(resolved.resolution, resolved.by));
            }
            EventPayload::QuestionResolved(resolved) => {
                self.resolved(asks::resolution_line(resolved.resolution, resolved.by));
            }
            payload => {
                if let Some((tone, text)) = notes::of_event(payload, event.at) {
                    self.finish_words(event.at);
                    self.lines(Kind::Note, vec![note(tone, &text)]);
                }
            }
        }
    }

    fn note(&mut self, color: Color, text: &str) {
        self.lines(Kind::Note, vec![Line::new(Style::of(color), text)]);
    }

    fn lines(&mut self, kind: Kind, lines: Vec<Line>) {
        self.items.push_back(Item::Lines(kind, lines));
    }

    /// How a request was settled stands below the request, and so above the call that waited for it.
    fn resolved(&mut self, line: Line) {
        let open = |item: &Item| matches!(item, Item::Tool(tool) if !tool.ended());
        let at = self.items.iter().position(open).unwrap_or(self.items.len());
        self.items.insert(at, Item::Lines(Kind::Note, vec![line]));
    }

    /// Words of one part; the last item goes on when it is that part's.
    fn chunk(&mut self, voice: Voice, id: &str, text: &str, at: Timestamp) {
        if text.is_empty() {
            return;
        }
        let open = self.items.iter_mut().rev().find_map(|item| match item {
            Item::Words { part, stream, finished: false } if part == id => Some(stream),
            _ => None,
        });
        if let Some(stream) = open {
            stream.push(text);
            return;
        }
        let thought = self.items.iter_mut().rev().find_map(|item| match item {
            Item::Thought(thought) if thought.is_open(id) => Some(thought),
            _ => None,
        });
        if let Some(thought) = thought {
            thought.push(text);
            self.remember(text);
            return;
        }
        self.begin(voice, id, text, at);
    }

    fn begin(&mut self, voice: Voice, id: &str, text: &str, at: Timestamp) {
        self.finish_words(at);
        match voice {
            Voice::Message => {
                let mut stream = Stream::default();
                stream.push(text);
                self.items.push_back(Item::Words { part: id.to_owned(), stream, finished: false });
            }
            Voice::Thought => {
                self.thought.push(String::new());
                self.remember(text);
                self.items.push_back(Item::Thought(Thought::new(id, text, at)));
            }
        }
    }

    fn remember(&mut self, text: &str) {
        if let Some(last) = self.thought.last_mut() {
            last.push_str(text);
        }
    }

    /// What the agent was saying or thinking is at its end.
    fn finish_words(&mut self, at: Timestamp) {
        for item in &mut self.items {
            match item {
                Item::Words { finished, .. } => *finished = true,
                Item::Thought(thought) => thought.finish(at),
                Item::Tool(_) | Item::Lines(..) => {}
            }
        }
    }

    /// Text that was not finished is void; what of it went to the scrollback stays there, with a note.
    fn voided(&mut self, id: &str, at: Timestamp) {
        let seen =
            self.fold.parts().iter().any(|part| part.id == id && !part.voided && !part.text.is_empty());
        self.items.retain(|item| match item {
            Item::Words { part, stream, finished: false } => part != id || stream.began(),
            Item::Thought(thought) => !thought.is_open(id),
            _ => true,
        });
        self.finish_words(at);
        if seen {
            self.note(
                Color::Yellow,
                "the model's stream broke: what it was saying is void, and it begins again",
            );
        }
    }

    fn replaced(&mut self, replaced: &PartReplaced, at: Timestamp) {
        let (id, text) = (replaced.part_id.as_str(), replaced.text.as_str());
        let known = self.fold.parts().iter().find(|part| part.id == id && !part.voided);
        let seen = known.map_or("", |part| part.text.as_str());
        if let Some(rest) = text.strip_prefix(seen) {
            let rest = rest.to_owned();
            self.chunk(replaced.voice, id, &rest, at);
            return;
        }
        let untouched = |item: &Item| match item {
            Item::Words { part, stream, .. } => part == id && !stream.began(),
            Item::Thought(thought) => thought.is_open(id),
            _ => false,
        };
        let before = self.items.len();
        self.items.retain(|item| !untouched(item));
        if self.items.len() == before {
            self.note(Color::Yellow, "what was shown of this was not right; it reads:");
        }
        self.begin(replaced.voice, id, text, at);
    }

    fn update(&mut self, update: &acp::SessionUpdate, at: Timestamp) {
        match update {
            acp::SessionUpdate::ToolCall(call) => {
                self.finish_words(at);
                self.items.push_back(Item::Tool(Tool::new(call, &self.directory, at)));
            }
            acp::SessionUpdate::ToolCallUpdate(update) => {
                let id = update.tool_call_id.0.to_string();
                if let Some(tool) = self.tool(&id) {
                    tool.update(update, at);
                }
            }
            acp::SessionUpdate::Plan(plan) => {
                self.finish_words(at);
                self.lines(Kind::Note, notes::plan_lines(plan));
            }
            _ => {}
        }
    }

    fn tool(&mut self, id: &str) -> Option<&mut Tool> {
        self.items.iter_mut().find_map(|item| match item {
            Item::Tool(tool) if tool.id() == id => Some(tool),
            _ => None,
        })
    }

    fn tool_waits(&mut self, id: &str, waits: bool, at: Timestamp) {
        if let Some(tool) = self.tool(id) {
            tool.wait(waits, at);
        }
    }

    /// A turn's end, and what it cost; one that never ran is only mentioned.
    fn ended(&mut self, turn: Option<Uuid>, outcome: &TurnOutcome, at: Timestamp) {
        let ran = self.running.filter(|running| Some(running.turn) == turn);
        if ran.is_none() {
            let line = notes::end_line(outcome, None, None);
            let mut whole = Line::dim("a queued prompt: ");
            whole.append(line);
            self.lines(Kind::Note, vec![whole]);
            return;
        }
        self.finish_words(at);
        let took = ran.map(|running| notes::milliseconds(running.since, at));
        let model = turn.and_then(|turn| self.models.remove(&turn));
        self.lines(Kind::End, vec![notes::end_line(outcome, took, model)]);
        self.end_turn();
    }

    /// Nothing of the turn changes any more.
    fn end_turn(&mut self) {
        self.running = None;
        self.waiting.clear();
        self.fold = Fold::default();
        for item in &mut self.items {
            match item {
                Item::Words { finished, .. } => *finished = true,
                Item::Thought(thought) => thought.finish(Timestamp::UNIX_EPOCH),
                Item::Tool(tool) => tool.abandon(),
                Item::Lines(..) => {}
            }
        }
    }

    /// Lines that became final since the last call, broken to `width`.
    pub(super) fn settle(&mut self, width: usize) -> Vec<Line> {
        let mut lines = Vec::new();
        while let Some(item) = self.items.front_mut() {
            let (kind, mut settled, done, began) = match item {
                Item::Lines(kind, lines) => (*kind, wrapped(lines, width), true, false),
                Item::Tool(tool) if tool.ended() => (Kind::Tool, tool.finished(width), true, false),
                Item::Thought(thought) if thought.ended() => {
                    (Kind::Thought, thought.finished(width, self.thoughts), true, false)
                }
                Item::Words { stream, finished, .. } => {
                    let began = stream.began();
                    (Kind::Words, stream.settle(&mut self.markdown, width, *finished), *finished, began)
                }
                Item::Tool(_) | Item::Thought(_) => break,
            };
            if !settled.is_empty() {
                if !began && apart(self.last, kind) {
                    lines.push(Line::default());
                }
                lines.append(&mut settled);
                self.last = Some(kind);
            }
            if !done {
                break;
            }
            self.items.pop_front();
        }
        lines
    }

    /// What is not final, as it looks at `now`.
    pub(super) fn open(&mut self, width: usize, now: Timestamp) -> Vec<Line> {
        let mut lines: Vec<Line> = Vec::new();
        let mut last = self.last;
        for item in &self.items {
            let (kind, mut shown, began) = match item {
                Item::Lines(kind, lines) => (*kind, wrapped(lines, width), false),
                Item::Tool(tool) if tool.ended() => (Kind::Tool, tool.finished(width), false),
                Item::Tool(tool) => (Kind::Tool, tool.open(width, now), false),
                Item::Thought(thought) if thought.ended() => {
                    (Kind::Thought, thought.finished(width, self.thoughts), false)
                }
                Item::Thought(thought) => (Kind::Thought, thought.open(width, now), false),
                Item::Words { stream, .. } => {
                    (Kind::Words, stream.open(&mut self.markdown, width), stream.began())
                }
            };
            if shown.is_empty() {
                continue;
            }
            if !began && apart(last, kind) {
                lines.push(Line::default());
            }
            lines.append(&mut shown);
            last = Some(kind);
        }
        lines
    }

    /// What somebody is asked, whole: it stands above what still changes.
    pub(super) fn request(&mut self, payload: &EventPayload, width: usize) -> Vec<Line> {
        let mut lines = asks::request_lines(payload, width);
        if !lines.is_empty() {
            if self.last.is_some() {
                lines.insert(0, Line::default());
            }
            self.last = Some(Kind::Note);
        }
        lines
    }

    /// Something was shown that is not of the session's events.
    pub(super) fn interrupted(&mut self) -> bool {
        let apart = apart(self.last, Kind::Note);
        self.last = Some(Kind::Note);
        apart
    }
}

fn wrapped(lines: &[Line], width: usize) -> Vec<Line> {
    let none = Line::default();
    let rest = Line::plain("  ");
    lines.iter().flat_map(|line| line.wrapped(width, &none, &rest)).collect()
}

/// A path as it is shown: from the session's directory where it is beneath that.
fn shown_path(text: &str, directory: &str) -> String {
    let beneath = format!("{}/", directory.trim_end_matches('/'));
    if beneath.len() > 1 { text.replace(&beneath, "") } else { text.to_owned() }
}

/// One line of something that came in many.
fn in_short(text: &str, limit: usize) -> String {
    clean_line(text, limit)
}

#[cfg(test)]
mod tests;
