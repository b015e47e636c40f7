//! Assembles a turn's history from its log: the fold of what the agent said, and its tool calls. Pure.

use berth_wire::{
    api::{HistoryToolCall, HistoryTurn},
    event::{EventPayload, Fold, FoldedPart, SessionEvent, Voice, acp},
};

use crate::store::{HistoryRow, Removed};

/// A turn under assembly.
#[derive(Debug)]
pub(crate) struct Assembly {
    row: HistoryRow,
    content: Content,
}

#[derive(Debug, Default)]
struct Content {
    fold: Fold,
    tool_calls: Vec<HistoryToolCall>,
}

impl Assembly {
    pub(crate) fn new(row: HistoryRow) -> Self {
        Self { row, content: Content::default() }
    }

    /// Takes the next event of the log; those of other turns change nothing.
    pub(crate) fn apply(&mut self, event: &SessionEvent) {
        if event.turn_id != Some(self.row.turn.id) {
            return;
        }
        if let Err(error) = self.content.fold.apply(&event.payload) {
            tracing::error!(session_id = %event.session_id, seq = event.seq, %error, "log does not fold");
        }
        if let EventPayload::Update(update) = &event.payload {
            self.content.apply_tool(update);
        }
    }

    pub(crate) fn finish(self) -> HistoryTurn {
        HistoryTurn {
            turn: self.row.turn,
            removed: self.row.removed == Removed::Wholly,
            partly_removed: self.row.removed == Removed::Partly,
            text: self.content.fold.text(Voice::Message),
            text_breaks: self.content.text_breaks(),
            thought: self.content.fold.text(Voice::Thought),
            tool_calls: self.content.tool_calls,
        }
    }
}

impl Content {
    /// Where the parts of the text begin, but for the first.
    fn text_breaks(&self) -> Vec<usize> {
        let said = |part: &&FoldedPart| part.voice == Voice::Message && !part.voided && !part.text.is_empty();
        let ends = self.fold.parts().iter().filter(said).scan(0, |end, part| {
            *end += part.text.len();
            Some(*end)
        });
        let mut breaks: Vec<usize> = ends.collect();
        breaks.pop();
        breaks
    }

    fn apply_tool(&mut self, update: &acp::SessionUpdate) {
        match update {
            acp::SessionUpdate::ToolCall(call) => self.tool_calls.push(HistoryToolCall {
                tool_call_id: call.tool_call_id.to_string(),
                title: call.title.clone(),
                status: status_name(call.status),
            }),
            acp::SessionUpdate::ToolCallUpdate(update) => {
                let id = update.tool_call_id.to_string();
                let Some(call) = self.tool_calls.iter_mut().find(|call| call.tool_call_id == id) else {
                    return;
                };
                if let Some(title) = &update.fields.title {
                    call.title.clone_from(title);
                }
                if let Some(status) = update.fields.status {
                    call.status = status_name(status);
                }
            }
            _ => {}
        }
    }
}

fn status_name(status: acp::ToolCallStatus) -> String {
    let value = serde_json::to_value(status).unwrap_or_default();
    value.as_str().unwrap_or("pending").to_owned()
}
