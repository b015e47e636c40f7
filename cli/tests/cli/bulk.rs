//! `berth chat` at a terminal with much to show: answers of a mebibyte, lines without an end, wide characters.

use serde_json::json;

use crate::{
    fake::{Act, says, succeeds, update},
    screen::chat,
};

/// As much as the agent says.
const MEBIBYTE: usize = 1024 * 1024;
/// What comes in one event.
const PIECE: usize = 4096;

/// The text in pieces, with a pause in the middle.
fn in_pieces(text: &str) -> Vec<Act> {
    let pieces: Vec<&[u8]> = text.as_bytes().chunks(PIECE).collect();
    let mut script = Vec::new();
    for (at, piece) in pieces.iter().enumerate() {
        if at == pieces.len() / 2 {
            script.push(Act::Pause);
        }
        script.push(says("a", (at * PIECE) as u64, std::str::from_utf8(piece).unwrap()));
    }
    script.push(succeeds());
    script
}

/// The words of `text` that begin with `w` and a digit, in their order.
fn numbered(text: &str) -> Vec<&str> {
    let is_numbered = |word: &&str| word.strip_prefix('w').is_some_and(|rest| rest.parse::<usize>().is_ok());
    text.split_whitespace().filter(is_numbered).collect()
}

/// The agent says this; meanwhile somebody types; in the end all of it is there, in order, and once.
async fn is_shown_whole(text: &str) {
    let (server, _berth, tmux) = chat(vec![in_pieces(text)], 80, 24).await;
    tmux.enters("go");
    tmux.sees("● ").await;
    tmux.types("typed meanwhile");
    tmux.sees("› typed meanwhile").await;
    server.go_on();
    tmux.sees("✓ done").await;
    tmux.sees("› typed meanwhile").await;
    let shown = tmux.text();
    let (found, expected) = (numbered(&shown), numbered(text));
    let differs = found.iter().zip(&expected).position(|(found, expected)| found != expected);
    assert_eq!((found.len(), differs), (expected.len(), None), "{:?}", found.last());
}

#[tokio::test]
async fn a_mebibyte_of_paragraphs_is_shown_whole() {
    let paragraph = |n: usize| format!("w{n:06} {}\n\n", "lorem ipsum dolor ".repeat(3));
    let text: String = (0..).map(paragraph).take(MEBIBYTE / 63).collect();
    is_shown_whole(&text).await;
}

#[tokio::test]
async fn a_mebibyte_in_a_single_line_is_shown_whole() {
    let text = (0..MEBIBYTE / 8).map(|n| format!("w{n:06} ")).collect::<Vec<_>>().concat();
    is_shown_whole(&text).await;
}

#[tokio::test]
async fn a_mebibyte_of_code_is_shown_whole() {
    let lines =
        (0..MEBIBYTE / 32).map(|n| format!("let w{n:06} = \"w{n:06} \";\n")).collect::<Vec<_>>().concat();
    is_shown_whole(&format!("```rust\n{lines}```\n")).await;
}

#[tokio::test]
async fn of_a_tool_that_prints_a_line_without_an_end_the_beginning_is_shown() {
    let call = |kind: &str, status: &str, text: &str| {
        update(json!({
            "sessionUpdate": kind, "toolCallId": "c", "title": "cat data", "status": status,
            "content": [{ "type": "content", "content": { "type": "text", "text": text } }],
        }))
    };
    let data = "x".repeat(MEBIBYTE);
    let many = format!("{data}\none\ntwo\nthree\nfour\nfive");
    let script = vec![
        call("tool_call", "in_progress", &data),
        Act::Pause,
        call("tool_call_update", "completed", &many),
        succeeds(),
    ];
    let (server, _berth, tmux) = chat(vec![script], 60, 24).await;
    tmux.enters("go");
    tmux.sees("● cat data").await;
    tmux.sees("  │ xxx").await;
    server.go_on();
    tmux.sees("✓ done").await;
    let all = tmux.all();
    let start = all.iter().position(|line| line.starts_with("✓ cat data")).unwrap();
    let cut = format!("  │ {}…", "x".repeat(55));
    assert_eq!(all[start + 1..start + 6], [&cut, "  │ one", "  │ two", "  │ three", "  │ … 2 more lines"]);
}

#[tokio::test]
async fn wide_characters_keep_their_columns() {
    let text =
        "世界 🦀 e\u{301}gal 👩\u{200d}👩\u{200d}👧 end\n\n| 名 | n |\n|---|---|\n| 世界 | 1 |\n| a | 22 |\n";
    let mut wide = "世界".repeat(40);
    wide.push_str(" w1");
    let script = vec![says("a", 0, text), says("b", 0, &wide), succeeds()];
    let (server, _berth, tmux) = chat(vec![script], 40, 24).await;
    tmux.types("日本語").press(&["Left", "Left"]).types("x");
    tmux.sees("› 日x本語").await;
    tmux.press(&["Enter"]);
    tmux.sees("✓ done").await;
    assert_eq!(server.prompts(), ["日x本語"]);
    let all = tmux.all();
    for line in ["世界 │ 1", "a    │ 22"] {
        assert!(all.iter().any(|shown| shown == line), "no {line}: {all:#?}");
    }
    assert!(all.iter().any(|line| line.starts_with("世界 🦀 e\u{301}gal")), "{all:#?}");
    let rows = all.iter().filter(|line| **line == "世界".repeat(10)).count();
    assert_eq!(rows, 4, "twenty characters of two columns in a row: {all:#?}");
}

#[tokio::test]
async fn what_is_typed_faster_than_it_is_read_arrives_whole() {
    let (server, _berth, tmux) = chat(Vec::new(), 80, 24).await;
    // A terminal without bracketed paste hands in pasted text like this.
    let line = "typed ".repeat(500) + "END";
    tmux.types(&line);
    tmux.sees("END").await;
    tmux.press(&["Enter"]);
    tmux.sees("✓ done").await;
    assert_eq!(server.prompts(), [line]);
}
