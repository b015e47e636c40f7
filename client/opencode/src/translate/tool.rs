//! Tool calls of a turn as ACP shows them: one `tool_call`, then updates with what changed, one final state. Pure.
//!
//! A call's id in ACP is the id of its part, which opencode makes and never uses twice. The id that the model gave it
//! is not: some models begin to count anew with each answer.

use std::collections::BTreeMap;

use agent_client_protocol_schema::v1 as acp;
use berth_wire::event::{EventPayload, SUBSESSION_META};
use serde::{Deserialize, Serialize};
use serde_json::{Map, json};

use self::view::View;
use super::text::fnv_of;
use crate::model::{ToolPart, ToolReference, ToolState};

mod patch;
mod view;

/// A tool call as the log shows it. Of what can be large, only hashes are kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    message: String,
    /// The model's own id of the call.
    call: String,
    /// The subagent's session that it gives work to, once known.
    child: Option<String>,
    /// It gives work to a subagent: what runs then is not this call.
    delegates: bool,
    title: String,
    kind: acp::ToolKind,
    status: acp::ToolCallStatus,
    input: u64,
    content: u64,
    locations: u64,
    rejection: Rejection,
}

/// Whether a call was rejected, or its question dismissed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Rejection {
    No,
    /// With words for the model, which goes on.
    WithFeedback,
    /// Without: the turn ends after the step.
    EndsTurn,
}

/// The tool calls of one turn.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tools {
    records: BTreeMap<String, Record>,
}

fn hash<T: Serialize>(value: &T) -> u64 {
    fnv_of(&serde_json::to_vec(value).expect("plain data serialises"))
}

fn is_final(status: acp::ToolCallStatus) -> bool {
    matches!(status, acp::ToolCallStatus::Completed | acp::ToolCallStatus::Failed)
}

impl Tools {
    /// A tool part of a message of the turn, whole.
    pub(super) fn part(&mut self, part: &str, message: &str, tool: &ToolPart) -> Option<EventPayload> {
        let view = View::new(tool);
        if let Some(record) = self.records.get_mut(part) {
            return record.update(part, tool, view);
        }
        let record = Record::new(message, tool, &view);
        let payload = record.first_sight(part, tool, view);
        self.records.insert(part.to_owned(), record);
        Some(payload)
    }

    /// Gives every call that has no final state one: it failed for this reason.
    pub(super) fn fail_open(&mut self, reason: &str) -> Vec<EventPayload> {
        self.fail_where(reason, |_, _| true)
    }

    /// The part, or its message, was removed.
    pub(super) fn remove(&mut self, part: Option<&str>, message: &str) -> Vec<EventPayload> {
        self.fail_where("It was removed from the session.", |id, record| {
            part.map_or(record.message == message, |part| id == part)
        })
    }

    fn fail_where(&mut self, reason: &str, wanted: impl Fn(&str, &Record) -> bool) -> Vec<EventPayload> {
        let open =
            self.records.iter_mut().filter(|(id, record)| !is_final(record.status) && wanted(id, record));
        open.map(|(id, record)| record.fail(id, reason)).collect()
    }

    /// The id in ACP of the call that opencode names so. Of several, the one that goes on, else the newest.
    pub(super) fn id_of(&self, tool: &ToolReference) -> Option<String> {
        let named = self.records.iter().filter(|(_, record)| record.is_named(tool));
        named.max_by_key(|(id, record)| (!is_final(record.status), *id)).map(|(id, _)| id.clone())
    }

    /// A call runs, other than those that give work to subagents. One that waits for a person runs, too.
    pub(super) fn any_runs(&self) -> bool {
        let runs = |record: &Record| record.status == acp::ToolCallStatus::InProgress && !record.delegates;
        self.records.values().any(runs)
    }

    /// The message called a tool.
    pub(super) fn has_calls(&self, message: &str) -> bool {
        self.records.values().any(|record| record.message == message)
    }

    /// A call of the message was rejected, or its question dismissed, in the way that ends the turn.
    pub(super) fn ended_by_rejection(&self, message: &str) -> bool {
        let ended = |record: &Record| record.rejection == Rejection::EndsTurn;
        self.records.values().any(|record| record.message == message && ended(record))
    }

