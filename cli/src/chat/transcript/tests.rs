//! What a person reads of a turn, step by step.

use berth_wire::{
    api::PostMessage,
    event::{
        PartVoided, PermissionRequested, PermissionResolved, Question, QuestionOption, QuestionRequested,
        Resolution, ResolvedBy, TurnStarted,
    },
    turn::{TurnErrorReason, TurnStopReason},
};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const WIDTH: usize = 40;

/// A transcript, and what it has given out.
struct Reader {
    transcript: Transcript,
    settled: Vec<String>,
    now: i64,
}

fn texts(lines: &[Line]) -> Vec<String> {
    lines.iter().map(Line::text).collect()
}

impl Reader {
    fn new() -> Self {
        Self { transcript: Transcript::new(true, "/w", false), settled: Vec::new(), now: 0 }
    }

    fn at(&mut self, milliseconds: i64) -> &mut Self {
        self.now = milliseconds;
        self
    }

    fn take(&mut self, payload: EventPayload) -> &mut Self {
        let at = Timestamp::from_millisecond(self.now).unwrap();
        let turn_id = Some(Uuid::nil());
        self.transcript.take(&SessionEvent { session_id: Uuid::nil(), seq: 1, turn_id, at, payload });
        let settled = texts(&self.transcript.settle(WIDTH));
        self.settled.extend(settled);
        self
    }

    fn says(&mut self, part: &str, offset: u64, text: &str) -> &mut Self {
        self.take(EventPayload::chunk(Voice::Message, part, offset, text))
    }

    fn thinks(&mut self, offset: u64, text: &str) -> &mut Self {
        self.take(EventPayload::chunk(Voice::Thought, "t", offset, text))
    }

    fn tool(&mut self, id: &str, kind: &str, more: Value) -> &mut Self {
        let mut payload = json!({ "sessionUpdate": kind, "toolCallId": id, "title": "make /w/x" });
        let Value::Object(more) = more else { panic!("fields, not {more}") };
        payload.as_object_mut().unwrap().extend(more);
        self.take(EventPayload::from_parts(kind, payload))
    }

    fn starts(&mut self) -> &mut Self {
        self.take(EventPayload::TurnStarted(TurnStarted { prompt: PostMessage::text("do it").parts }))
    }

    fn ends(&mut self) -> &mut Self {
        self.take(EventPayload::TurnEnded(TurnOutcome::succeeded(TurnStopReason::EndTurn)))
    }

    fn open(&mut self) -> Vec<String> {
        let now = Timestamp::from_millisecond(self.now).unwrap();
        texts(&self.transcript.open(WIDTH, now))
    }
}

#[test]
fn a_turn_from_prompt_to_end() {
    let mut reader = Reader::new();
    reader.starts().at(100).thinks(0, "Let me\nsee.");
    assert_eq!(reader.settled, ["› do it"]);
    assert_eq!(reader.at(600).open(), ["", "∴ thinking  0.5 s", "  Let me", "  see."]);
    reader.says("a", 0, "I make ").says("a", 7, "it.\n\nNow");
    assert_eq!(reader.settled[1..], ["", "∴ thought for 0.5 s: Let me see."]);
    assert_eq!(reader.open(), ["", "I make it.", "", "Now"]);
    reader.tool("c", "tool_call", json!({ "name": "bash", "status": "pending", "kind": "execute" }));
    assert_eq!(reader.settled[3..], ["", "I make it.", "", "Now"]);
    assert_eq!(reader.open(), ["", "○ bash: make x  pending"]);
    let printed = json!([{ "type": "content", "content": { "type": "text", "text": "1\n2\n3\n4\n" } }]);
    reader.at(1000).tool("c", "tool_call_update", json!({ "status": "in_progress", "content": printed }));
    assert_eq!(reader.at(3500).open(), ["", "● bash: make x  2.5 s", "  │ 2", "  │ 3", "  │ 4"]);
    reader.tool("c", "tool_call_update", json!({ "status": "completed" }));
    let done = ["", "✓ bash: make x  2.5 s", "  │ 1", "  │ 2", "  │ 3", "  │ 4"];
    assert_eq!(reader.settled[7..], done);
    reader.at(4000).says("b", 0, "Done.").ends();
    assert_eq!(reader.settled[13..], ["", "Done.", "", "✓ done  4.0 s"]);
    assert_eq!(reader.open(), Vec::<String>::new());
    assert_eq!(reader.transcript.running(), None);
    assert_eq!(reader.transcript.thoughts(), ["Let me\nsee."]);
}

