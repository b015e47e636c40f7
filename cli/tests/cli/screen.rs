//! `berth chat` at a terminal: what a person sees, step by step. Against a server that plays scripts.

use berth_wire::{
    api::PermissionDecision,
    event::{EventPayload, PermissionRequested},
    turn::{TurnErrorReason, TurnOutcome},
};
use serde_json::json;

use crate::{
    fake::{Act, FakeServer, emit, ends, permission_script, says, succeeds, thinks, update},
    process::Berth,
    tmux::{Tmux, is_private},
};

/// A chat with a server that plays these scripts, on a screen of this size.
pub(crate) async fn chat(scripts: Vec<Vec<Act>>, width: usize, height: usize) -> (FakeServer, Berth, Tmux) {
    let (server, berth) = (FakeServer::start(scripts).await, Berth::new());
    let tmux = Tmux::start(&berth.against(&server, &["chat"]), width, height);
    tmux.sees("/help").await;
    (server, berth, tmux)
}

#[tokio::test]
async fn a_turn_from_prompt_to_end() {
    let mut script = permission_script();
    script.insert(2, Act::Pause);
    let (server, _berth, tmux) = chat(vec![script], 80, 24).await;
    tmux.enters("make a file");
    tmux.sees("I make").await;
    assert!(tmux.screen().contains(&"› make a file".to_owned()), "{:#?}", tmux.screen());
    server.go_on();
    tmux.sees("[y] once  [a] always: touch *  [n] reject  [m] reject and say why").await;
    tmux.sees("waits for you").await;
    tmux.press(&["y"]);
    tmux.sees("✓ done").await;
    tmux.sees("/help").await;
    tmux.press(&["C-d"]);
    assert_eq!(tmux.code().await, 0);
    assert_eq!(server.answers()[0].decision, PermissionDecision::Once);
    let expected = [
        "› make a file",
        "",
        "∴ thought for 0.0 s: a file is wanted",
        "",
        "I make a file.",
        "",
        "? the agent asks for permission: bash",
        "  │ touch x",
        "  ✓ allowed once",
        "✓ touch x  0.0 s",
        "",
        "Done.",
        "",
        "✓ done  0.0 s",
        "come back with: berth chat --session 0198f2c4-0000-7000-8000-000000000001",
    ];
    let all = tmux.all();
    assert_eq!(all[all.len() - expected.len()..], expected, "{all:#?}");
}

#[tokio::test]
async fn typing_goes_on_while_the_agent_speaks_and_ctrl_c_ends_it() {
    let scripts =
        vec![vec![says("a", 0, "working"), Act::Cancel], vec![says("b", 0, "second answer"), succeeds()]];
    let (server, _berth, tmux) = chat(scripts, 80, 24).await;
    tmux.enters("hello");
    tmux.sees("working").await;
    tmux.types("and agian").press(&["BSpace", "BSpace", "BSpace"]).types("ain");
    tmux.sees("› and again").await;
    tmux.press(&["C-c"]);
    tmux.sees("■ cancelled").await;
    tmux.sees("› and again").await;
    tmux.press(&["Enter"]);
    tmux.sees("second answer").await;
    tmux.sees("✓ done").await;
    tmux.press(&["C-c"]);
    tmux.sees("press Ctrl-C again to leave").await;
    tmux.press(&["C-c"]);
    assert_eq!(tmux.code().await, 0);
    assert_eq!(server.prompts(), ["hello", "and again"]);
    assert_eq!(server.cancels(), 1);
}

#[tokio::test]
async fn what_is_asked_is_shown_in_full_and_a_key_in_a_prompt_is_no_answer() {
    let command =
        (1..=30).map(|n| format!("echo {n} && ")).collect::<Vec<_>>().concat() + "rm -rf everything";
    let request = EventPayload::PermissionRequested(PermissionRequested {
        permission_id: "per_1".to_owned(),
        permission: "bash".to_owned(),
        patterns: vec![command.clone()],
        always: Vec::new(),
        tool_call_id: None,
        title: "echo".to_owned(),
        metadata: json!({ "command": command }),
        expires_at: None,
    });
    let script = vec![Act::Pause, emit(request), Act::Answer, succeeds()];
    let (server, _berth, tmux) = chat(vec![script], 30, 12).await;
    tmux.enters("go");
    tmux.sees("● ").await;
    tmux.types("why");
    tmux.sees("› why").await;
    server.go_on();
    tmux.sees("Tab: answer").await;
    tmux.types("y");
    tmux.sees("› whyy").await;
    assert!(server.answers().is_empty());
    let shown: String = tmux.all().iter().filter_map(|line| line.strip_prefix("  │ ")).collect();
    assert_eq!(
        shown.replace(' ', ""),
        command.replace(' ', ""),
        "longer than the screen, and whole above it"
    );
    tmux.press(&["Tab"]);
    tmux.sees("reject and say why").await;
    tmux.types("m").enters("not that");
    tmux.wait_for("✗ rejected").await;
    let answer = &server.answers()[0];
    assert_eq!((answer.decision, answer.message.as_deref()), (PermissionDecision::Reject, Some("not that")));
    tmux.sees("› whyy").await;
}

