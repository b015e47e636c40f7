//! Events of one turn turned into what a person reads. Pure: [`Renderer::take`] maps an event to [`Piece`]s, and
//! [`crate::output`] puts them on a terminal or into a pipe.

use std::collections::HashMap;

pub use berth_command::printer::Tone;
use berth_wire::{
    event::{
        EventPayload, Fold, PartReplaced, PermissionRequested, ProviderRetry, QuestionRequested, Resolution,
        ResolvedBy, SessionEvent, Voice, acp,
    },
    turn::{TurnOutcome, TurnState, TurnStopReason, Usage},
};
use jiff::Timestamp;

use crate::text::{clean, clean_line, duration};

mod history;

pub use history::history_lines;

/// Longest title of a tool call that is shown, in characters.
const TITLE_LIMIT: usize = 160;

/// Longest difference of a file that is shown with a request to change it, in lines.
const DIFF_LINES: usize = 60;

/// Something to be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Words of the agent, which continue the words before them.
    Words {
        /// Which of its voices.
        voice: Voice,
        /// The words, as the agent said them: not yet safe for a terminal.
        text: String,
    },
    /// The words before are at their end: what follows starts on a new line.
    Break,
    /// A line of its own, safe for a terminal.
    Line {
        /// How it is meant.
        tone: Tone,
        /// The line, without its end.
        text: String,
    },
}

impl Piece {
    /// A line of its own.
    pub fn line(tone: Tone, text: impl Into<String>) -> Self {
        Self::Line { tone, text: text.into() }
    }
}

/// When the agent's text is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// As it comes.
    Streaming,
    /// Part by part, once the agent goes on to something else: a part that is begun anew after a broken connection
    /// leaves no torn text behind.
    Settled,
}

#[derive(Debug)]
struct Tool {
    title: String,
    name: Option<String>,
    began: Option<Timestamp>,
    ended: bool,
}

impl Tool {
    fn label(&self) -> String {
        let title = clean_line(&self.title, TITLE_LIMIT);
        match self.name.as_deref().map(|name| clean_line(name, TITLE_LIMIT)) {
            Some(name) if !title.starts_with(&name) && !title.is_empty() => format!("{name}: {title}"),
            Some(name) if title.is_empty() => name,
            _ => title,
        }
    }
}

/// Turns the events of one turn into pieces.
#[derive(Debug)]
pub struct Renderer {
    pace: Pace,
    fold: Fold,
    /// The part whose words came last, while nothing else followed.
    open: Option<String>,
    /// The part whose text is held back; only at [`Pace::Settled`].
    held: Option<String>,
    /// For each part, how many bytes of its text were shown.
    shown: HashMap<String, usize>,
    tools: HashMap<String, Tool>,
    /// For each permission that a tool waits for, the tool.
    waiting: HashMap<String, String>,
    began: Option<Timestamp>,
}

impl Renderer {
    /// A renderer for one turn.
    pub fn new(pace: Pace) -> Self {
        Self {
            pace,
            fold: Fold::default(),
            open: None,
            held: None,
            shown: HashMap::new(),
            tools: HashMap::new(),
            waiting: HashMap::new(),
            began: None,
        }
    }

    /// What the next event adds.
    pub fn take(&mut self, event: &SessionEvent) -> Vec<Piece> {
        let mut pieces = Vec::new();
        if let Some((voice, position, text)) = event.payload.as_chunk() {
            self.chunk(voice, &position.id, text, &mut pieces);
            self.fold_in(&event.payload, &mut pieces);
            return pieces;
        }
        match &event.payload {
            EventPayload::PartVoided(voided) => self.voided(&voided.part_id, &mut pieces),
            EventPayload::PartReplaced(replaced) => self.replaced(replaced, &mut pieces),
            payload => self.other(payload, event.at, &mut pieces),
        }
        self.fold_in(&event.payload, &mut pieces);
        pieces
    }

    fn fold_in(&mut self, payload: &EventPayload, pieces: &mut Vec<Piece>) {
        if let Err(error) = self.fold.apply(payload) {
            pieces.push(Piece::line(Tone::Bad, format!("the server's log has a fault: {error}")));
        }
    }

