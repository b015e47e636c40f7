//! `berth chat` with pipes.

use berth_wire::{
    api::{HistoryTurn, PostMessage, Turn},
    turn::{TurnErrorReason, TurnOutcome, TurnState, TurnStopReason},
};
use jiff::Timestamp;
use uuid::Uuid;

use crate::{
    fake::{FakeServer, SESSION, ends, says, succeeds},
    process::{Berth, finish},
};

#[tokio::test]
async fn lines_are_prompts_of_one_session() {
    let scripts = vec![vec![says("a", 0, "one"), succeeds()], vec![says("b", 0, "two"), succeeds()]];
    let server = FakeServer::start(scripts).await;
    let input = "first\n\n/help\n/nonsense\nsecond\n/quit\nthird\n";
    let done = finish(Berth::new().against(&server, &["chat"]), input).await;
    assert_eq!((done.code, done.out.as_str()), (0, "one\ntwo\n"), "{}", done.err);
    assert_eq!(server.prompts(), ["first", "second"]);
    assert!(done.err.contains(&format!("berth chat --session {SESSION}")), "{}", done.err);
    assert!(done.err.contains("/nonsense is not a command"), "{}", done.err);
}

#[tokio::test]
async fn a_script_learns_how_the_last_turn_ended() {
    let failed = TurnOutcome::failed(TurnErrorReason::ProviderError, "no");
    let server = FakeServer::start(vec![vec![succeeds()], vec![ends(failed)]]).await;
    let done = finish(Berth::new().against(&server, &["chat"]), "first\nlast line without an end").await;
    assert_eq!(done.code, 1, "{}", done.err);
    assert_eq!(server.prompts(), ["first", "last line without an end"]);
}

#[tokio::test]
async fn a_resumed_session_shows_its_history_in_short() {
    let server = FakeServer::start(vec![]).await;
    server.set_history(vec![HistoryTurn {
        turn: Turn {
            id: Uuid::nil(),
            session_id: SESSION,
            ordinal: 1,
            state: TurnState::Succeeded,
            prompt: PostMessage::text("what was asked").parts,
            model: None,
            agent: None,
            retry_of: None,
            stop_reason: Some(TurnStopReason::EndTurn),
            error: None,
            usage: None,
            created_at: Timestamp::UNIX_EPOCH,
            started_at: None,
            ended_at: None,
        },
        removed: false,
        partly_removed: false,
        text: "what was answered".to_owned(),
        text_breaks: Vec::new(),
        thought: String::new(),
        tool_calls: Vec::new(),
    }]);
    let arguments = ["chat", "--session", &SESSION.to_string()];
    let done = finish(Berth::new().against(&server, &arguments), "").await;
    assert_eq!((done.code, done.out.as_str()), (0, ""), "{}", done.err);
    assert!(done.err.contains("› what was asked\n  what was answered\n"), "{}", done.err);
}
