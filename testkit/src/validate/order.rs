//! A turn is queued, starts, has content, and ends once; one turn at a time. Pure.

use std::collections::BTreeMap;

use berth_wire::{
    event::{EventPayload, acp},
    turn::TurnState,
};
use serde_json::Value;

use super::{Entry, Extent, Fault, Violation, kind};

/// Berth's own kinds, and those of ACP that Berth sends, which a reader of this version must understand.
const KNOWN_KINDS: [&str; 25] = [
    "turn_queued",
    "turn_started",
    "turn_ended",
    "turn_error",
    "part_voided",
    "part_replaced",
    "permission_requested",
    "permission_resolved",
    "question_requested",
    "question_resolved",
    "provider_retry",
    "message_removed",
    "session_reset",
    "unreadable",
    "user_message_chunk",
    "agent_message_chunk",
    "agent_thought_chunk",
    "tool_call",
    "tool_call_update",
    "plan",
    "available_commands_update",
    "current_mode_update",
    "config_option_update",
    "session_info_update",
    "usage_update",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Queued,
    Running,
    Ended,
}

pub(super) fn check<T: Copy + Ord>(entries: &[Entry<'_, T>], extent: Extent) -> Vec<Violation> {
    let mut stages: BTreeMap<T, Stage> = BTreeMap::new();
    let mut violations = Vec::new();
    for (at, entry) in entries.iter().enumerate() {
        let fault = match entry.turn {
            Some(turn) => in_turn(&mut stages, turn, entry),
            None if needs_turn(entry.payload) => Some(Fault::OutsideTurn(kind(entry))),
            None => None,
        };
        let malformed = malformed(entry.payload).map(Fault::Malformed);
        violations.extend(fault.into_iter().chain(malformed).map(|what| Violation { at, what }));
    }
    if extent == Extent::Whole {
        let open = stages.values().filter(|stage| **stage != Stage::Ended);
        violations.extend(open.map(|_| Violation { at: entries.len(), what: Fault::NoEnd }));
    }
    violations
}

fn in_turn<T: Copy + Ord>(stages: &mut BTreeMap<T, Stage>, turn: T, entry: &Entry<'_, T>) -> Option<Fault> {
    let stage = stages.get(&turn).copied();
    let ends = matches!(entry.payload, EventPayload::TurnEnded(_));
    if stage == Some(Stage::Ended) {
        return Some(if ends { Fault::EndedTwice } else { Fault::AfterEnd(kind(entry)) });
    }
    match entry.payload {
        EventPayload::TurnQueued(_) => {
            stages.entry(turn).or_insert(Stage::Queued);
            stage.map(|_| Fault::QueuedLate)
        }
        EventPayload::TurnStarted(_) => {
            let overlap = stages.iter().any(|(other, stage)| *other != turn && *stage == Stage::Running);
            stages.insert(turn, Stage::Running);
            match stage {
                Some(Stage::Running) => Some(Fault::StartedTwice),
                _ => overlap.then_some(Fault::Overlap),
            }
        }
        EventPayload::TurnEnded(outcome) => {
            stages.insert(turn, Stage::Ended);
            // A prompt that was cancelled or refused before it began ends without a start.
            let needs_start = outcome.state == TurnState::Succeeded;
            (needs_start && stage != Some(Stage::Running)).then_some(Fault::NeverStarted)
        }
        payload if needs_turn(payload) && stage != Some(Stage::Running) => {
            Some(Fault::BeforeStart(kind(entry)))
        }
        _ => None,
    }
}

/// The payload is of a turn. What is of the session as a whole may come at any time.
fn needs_turn(payload: &EventPayload) -> bool {
    match payload {
        EventPayload::Update(update) => matches!(
            **update,
            acp::SessionUpdate::UserMessageChunk(_)
                | acp::SessionUpdate::AgentMessageChunk(_)
                | acp::SessionUpdate::AgentThoughtChunk(_)
                | acp::SessionUpdate::ToolCall(_)
                | acp::SessionUpdate::ToolCallUpdate(_)
        ),
        EventPayload::TurnQueued(_)
        | EventPayload::TurnStarted(_)
        | EventPayload::TurnEnded(_)
        | EventPayload::TurnError(_)
        | EventPayload::PartVoided(_)
        | EventPayload::PartReplaced(_)
        | EventPayload::PermissionRequested(_)
        | EventPayload::PermissionResolved(_)
        | EventPayload::QuestionRequested(_)
        | EventPayload::QuestionResolved(_)
        | EventPayload::ProviderRetry(_) => true,
        _ => false,
    }
}

/// The kind of a payload that should have been understood.
fn malformed(payload: &EventPayload) -> Option<String> {
    match payload {
        EventPayload::Unknown { kind, payload: Value::Object(_) }
            if !KNOWN_KINDS.contains(&kind.as_str()) =>
        {
            None
        }
        EventPayload::Unknown { kind, .. } => Some(kind.clone()),
        _ => None,
    }
}
