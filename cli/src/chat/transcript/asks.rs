//! What somebody is asked, in full, and how it was settled. Pure.
//!
//! Nobody should allow what they could not read: commands, paths and changes are shown whole, however long.

use berth_wire::event::{EventPayload, PermissionRequested, QuestionRequested, Resolution, ResolvedBy};

use crate::{
    chat::{
        diff::Changes,
        line::{Color, Line, Style},
    },
    text::{clean, clean_line},
};

/// Lines of a change that are shown before it is allowed; far more than a person reads.
const DIFF_LINES: usize = 2000;

/// The lines that say what is asked; none for other events.
pub(super) fn request_lines(payload: &EventPayload, width: usize) -> Vec<Line> {
    match payload {
        EventPayload::PermissionRequested(request) => permission_lines(request, width),
        EventPayload::QuestionRequested(request) => question_lines(request, width),
        _ => Vec::new(),
    }
}

fn permission_lines(request: &PermissionRequested, width: usize) -> Vec<Line> {
    let mark = Style::of(Color::Yellow).with(Style::BOLD);
    let kind = clean_line(&request.permission, 80);
    let head = Line::new(mark, "? ").and(Style::BOLD, &format!("the agent asks for permission: {kind}"));
    let mut lines = head.wrapped(width, &Line::default(), &Line::plain("  "));
    let bar = Line::new(Style::of(Color::Yellow), "  │ ");
    let mut add = |style: Style, text: &str| {
        for line in clean(text).lines() {
            lines.extend(Line::new(style, line).folded(width, &bar, &bar));
        }
    };
    let command = request.metadata["command"].as_str();
    match command {
        Some(command) => add(Style::PLAIN, command),
        None => request.patterns.iter().for_each(|pattern| add(Style::PLAIN, pattern)),
    }
    let title = clean_line(&request.title, 400);
    let known =
        title.is_empty() || title == kind || request.patterns.iter().any(|pattern| title.contains(pattern));
    if command.is_none() && !known {
        add(Style::DIM, &title);
    }
    for key in ["filepath", "filePath", "path", "url"] {
        if let Some(value) =
            request.metadata[key].as_str().filter(|value| !request.patterns.iter().any(|p| p == value))
        {
            add(Style::DIM, &format!("{key}: {value}"));
        }
    }
    if let Some(patch) = request.metadata["diff"].as_str().filter(|patch| !patch.trim().is_empty()) {
        let changes = Changes::of_patch(patch);
        let mut counts = bar.clone();
        counts.append(changes.counts());
        lines.push(counts);
        lines.extend(changes.shown(width, DIFF_LINES, &bar));
    }
    lines
}

fn question_lines(request: &QuestionRequested, width: usize) -> Vec<Line> {
    let mark = Style::of(Color::Yellow).with(Style::BOLD);
    let mut lines = Vec::new();
    for question in &request.questions {
        let text = clean_line(&question.question, 4000);
        let head = Line::new(mark, "? ").and(Style::BOLD, &text);
        lines.extend(head.wrapped(width, &Line::default(), &Line::plain("  ")));
        for (number, option) in (1..).zip(&question.options) {
            let mut line = Line::plain(&clean_line(&option.label, 200));
            let description = clean_line(&option.description, 400);
            if !description.is_empty() {
                line.push(Style::DIM, &format!("  {description}"));
            }
            let mark = Line::new(Style::of(Color::Yellow), &format!("  {number}. "));
            lines.extend(line.wrapped(width, &mark, &Line::plain("     ")));
        }
    }
    lines
}

/// How a request was settled, and by whom.
pub(super) fn resolution_line(resolution: Resolution, by: ResolvedBy) -> Line {
    let (color, how) = match resolution {
        Resolution::Once => (Color::Green, "✓ allowed once"),
        Resolution::Always => (Color::Green, "✓ allowed, now and later in this session"),
        Resolution::Rejected => (Color::Red, "✗ rejected"),
        Resolution::Answered => (Color::Green, "✓ answered"),
        Resolution::Dropped => (Color::Yellow, "■ no longer wanted"),
    };
    let who = match by {
        ResolvedBy::User => "",
        ResolvedBy::Rule => " by an earlier answer",
        ResolvedBy::Deadline => ": nobody answered in time",
        ResolvedBy::Opencode => " by opencode",
    };
    Line::new(Style::of(color), &format!("  {how}{who}"))
}