#[tokio::test]
async fn markdown_is_rendered_as_it_comes_and_stays_in_the_scrollback() {
    let long: String = (1..=40).map(|n| format!("{n}. item {n}\n")).collect::<Vec<_>>().concat();
    let text = format!(
        "# Title\n\nSome **bold** words.\n\n{long}\n```rust\nlet x = 1;\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
    );
    let mut script = Vec::new();
    let mut offset = 0;
    for piece in text.split_inclusive(' ') {
        script.push(says("a", offset, piece));
        offset += piece.len() as u64;
    }
    script.push(succeeds());
    let (_server, _berth, tmux) = chat(vec![script], 60, 20).await;
    tmux.enters("go");
    tmux.wait_for("✓ done").await;
    let all = tmux.all();
    for line in ["# Title", "Some bold words.", "1. item 1", "40. item 40", "  let x = 1;", "a │ b", "1 │ 2"]
    {
        assert_eq!(all.iter().filter(|shown| *shown == line).count(), 1, "{line}: {all:#?}");
    }
    assert!(tmux.styled().contains("\u{1b}[1mbold"), "{:?}", tmux.styled());
}

#[tokio::test]
async fn a_terminal_can_be_narrow_and_change_its_size_in_mid_sentence() {
    let words =
        |from: usize, to: usize| (from..to).map(|n| format!("word{n:02} ")).collect::<Vec<_>>().concat();
    let (first, second, third) = (words(0, 20), words(20, 40), words(40, 60));
    let script = vec![
        says("a", 0, &first),
        Act::Pause,
        says("a", first.len() as u64, &second),
        Act::Pause,
        says("a", (first.len() + second.len()) as u64, &third),
        Act::Pause,
        succeeds(),
    ];
    let (server, _berth, tmux) = chat(vec![script], 60, 20).await;
    tmux.enters("go");
    tmux.sees("word19").await;
    tmux.resize(20, 12);
    // The line below is cut once it is drawn anew; before that, the terminal itself has only broken it.
    tmux.sees("…").await;
    server.go_on();
    tmux.sees("word39").await;
    tmux.resize(70, 24);
    tmux.sees("local/default").await;
    server.go_on();
    tmux.sees("word59").await;
    tmux.resize(24, 24);
    tmux.sees("…").await;
    server.go_on();
    tmux.wait_for("✓ done").await;
    tmux.sees("/help").await;
    // What is final is whole; what a terminal kept of a live area that no longer fitted its screen is above it.
    let text = tmux.text();
    let last = &text[text.rfind("word00").unwrap()..];
    let found: Vec<&str> = last.split_whitespace().filter(|word| word.starts_with("word")).collect();
    let expected: Vec<String> = (0..60).map(|n| format!("word{n:02}")).collect();
    assert_eq!(found, expected, "{text}");
}

#[tokio::test]
async fn without_colours_there_are_none() {
    let script = vec![thinks("hm"), says("a", 0, "**bold** `code`"), succeeds()];
    let (server, berth) = (FakeServer::start(vec![script]).await, Berth::new());
    let mut command = berth.against(&server, &["chat"]);
    command.env("NO_COLOR", "1");
    let tmux = Tmux::start(&command, 80, 24);
    tmux.sees("/help").await;
    tmux.enters("go");
    tmux.sees("✓ done").await;
    tmux.sees("**bold** `code`").await;
    assert!(!tmux.styled().contains('\u{1b}'), "{:?}", tmux.styled());
}