#[test]
fn long_output_is_folded_and_of_what_was_read_only_the_length_is_told() {
    let mut reader = Reader::new();
    let text = |count: usize| {
        let text = (1..=count).map(|n| n.to_string()).collect::<Vec<_>>().join("\n");
        json!([{ "type": "content", "content": { "type": "text", "text": text } }])
    };
    let ended =
        |kind: &str, content: Value| json!({ "status": "completed", "kind": kind, "content": content });
    reader.tool("a", "tool_call", ended("execute", text(10)));
    assert_eq!(reader.settled, ["✓ make x", "  │ 1", "  │ 2", "  │ 3", "  │ 4", "  │ … 6 more lines"]);
    reader.settled.clear();
    reader.tool("b", "tool_call", ended("read", text(10)));
    assert_eq!(reader.settled, ["✓ make x", "  │ 10 lines"]);
    reader.settled.clear();
    let failed = json!({ "status": "failed", "kind": "read", "content": text(2) });
    reader.tool("c", "tool_call", failed);
    assert_eq!(reader.settled, ["✗ make x", "  │ 1", "  │ 2"]);
}

#[test]
fn an_edit_shows_what_changed() {
    let mut reader = Reader::new();
    let diff = json!([{ "type": "diff", "path": "/w/x", "oldText": "one\ntwo\n", "newText": "one\n2\n" }]);
    reader.tool("a", "tool_call", json!({ "status": "completed", "kind": "edit", "content": diff }));
    assert_eq!(reader.settled, ["✓ make x  +1 -1", "  │   one", "  │ - two", "  │ + 2"]);
}

#[test]
fn calls_in_parallel_keep_their_order() {
    let mut reader = Reader::new();
    reader.tool("a", "tool_call", json!({ "status": "in_progress" }));
    reader.tool("b", "tool_call", json!({ "status": "in_progress" }));
    reader.tool("b", "tool_call_update", json!({ "status": "completed" }));
    assert_eq!(reader.settled, Vec::<String>::new());
    assert_eq!(reader.open(), ["● make x  0.0 s", "✓ make x  0.0 s"]);
    reader.tool("a", "tool_call_update", json!({ "status": "completed" }));
    assert_eq!(reader.settled.len(), 2);
}

#[test]
fn a_call_that_waits_for_a_person_says_so_and_does_not_count_the_time() {
    let mut reader = Reader::new();
    let request = PermissionRequested {
        permission_id: "p".to_owned(),
        permission: "bash".to_owned(),
        patterns: vec!["make x".to_owned()],
        always: Vec::new(),
        tool_call_id: Some("a".to_owned()),
        title: "make x".to_owned(),
        metadata: json!({ "command": format!("make x && {}", "y".repeat(60)) }),
        expires_at: None,
    };
    reader.tool("a", "tool_call", json!({ "status": "in_progress" }));
    let payload = EventPayload::PermissionRequested(request);
    reader.take(payload.clone());
    assert_eq!(reader.open(), ["? make x  waits for you"]);
    let asked = texts(&reader.transcript.request(&payload, WIDTH));
    assert_eq!(
        asked[..2],
        ["? the agent asks for permission: bash", "  │ make x && yyyyyyyyyyyyyyyyyyyyyyyyyy"]
    );
    assert_eq!(asked.concat().matches('y').count(), 60, "{asked:?}");
    let (resolution, by) = (Resolution::Once, ResolvedBy::User);
    let resolved = PermissionResolved { permission_id: "p".to_owned(), resolution, by };
    reader.at(60_000).take(EventPayload::PermissionResolved(resolved));
    reader.at(60_300).tool("a", "tool_call_update", json!({ "status": "completed" }));
    assert_eq!(reader.settled, ["  ✓ allowed once", "✓ make x  0.3 s"]);
}

#[test]
fn a_permission_to_change_a_file_shows_the_path_and_the_change() {
    let mut reader = Reader::new();
    let payload = EventPayload::PermissionRequested(PermissionRequested {
        permission_id: "p".to_owned(),
        permission: "edit".to_owned(),
        patterns: vec!["x.txt".to_owned()],
        always: Vec::new(),
        tool_call_id: None,
        title: "edit".to_owned(),
        metadata: json!({ "filepath": "/w/x.txt", "diff": "--- x\n+++ x\n@@ -1 +1 @@\n-a\n+b\n" }),
        expires_at: None,
    });
    let expected = [
        "? the agent asks for permission: edit",
        "  │ x.txt",
        "  │ filepath: /w/x.txt",
        "  │ +1 -1",
        "  │ @@ -1 +1 @@",
        "  │ - a",
        "  │ + b",
    ];
    assert_eq!(texts(&reader.transcript.request(&payload, WIDTH)), expected);
}

#[test]
fn a_question_shows_its_options() {
    let option = |label: &str, description: &str| QuestionOption {
        label: label.to_owned(),
        description: description.to_owned(),
    };
    let payload = EventPayload::QuestionRequested(QuestionRequested {
        question_id: "q".to_owned(),
        questions: vec![Question {
            question: "Which?".to_owned(),
            header: String::new(),
            multiple: false,
            options: vec![option("Red", "warm"), option("Blue", "")],
        }],
        tool_call_id: None,
    });
    let lines = texts(&Reader::new().transcript.request(&payload, WIDTH));
    assert_eq!(lines, ["? Which?", "  1. Red  warm", "  2. Blue"]);
}

