//! What breaks, and what the log says then. On a real opencode.

use std::time::Duration;

use berth_tests::{Options, Scale, SessionLog, Stack, UpProcess, within, words};
use berth_wire::{
    api::{CreateSession, PostMessage},
    event::{EventPayload, SessionEvent, Voice},
    turn::{TurnErrorReason, TurnState},
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::process::Command;

async fn kill(pid: u32) {
    let sent = Command::new("kill").args(["-KILL", &pid.to_string()]).status().await.expect("kill runs");
    assert!(sent.success());
}

#[tokio::test]
async fn a_client_that_leaves_and_returns_sees_exactly_the_rest() {
    let stack = Stack::start().await;
    let session = stack.session().await.id;
    let turn = stack.post(session, "@stub text:n=150,d=10").await;
    let mut chunks = 0;
    let first = SessionLog::until(&stack.client, session, 0, "some chunks", |event: &SessionEvent| {
        chunks += usize::from(event.payload.as_chunk().is_some());
        chunks == 3
    })
    .await;
    let after = first.events.last().expect("it has events").seq;
    let ends = |event: &SessionEvent| matches!(event.payload, EventPayload::TurnEnded(_));
    let rest = SessionLog::until(&stack.client, session, after, "the rest", ends).await;
    let mut events = first.events;
    events.extend(rest.events);
    let seen = SessionLog { events };
    seen.check();
    assert_eq!(seen.text(turn.id, Voice::Message), words(150));
    let whole = SessionLog::until_end(&stack.client, session, turn.id).await;
    assert_eq!(seen.events, whole.events);
    stack.stop().await;
}

#[tokio::test]
async fn a_cut_between_server_and_door_leaves_no_hole_and_no_double() {
    let scale = Scale::current();
    let seeds = scale.pick(5, 100);
    let stack = Stack::with(Options { cutter: true, ..Options::default() }).await;
    let cutter = stack.cutter.as_ref().expect("it was asked for");
    let session = stack.session().await.id;
    let prompt = r#"@stub think:n=20,d=2 | text:n=60,d=5 | tool:bash:{"command":"for i in 1 2 3 4 5; do echo $i; sleep 0.05; done","description":"Count"} >> text:n=60,d=5"#;
    let (uncut, log) = stack.prompt(session, prompt).await;
    let (text, thought) = (log.text(uncut.id, Voice::Message), log.text(uncut.id, Voice::Thought));
    assert_eq!(text, words(60) + &words(60));
    for seed in 0..seeds {
        let mut random = StdRng::seed_from_u64(seed);
        cutter.cut_after(random.random_range(0..60_000));
        let before = cutter.cuts();
        let (turn, log) = stack.prompt(session, prompt).await;
        assert_eq!(log.text(turn.id, Voice::Message), text, "seed {seed}");
        assert_eq!(log.text(turn.id, Voice::Thought), thought, "seed {seed}");
        assert_eq!(
            log.outcome(turn.id).state,
            TurnState::Succeeded,
            "seed {seed}: {:?}",
            log.outcome(turn.id)
        );
        assert!(cutter.cuts() > before, "seed {seed}: nothing was cut");
    }
    let counts = [("cuts", cutter.cuts())];
    scale.report("a_cut_between_server_and_door_leaves_no_hole_and_no_double", seeds, &counts);
    stack.stop().await;
}

#[tokio::test]
async fn opencode_killed_in_mid_turn() {
    let scale = Scale::current();
    let seeds = scale.pick(3, 40);
    let stack = Stack::start().await;
    let session = stack.session().await.id;
    stack.prompt(session, "@stub say:warm").await;
    for seed in 0..seeds {
        let mut random = StdRng::seed_from_u64(seed);
        let turn = stack.post(session, "@stub text:n=300,d=10").await;
        let after = stack.client.get_session(session).await.expect("it is there").last_seq;
        let said = |event: &SessionEvent| event.payload.as_chunk().is_some();
        SessionLog::until(&stack.client, session, after, "text", said).await;
        tokio::time::sleep(Duration::from_millis(random.random_range(0..500))).await;
        kill(stack.opencode_pid().await).await;
        let log = SessionLog::until_end(&stack.client, session, turn.id).await;
        log.check();
        let (outcome, text) = (log.outcome(turn.id), log.text(turn.id, Voice::Message));
        assert_eq!(outcome.state, TurnState::Failed, "seed {seed}");
        let reason = outcome.error.as_ref().map(|error| error.reason);
        assert_eq!(reason, Some(TurnErrorReason::OpencodeExited), "seed {seed}");
        assert!(!text.is_empty() && words(300).starts_with(&text), "seed {seed}: {text:?}");
        let (turn, log) = stack.prompt(session, "@stub say:alive").await;
        assert_eq!(log.text(turn.id, Voice::Message), "alive", "seed {seed}");
    }
    scale.report("opencode_killed_in_mid_turn", seeds, &[("kills", seeds)]);
    stack.stop().await;
}

#[tokio::test]
async fn opencode_killed_right_after_a_prompt_was_taken() {
    let stack = Stack::start().await;
    let session = stack.session().await.id;
    stack.prompt(session, "@stub say:warm").await;
    for wait in [0, 20, 60] {
        let turn = stack
            .post(session, r#"@stub tool:bash:{"command":"touch ran-$$","description":"Run"} >> say:done"#)
            .await;
        let started = |event: &SessionEvent| {
            event.payload.to_parts().0 == "turn_started" && event.turn_id == Some(turn.id)
        };
        SessionLog::until(&stack.client, session, 0, "the start", started).await;
        tokio::time::sleep(Duration::from_millis(wait)).await;
        kill(stack.opencode_pid().await).await;
        let log = SessionLog::until_end(&stack.client, session, turn.id).await;
        log.check();
        // Either opencode had not begun, and the next run of it got the prompt, or it had, and the turn failed.
        let files = std::fs::read_dir(&stack.work).expect("the folder is there").flatten();
        let ran: Vec<_> =
            files.filter(|file| file.file_name().to_string_lossy().starts_with("ran-")).collect();
        match log.outcome(turn.id).state {
            TurnState::Succeeded => assert_eq!(log.text(turn.id, Voice::Message), "done"),
            TurnState::Failed => {
                let reason = log.outcome(turn.id).error.as_ref().map(|error| error.reason);
                assert_eq!(reason, Some(TurnErrorReason::OpencodeExited));
            }
            other => panic!("{other:?}"),
        }
        assert!(ran.len() <= 1, "the tool ran twice: {ran:?}");
        for file in ran {
            std::fs::remove_file(file.path()).expect("the file can be removed");
        }
    }
    stack.stop().await;
}

#[tokio::test]
async fn a_turn_goes_on_while_the_server_is_restarted() {
    let mut stack = Stack::start().await;
    let session = stack.session().await.id;
    let turn = stack.post(session, "@stub text:n=300,d=10").await;
    let queued = stack.post(session, "@stub say:queued").await;
    stack.wait_for_text(session).await;
    stack.restart_server().await;
    let log = SessionLog::until_end(&stack.client, session, queued.id).await;
    log.check();
    assert_eq!(log.text(turn.id, Voice::Message), words(300));
    assert_eq!(log.outcome(turn.id).state, TurnState::Succeeded);
    assert_eq!(log.text(queued.id, Voice::Message), "queued");
    stack.stop().await;
}

#[tokio::test]
async fn a_permission_waits_through_a_restart_of_the_server() {
    let options = Options { permission: serde_json::json!({ "bash": "ask" }), ..Options::default() };
    let mut stack = Stack::with(options).await;
    let session = stack.session().await.id;
    let turn = stack.post(session, "scenario: permission").await;
    let asked = stack.wait_for_permission(session).await;
    stack.restart_server().await;
    let once = berth_wire::api::PermissionAnswer {
        decision: berth_wire::api::PermissionDecision::Once,
        message: None,
    };
    stack.client.answer_permission(session, &asked.permission_id, &once).await.expect("it is taken");
    let log = SessionLog::until_end(&stack.client, session, turn.id).await;
    log.check();
    assert_eq!(log.outcome(turn.id).state, TurnState::Succeeded);
    stack.stop().await;
}

#[tokio::test]
async fn server_killed_and_started_again() {
    let scale = Scale::current();
    let kills = scale.pick(2, 20);
    let mut up = UpProcess::start().await;
    let mut resent = 0;
    let client = up.client();
    let session =
        client.create_session("local", "default", &CreateSession::default()).await.expect("it is made").id;
    let say = |text: &'static str| PostMessage::text(format!("@stub say:{text}"));
    let first = client.post_message(session, &say("before"), "before").await.expect("it is taken");
    SessionLog::until_end(&client, session, first.id).await.check();
    for seed in 0..kills {
        let mut random = StdRng::seed_from_u64(seed);
        let client = up.client();
        let body = PostMessage::text("@stub text:n=500,d=10");
        let cut = client.post_message(session, &body, &format!("cut-{seed}")).await.expect("it is taken");
        let queued =
            client.post_message(session, &say("after"), &format!("after-{seed}")).await.expect("it is taken");
        tokio::time::sleep(Duration::from_millis(random.random_range(0..3_000))).await;
        up = up.kill_and_restart().await;

        let client = up.client();
        let log = SessionLog::until_end(&client, session, queued.id).await;
        log.check();
        assert_eq!(log.text(first.id, Voice::Message), "before", "seed {seed}: history is there");
        let outcome = log.outcome(cut.id);
        let text = log.text(cut.id, Voice::Message);
        match outcome.state {
            // It had not begun: the prompt went to the next opencode.
            TurnState::Succeeded => {
                resent += 1;
                assert_eq!(text, words(500), "seed {seed}");
            }
            TurnState::Failed => {
                let reason = outcome.error.as_ref().map(|error| error.reason);
                assert_eq!(reason, Some(TurnErrorReason::OpencodeExited), "seed {seed}");
                assert!(words(500).starts_with(&text), "seed {seed}: {text:?}");
            }
            other => panic!("seed {seed}: {other:?}"),
        }
        assert_eq!(log.text(queued.id, Voice::Message), "after", "seed {seed}");
        let again = client.post_message(session, &body, &format!("cut-{seed}")).await.expect("it is taken");
        assert_eq!(again.id, cut.id, "seed {seed}: the key is remembered");
    }
    scale.report("server_killed_and_started_again", kills, &[("kills", kills), ("resent", resent)]);
    up.stop().await;
}

#[tokio::test]
async fn event_streams_end_when_the_server_does() {
    let mut stack = Stack::start().await;
    let session = stack.session().await.id;
    let streams: Vec<_> = (0..20).map(|_| stack.client.events(session, 0)).collect();
    let mut reading = tokio::task::JoinSet::new();
    for mut stream in streams {
        reading.spawn(async move { stream.next().await });
    }
    let turn = stack.post(session, "@stub say:hi").await;
    SessionLog::until_end(&stack.client, session, turn.id).await.check();
    within("a restart with open streams", stack.restart_server()).await;
    stack.stop().await;
}
