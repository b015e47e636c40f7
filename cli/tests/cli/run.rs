//! `berth run` with pipes: what is written where, exit codes, Ctrl-C.

use std::time::{Duration, Instant};

use berth_wire::{
    api::PermissionDecision,
    event::{EventPayload, PartVoided, SessionEvent},
    turn::{TurnErrorReason, TurnOutcome, TurnState, TurnStopReason},
};

use crate::{
    fake::{Act, FakeServer, SESSION, emit, ends, permission_script, says, succeeds, thinks},
    process::{Berth, error_lines, finish, finished, interrupt, wait_for},
};

#[tokio::test]
async fn the_agents_text_alone_goes_to_a_pipe() {
    let server = FakeServer::start(vec![permission_script()]).await;
    let done = finish(Berth::new().against(&server, &["run", "--allow", "make", "a file"]), "").await;
    assert_eq!((done.code, done.out.as_str()), (0, "I make a file.\nDone.\n"), "{}", done.err);
    for line in
        ["a file is wanted\n", "? bash: touch x\n", "● touch x\n", "✓ touch x  0.0 s\n", "✓ succeeded"]
    {
        assert!(done.err.contains(line), "{line:?} in {}", done.err);
    }
    assert!(done.err.contains(&format!("berth run --session {SESSION}")), "{}", done.err);
    assert!(!done.err.contains('\u{1b}'), "no colours in a pipe: {}", done.err);
    assert_eq!(server.prompts(), ["make a file"]);
    assert_eq!(server.answers()[0].decision, PermissionDecision::Once);
}

#[tokio::test]
async fn json_is_events_and_nothing_else() {
    let server = FakeServer::start(vec![permission_script()]).await;
    let done = finish(Berth::new().against(&server, &["run", "--json", "--allow", "x"]), "").await;
    assert_eq!(done.code, 0, "{}", done.err);
    let events: Vec<SessionEvent> =
        done.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let seqs: Vec<i64> = events.iter().map(|event| event.seq).collect();
    assert_eq!(seqs, (1..=11).collect::<Vec<_>>());
    assert!(matches!(events[10].payload, EventPayload::TurnEnded(_)));
    assert_eq!(done.err, "");
}

#[tokio::test]
async fn without_a_person_permissions_are_rejected_and_the_way_out_is_named() {
    let server = FakeServer::start(vec![permission_script()]).await;
    let done = finish(Berth::new().against(&server, &["run", "x"]), "").await;
    assert_eq!(done.code, 4, "{}", done.err);
    assert!(done.err.contains("--allow"), "{}", done.err);
    assert_eq!(server.answers()[0].decision, PermissionDecision::Reject);
}

#[tokio::test]
async fn exit_codes_follow_the_outcome() {
    let failed = TurnOutcome::failed(TurnErrorReason::ProviderError, "the provider is on fire");
    let unknown = TurnOutcome { state: TurnState::Unknown, ..failed.clone() };
    let refused = TurnOutcome::succeeded(TurnStopReason::Refusal);
    for (outcome, code) in [(failed, 1), (unknown, 1), (TurnOutcome::cancelled(), 3), (refused, 4)] {
        let server = FakeServer::start(vec![vec![says("a", 0, "half"), ends(outcome)]]).await;
        let done = finish(Berth::new().against(&server, &["run", "x"]), "").await;
        assert_eq!((done.code, done.out.as_str()), (code, "half\n"), "{}", done.err);
    }
}

#[tokio::test]
async fn the_prompt_may_come_through_a_pipe() {
    let server = FakeServer::start(vec![vec![says("a", 0, "ok\n"), succeeds()]]).await;
    let done = finish(Berth::new().against(&server, &["run", "-"]), "two\nlines\n").await;
    assert_eq!((done.code, done.out.as_str()), (0, "ok\n"), "{}", done.err);
    assert_eq!(server.prompts(), ["two\nlines\n"]);
    let done = finish(Berth::new().against(&server, &["run"]), " \n").await;
    assert_eq!(done.code, 2);
    assert!(done.err.contains("PROMPT: blank"), "{}", done.err);
}

