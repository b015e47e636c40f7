//! A tool call: a line with its state, and a little of what it printed or changed. Pure.

use berth_wire::event::acp;
use jiff::Timestamp;

use super::{in_short, notes::milliseconds, shown_path};
use crate::{
    chat::{
        diff::{Changes, plural},
        line::{Color, Line, Style},
    },
    text::duration,
};

/// Longest title of a tool call, in characters.
const TITLE_LIMIT: usize = 200;
/// Lines of output that are shown while it runs.
const OPEN_LINES: usize = 3;
/// Lines of output that are shown of one that went well.
const GOOD_LINES: usize = 4;
/// Lines of output that are shown of one that failed.
const BAD_LINES: usize = 10;
/// Lines of a change that are shown.
const DIFF_LINES: usize = 24;

#[derive(Debug)]
pub(super) struct Tool {
    id: String,
    name: Option<String>,
    title: String,
    kind: acp::ToolKind,
    status: acp::ToolCallStatus,
    content: Vec<acp::ToolCallContent>,
    directory: String,
    began: Option<Timestamp>,
    ended: Option<Timestamp>,
    /// Somebody is asked for a permission.
    waits: bool,
    /// Its turn ended without a word about it.
    abandoned: bool,
}

impl Tool {
    pub(super) fn new(call: &acp::ToolCall, directory: &str, at: Timestamp) -> Self {
        let mut tool = Self {
            id: call.tool_call_id.0.to_string(),
            name: call.name.clone(),
            title: call.title.clone(),
            kind: call.kind,
            status: acp::ToolCallStatus::Pending,
            content: call.content.clone(),
            directory: directory.to_owned(),
            began: None,
            ended: None,
            waits: false,
            abandoned: false,
        };
        tool.status(call.status, at);
        tool
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn ended(&self) -> bool {
        self.ended.is_some() || self.abandoned
    }

    pub(super) fn abandon(&mut self) {
        self.abandoned = true;
    }

    pub(super) fn wait(&mut self, waits: bool, at: Timestamp) {
        self.waits = waits;
        if !waits && self.began.is_some() {
            // The time that a person takes is not the tool's.
            self.began = Some(at);
        }
    }

    pub(super) fn update(&mut self, update: &acp::ToolCallUpdate, at: Timestamp) {
        let fields = &update.fields;
        if self.ended() {
            return;
        }
        if let Some(title) = &fields.title {
            self.title.clone_from(title);
        }
        if let Some(name) = &fields.name {
            self.name = Some(name.clone());
        }
        if let Some(kind) = fields.kind {
            self.kind = kind;
        }
        if let Some(content) = &fields.content {
            self.content.clone_from(content);
        }
        if let Some(status) = fields.status {
            self.status(status, at);
        }
    }

    fn status(&mut self, status: acp::ToolCallStatus, at: Timestamp) {
        self.status = status;
        match status {
            acp::ToolCallStatus::InProgress => {
                self.began.get_or_insert(at);
            }
            acp::ToolCallStatus::Completed | acp::ToolCallStatus::Failed => self.ended = Some(at),
            _ => {}
        }
    }

    fn label(&self) -> String {
        let title = in_short(&shown_path(&self.title, &self.directory), TITLE_LIMIT);
        match self.name.as_deref().map(|name| in_short(name, TITLE_LIMIT)) {
            Some(name) if title.is_empty() => name,
            Some(name) if !title.starts_with(&name) => format!("{name}: {title}"),
            _ => title,
        }
    }

    /// What it changed, file by file.
    fn changes(&self) -> Vec<Changes> {
        let change = |content: &acp::ToolCallContent| match content {
            acp::ToolCallContent::Diff(diff) => {
                Some(Changes::between(diff.old_text.as_deref(), &diff.new_text))
            }
            _ => None,
        };
        self.content.iter().filter_map(change).collect()
    }

    fn output(&self) -> String {
        let text = |content: &acp::ToolCallContent| match content {
            acp::ToolCallContent::Content(content) => match &content.content {
                acp::ContentBlock::Text(text) => Some(text.text.clone()),
                _ => None,
            },
            _ => None,
        };
        self.content.iter().filter_map(text).collect::<Vec<_>>().join("\n")
    }

    /// While it is not at its end.
    pub(super) fn open(&self, width: usize, now: Timestamp) -> Vec<Line> {
        let (mark, color, state) = match self.began {
            _ if self.waits => ("?", Color::Yellow, "  waits for you".to_owned()),
            None => ("○", Color::Blue, "  pending".to_owned()),
            Some(began) => ("●", Color::Blue, format!("  {}", duration(milliseconds(began, now)))),
        };
        let head = Line::new(Style::of(color), &format!("{mark} ")).and(Style::PLAIN, &self.label());
        let state = Line::dim(&state);
        let mut head = head.truncated(width.saturating_sub(state.width()));
        head.append(state);
        let mut lines = vec![head];
        let output = self.output();
        let all: Vec<&str> = output.trim_end().lines().collect();
        let last = all.iter().skip(all.len().saturating_sub(OPEN_LINES));
        lines.extend(last.map(|line| output_line(line, width)));
        lines
    }

    /// At its end.
    pub(super) fn finished(&self, width: usize) -> Vec<Line> {
        let failed = self.status == acp::ToolCallStatus::Failed;
        let (mark, color) = match (failed, self.ended) {
            (true, _) => ("✗", Color::Red),
            (false, Some(_)) => ("✓", Color::Green),
            (false, None) => ("■", Color::Yellow),
        };
        let took = self.began.zip(self.ended).map(|(began, ended)| duration(milliseconds(began, ended)));
        let mut head = Line::new(Style::of(color), &format!("{mark} ")).and(Style::PLAIN, &self.label());
        let changes = if failed { Vec::new() } else { self.changes() };
        for change in &changes {
            head.push(Style::PLAIN, "  ");
            head.append(change.counts());
        }
        head.push(Style::DIM, &took.map(|took| format!("  {took}")).unwrap_or_default());
        let mut lines = head.wrapped(width, &Line::default(), &Line::plain("    "));
        let indent = Line::dim("  │ ");
        for change in &changes {
            lines.extend(change.shown(width, DIFF_LINES, &indent));
        }
        lines.extend(self.output_lines(width, failed, !changes.is_empty()));
        lines
    }

    fn output_lines(&self, width: usize, failed: bool, changed: bool) -> Vec<Line> {
        let output = self.output();
        let all: Vec<&str> = output.trim_end().lines().collect();
        let limit = match self.kind {
            _ if failed => BAD_LINES,
            // What was read is the agent's concern, and what was changed is shown above.
            acp::ToolKind::Read | acp::ToolKind::Search | acp::ToolKind::Fetch => 0,
            acp::ToolKind::Edit if changed => return Vec::new(),
            _ => GOOD_LINES,
        };
        // One more line costs no more room than saying that it is left out.
        let limit = if all.len() == limit + 1 { all.len() } else { limit };
        let mut lines: Vec<Line> = all.iter().take(limit).map(|line| output_line(line, width)).collect();
        let hidden = all.len().saturating_sub(limit);
        if hidden > 0 {
            let more = if limit == 0 { "" } else { "… " };
            let noun =
                if limit == 0 { plural(hidden, "line") } else { format!("more {}", plural(hidden, "line")) };
            lines.push(Line::dim(&format!("  │ {more}{hidden} {noun}")).truncated(width));
        }
        lines
    }
}

fn output_line(text: &str, width: usize) -> Line {
    // Far more than fits; of a line that is a whole file, not all is measured for each frame.
    let beginning: String = text.chars().take(width.saturating_mul(8)).collect();
    Line::dim(&format!("  │ {beginning}")).truncated(width)
}
