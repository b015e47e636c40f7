use berth_wire::{
    api::{HistoryTurn, PostMessage, Turn},
    event::{PartVoided, PermissionResolved, TurnStarted},
    turn::{TurnErrorReason, Usage},
};
use proptest::prelude::*;
use serde_json::{Value, json};
use uuid::Uuid;

use super::*;

fn event(at_ms: i64, payload: EventPayload) -> SessionEvent {
    let at = Timestamp::from_millisecond(at_ms).unwrap();
    SessionEvent { session_id: Uuid::nil(), seq: 1, turn_id: None, at, payload }
}

fn acp_event(at_ms: i64, payload: Value) -> SessionEvent {
    let kind = payload["sessionUpdate"].as_str().unwrap().to_owned();
    let payload = EventPayload::from_parts(&kind, payload);
    assert!(matches!(payload, EventPayload::Update(_)), "a session update that this version knows");
    event(at_ms, payload)
}

fn chunk(voice: Voice, part: &str, offset: u64, text: &str) -> EventPayload {
    EventPayload::chunk(voice, part, offset, text)
}

fn replaced(part: &str, text: &str) -> EventPayload {
    let (part_id, text) = (part.to_owned(), text.to_owned());
    EventPayload::PartReplaced(PartReplaced { part_id, voice: Voice::Message, text })
}

fn voided(part: &str) -> EventPayload {
    EventPayload::PartVoided(PartVoided { part_id: part.to_owned() })
}

fn ended() -> EventPayload {
    EventPayload::TurnEnded(TurnOutcome::succeeded(TurnStopReason::EndTurn))
}

