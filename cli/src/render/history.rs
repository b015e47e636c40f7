//! A session's assembled history in short, for somebody who comes back to it. Pure.

use berth_wire::{
    api::{HistoryTurn, PromptPart},
    turn::TurnState,
};

use super::{Piece, Tone};
use crate::text::clean_line;

/// Longest line of a prompt or an answer, in characters.
const LINE_LIMIT: usize = 200;

/// The last `limit` turns: for each what was asked, and how the answer began and ended up.
pub fn history_lines(turns: &[HistoryTurn], limit: usize) -> Vec<Piece> {
    let skipped = turns.len().saturating_sub(limit);
    let mut pieces = Vec::new();
    if skipped > 0 {
        let noun = if skipped == 1 { "turn" } else { "turns" };
        pieces.push(Piece::line(Tone::Note, format!("({skipped} earlier {noun})")));
    }
    for turn in &turns[skipped..] {
        let prompt: Vec<_> = turn.turn.prompt.iter().map(PromptPart::summary).collect();
        pieces.push(Piece::line(Tone::Ask, format!("› {}", clean_line(&prompt.join(" "), LINE_LIMIT))));
        let answer = clean_line(&turn.texts().collect::<Vec<_>>().join(" "), LINE_LIMIT);
        if !answer.is_empty() {
            pieces.push(Piece::line(Tone::Tool, format!("  {answer}")));
        }
        pieces.extend(notes(turn).map(|note| Piece::line(Tone::Note, format!("  {note}"))));
    }
    pieces
}

/// What the text does not tell: tools that ran, and an end that was not a success.
fn notes(turn: &HistoryTurn) -> impl Iterator<Item = String> {
    let tools = match turn.tool_calls.len() {
        0 => None,
        1 => Some("1 tool call".to_owned()),
        count => Some(format!("{count} tool calls")),
    };
    let state = match turn.turn.state {
        TurnState::Succeeded => None,
        TurnState::Queued => Some("queued".to_owned()),
        TurnState::Running => Some("still running".to_owned()),
        TurnState::Cancelled => Some("cancelled".to_owned()),
        TurnState::Unknown => Some("its outcome cannot be proved".to_owned()),
        TurnState::Failed => {
            let message = turn.turn.error.as_ref().map(|error| clean_line(&error.message, LINE_LIMIT));
            Some(format!("failed: {}", message.unwrap_or_default()))
        }
    };
    let note = [tools, state].into_iter().flatten().collect::<Vec<_>>().join(", ");
    Some(note).into_iter().filter(|note| !note.is_empty())
}