    /// How the call with this id in ACP stands: `None` when it is not known.
    pub(super) fn outcome(&self, id: &str) -> Option<CallOutcome> {
        let record = self.records.get(id)?;
        Some(match record {
            Record { rejection: Rejection::EndsTurn | Rejection::WithFeedback, .. } => CallOutcome::Rejected,
            Record { status: acp::ToolCallStatus::Failed, .. } => CallOutcome::Failed,
            _ => CallOutcome::Went,
        })
    }

    /// No call of the message waits for more.
    pub(super) fn is_settled(&self, message: &str) -> bool {
        !self.records.values().any(|record| record.message == message && !is_final(record.status))
    }

    /// Forgets the message's calls.
    pub(super) fn forget(&mut self, message: &str) {
        self.records.retain(|_, record| record.message != message);
    }
}

/// How a tool call came out, as far as it tells about what it had asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallOutcome {
    /// It runs or has run.
    Went,
    /// Somebody rejected it.
    Rejected,
    /// It failed for another reason.
    Failed,
}

/// Reads opencode's words (the same on 1.15.4 and 1.18.33).
fn rejection(state: &ToolState) -> Rejection {
    let error = state.error.as_deref().unwrap_or_default();
    let rejected = error.strip_prefix("The user rejected permission to use this specific tool call");
    match rejected {
        Some(more) if more.starts_with(" with the following feedback") => Rejection::WithFeedback,
        Some(_) => Rejection::EndsTurn,
        None if error.starts_with("The user dismissed this question") => Rejection::EndsTurn,
        None => Rejection::No,
    }
}

impl Record {
    fn new(message: &str, tool: &ToolPart, view: &View) -> Self {
        Self {
            message: message.to_owned(),
            call: tool.call_id.clone(),
            child: child(tool),
            delegates: tool.tool == "task",
            title: view.title.clone(),
            kind: view.kind,
            status: view.status,
            input: hash(&view.input),
            content: hash(&view.content),
            locations: hash(&view.locations),
            rejection: rejection(&tool.state),
        }
    }

    fn is_named(&self, tool: &ToolReference) -> bool {
        self.message == tool.message_id && self.call == tool.call_id
    }

    fn first_sight(&self, id: &str, tool: &ToolPart, view: View) -> EventPayload {
        let call = acp::ToolCall::new(id.to_owned(), view.title)
            .name(tool.tool.clone())
            .kind(view.kind)
            .status(view.status)
            .content(view.content)
            .locations(view.locations)
            .raw_input(view.input)
            .meta(self.meta());
        EventPayload::from(acp::SessionUpdate::ToolCall(call))
    }

    /// Leads to the subagent's session.
    fn meta(&self) -> Option<acp::Meta> {
        let child = self.child.as_ref()?;
        Some(Map::from_iter([(SUBSESSION_META.to_owned(), json!(child))]))
    }

    /// What changed; nothing after a final state.
    fn update(&mut self, id: &str, tool: &ToolPart, view: View) -> Option<EventPayload> {
        // After a snapshot, events that it covers may still come.
        let is_stale =
            self.status == acp::ToolCallStatus::InProgress && view.status == acp::ToolCallStatus::Pending;
        if is_final(self.status) || is_stale {
            return None;
        }
        let state = &tool.state;
        let linked = self.child.is_none() && child(tool).is_some();
        if linked {
            self.child = child(tool);
        }
        self.rejection = rejection(state);
        let mut fields = acp::ToolCallUpdateFields::new();
        if self.title != view.title {
            self.title.clone_from(&view.title);
            fields = fields.title(view.title);
        }
        if self.kind != view.kind {
            self.kind = view.kind;
            fields = fields.kind(view.kind);
        }
        if self.status != view.status {
            self.status = view.status;
            fields = fields.status(view.status);
        }
        if replace(&mut self.input, hash(&view.input)) {
            fields = fields.raw_input(view.input);
        }
        if replace(&mut self.content, hash(&view.content)) {
            fields = fields.content(view.content);
        }
        if replace(&mut self.locations, hash(&view.locations)) {
            fields = fields.locations(view.locations);
        }
        (linked || fields != acp::ToolCallUpdateFields::new()).then(|| self.payload(id, fields))
    }

    fn fail(&mut self, id: &str, reason: &str) -> EventPayload {
        self.status = acp::ToolCallStatus::Failed;
        let content = vec![acp::ToolCallContent::from(reason.to_owned())];
        self.payload(id, acp::ToolCallUpdateFields::new().status(self.status).content(content))
    }