    fn chunk(&mut self, voice: Voice, part: &str, text: &str, pieces: &mut Vec<Piece>) {
        if self.held.as_deref().is_some_and(|held| held != part) {
            self.settle(pieces);
        }
        if self.pace == Pace::Settled && voice == Voice::Message {
            self.held = Some(part.to_owned());
        } else {
            self.words(voice, part, text, pieces);
        }
    }

    /// Words of one part; another part than the last starts on a new line.
    fn words(&mut self, voice: Voice, part: &str, text: &str, pieces: &mut Vec<Piece>) {
        if text.is_empty() {
            return;
        }
        if self.open.as_ref().is_some_and(|open| open != part) {
            pieces.push(Piece::Break);
        }
        self.open = Some(part.to_owned());
        *self.shown.entry(part.to_owned()).or_default() += text.len();
        pieces.push(Piece::Words { voice, text: text.to_owned() });
    }

    /// What the log says so far of a part that is not void.
    fn text_of(&self, part: &str) -> &str {
        let found = self.fold.parts().iter().find(|known| known.id == part && !known.voided);
        found.map_or("", |known| known.text.as_str())
    }

    fn shown_of(&self, part: &str) -> usize {
        self.shown.get(part).copied().unwrap_or(0)
    }

    /// Shows what was held back.
    fn settle(&mut self, pieces: &mut Vec<Piece>) {
        let Some(part) = self.held.take() else { return };
        let rest = self.text_of(&part).get(self.shown_of(&part)..).unwrap_or_default().to_owned();
        self.words(Voice::Message, &part, &rest, pieces);
    }

    fn line_after_words(&mut self, pieces: &mut Vec<Piece>, tone: Tone, text: impl Into<String>) {
        self.settle(pieces);
        self.end_words(pieces);
        pieces.push(Piece::line(tone, text));
    }

    fn end_words(&mut self, pieces: &mut Vec<Piece>) {
        if self.open.take().is_some() {
            pieces.push(Piece::Break);
        }
    }

    fn voided(&mut self, part: &str, pieces: &mut Vec<Piece>) {
        if self.held.as_deref() == Some(part) {
            self.held = None;
        }
        if self.shown.remove(part).is_some() {
            let note = "the model's stream broke: what it was saying is void, and it begins again";
            self.line_after_words(pieces, Tone::Note, note);
        }
    }

    fn replaced(&mut self, replaced: &PartReplaced, pieces: &mut Vec<Piece>) {
        let (part, text) = (replaced.part_id.as_str(), replaced.text.as_str());
        let shown = self.shown_of(part);
        let seen = self.text_of(part).get(..shown).unwrap_or_default();
        if let Some(rest) = text.strip_prefix(seen) {
            self.chunk(replaced.voice, part, rest, pieces);
        } else {
            self.held = self.held.take().filter(|held| held != part);
            self.line_after_words(pieces, Tone::Note, "what was shown of this was not right; it reads:");
            self.shown.remove(part);
            self.words(replaced.voice, part, text, pieces);
        }
    }

    fn other(&mut self, payload: &EventPayload, at: Timestamp, pieces: &mut Vec<Piece>) {
        match payload {
            EventPayload::Update(update) => self.update(update, at, pieces),
            EventPayload::TurnStarted(_) => self.began = Some(at),
            EventPayload::TurnEnded(outcome) => {
                let (tone, text) = outcome_line(outcome, self.began.map(|began| milliseconds(began, at)));
                self.line_after_words(pieces, tone, text);
            }
            EventPayload::TurnError(error) => {
                self.line_after_words(pieces, Tone::Bad, clean_line(&error.message, 400));
            }
            EventPayload::PermissionRequested(_) | EventPayload::QuestionRequested(_) => {
                if let EventPayload::PermissionRequested(request) = payload
                    && let Some(tool) = &request.tool_call_id
                {
                    self.waiting.insert(request.permission_id.clone(), tool.clone());
                }
                for line in request_lines(payload) {
                    self.line_after_words(pieces, Tone::Ask, line);
                }
            }
            EventPayload::PermissionResolved(resolved) => {
                // The time that a person takes is not the tool's.
                let tool = self.waiting.remove(&resolved.permission_id);
                let tool = tool.and_then(|tool| self.tools.get_mut(&tool));
                if let Some(began) = tool.and_then(|tool| tool.began.as_mut()) {
                    *began = at;
                }
                let line = resolution_line(resolved.resolution, resolved.by);
                self.line_after_words(pieces, Tone::Note, line);
            }
            EventPayload::QuestionResolved(resolved) => {
                let line = resolution_line(resolved.resolution, resolved.by);
                self.line_after_words(pieces, Tone::Note, line);
            }
            EventPayload::ProviderRetry(retry) => {
                self.line_after_words(pieces, Tone::Note, retry_line(retry, at));
            }
            EventPayload::SessionReset(_) => {
                let note = "opencode had lost this session: it goes on without what was said before";
                self.line_after_words(pieces, Tone::Bad, note);
            }
            EventPayload::Unreadable(_) => {
                self.line_after_words(
                    pieces,
                    Tone::Note,
                    "an entry of a newer Berth is not shown: upgrade to see it",
                );
            }
            EventPayload::TurnQueued(_)
            | EventPayload::PartVoided(_)
            | EventPayload::PartReplaced(_)
            | EventPayload::MessageRemoved(_)
            | EventPayload::Unknown { .. } => {}
        }
    }