#[tokio::test]
async fn torn_text_never_reaches_a_pipe() {
    let void = emit(EventPayload::PartVoided(PartVoided { part_id: "a".to_owned() }));
    let script = vec![says("a", 0, "torn te"), void, says("b", 0, "torn text"), succeeds()];
    let server = FakeServer::start(vec![script]).await;
    let done = finish(Berth::new().against(&server, &["run", "x"]), "").await;
    assert_eq!(done.out, "torn text\n", "{}", done.err);
}

#[tokio::test]
async fn ctrl_c_cancels_the_turn_and_waits_for_its_end() {
    let server = FakeServer::start(vec![vec![thinks("working\n"), says("a", 0, "half"), Act::Cancel]]).await;
    let berth = Berth::new();
    let mut child = berth.against(&server, &["run", "x"]).spawn().unwrap();
    let mut lines = error_lines(&mut child);
    wait_for(&mut lines, "working").await;
    interrupt(&child);
    wait_for(&mut lines, "■ cancelled").await;
    let done = finished(child).await;
    assert_eq!((done.code, done.out.as_str()), (3, "half\n"));
    assert_eq!(server.cancels(), 1);
}

#[tokio::test]
async fn what_the_server_refuses_is_refused() {
    let server = FakeServer::start(vec![]).await;
    let berth = Berth::new();
    let done = finish(berth.against(&server, &["run", "--sandbox", "nowhere", "x"]), "").await;
    assert_eq!((done.code, done.err.as_str()), (4, "error: Not found: there is no such sandbox\n"));
    let mut command = berth.against(&server, &["run", "x"]);
    command.env("BERTH_TOKEN_FILE", "/proc/version");
    let done = finish(command, "").await;
    assert_eq!(done.code, 1);
    assert!(done.err.contains("/proc/version: does not hold a token"), "{}", done.err);
}

#[tokio::test]
async fn without_a_server_the_code_is_5_and_the_way_to_one_is_named() {
    let done = finish(Berth::new().command(&["run", "x"]), "").await;
    assert_eq!(done.code, 5);
    assert!(done.err.contains("berth up"), "{}", done.err);
    let server = FakeServer::start(vec![]).await;
    let berth = Berth::new();
    let command = berth.against(&server, &["run", "x"]);
    drop(server);
    let done = finish(command, "").await;
    assert_eq!(done.code, 5, "{}", done.err);
    assert!(done.err.contains("cannot be reached"), "{}", done.err);
}

#[tokio::test]
async fn a_wrong_command_line_is_2() {
    for arguments in [&["run", "--sandbox", "No!", "x"][..], &["run", "--allow", "--deny", "x"], &["walk"]] {
        let done = finish(Berth::new().command(arguments), "").await;
        assert_eq!(done.code, 2, "{arguments:?}: {}", done.err);
    }
}

#[tokio::test]
async fn a_server_that_does_not_come_back_is_waited_for_as_long_as_was_said() {
    let server = FakeServer::start(vec![vec![thinks("working\n"), Act::Pause]]).await;
    let berth = Berth::new();
    let mut child = berth.against(&server, &["run", "--wait", "5", "x"]).spawn().unwrap();
    let mut lines = error_lines(&mut child);
    wait_for(&mut lines, "working").await;
    let since = Instant::now();
    server.stop();
    wait_for(&mut lines, "the server cannot be reached; waiting up to 5.0 s").await;
    wait_for(&mut lines, &format!("berth sessions show {SESSION}")).await;
    wait_for(&mut lines, "error: the event stream was lost").await;
    assert_eq!(finished(child).await.code, 5);
    // The last wait is not begun when it would be too long: it is shorter than 4 s for sure.
    assert!(since.elapsed() >= Duration::from_secs(1), "{:?}", since.elapsed());
}
