//! What is recorded: prompts, and what is done while they run. The names are those of the captures that the repository
//! holds of opencode 1.15.4 and 1.18.33. Pure.

use std::time::Duration;

use berth_opencode::PermissionReply;

/// One recording.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case {
    /// Its name; one that ends with `.global` is recorded from `/global/event`.
    pub(crate) name: &'static str,
    /// The prompt: what the scripted model does.
    pub(crate) script: &'static str,
    /// What is done meanwhile.
    pub(crate) then: Then,
}

/// What is done while a prompt runs, and when the recording ends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Then {
    /// Nothing.
    End,
    /// Aborted as soon as this was seen.
    Abort(Sign),
    /// The first request for a permission is answered so.
    Permit(PermissionReply, Option<&'static str>),
    /// The first question is answered.
    Answer(&'static str),
    /// The first question is dismissed.
    Dismiss,
    /// This prompt follows as soon as text streams.
    Prompt(&'static str),
    /// The recording ends after this time, whatever happened.
    Cut(Duration),
}

/// Something in the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sign {
    /// Text or a thought of the session streams.
    Delta,
    /// Text of a subagent streams.
    SubagentDelta,
    /// A tool runs.
    ToolRuns,
    /// A permission is asked for.
    Asked,
    /// opencode waits to call the provider again.
    Retry,
    /// The agent's message is there. An abort before that leaves nothing in the stream that proves the end.
    Answer,
}

impl Case {
    /// All sessions' events, in envelopes.
    pub(crate) fn is_global(self) -> bool {
        self.name.rsplit('.').next() == Some("global")
    }

    /// The session asks before it runs a shell command.
    pub(crate) fn session_asks(self) -> bool {
        self.name.starts_with("perm-") || self.name == "subagent-perm"
    }

    /// The directory's configuration does.
    pub(crate) fn configuration_asks(self) -> bool {
        self.name == "subagent-perm-config"
    }
}

const LIST: &str =
    r#"@stub say:I will list | tool:bash:{"command":"ls -a","description":"List files"} >> say:after tool"#;
const LISTED: &str =
    r#"@stub say:I will list | tool:bash:{"command":"ls -a","description":"List files"} >> text:n=3,d=10"#;
const QUESTION: &str = r#"@stub say:ask | tool:question:{"questions":[{"question":"Which colour?","header":"Colour","options":[{"label":"Red","description":"r"},{"label":"Blue","description":"b"}]}]} >> say:thanks"#;
const SUBAGENT: &str = r#"@stub say:delegating | tool:task:{"description":"sub job","prompt":"@stub2 text:n=3,d=20~|~tool:bash:{\"command\":\"echo CHILD\",\"description\":\"c\"}~>>~say:child result","subagent_type":"general"} >> say:parent done"#;
const SUBAGENT_RUNS: &str = r#"@stub tool:task:{"description":"perm","prompt":"@stub2 tool:bash:{\"command\":\"echo CHILD\",\"description\":\"c\"}~>>~say:child result","subagent_type":"general"} >> say:parent done"#;

const fn case(name: &'static str, script: &'static str, then: Then) -> Case {
    Case { name, script, then }
}

/// Every case, in the order in which they are recorded.
pub(crate) const CASES: [Case; 38] = [
    case("text", "@stub text:n=6,d=20", Then::End),
    case("text.global", "@stub text:n=6,d=20", Then::End),
    case("reasoning", "@stub think:n=4,d=20 | text:n=4,d=20", Then::End),
    case("bash-allow", LISTED, Then::End),
    case("bash-allow.global", LISTED, Then::End),
    case(
        "two-tools",
        r#"@stub tool:bash:{"command":"echo A","description":"a"} | tool:bash:{"command":"sleep 1; echo B","description":"b"} >> say:done"#,
        Then::End,
    ),
    case(
        "write",
        r#"@stub think:n=2 | say:I write | tool:write:{"filePath":"{cwd}/a.txt","content":"one\ntwo\n"} >> tool:read:{"filePath":"{cwd}/a.txt"} >> tool:edit:{"filePath":"{cwd}/a.txt","oldString":"two","newString":"three"} >> tool:glob:{"pattern":"*.txt"} | tool:grep:{"pattern":"three"} >> say:done"#,
        Then::End,
    ),
    case(
        "todo",
        r#"@stub tool:todowrite:{"todos":[{"content":"A","status":"in_progress","priority":"high","id":"1"},{"content":"B","status":"pending","priority":"low","id":"2"}]} >> say:ok"#,
        Then::End,
    ),
    case("tool-invalid", r#"@stub tool:nosuch:{"x":1} >> tool:bash:{"bad":1} >> say:done"#, Then::End),
    case("perm-new-once", LIST, Then::Permit(PermissionReply::Once, None)),
    case("perm-new-reject", LIST, Then::Permit(PermissionReply::Reject, None)),
    case("perm-new-reject-msg", LIST, Then::Permit(PermissionReply::Reject, Some("no thanks, use cat"))),
    case("perm-abort", LIST, Then::Abort(Sign::Asked)),
    case("question-reply", QUESTION, Then::Answer("Blue")),
    case("question-reject", QUESTION, Then::Dismiss),
    case("abort-stream", "@stub think:n=3,d=10 | text:n=200,d=50", Then::Abort(Sign::Delta)),
    case(
        "abort-tool",
        r#"@stub say:A | tool:bash:{"command":"echo start; sleep 60","description":"s"} >> say:no"#,
        Then::Abort(Sign::ToolRuns),
    ),
    case("busy-queue", "@stub text:n=10,d=100", Then::Prompt("@stub say:second answer")),
    case("prov-400", "@stub status:400", Then::End),
    case("prov-401", "@stub status:401", Then::End),
    case("prov-429-ra", "@stub status:429,times=1,ra=3 | text:n=3", Then::End),
    case("prov-500-retry", "@stub status:500,times=2 | text:n=3", Then::End),
    case("prov-500-abort", "@stub status:500", Then::Abort(Sign::Retry)),
    case("prov-drop", "@stub drop", Then::Cut(Duration::from_secs(5))),
    case("prov-drop-partial", "@stub text:n=3 | sleep:300 | dropn:1 | text:n=2,w=tail", Then::End),
    case("prov-hang-abort", "@stub text:n=2 | hang", Then::Abort(Sign::Delta)),
    case("prov-hangpre-abort", "@stub hangpre", Then::Abort(Sign::Answer)),
    case("prov-length", "@stub text:n=3 | length", Then::End),
    case("garbage", "@stub text:n=3 | sleep:200 | badjson | text:n=2", Then::End),
    case("nofinish", "@stub text:n=2 | eof", Then::Cut(Duration::from_secs(8))),
    case("prompt-badagent", "@stub say:x", Then::Cut(Duration::from_secs(3))),
    case("prompt-badmodel", "@stub say:x", Then::End),
    case("subagent", SUBAGENT, Then::End),
    case("subagent.global", SUBAGENT, Then::End),
    case(
        "subagent-err",
        r#"@stub tool:task:{"description":"perm","prompt":"@stub2 status:400","subagent_type":"general"} >> say:parent done"#,
        Then::End,
    ),
    case(
        "subagent-abort",
        r#"@stub tool:task:{"description":"slow","prompt":"@stub2 text:n=500,d=50","subagent_type":"general"} >> say:parent done"#,
        Then::Abort(Sign::SubagentDelta),
    ),
    case("subagent-perm", SUBAGENT_RUNS, Then::End),
    case("subagent-perm-config", SUBAGENT_RUNS, Then::Permit(PermissionReply::Once, None)),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_every_script_is_one() {
        let names: BTreeSet<&str> = CASES.iter().map(|case| case.name).collect();
        assert_eq!(names.len(), CASES.len());
        for case in CASES {
            let script = case.script.strip_prefix("@stub ").expect("a script begins with its mark");
            let parsed: Result<berth_testkit::script::Script, _> = script.parse();
            assert!(parsed.is_ok(), "{}: {parsed:?}", case.name);
        }
    }
}