    fn update(&mut self, update: &acp::SessionUpdate, at: Timestamp, pieces: &mut Vec<Piece>) {
        match update {
            acp::SessionUpdate::ToolCall(call) => {
                let tool =
                    Tool { title: call.title.clone(), name: call.name.clone(), began: None, ended: false };
                let id = call.tool_call_id.0.to_string();
                self.settle(pieces);
                self.tools.insert(id.clone(), tool);
                self.tool_status(&id, call.status, at, pieces);
            }
            acp::SessionUpdate::ToolCallUpdate(update) => {
                let id = update.tool_call_id.0.to_string();
                let tool = self.tools.entry(id.clone()).or_insert_with(|| Tool {
                    title: String::new(),
                    name: None,
                    began: None,
                    ended: false,
                });
                if let Some(title) = &update.fields.title {
                    tool.title.clone_from(title);
                }
                if let Some(name) = &update.fields.name {
                    tool.name = Some(name.clone());
                }
                if let Some(status) = update.fields.status {
                    self.tool_status(&id, status, at, pieces);
                }
            }
            acp::SessionUpdate::Plan(plan) => self.line_after_words(pieces, Tone::Note, plan_line(plan)),
            _ => {}
        }
    }

    /// One line when a tool begins, one when it ends.
    fn tool_status(&mut self, id: &str, status: acp::ToolCallStatus, at: Timestamp, pieces: &mut Vec<Piece>) {
        let Some(tool) = self.tools.get_mut(id) else { return };
        if tool.ended {
            return;
        }
        let label = tool.label();
        let (tone, text) = match status {
            acp::ToolCallStatus::InProgress if tool.began.is_none() => {
                tool.began = Some(at);
                (Tone::Tool, format!("● {label}"))
            }
            acp::ToolCallStatus::Completed | acp::ToolCallStatus::Failed => {
                tool.ended = true;
                let took = tool.began.map(|began| format!("  {}", duration(milliseconds(began, at))));
                let good = status == acp::ToolCallStatus::Completed;
                let (tone, mark) = if good { (Tone::Good, '✓') } else { (Tone::Bad, '✗') };
                (tone, format!("{mark} {label}{}", took.unwrap_or_default()))
            }
            _ => return,
        };
        self.line_after_words(pieces, tone, text);
    }
}

fn milliseconds(from: Timestamp, to: Timestamp) -> i64 {
    to.as_millisecond().saturating_sub(from.as_millisecond())
}

fn plan_line(plan: &acp::Plan) -> String {
    let done = plan.entries.iter().filter(|entry| entry.status == acp::PlanEntryStatus::Completed).count();
    let current = plan.entries.iter().find(|entry| entry.status == acp::PlanEntryStatus::InProgress);
    let current = current.map(|entry| format!(": {}", clean_line(&entry.content, TITLE_LIMIT)));
    format!("plan {done}/{}{}", plan.entries.len(), current.unwrap_or_default())
}

/// The lines that say what the agent asks for; none for other events.
pub fn request_lines(payload: &EventPayload) -> Vec<String> {
    match payload {
        EventPayload::PermissionRequested(request) => permission_lines(request),
        EventPayload::QuestionRequested(request) => question_lines(request),
        _ => Vec::new(),
    }
}

