//! Tool calls of a turn as ACP shows them: one `tool_call`, then updates with what changed, one final state. Pure.

use std::collections::BTreeMap;

use agent_client_protocol_schema::v1 as acp;
use berth_wire::event::EventPayload;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{one_line, text::fnv_of};
use crate::model::{ToolPart, ToolState, ToolStatus};

/// A tool call as the log shows it. Of what can be large, only hashes are kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    message: String,
    call: String,
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

/// What opencode's state of a call looks like in ACP.
struct View {
    title: String,
    kind: acp::ToolKind,
    status: acp::ToolCallStatus,
    input: Option<Value>,
    content: Vec<acp::ToolCallContent>,
    locations: Vec<acp::ToolCallLocation>,
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
            return record.update(&tool.state, view);
        }
        let record = Record::new(message, tool, &view);
        let payload = record.first_sight(tool, view);
        self.records.insert(part.to_owned(), record);
        Some(payload)
    }

    /// Gives every call that has no final state one: it failed for this reason.
    pub(super) fn fail_open(&mut self, reason: &str) -> Vec<EventPayload> {
        let open = self.records.values_mut().filter(|record| !is_final(record.status));
        open.map(|record| record.fail(reason)).collect()
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

    /// How the call stands: `None` when it is not known.
    pub(super) fn outcome(&self, call: &str) -> Option<CallOutcome> {
        let record = self.records.values().find(|record| record.call == call)?;
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
            title: view.title.clone(),
            kind: view.kind,
            status: view.status,
            input: hash(&view.input),
            content: hash(&view.content),
            locations: hash(&view.locations),
            rejection: rejection(&tool.state),
        }
    }

    fn first_sight(&self, tool: &ToolPart, view: View) -> EventPayload {
        let call = acp::ToolCall::new(self.call.clone(), view.title)
            .name(tool.tool.clone())
            .kind(view.kind)
            .status(view.status)
            .content(view.content)
            .locations(view.locations)
            .raw_input(view.input);
        EventPayload::from(acp::SessionUpdate::ToolCall(call))
    }

    /// What changed; nothing after a final state.
    fn update(&mut self, state: &ToolState, view: View) -> Option<EventPayload> {
        if is_final(self.status) {
            return None;
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
        (fields != acp::ToolCallUpdateFields::new()).then(|| self.payload(fields))
    }

    fn fail(&mut self, reason: &str) -> EventPayload {
        self.status = acp::ToolCallStatus::Failed;
        let content = vec![acp::ToolCallContent::from(reason.to_owned())];
        self.payload(acp::ToolCallUpdateFields::new().status(self.status).content(content))
    }

    fn payload(&self, fields: acp::ToolCallUpdateFields) -> EventPayload {
        EventPayload::from(acp::SessionUpdate::ToolCallUpdate(acp::ToolCallUpdate::new(
            self.call.clone(),
            fields,
        )))
    }
}

/// True when the value changed.
fn replace(old: &mut u64, new: u64) -> bool {
    std::mem::replace(old, new) != new
}

impl View {
    fn new(tool: &ToolPart) -> Self {
        let state = &tool.state;
        let input = known_input(state);
        Self {
            title: title(tool),
            kind: kind(&tool.tool),
            status: status(tool),
            content: content(tool),
            locations: input.and_then(location).into_iter().collect(),
            input: input.cloned(),
        }
    }
}

/// The input, once the model has written it.
fn known_input(state: &ToolState) -> Option<&Value> {
    state.input.as_object().filter(|input| !input.is_empty()).map(|_| &state.input)
}

fn status(tool: &ToolPart) -> acp::ToolCallStatus {
    match tool.state.status {
        ToolStatus::Pending | ToolStatus::Other => acp::ToolCallStatus::Pending,
        ToolStatus::Running => acp::ToolCallStatus::InProgress,
        // opencode completes a call of an unknown tool, or with bad arguments, by a tool of this name.
        ToolStatus::Completed if tool.tool == "invalid" => acp::ToolCallStatus::Failed,
        ToolStatus::Completed => acp::ToolCallStatus::Completed,
        ToolStatus::Error => acp::ToolCallStatus::Failed,
    }
}