#[tokio::test]
async fn what_the_agent_says_cannot_drive_the_terminal() {
    let bad = "\u{1b}]0;owned\u{7}\u{1b}[2J\u{1b}[H\u{9b}31m\rcarriage\u{8}\u{1b}[?1049h\u{202e}end";
    let printed =
        json!({ "type": "content", "content": { "type": "text", "text": format!("{bad}\n{bad}") } });
    let changed = json!({ "type": "diff", "path": bad, "oldText": "a", "newText": bad });
    let tool = |id: &str, status: &str| {
        update(json!({
            "sessionUpdate": "tool_call", "toolCallId": id, "title": bad, "status": status,
            "content": [printed, changed],
        }))
    };
    let plan = json!({
        "sessionUpdate": "plan",
        "entries": [{ "content": bad, "priority": "high", "status": "pending" }],
    });
    let request = EventPayload::PermissionRequested(PermissionRequested {
        permission_id: "per_1".to_owned(),
        permission: bad.to_owned(),
        patterns: vec![bad.to_owned()],
        always: vec![bad.to_owned()],
        tool_call_id: None,
        title: bad.to_owned(),
        metadata: json!({ "command": bad, "diff": bad }),
        expires_at: None,
    });
    let script = vec![
        thinks(bad),
        says("a", 0, &format!("# {bad}\n\n`{bad}` [{bad}](http://{bad})\n\n```{bad}\n{bad}\n```\n")),
        tool("c", "completed"),
        tool("d", "failed"),
        update(plan),
        emit(request),
        Act::Answer,
        tool("e", "in_progress"),
        Act::Pause,
        ends(TurnOutcome::failed(TurnErrorReason::ProviderError, bad)),
    ];
    let (server, _berth, tmux) = chat(vec![script], 100, 40).await;
    let title = tmux.title();
    tmux.enters("be evil");
    tmux.sees("[y] once").await;
    tmux.press(&["y"]);
    tmux.wait_for("✓ allowed once").await;
    tmux.sees("● ").await;
    server.go_on();
    tmux.wait_for("✗ failed").await;
    tmux.sees("/help").await;
    assert_eq!(tmux.title(), title);
    let text = tmux.text();
    assert!(
        text.contains("local/default, session ") && text.contains("› be evil"),
        "nothing was wiped away: {text}"
    );
    assert!(text.contains("]0;owned[2J[H31mcarriage[?1049hend"), "it is all there, as text: {text}");
}

#[tokio::test]
async fn a_broken_connection_leaves_no_hole_and_no_double() {
    let script =
        vec![says("a", 0, "before the break, "), Act::Pause, says("a", 18, "and after it"), succeeds()];
    let (server, _berth, tmux) = chat(vec![script], 80, 24).await;
    tmux.enters("go");
    tmux.sees("before the break,").await;
    server.cut();
    server.go_on();
    tmux.sees("✓ done").await;
    tmux.wait_for_count("before the break, and after it", 1).await;
}

#[tokio::test]
async fn many_lines_are_pasted_as_one_prompt_and_remembered_for_their_owner_only() {
    let (server, berth, tmux) = chat(vec![vec![says("a", 0, "read"), succeeds()]], 80, 24).await;
    let lines = (1..=50).map(|n| format!("line {n}")).collect::<Vec<_>>().join("\n");
    tmux.pastes(&lines);
    tmux.sees("line 50").await;
    assert!(server.prompts().is_empty(), "nothing was sent by the paste");
    tmux.press(&["Enter"]);
    tmux.sees("✓ done").await;
    assert_eq!(server.prompts(), [lines]);
    tmux.press(&["Up"]);
    tmux.sees("line 50").await;
    tmux.press(&["C-c", "C-d"]);
    assert_eq!(tmux.code().await, 0);
    assert!(is_private(&berth.state().join("chat_history")));
}

#[tokio::test]
async fn models_agents_files_and_changes() {
    let scripts = vec![vec![says("a", 0, "one"), succeeds()]];
    let (server, _berth, tmux) = chat(scripts, 90, 30).await;
    tmux.enters("/model");
    tmux.sees("test/large").await;
    tmux.types("LAR").press(&["Enter"]);
    tmux.wait_for("what you ask next is answered by test/large").await;
    tmux.enters("/agent");
    tmux.sees("plan").await;
    tmux.press(&["Down", "Enter"]);
    tmux.wait_for("what you ask next is for the agent plan").await;
    tmux.types("read @no");
    tmux.sees("@notes.md").await;
    tmux.press(&["Tab"]).enters("now");
    tmux.sees("✓ done").await;
    let message = server.messages().remove(0);
    assert_eq!(message.model.map(|model| model.to_string()).as_deref(), Some("test/large"));
    assert_eq!(message.agent.as_deref(), Some("plan"));
    assert_eq!(message.parts.len(), 2, "{:?}", message.parts);
    tmux.enters("/diff");
    tmux.wait_for("notes.md  modified  +1 -1").await;
    tmux.wait_for("+ new").await;
    tmux.types("/");
    tmux.sees("› /sessions [WORDS]").await;
    tmux.sees("… 6 more").await;
    tmux.types("di");
    tmux.sees("› /diff [turn]  what the session, or its last turn, changed in files").await;
    tmux.press(&["C-u"]).enters("/sessions");
    tmux.sees("type to search").await;
    tmux.sees("› (no title)").await;
    tmux.sees("· this one · 0198f2c4").await;
    tmux.press(&["Escape"]);
    tmux.sees_no("type to search").await;
    tmux.enters("/help");
    tmux.wait_for("take the last waiting prompt back").await;
    tmux.enters("/nonsense");
    tmux.wait_for("/nonsense is not a command").await;
}

#[tokio::test]
async fn ctrl_l_clears_the_screen() {
    let (_server, _berth, tmux) = chat(vec![vec![says("a", 0, "an answer"), succeeds()]], 80, 24).await;
    tmux.enters("x");
    tmux.sees("✓ done").await;
    tmux.types("kept").press(&["C-l"]);
    tmux.sees_no("an answer").await;
    tmux.sees("› kept").await;
}