fn permission_lines(request: &PermissionRequested) -> Vec<String> {
    let (kind, title) = (clean_line(&request.permission, 80), clean_line(&request.title, TITLE_LIMIT));
    let header = if title.starts_with(&kind) { format!("? {title}") } else { format!("? {kind}: {title}") };
    let mut lines = vec![header];
    // A command is shown whole, however long: nobody should allow what they could not read.
    let exact = match request.metadata["command"].as_str() {
        Some(command) => clean(command),
        None => clean(&request.patterns.join("\n")),
    };
    if !lines[0].contains(&exact) {
        lines.extend(exact.lines().map(|line| format!("    {line}")));
    }
    let diff = request.metadata["diff"].as_str().map(clean).unwrap_or_default();
    lines.extend(diff.lines().take(DIFF_LINES).map(|line| format!("    {line}")));
    if let Some(more) = diff.lines().count().checked_sub(DIFF_LINES + 1) {
        lines.push(format!("    … and {} more lines", more + 1));
    }
    lines
}

fn question_lines(request: &QuestionRequested) -> Vec<String> {
    let mut lines = Vec::new();
    for question in &request.questions {
        lines.push(format!("? {}", clean_line(&question.question, 1000)));
        for (number, option) in (1..).zip(&question.options) {
            let description = clean_line(&option.description, 200);
            let gap = if description.is_empty() { "" } else { "  " };
            lines.push(format!("    {number}. {}{gap}{description}", clean_line(&option.label, 200)));
        }
    }
    lines
}

fn resolution_line(resolution: Resolution, by: ResolvedBy) -> String {
    let how = match resolution {
        Resolution::Once => "allowed once",
        Resolution::Always => "allowed, now and later in this session",
        Resolution::Rejected => "rejected",
        Resolution::Answered => "answered",
        Resolution::Dropped => "no longer wanted",
    };
    let who = match by {
        ResolvedBy::User => "",
        ResolvedBy::Rule => " by an earlier answer",
        ResolvedBy::Deadline => ": nobody answered in time",
        ResolvedBy::Opencode => " by opencode",
    };
    format!("  {how}{who}")
}

fn retry_line(retry: &ProviderRetry, at: Timestamp) -> String {
    let due = retry.next_at.map(|next| format!(", next try in {}", duration(milliseconds(at, next))));
    let message = clean_line(&retry.message, 300);
    format!("the model's provider failed: {message} (try {}{})", retry.attempt, due.unwrap_or_default())
}

fn outcome_line(outcome: &TurnOutcome, took: Option<i64>) -> (Tone, String) {
    let took = took.map(|took| format!(" in {}", duration(took))).unwrap_or_default();
    let (tone, what) = match (outcome.state, outcome.stop_reason) {
        (TurnState::Succeeded, Some(TurnStopReason::Refusal)) => {
            (Tone::Bad, "✗ the model refused to answer".to_owned())
        }
        (TurnState::Succeeded, Some(TurnStopReason::MaxTokens)) => {
            (Tone::Note, format!("✓ stopped at the model's output limit{took}"))
        }
        (TurnState::Succeeded, _) => (Tone::Good, format!("✓ succeeded{took}")),
        (TurnState::Cancelled, _) => (Tone::Note, format!("■ cancelled{took}")),
        (TurnState::Unknown, _) => (Tone::Bad, "✗ its outcome cannot be proved".to_owned()),
        (state, _) => (Tone::Bad, format!("✗ {}{took}", if state.is_final() { "failed" } else { "open" })),
    };
    let error = outcome.error.as_ref().map(|error| {
        let reason = serde_json::to_value(error.reason).ok();
        let reason = reason.as_ref().and_then(|reason| reason.as_str()).unwrap_or_default().to_owned();
        format!(": {reason}: {}", clean_line(&error.message, 1000))
    });
    let usage = outcome.usage.filter(|usage| *usage != Usage::default()).map(|usage| {
        let input = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens;
        let output = usage.output_tokens + usage.reasoning_tokens;
        let cost = if usage.cost_usd > 0.0 { format!(", ${:.4}", usage.cost_usd) } else { String::new() };
        format!("  ({input} tokens in, {output} out{cost})")
    });
    (tone, format!("{what}{}{}", error.unwrap_or_default(), usage.unwrap_or_default()))
}

#[cfg(test)]
mod tests;
