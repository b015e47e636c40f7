//! What opencode's state of a tool call looks like in ACP: title, kind, status, input, files, changes, output. Pure.

use agent_client_protocol_schema::v1 as acp;
use serde_json::Value;

use super::{super::one_line, patch};
use crate::model::{ToolPart, ToolState, ToolStatus};

/// What opencode's state of a call looks like in ACP.
pub(super) struct View {
    pub(super) title: String,
    pub(super) kind: acp::ToolKind,
    pub(super) status: acp::ToolCallStatus,
    pub(super) input: Option<Value>,
    pub(super) content: Vec<acp::ToolCallContent>,
    pub(super) locations: Vec<acp::ToolCallLocation>,
}

impl View {
    pub(super) fn new(tool: &ToolPart) -> Self {
        let state = &tool.state;
        let input = known_input(state);
        Self {
            title: title(tool),
            kind: kind(&tool.tool),
            status: status(tool),
            content: content(tool),
            locations: locations(tool),
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

/// Files that the call is about, with the line where that is known: of a read where it begins, of an edit the first
/// line that changed.
fn locations(tool: &ToolPart) -> Vec<acp::ToolCallLocation> {
    let state = &tool.state;
    let patched = patch::files(&state.metadata);
    if !patched.is_empty() {
        return patched.into_iter().map(|file| at(file.path, file.line)).collect();
    }
    let input = &state.input;
    let Some(path) = input["filePath"].as_str().or_else(|| input["path"].as_str()) else { return Vec::new() };
    if !path.starts_with('/') {
        return Vec::new();
    }
    let line = match tool.tool.as_str() {
        "read" => input["offset"].as_u64(),
        "edit" => patch::first_line(&state.metadata),
        _ => None,
    };
    vec![at(path, line)]
}

fn at(path: &str, line: Option<u64>) -> acp::ToolCallLocation {
    acp::ToolCallLocation::new(path).line(line.and_then(|line| u32::try_from(line).ok()))
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
    let changes = if failed { Vec::new() } else { diffs(tool) };
    changes.into_iter().map(acp::ToolCallContent::Diff).chain(printed).collect()
}

/// Changes to files: what the input asks for, which is known before the call runs, or what a patch came to.
fn diffs(tool: &ToolPart) -> Vec<acp::Diff> {
    let input = &tool.state.input;
    let text = |key: &str| input[key].as_str();
    let diff = |new: &str| text("filePath").map(|path| acp::Diff::new(path, new));
    match tool.tool.as_str() {
        "write" => text("content").and_then(diff).into_iter().collect(),
        "edit" => match (text("oldString"), text("newString").and_then(diff)) {
            (Some(old), Some(diff)) => vec![diff.old_text(old.to_owned())],
            _ => Vec::new(),
        },
        "apply_patch" => {
            patch::files(&tool.state.metadata).into_iter().map(patch::FilePatch::into_diff).collect()
        }
        _ => Vec::new(),
    }
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
        assert!(locations(&part("read", json!({ "filePath": "a.txt" }))).is_empty());
        assert_eq!(locations(&part("glob", json!({ "path": "/w" }))), [acp::ToolCallLocation::new("/w")]);
    }

    #[test]
    fn a_read_tells_the_line_where_it_begins_and_an_edit_the_one_that_it_changed() {
        let read = part("read", json!({ "filePath": "/w/a", "offset": 7 }));
        assert_eq!(locations(&read)[0].line, Some(7));
        let mut edit = part("edit", json!({ "filePath": "/w/a", "oldString": "two", "newString": "TWO" }));
        assert_eq!(locations(&edit)[0].line, None);
        edit.state.metadata =
            json!({ "diff": "--- /w/a\n+++ /w/a\n@@ -4,3 +4,3 @@\n one\n-two\n+TWO\n three\n" });
        assert_eq!(locations(&edit)[0].line, Some(5));
    }

    #[test]
    fn a_patch_shows_each_file_with_its_change() {
        let mut tool = part("apply_patch", json!({ "patchText": "*** Begin Patch" }));
        assert!(content(&tool).is_empty());
        tool.state.metadata = json!({ "files": [
            { "filePath": "/w/a.txt", "patch": "--- a\n+++ a\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n" },
            { "filePath": "/w/c.txt", "patch": "--- c\n+++ c\n@@ -0,0 +1,1 @@\n+new\n" },
        ] });
        let expected = [
            acp::Diff::new("/w/a.txt", "one\n2\nthree\n").old_text("one\ntwo\nthree\n".to_owned()),
            acp::Diff::new("/w/c.txt", "new\n"),
        ];
        assert_eq!(content(&tool), expected.map(acp::ToolCallContent::Diff));
        assert_eq!(locations(&tool).iter().map(|place| place.line).collect::<Vec<_>>(), [Some(2), Some(1)]);
    }
}
