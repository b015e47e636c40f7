//! Tool calls: told once, then updated; input complete before the tool runs; one final state. Pure.

use std::collections::BTreeMap;

use berth_wire::event::{EventPayload, acp};
use serde_json::Value;

use super::{Entry, Fault, Violation};

#[derive(Debug)]
struct Call {
    status: acp::ToolCallStatus,
    has_input: bool,
}

pub(super) fn check<T: Copy + Ord>(entries: &[Entry<'_, T>]) -> Vec<Violation> {
    let mut calls: BTreeMap<(Option<T>, String), Call> = BTreeMap::new();
    let mut violations = Vec::new();
    for (at, entry) in entries.iter().enumerate() {
        let faults = match entry.payload {
            EventPayload::Update(update) => on_update(&mut calls, entry.turn, update),
            EventPayload::TurnEnded(_) => left_open(&calls, entry.turn),
            _ => Vec::new(),
        };
        violations.extend(faults.into_iter().map(|what| Violation { at, what }));
    }
    violations
}

fn on_update<T: Copy + Ord>(
    calls: &mut BTreeMap<(Option<T>, String), Call>,
    turn: Option<T>,
    update: &acp::SessionUpdate,
) -> Vec<Fault> {
    match update {
        acp::SessionUpdate::ToolCall(call) => {
            let id = call.tool_call_id.to_string();
            let mut fresh = Call { status: call.status, has_input: false };
            let faults = fresh.take(&id, call.raw_input.as_ref(), call.status);
            match calls.insert((turn, id.clone()), fresh) {
                Some(_) => vec![Fault::ToolReused(id)],
                None => faults,
            }
        }
        acp::SessionUpdate::ToolCallUpdate(update) => {
            let id = update.tool_call_id.to_string();
            let Some(call) = calls.get_mut(&(turn, id.clone())) else { return vec![Fault::ToolUnseen(id)] };
            if is_final(call.status) {
                return vec![Fault::ToolAfterFinal(id)];
            }
            let status = update.fields.status.unwrap_or(call.status);
            call.take(&id, update.fields.raw_input.as_ref(), status)
        }
        _ => Vec::new(),
    }
}

impl Call {
    fn take(&mut self, id: &str, input: Option<&Value>, status: acp::ToolCallStatus) -> Vec<Fault> {
        let mut faults = Vec::new();
        if let Some(input) = input.filter(|input| !input.is_null()) {
            self.has_input = true;
            if !is_complete(input) {
                faults.push(Fault::ToolInputBroken(id.to_owned()));
            }
        }
        let runs = matches!(status, acp::ToolCallStatus::InProgress | acp::ToolCallStatus::Completed);
        if runs && !self.has_input {
            faults.push(Fault::ToolInputMissing(id.to_owned()));
        }
        if self.status == acp::ToolCallStatus::InProgress && status == acp::ToolCallStatus::Pending {
            faults.push(Fault::ToolWentBack(id.to_owned()));
        }
        self.status = status;
        faults
    }
}

/// Arguments are an object; as a string, they are the text of one.
fn is_complete(input: &Value) -> bool {
    match input {
        Value::String(text) => serde_json::from_str::<Value>(text).is_ok_and(|value| value.is_object()),
        other => other.is_object(),
    }
}

fn is_final(status: acp::ToolCallStatus) -> bool {
    matches!(status, acp::ToolCallStatus::Completed | acp::ToolCallStatus::Failed)
}

fn left_open<T: Copy + Ord>(calls: &BTreeMap<(Option<T>, String), Call>, turn: Option<T>) -> Vec<Fault> {
    let of_turn = calls.iter().filter(|((of, _), call)| *of == turn && !is_final(call.status));
    of_turn.map(|((_, id), call)| Fault::ToolLeftOpen { id: id.clone(), status: call.status }).collect()
}