    fn payload(&self, id: &str, fields: acp::ToolCallUpdateFields) -> EventPayload {
        let update = acp::ToolCallUpdate::new(id.to_owned(), fields).meta(self.meta());
        EventPayload::from(acp::SessionUpdate::ToolCallUpdate(update))
    }
}

/// The subagent's session that a task works through.
pub(super) fn child(tool: &ToolPart) -> Option<String> {
    tool.state.metadata["sessionId"].as_str().map(str::to_owned)
}

/// True when the value changed.
fn replace(old: &mut u64, new: u64) -> bool {
    std::mem::replace(old, new) != new
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::model::ToolStatus;

    fn part(tool: &str, input: Value) -> ToolPart {
        let state = ToolState { status: ToolStatus::Running, input, ..ToolState::default() };
        ToolPart { call_id: "call_1".to_owned(), tool: tool.to_owned(), state }
    }

    fn id(payload: Option<EventPayload>) -> String {
        match payload {
            Some(EventPayload::Update(update)) => match *update {
                acp::SessionUpdate::ToolCall(call) => call.tool_call_id.to_string(),
                acp::SessionUpdate::ToolCallUpdate(call) => call.tool_call_id.to_string(),
                other => panic!("not a call: {other:?}"),
            },
            other => panic!("not a call: {other:?}"),
        }
    }

    #[test]
    fn calls_that_the_model_gave_one_id_are_told_apart() {
        let mut tools = Tools::default();
        let mut call = part("bash", json!({ "command": "make" }));
        assert_eq!(id(tools.part("prt_1", "msg_1", &call)), "prt_1");
        assert_eq!(id(tools.part("prt_2", "msg_2", &call)), "prt_2");
        let named =
            |message: &str| ToolReference { message_id: message.to_owned(), call_id: "call_1".to_owned() };
        assert_eq!(tools.id_of(&named("msg_1")).as_deref(), Some("prt_1"));
        assert_eq!(tools.id_of(&named("msg_2")).as_deref(), Some("prt_2"));
        assert_eq!(tools.id_of(&named("msg_3")), None);
        // Even twice in one message: the one that goes on is meant.
        assert_eq!(id(tools.part("prt_3", "msg_2", &call)), "prt_3");
        call.state.status = ToolStatus::Completed;
        assert_eq!(id(tools.part("prt_3", "msg_2", &call)), "prt_3");
        assert_eq!(tools.id_of(&named("msg_2")).as_deref(), Some("prt_2"));
    }

    #[test]
    fn a_call_that_runs_is_not_pending_again() {
        let mut tools = Tools::default();
        let mut call = part("bash", json!({ "command": "make" }));
        assert!(tools.part("prt_1", "msg_1", &call).is_some());
        (call.state.status, call.state.input) = (ToolStatus::Pending, json!({}));
        assert!(tools.part("prt_1", "msg_1", &call).is_none());
    }

    #[test]
    fn a_task_leads_to_its_subagents_session() {
        let mut tools = Tools::default();
        let mut task = part("task", json!({ "description": "look" }));
        let first = tools.part("prt_1", "msg_1", &task).unwrap().to_parts().1;
        assert_eq!(first["_meta"], Value::Null);
        task.state.metadata = json!({ "sessionId": "ses_child" });
        let linked = tools.part("prt_1", "msg_1", &task).unwrap().to_parts().1;
        assert_eq!(linked["_meta"][SUBSESSION_META], "ses_child");
        assert!(tools.part("prt_1", "msg_1", &task).is_none());
        assert!(!tools.any_runs(), "what runs is the subagent's");
    }

    #[test]
    fn output_that_did_not_change_is_not_told_again() {
        let mut tools = Tools::default();
        let mut running = part("bash", json!({ "command": "make" }));
        running.state.metadata = json!({ "output": "one\n" });
        assert!(tools.part("prt_1", "msg_1", &running).is_some());
        assert!(tools.part("prt_1", "msg_1", &running).is_none());
        running.state.metadata = json!({ "output": "one\ntwo\n" });
        assert!(tools.part("prt_1", "msg_1", &running).is_some());
        running.state.status = ToolStatus::Completed;
        running.state.output = Some("one\ntwo\n".to_owned());
        assert!(tools.part("prt_1", "msg_1", &running).is_some());
        running.state.output = Some("late".to_owned());
        assert!(tools.part("prt_1", "msg_1", &running).is_none(), "one final state");
    }
}