/// What a reader sees, lines marked by `|`.
fn read(pieces: &[Piece]) -> String {
    let mut text = String::new();
    let end_line = |text: &mut String| {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
    };
    for piece in pieces {
        match piece {
            Piece::Words { text: words, .. } => text.push_str(words),
            Piece::Break => end_line(&mut text),
            Piece::Line { text: line, .. } => {
                end_line(&mut text);
                text.push_str("| ");
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    text
}

fn render(pace: Pace, payloads: Vec<EventPayload>) -> String {
    let mut renderer = Renderer::new(pace);
    let pieces: Vec<Piece> =
        payloads.into_iter().flat_map(|payload| renderer.take(&event(0, payload))).collect();
    read(&pieces)
}

/// The agent's words alone, as a pipe gets them.
fn piped(payloads: Vec<EventPayload>) -> String {
    let mut renderer = Renderer::new(Pace::Settled);
    let pieces = payloads.into_iter().flat_map(|payload| renderer.take(&event(0, payload)));
    let words = pieces.filter_map(|piece| match piece {
        Piece::Words { voice: Voice::Message, text } => Some(text),
        _ => None,
    });
    words.collect()
}

#[test]
fn words_stream_and_parts_stand_on_lines_of_their_own() {
    let mut renderer = Renderer::new(Pace::Streaming);
    let first = renderer.take(&event(0, chunk(Voice::Thought, "t", 0, "hm")));
    assert_eq!(first, [Piece::Words { voice: Voice::Thought, text: "hm".to_owned() }]);
    let second = renderer.take(&event(0, chunk(Voice::Message, "a", 0, "one ")));
    assert_eq!(second, [Piece::Break, Piece::Words { voice: Voice::Message, text: "one ".to_owned() }]);
    let third = renderer.take(&event(0, chunk(Voice::Message, "a", 4, "two")));
    assert_eq!(third, [Piece::Words { voice: Voice::Message, text: "two".to_owned() }]);
    let end = renderer.take(&event(0, ended()));
    assert_eq!(read(&end), "| ✓ succeeded\n");
    assert_eq!(end[0], Piece::Break);
}

#[test]
fn a_tool_has_a_line_when_it_begins_and_one_when_it_ends() {
    let call =
        json!({ "sessionUpdate": "tool_call", "toolCallId": "c", "title": "bash", "status": "pending" });
    let running = json!({ "sessionUpdate": "tool_call_update", "toolCallId": "c", "status": "in_progress", "title": "ls\n-la" });
    let more = json!({ "sessionUpdate": "tool_call_update", "toolCallId": "c", "status": "in_progress" });
    let done = json!({ "sessionUpdate": "tool_call_update", "toolCallId": "c", "status": "completed" });
    let mut renderer = Renderer::new(Pace::Streaming);
    let steps = [(0, call), (100, running), (200, more), (1_350, done.clone()), (1_400, done)];
    let lines: Vec<String> =
        steps.into_iter().map(|(at, update)| read(&renderer.take(&acp_event(at, update)))).collect();
    assert_eq!(lines, ["", "| ● ls -la\n", "", "| ✓ ls -la  1.2 s\n", ""]);
}

#[test]
fn the_wait_for_a_person_is_not_the_tools_time() {
    let update = |status: &str| json!({ "sessionUpdate": "tool_call_update", "toolCallId": "c", "title": "ls", "status": status });
    let mut asked = request("ls", &["ls"], Value::Null);
    asked.tool_call_id = Some("c".to_owned());
    let resolved = PermissionResolved {
        permission_id: "per_1".to_owned(),
        resolution: Resolution::Once,
        by: ResolvedBy::User,
    };
    let mut renderer = Renderer::new(Pace::Streaming);
    renderer.take(&acp_event(0, update("in_progress")));
    renderer.take(&event(10, EventPayload::PermissionRequested(asked)));
    renderer.take(&event(60_000, EventPayload::PermissionResolved(resolved)));
    let done = renderer.take(&acp_event(60_500, update("completed")));
    assert_eq!(read(&done), "| ✓ ls  0.5 s\n");
}

#[test]
fn a_tool_that_fails_before_it_ran_has_one_line() {
    let call =
        json!({ "sessionUpdate": "tool_call", "toolCallId": "c", "title": "edit x", "status": "failed" });
    let mut renderer = Renderer::new(Pace::Streaming);
    assert_eq!(read(&renderer.take(&acp_event(0, call))), "| ✗ edit x\n");
}

fn request(title: &str, patterns: &[&str], metadata: Value) -> PermissionRequested {
    PermissionRequested {
        permission_id: "per_1".to_owned(),
        permission: "bash".to_owned(),
        patterns: patterns.iter().map(|&pattern| pattern.to_owned()).collect(),
        always: Vec::new(),
        tool_call_id: None,
        title: title.to_owned(),
        metadata,
        expires_at: None,
    }
}

#[test]
fn a_permission_shows_the_whole_command_and_nothing_hidden() {
    let cases = [
        (request("bash: ls -la", &["ls -la"], json!({ "command": "ls -la" })), "| ? bash: ls -la\n"),
        (request("ls -la", &["ls -la"], Value::Null), "| ? bash: ls -la\n"),
        (
            request("bash: pwd, rm x", &["pwd", "rm x"], json!({ "command": "pwd && rm x\u{1b}[1A\n#" })),
            "| ? bash: pwd, rm x\n|     pwd && rm x[1A\n|     #\n",
        ),
        (request("rm", &["rm -rf /"], Value::Null), "| ? bash: rm\n|     rm -rf /\n"),
        (request("x", &["x"], json!({ "diff": "-a\n+b" })), "| ? bash: x\n|     -a\n|     +b\n"),
    ];
    for (request, shown) in cases {
        assert_eq!(render(Pace::Streaming, vec![EventPayload::PermissionRequested(request)]), shown);
    }
    let diff = "+line\n".repeat(DIFF_LINES + 7);
    let long = request("x", &["x"], json!({ "diff": diff }));
    let text = render(Pace::Streaming, vec![EventPayload::PermissionRequested(long)]);
    assert!(text.ends_with("|     … and 7 more lines\n"), "{text}");
    assert_eq!(text.lines().count(), DIFF_LINES + 2);
}

#[test]
fn how_a_request_was_settled_is_told() {
    let resolved = PermissionResolved {
        permission_id: "per_1".to_owned(),
        resolution: Resolution::Rejected,
        by: ResolvedBy::Deadline,
    };
    let text = render(
        Pace::Streaming,
        vec![chunk(Voice::Message, "a", 0, "may I?"), EventPayload::PermissionResolved(resolved)],
    );
    assert_eq!(text, "may I?\n|   rejected: nobody answered in time\n");
}

#[test]
fn void_text_is_marked_on_a_terminal_and_never_reaches_a_pipe() {
    let payloads = || {
        vec![
            chunk(Voice::Message, "a", 0, "torn te"),
            voided("a"),
            chunk(Voice::Message, "b", 0, "torn text"),
            ended(),
        ]
    };
    let terminal = render(Pace::Streaming, payloads());
    assert!(terminal.starts_with("torn te\n| the model's stream broke"), "{terminal}");
    assert_eq!(piped(payloads()), "torn text");
}

#[test]
fn replaced_text_continues_or_is_shown_anew() {
    let continued = vec![chunk(Voice::Message, "a", 0, "one "), replaced("a", "one two"), ended()];
    assert_eq!(render(Pace::Streaming, continued.clone()), "one two\n| ✓ succeeded\n");
    assert_eq!(piped(continued), "one two");
    let other = vec![
        chunk(Voice::Message, "a", 0, "one"),
        replaced("a", "two"),
        chunk(Voice::Message, "a", 3, "!"),
        ended(),
    ];
    let terminal = render(Pace::Streaming, other.clone());
    assert!(terminal.ends_with("it reads:\ntwo!\n| ✓ succeeded\n"), "{terminal}");
    assert_eq!(piped(other), "two!");
}

#[test]
fn a_hole_in_the_log_is_said() {
    let text = render(Pace::Streaming, vec![chunk(Voice::Message, "a", 5, "x")]);
    assert!(text.contains("| the server's log has a fault: chunk of part a"), "{text}");
}

#[test]
fn the_end_tells_outcome_time_usage_and_error() {
    let mut renderer = Renderer::new(Pace::Streaming);
    let prompt = PostMessage::text("hi").parts;
    renderer.take(&event(1_000, EventPayload::TurnStarted(TurnStarted { prompt })));
    let usage = Usage { input_tokens: 10, output_tokens: 3, reasoning_tokens: 1, ..Usage::default() };
    let mut outcome = TurnOutcome::failed(TurnErrorReason::OpencodeExited, "opencode\nended");
    outcome.usage = Some(usage);
    let pieces = renderer.take(&event(3_500, EventPayload::TurnEnded(outcome)));
    assert_eq!(read(&pieces), "| ✗ failed in 2.5 s: OpencodeExited: opencode ended  (10 tokens in, 4 out)\n");
}

#[test]
fn history_is_short_and_says_what_was_left_out() {
    let turn = |ordinal: i64, state: TurnState| HistoryTurn {
        turn: Turn {
            id: Uuid::nil(),
            session_id: Uuid::nil(),
            ordinal,
            state,
            prompt: PostMessage::text(format!("prompt\n{ordinal}")).parts,
            model: None,
            agent: None,
            retry_of: None,
            stop_reason: None,
            error: None,
            usage: None,
            created_at: Timestamp::UNIX_EPOCH,
            started_at: None,
            ended_at: None,
        },
        removed: false,
        partly_removed: false,
        text: format!("answer\n{ordinal}"),
        text_breaks: Vec::new(),
        thought: String::new(),
        tool_calls: Vec::new(),
    };
    let turns = [turn(1, TurnState::Succeeded), turn(2, TurnState::Succeeded), turn(3, TurnState::Cancelled)];
    assert_eq!(
        read(&history_lines(&turns, 2)),
        "| (1 earlier turn)\n| › prompt 2\n|   answer 2\n| › prompt 3\n|   answer 3\n|   cancelled\n"
    );
}

fn any_payload() -> impl Strategy<Value = EventPayload> {
    let part = prop::sample::select(vec!["a", "b", "c"]);
    let voice = prop::sample::select(vec![Voice::Message, Voice::Thought]);
    prop_oneof![
        (voice, part.clone(), "[a-zé🦀\n]{0,6}").prop_map(|(voice, part, text)| {
            // Parts of the two voices never share an id.
            let part = if voice == Voice::Thought { format!("t{part}") } else { part.to_owned() };
            chunk(voice, &part, 0, &text)
        }),
        part.clone().prop_map(voided),
        (part, "[a-zé🦀]{0,6}").prop_map(|(part, text)| replaced(part, &text)),
    ]
}

/// Gives chunks the offset that a log without holes has.
fn repair(payloads: Vec<EventPayload>) -> (Vec<EventPayload>, Fold) {
    let mut fold = Fold::default();
    let repaired = payloads
        .into_iter()
        .map(|payload| {
            let payload = match payload.as_chunk() {
                Some((voice, position, text)) => {
                    let known = fold.parts().iter().find(|part| part.id == position.id);
                    let offset = known.map_or(0, |part| part.text.len() as u64);
                    chunk(voice, &position.id, offset, text)
                }
                None => payload,
            };
            fold.apply(&payload).unwrap();
            payload
        })
        .collect();
    (repaired, fold)
}

proptest! {
    /// Whatever is voided or replaced after it was settled cannot be taken back; but one part at a time, a pipe
    /// gets exactly the fold of the log.
    #[test]
    fn a_pipe_gets_the_fold_of_a_log(texts in prop::collection::vec(("[a-zé🦀\n]{1,6}", any::<bool>(), any::<bool>()), 0..12)) {
        let mut payloads = Vec::new();
        for (index, (text, void, replace)) in texts.iter().enumerate() {
            let part = format!("p{index}");
            payloads.push(chunk(Voice::Message, &part, 0, text));
            if *replace {
                payloads.push(replaced(&part, "other"));
            }
            if *void {
                payloads.push(voided(&part));
            }
        }
        let (mut payloads, fold) = repair(payloads);
        payloads.push(ended());
        prop_assert_eq!(piped(payloads), fold.text(Voice::Message));
    }

    #[test]
    fn no_order_of_events_makes_it_panic(payloads in prop::collection::vec(any_payload(), 0..30), settled in any::<bool>()) {
        let (payloads, _) = repair(payloads);
        render(if settled { Pace::Settled } else { Pace::Streaming }, payloads);
    }
}
