//! Assembles a session's history from its log: the fold of what the agent said, turn by turn. Pure.

use std::collections::HashMap;

use berth_wire::{
    api::{HistoryToolCall, HistoryTurn, Turn},
    event::{EventPayload, Fold, SessionEvent, Voice, acp},
};
use uuid::Uuid;

/// Turns under assembly.
#[derive(Debug)]
pub(crate) struct Assembly {
    turns: Vec<Turn>,
    content: HashMap<Uuid, Content>,
}

#[derive(Debug, Default)]
struct Content {
    fold: Fold,
    tool_calls: Vec<HistoryToolCall>,
}

impl Assembly {
    pub(crate) fn new(turns: Vec<Turn>) -> Self {
        Self { turns, content: HashMap::new() }
    }

    /// Takes the next event of the log; those without a turn change nothing.
    pub(crate) fn apply(&mut self, event: &SessionEvent) {
        let Some(turn_id) = event.turn_id else { return };
        let content = self.content.entry(turn_id).or_default();
        if let Err(error) = content.fold.apply(&event.payload) {
            tracing::error!(session_id = %event.session_id, seq = event.seq, %error, "log does not fold");
        }
        if let EventPayload::Update(update) = &event.payload {
            content.apply_tool(update);
        }
    }

    pub(crate) fn finish(mut self) -> Vec<HistoryTurn> {
        let assemble = |turn: Turn| {
            let content = self.content.remove(&turn.id).unwrap_or_default();
            HistoryTurn {
                removed: false,
                turn,
                text: content.fold.text(Voice::Message),
                thought: content.fold.text(Voice::Thought),
                tool_calls: content.tool_calls,
            }
        };
        self.turns.into_iter().map(assemble).collect()
    }
}

impl Content {
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