#[test]
fn void_text_goes_away_where_it_can_and_is_named_where_it_cannot() {
    let voided = |part: &str| EventPayload::PartVoided(PartVoided { part_id: part.to_owned() });
    let mut reader = Reader::new();
    reader.starts().says("a", 0, "half").take(voided("a")).says("b", 0, "whole").ends();
    let note = ["the model's stream broke: what it was", "  saying is void, and it begins again"];
    assert_eq!(reader.settled[1..3], note);
    assert_eq!(reader.settled[3..], ["", "whole", "", "✓ done  0.0 s"]);
    let mut reader = Reader::new();
    reader.starts().says("a", 0, "kept\n\nmore\n\nhalf").take(voided("a")).says("b", 0, "whole").ends();
    assert_eq!(reader.settled[1..5], ["", "kept", "", "more"]);
    assert!(reader.settled.contains(&"whole".to_owned()));
}

#[test]
fn text_that_turned_out_different_is_shown_as_it_is() {
    let replaced = |text: &str| {
        let (part_id, text) = ("a".to_owned(), text.to_owned());
        EventPayload::PartReplaced(PartReplaced { part_id, voice: Voice::Message, text })
    };
    let mut reader = Reader::new();
    reader.starts().says("a", 0, "hel").take(replaced("hello")).ends();
    assert_eq!(reader.settled[2], "hello");
    let mut reader = Reader::new();
    reader.starts().says("a", 0, "hel").take(replaced("good")).says("a", 4, "bye").ends();
    assert_eq!(reader.settled[2], "goodbye");
    let mut reader = Reader::new();
    reader.starts().says("a", 0, "one\n\ntwo\n\n").says("a", 10, "three").take(replaced("all new")).ends();
    assert_eq!(
        reader.settled[2..8],
        ["one", "", "two", "", "three", ""],
        "what was given out cannot be taken back"
    );
    assert!(reader.settled.contains(&"all new".to_owned()));
}

#[test]
fn failures_say_why() {
    let mut reader = Reader::new();
    let outcome = TurnOutcome::failed(TurnErrorReason::OpencodeExited, "it died");
    reader.starts().says("a", 0, "half a sen").take(EventPayload::TurnEnded(outcome));
    assert_eq!(reader.settled[1..], ["", "half a sen", "", "✗ failed: OpencodeExited: it died  0.0 s"]);
}

#[test]
fn a_call_without_an_end_does_not_hold_up_what_follows() {
    let mut reader = Reader::new();
    reader.starts().tool("a", "tool_call", json!({ "status": "in_progress" })).ends();
    assert_eq!(reader.settled[1..], ["", "■ make x", "✓ done  0.0 s"]);
}

fn payloads() -> impl Strategy<Value = EventPayload> {
    let part = prop_oneof![Just("a"), Just("b")];
    let voice = prop_oneof![Just(Voice::Message), Just(Voice::Thought)];
    let voided = |part: &str| EventPayload::PartVoided(PartVoided { part_id: part.to_owned() });
    let tool = |kind: &str, id: &str, title: &str, status: &str| {
        let content = json!([{ "type": "content", "content": { "type": "text", "text": title } }]);
        let payload = json!({
            "sessionUpdate": kind, "toolCallId": id, "title": title, "status": status, "content": content,
        });
        EventPayload::from_parts(kind, payload)
    };
    let status = prop_oneof![Just("pending"), Just("in_progress"), Just("completed"), Just("failed")];
    prop_oneof![
        4 => (voice, part.clone(), 0_u64..4, any::<String>())
            .prop_map(|(voice, part, offset, text)| EventPayload::chunk(voice, part, offset, &text)),
        1 => part.clone().prop_map(voided),
        1 => (part.clone(), any::<String>()).prop_map(|(part, text)| {
            EventPayload::PartReplaced(PartReplaced { part_id: part.to_owned(), voice: Voice::Message, text })
        }),
        2 => (part.clone(), any::<String>(), status.clone()).prop_map(move |(id, title, status)| tool("tool_call", id, &title, status)),
        2 => (part, any::<String>(), status).prop_map(move |(id, title, status)| tool("tool_call_update", id, &title, status)),
        1 => any::<String>().prop_map(|text| EventPayload::TurnStarted(TurnStarted { prompt: PostMessage::text(text).parts })),
        1 => any::<String>().prop_map(|text| EventPayload::TurnEnded(TurnOutcome::failed(TurnErrorReason::ProviderError, text))),
    ]
}

proptest! {
    #[test]
    fn no_event_makes_it_panic_or_writes_what_a_terminal_obeys(
        events in proptest::collection::vec(payloads(), 0..20),
        width in 1_usize..60,
    ) {
        let mut transcript = Transcript::new(true, "/w", false);
        let mut lines = Vec::new();
        for payload in events {
            let at = Timestamp::UNIX_EPOCH;
            let event = SessionEvent { session_id: Uuid::nil(), seq: 1, turn_id: Some(Uuid::nil()), at, payload };
            transcript.take(&event);
            lines.extend(transcript.settle(width));
            lines.extend(transcript.open(width, at));
        }
        for line in lines {
            let mut out = String::new();
            line.write(false, &mut out);
            prop_assert!(!out.chars().any(char::is_control), "{out:?}");
        }
    }
}