fn kind(tool: &str) -> acp::ToolKind {
    match tool {
        "bash" => acp::ToolKind::Execute,
        "edit" | "write" | "patch" | "apply_patch" | "multiedit" => acp::ToolKind::Edit,
        "read" => acp::ToolKind::Read,
        "glob" | "grep" | "list" | "codesearch" => acp::ToolKind::Search,
        "webfetch" | "websearch" => acp::ToolKind::Fetch,
        "task" | "todowrite" | "todoread" => acp::ToolKind::Think,
        _ => acp::ToolKind::Other,
    }
}

/// What it does, in one line: from its input where that says it, else opencode's title, else the tool's name.
fn title(tool: &ToolPart) -> String {
    let input = |key: &str| tool.state.input[key].as_str().filter(|text| !text.trim().is_empty());
    let named = |key: &str| input(key).map(|text| format!("{} {text}", tool.tool));
    let own = match tool.tool.as_str() {
        "bash" => input("command").map(str::to_owned),
        "read" | "edit" | "write" | "multiedit" => named("filePath"),
        "glob" | "grep" => named("pattern"),
        "list" => named("path"),
        "webfetch" => named("url"),
        "websearch" | "codesearch" => named("query"),
        "task" => named("description"),
        "invalid" => named("tool"),
        _ => None,
    };
    let given = || tool.state.title.clone().filter(|title| !title.trim().is_empty());
    one_line(&own.or_else(given).unwrap_or_else(|| tool.tool.clone()))
}

fn location(input: &Value) -> Option<acp::ToolCallLocation> {
    let path = input["filePath"].as_str().or_else(|| input["path"].as_str())?;
    path.starts_with('/').then(|| acp::ToolCallLocation::new(path))
}

/// The change to a file, if it is one, and what the tool printed so far, or why it failed.
fn content(tool: &ToolPart) -> Vec<acp::ToolCallContent> {
    let state = &tool.state;
    let failed = status(tool) == acp::ToolCallStatus::Failed;
    let printed = match state.status {
        ToolStatus::Completed => state.output.as_deref(),
        ToolStatus::Error => state.error.as_deref(),
        _ => state.metadata["output"].as_str(),
    };
    let printed =
        printed.filter(|text| !text.is_empty()).map(|text| acp::ToolCallContent::from(text.to_owned()));
    let change = if failed { None } else { diff(tool) };
    change.into_iter().chain(printed).collect()
}

fn diff(tool: &ToolPart) -> Option<acp::ToolCallContent> {
    let input = &tool.state.input;
    let path = input["filePath"].as_str()?;
    let diff = match tool.tool.as_str() {
        "write" => acp::Diff::new(path, input["content"].as_str()?),
        "edit" => acp::Diff::new(path, input["newString"].as_str()?)
            .old_text(input["oldString"].as_str()?.to_owned()),
        _ => return None,
    };
    Some(acp::ToolCallContent::Diff(diff))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn part(tool: &str, input: Value) -> ToolPart {
        let state = ToolState { status: ToolStatus::Running, input, ..ToolState::default() };
        ToolPart { call_id: "call_1".to_owned(), tool: tool.to_owned(), state }
    }

    #[test]
    fn titles_say_what_is_done() {
        let cases = [
            ("bash", json!({ "command": "make test\nmake lint" }), "make test…"),
            ("write", json!({ "filePath": "/w/a.txt" }), "write /w/a.txt"),
            ("grep", json!({ "pattern": "x.*y" }), "grep x.*y"),
            ("webfetch", json!({ "url": "https://example.com" }), "webfetch https://example.com"),
            ("task", json!({ "description": "look around" }), "task look around"),
            ("bash", json!({}), "bash"),
            ("bash", json!({ "command": 7 }), "bash"),
            ("github_search", json!({ "q": "x" }), "github_search"),
        ];
        for (tool, input, expected) in cases {
            assert_eq!(title(&part(tool, input)), expected);
        }
    }

    #[test]
    fn kinds_are_those_of_acp() {
        let cases = [
            ("bash", acp::ToolKind::Execute),
            ("edit", acp::ToolKind::Edit),
            ("read", acp::ToolKind::Read),
            ("glob", acp::ToolKind::Search),
            ("webfetch", acp::ToolKind::Fetch),
            ("task", acp::ToolKind::Think),
            ("of_an_mcp_server", acp::ToolKind::Other),
        ];
        for (tool, expected) in cases {
            assert_eq!(kind(tool), expected, "{tool}");
        }
    }

    #[test]
    fn relative_paths_are_no_locations() {
        assert!(location(&json!({ "filePath": "a.txt" })).is_none());
        assert!(location(&json!({ "path": "/w" })).is_some());
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
