//! Turns of a session that is taken up again, as its assembled history has them. Pure.

use berth_wire::{
    api::HistoryTurn,
    turn::{TurnOutcome, TurnState},
};

use super::{
    in_short,
    notes::{end_line, prompt_lines},
};
use crate::chat::{
    diff::plural,
    line::{Line, Style},
    markdown::{Markdown, Stream},
};

/// The turns, oldest first: what was asked, what was done and what was said.
pub(in crate::chat) fn past_lines(turns: &[HistoryTurn], markdown: &mut Markdown, width: usize) -> Vec<Line> {
    let mut lines = Vec::new();
    for turn in turns {
        if !lines.is_empty() {
            lines.push(Line::default());
        }
        let none = Line::default();
        let rest = Line::plain("  ");
        lines.extend(
            prompt_lines(&turn.turn.prompt).iter().flat_map(|line| line.wrapped(width, &none, &rest)),
        );
        if let Some(tools) = tools(turn) {
            lines.push(Line::default());
            lines.push(tools.truncated(width));
        }
        for text in turn.texts() {
            let mut stream = Stream::default();
            stream.push(text.trim_end());
            lines.push(Line::default());
            lines.extend(stream.settle(markdown, width, true));
        }
        lines.extend(end(turn).into_iter().flat_map(|line| line.wrapped(width, &none, &rest)));
    }
    lines
}

fn tools(turn: &HistoryTurn) -> Option<Line> {
    let count = turn.tool_calls.len();
    let last = turn.tool_calls.last()?;
    let failed = turn.tool_calls.iter().filter(|call| call.status == "failed").count();
    let failed = if failed > 0 { format!(", {failed} failed") } else { String::new() };
    let text = format!("● {count} {}{failed}; the last: ", plural(count, "tool call"));
    Some(Line::dim(&text).and(Style::DIM, &in_short(&last.title, 200)))
}

/// How it ended, unless it went well; one that has not ended is shown by its events.
fn end(turn: &HistoryTurn) -> Option<Line> {
    let row = &turn.turn;
    if turn.removed {
        return Some(Line::dim("(removed from the session: the agent no longer knows this turn)"));
    }
    match row.state {
        TurnState::Succeeded | TurnState::Queued | TurnState::Running => None,
        state => {
            let outcome = TurnOutcome {
                state,
                stop_reason: row.stop_reason,
                error: row.error.clone(),
                usage: row.usage,
            };
            Some(end_line(&outcome, None, row.model.as_ref().map(ToString::to_string)))
        }
    }
}
