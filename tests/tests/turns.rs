//! Turns from prompt to end: text, tools, permissions, cancels, queues. On a real opencode.

use berth_tests::{Options, SessionLog, Stack, within, words};
use berth_wire::{
    api::{CancelRequest, PermissionAnswer, PermissionDecision, PostMessage, QuestionAnswer},
    event::{EventPayload, Resolution, ResolvedBy, Voice, acp::ToolCallStatus},
    problem::{Problem, ProblemType},
    turn::{TurnErrorReason, TurnState, TurnStopReason},
};
use serde_json::json;
use uuid::Uuid;

const ASK: fn() -> Options = || Options { permission: json!({ "bash": "ask" }), ..Options::default() };

async fn answer(stack: &Stack, session: Uuid, id: &str, decision: PermissionDecision) {
    let body = PermissionAnswer { decision, message: None };
    stack.client.answer_permission(session, id, &body).await.expect("the answer is taken");
}

fn resolutions(log: &SessionLog) -> Vec<(Resolution, ResolvedBy)> {
    let resolved = log.events.iter().filter_map(|event| match &event.payload {
        EventPayload::PermissionResolved(end) => Some((end.resolution, end.by)),
        EventPayload::QuestionResolved(end) => Some((end.resolution, end.by)),
        _ => None,
    });
    resolved.collect()
}

#[tokio::test]
async fn plain_turn() {
    let stack = Stack::start().await;
    let session = stack.session().await;
    let (turn, log) = stack.prompt(session.id, "@stub think:n=3 | text:n=20,d=2").await;
    assert_eq!(log.text(turn.id, Voice::Message), words(20));
    assert_eq!(log.text(turn.id, Voice::Thought), words(3));
    let outcome = log.outcome(turn.id);
    assert_eq!((outcome.state, outcome.stop_reason), (TurnState::Succeeded, Some(TurnStopReason::EndTurn)));
    assert!(outcome.usage.expect("usage is known").output_tokens > 0);

    let stored = stack.client.get_turn(turn.id).await.expect("the turn is there");
    assert_eq!((stored.state, stored.stop_reason), (TurnState::Succeeded, Some(TurnStopReason::EndTurn)));
    let history = stack.client.history(session.id).await.expect("the history is there");
    assert_eq!((history.len(), history[0].text.as_str()), (1, words(20).as_str()));
    let session = stack.client.get_session(session.id).await.expect("the session is there");
    assert!(session.opencode_session_id.is_some() && session.open_turns.is_empty());
    stack.stop().await;
}

#[tokio::test]
async fn tool_turn() {
    let stack = Stack::start().await;
    let session = stack.session().await;
    let prompt = r#"@stub say:before | tool:bash:{"command":"echo hi > made.txt; echo out","description":"Make it"} >> say:after"#;
    let (turn, log) = stack.prompt(session.id, prompt).await;
    assert_eq!(log.text(turn.id, Voice::Message), "beforeafter");
    assert_eq!(log.tools(turn.id).len(), 1);
    assert_eq!(log.tools(turn.id)[0].1, ToolCallStatus::Completed);
    assert_eq!(log.outcome(turn.id).state, TurnState::Succeeded);
    assert_eq!(std::fs::read_to_string(stack.work.join("made.txt")).expect("the file is there"), "hi\n");

    let (turn, log) = stack.prompt(session.id, "scenario: parallel").await;
    assert!(log.tools(turn.id).len() > 1, "{:?}", log.tools(turn.id));
    assert!(log.tools(turn.id).iter().all(|(_, status)| *status == ToolCallStatus::Completed));
    assert_eq!(log.outcome(turn.id).state, TurnState::Succeeded);
    stack.stop().await;
}

#[tokio::test]
async fn permission_once_always_and_reject() {
    let stack = Stack::with(ASK()).await;
    let session = stack.session().await.id;
    let prompt = |file: &str| {
        format!(r#"@stub tool:bash:{{"command":"touch {file}","description":"Touch"}} >> say:done"#)
    };

    let turn = stack.post(session, &prompt("once")).await;
    let asked = stack.wait_for_permission(session).await;
    assert_eq!((asked.permission.as_str(), asked.patterns[0].as_str()), ("bash", "touch once"));
    assert!(asked.expires_at.is_some());
    assert!(!stack.work.join("once").exists(), "the tool waits");
    answer(&stack, session, &asked.permission_id, PermissionDecision::Once).await;
    let log = SessionLog::until_end(&stack.client, session, turn.id).await;
    log.check();
    assert!(stack.work.join("once").exists());
    assert_eq!(resolutions(&log), [(Resolution::Once, ResolvedBy::User)]);
    let late = PermissionAnswer { decision: PermissionDecision::Reject, message: None };
    let late = stack.client.answer_permission(session, &asked.permission_id, &late).await;
    let problem = late.expect_err("it was settled").problem().cloned().expect("it is a problem");
    assert_eq!(problem.problem_type(), Some(ProblemType::AlreadyResolved));

    let after = log.events.last().expect("the log has events").seq;
    let turn = stack.post(session, &prompt("rejected")).await;
    let asked = next_permission(&stack, session, after).await;
    answer(&stack, session, &asked, PermissionDecision::Reject).await;
    let log = SessionLog::until_end(&stack.client, session, turn.id).await;
    log.check();
    assert!(!stack.work.join("rejected").exists());
    let error = log.outcome(turn.id).error.clone().expect("a rejection ends the turn");
    assert_eq!(error.reason, TurnErrorReason::PermissionRejected);

    let after = log.events.last().expect("the log has events").seq;
    let turn = stack.post(session, &prompt("always")).await;
    let asked = next_permission(&stack, session, after).await;
    answer(&stack, session, &asked, PermissionDecision::Always).await;
    SessionLog::until_end(&stack.client, session, turn.id).await.check();
    let (turn, log) = stack.prompt(session, &prompt("ruled")).await;
    assert!(stack.work.join("ruled").exists());
    assert_eq!(log.outcome(turn.id).state, TurnState::Succeeded);
    assert_eq!(resolutions(&log).last(), Some(&(Resolution::Once, ResolvedBy::Rule)));
    stack.stop().await;
}

async fn next_permission(stack: &Stack, session: Uuid, after: i64) -> String {
    let mut asked = None;
    SessionLog::until(&stack.client, session, after, "a request", |event| {
        if let EventPayload::PermissionRequested(request) = &event.payload {
            asked = Some(request.permission_id.clone());
        }
        asked.is_some()
    })
    .await;
    asked.expect("it was waited for")
}

#[tokio::test]
async fn ct_5_questions_are_asked_together_and_a_wrong_shape_leaves_them_open() {
    let stack = Stack::start().await;
    let session = stack.session().await.id;
    let option = |label: &str| json!({ "label": label, "description": "" });
    let input = json!({ "questions": [
        { "question": "A?", "header": "A", "options": [option("x"), option("y")] },
        { "question": "B?", "header": "B", "multiple": true, "options": [option("p"), option("q")] },
        { "question": "C?", "header": "C", "options": [option("z")] },
    ]});
    let turn = stack.post(session, &format!("@stub tool:question:{input} >> say:ok")).await;
    let asked = stack
        .wait_for(session, "questions", |payload| match payload {
            EventPayload::QuestionRequested(asked) => Some(asked.clone()),
            _ => None,
        })
        .await;
    assert_eq!(asked.questions.iter().map(|one| one.header.as_str()).collect::<Vec<_>>(), ["A", "B", "C"]);
    let answers = |answers: &[&[&str]]| QuestionAnswer {
        answers: Some(answers.iter().map(|one| one.iter().map(|&text| text.to_owned()).collect()).collect()),
    };
    for wrong in [answers(&[&["x"]]), answers(&[&["x"], &["p"], &[]])] {
        let refused = stack.client.answer_question(session, &asked.question_id, &wrong).await;
        let problem = refused.expect_err("the shape is wrong").problem().cloned().expect("it is a problem");
        assert_eq!(problem.status, 422);
    }
    let right = answers(&[&["x"], &["p", "q"], &["free text"]]);
    stack.client.answer_question(session, &asked.question_id, &right).await.expect("it is taken");
    let log = SessionLog::until_end(&stack.client, session, turn.id).await;
    log.check();
    assert_eq!(resolutions(&log), [(Resolution::Answered, ResolvedBy::User)]);
    assert_eq!(log.text(turn.id, Voice::Message), "ok");
    stack.stop().await;
}

#[tokio::test]
async fn cancel_while_streaming_then_a_clean_next_prompt() {
    let stack = Stack::start().await;
    let session = stack.session().await.id;
    let turn = stack.post(session, "@stub text:n=2000,d=10").await;
    stack.wait_for_text(session).await;
    let cancelled = stack.client.cancel(session, CancelRequest::default()).await.expect("it is taken");
    assert_eq!(cancelled.turns, [turn.id]);
    let log = SessionLog::until_end(&stack.client, session, turn.id).await;
    log.check();
    let outcome = log.outcome(turn.id);
    assert_eq!((outcome.state, outcome.stop_reason), (TurnState::Cancelled, Some(TurnStopReason::Cancelled)));
    assert!(words(2000).starts_with(&log.text(turn.id, Voice::Message)));
    let (turn, log) = stack.prompt(session, "@stub text:n=5").await;
    assert_eq!(log.text(turn.id, Voice::Message), words(5));
    assert_eq!(log.outcome(turn.id).state, TurnState::Succeeded);
    let nothing = stack.client.cancel(session, CancelRequest::default()).await.expect("it is taken");
    assert!(nothing.turns.is_empty());
    stack.stop().await;
}

#[tokio::test]
async fn cancel_in_a_tool_then_a_clean_next_prompt() {
    let stack = Stack::start().await;
    let session = stack.session().await.id;
    let command = "sleep 60; touch too-late";
    let prompt = format!(r#"@stub tool:bash:{{"command":"{command}","description":"Sleep"}} >> say:never"#);
    let turn = stack.post(session, &prompt).await;
    stack.wait_for_running_tool(session).await;
    stack.client.cancel(session, CancelRequest::default()).await.expect("it is taken");
    let log = SessionLog::until_end(&stack.client, session, turn.id).await;
    log.check();
    assert_eq!(log.outcome(turn.id).state, TurnState::Cancelled);
    assert_eq!(log.text(turn.id, Voice::Message), "");
    let (turn, log) = stack.prompt(session, "@stub say:clean").await;
    assert_eq!(log.text(turn.id, Voice::Message), "clean");
    assert!(!stack.work.join("too-late").exists());
    stack.stop().await;
}

#[tokio::test]
async fn a_cancel_before_opencode_has_begun_is_not_lost() {
    let stack = Stack::start().await;
    stack.opencode_pid().await;
    let session = stack.session().await.id;
    // The directory is cold: an abort that opencode gets now would be answered, and lost.
    let prompt = r#"@stub tool:bash:{"command":"touch ran","description":"Touch"} >> text:n=50,d=100"#;
    let turn = stack.post(session, prompt).await;
    stack.client.cancel(session, CancelRequest::default()).await.expect("it is taken");
    let log = SessionLog::until_end(&stack.client, session, turn.id).await;
    log.check();
    assert_eq!(log.outcome(turn.id).state, TurnState::Cancelled);
    let (turn, log) = stack.prompt(session, "@stub say:clean").await;
    assert_eq!(log.text(turn.id, Voice::Message), "clean");
    stack.stop().await;
}

#[tokio::test]
async fn two_prompts_are_queued_and_a_queued_one_can_be_cancelled() {
    let stack = Stack::start().await;
    let session = stack.session().await.id;
    let first = stack.post(session, "@stub text:n=20,d=20").await;
    let second = stack.post(session, "@stub say:second").await;
    let third = stack.post(session, "@stub say:third").await;
    assert_eq!([first.ordinal, second.ordinal, third.ordinal], [1, 2, 3]);
    let log = SessionLog::until_end(&stack.client, session, third.id).await;
    log.check();
    for (turn, text) in [(&first, words(20).as_str()), (&second, "second"), (&third, "third")] {
        assert_eq!(log.text(turn.id, Voice::Message), text);
        assert_eq!(log.outcome(turn.id).state, TurnState::Succeeded);
    }
    let position = |turn: Uuid, kind: &str| {
        let found =
            log.events.iter().find(|event| event.turn_id == Some(turn) && event.payload.to_parts().0 == kind);
        found.expect("it is in the log").seq
    };
    assert!(position(second.id, "turn_started") > position(first.id, "turn_ended"), "one at a time");
    assert!(position(third.id, "turn_started") > position(second.id, "turn_ended"));

    let running = stack.post(session, "@stub text:n=2000,d=20").await;
    let dropped = stack.post(session, "@stub say:never").await;
    let queued = stack.post(session, "@stub say:never").await;
    let one = stack.client.cancel(session, CancelRequest::only(dropped.id)).await.expect("it is taken");
    assert_eq!(one.turns, [dropped.id]);
    let log = SessionLog::until_end(&stack.client, session, dropped.id).await;
    assert_eq!(log.outcome(dropped.id).state, TurnState::Cancelled);
    let open = stack.client.get_session(session).await.expect("it is there").open_turns;
    assert_eq!(open, [running.id, queued.id], "the others are left alone");
    let both = stack.client.cancel(session, CancelRequest::all()).await.expect("it is taken");
    assert_eq!(both.turns, [running.id, queued.id]);
    for turn in [running.id, queued.id] {
        let log = SessionLog::until_end(&stack.client, session, turn).await;
        assert_eq!(log.outcome(turn).state, TurnState::Cancelled);
    }
    stack.stop().await;
}

#[tokio::test]
async fn the_same_idempotency_key_twice_is_one_turn() {
    let stack = Stack::start().await;
    let session = stack.session().await.id;
    let (body, other) = (PostMessage::text("@stub say:once"), PostMessage::text("@stub say:other"));
    let first = stack.client.post_message(session, &body, "key-1").await.expect("it is taken");
    let again = stack.client.post_message(session, &body, "key-1").await.expect("it is taken");
    assert_eq!(first.id, again.id);
    SessionLog::until_end(&stack.client, session, first.id).await.check();
    let late = stack.client.post_message(session, &body, "key-1").await.expect("it is taken");
    assert_eq!((late.id, late.state), (first.id, TurnState::Succeeded));
    let refused = stack.client.post_message(session, &other, "key-1").await.expect_err("another body");
    let problem = refused.problem().cloned().expect("it is a problem");
    assert_eq!(problem.problem_type(), Some(ProblemType::IdempotencyConflict));
    assert_eq!(stack.client.list_turns(session).await.expect("turns are there").len(), 1);
    let prompts = stack.model.requests().iter().filter(|request| !request.title).count();
    assert_eq!(prompts, 1, "the model was asked once");
    stack.stop().await;
}

#[tokio::test]
async fn provider_errors_are_typed_and_the_session_goes_on() {
    let stack = Stack::start().await;
    let session = stack.session().await.id;
    for (prompt, reason) in [
        ("scenario: error-400", TurnErrorReason::ProviderError),
        ("@stub status:401", TurnErrorReason::ProviderUnauthorized),
        ("scenario: garbage", TurnErrorReason::OpencodeError),
        ("scenario: no-finish", TurnErrorReason::ProviderStreamIncomplete),
    ] {
        let (turn, log) = stack.prompt(session, prompt).await;
        let error = log.outcome(turn.id).error.clone();
        assert_eq!(error.map(|error| error.reason), Some(reason), "{prompt}: {:?}", log.outcome(turn.id));
    }
    for prompt in ["scenario: error-429", "scenario: error-500", "scenario: cut"] {
        let (turn, log) = stack.prompt(session, prompt).await;
        assert_eq!(log.outcome(turn.id).state, TurnState::Succeeded, "{prompt}: {:?}", log.outcome(turn.id));
        assert!(log.kinds(turn.id).iter().any(|kind| kind == "provider_retry"), "{prompt}");
    }
    stack.stop().await;
}

/// opencode sleeps for a day, and only says so in its status; a subagent's sleep shows in nothing of the session itself.
#[tokio::test]
async fn ct_2_a_retry_that_is_due_in_a_day_ends_the_turn_at_once() {
    let stack = Stack::start().await;
    let session = stack.session().await.id;
    let of_a_subagent = concat!(
        r#"@stub tool:task:{"description":"wait","subagent_type":"general","prompt":"\u0040stub2 status:429,ra=86400"}"#,
        " >> say:done",
    );
    for prompt in ["@stub status:429,ra=86400", of_a_subagent] {
        let (turn, log) = stack.prompt(session, prompt).await;
        let error = log.outcome(turn.id).error.clone().expect("it failed");
        assert_eq!(error.reason, TurnErrorReason::RateLimited, "{prompt}: {error:?}");
        assert!(error.message.contains("429") && error.retry_at.is_some(), "{error:?}");
        assert!(log.kinds(turn.id).iter().any(|kind| kind == "provider_retry"), "{prompt}");
    }
    let (turn, log) = stack.prompt(session, "@stub say:clean").await;
    assert_eq!(log.outcome(turn.id).state, TurnState::Succeeded);
    assert!(log.kinds(turn.id).iter().any(|kind| kind == "usage_update"), "the model's size is known");
    stack.stop().await;
}

#[tokio::test]
async fn a_session_is_deleted_with_its_running_turn() {
    let stack = Stack::start().await;
    let session = stack.session().await.id;
    stack.post(session, "@stub text:n=5000,d=20").await;
    stack.wait_for_text(session).await;
    let root = stack.client.get_session(session).await.expect("it is there").opencode_session_id;
    let root = root.expect("a prompt was sent");
    stack.client.delete_session(session).await.expect("it is taken");
    let gone = stack.client.get_session(session).await.expect_err("it is gone");
    assert_eq!(gone.problem().and_then(Problem::problem_type), Some(ProblemType::NotFound));
    let opencode = stack.opencode();
    let directory = stack.work.to_str().expect("a plain name");
    within("opencode's session to be deleted", async {
        while opencode.get_session(directory, &root).await.is_ok() {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    })
    .await;
    stack.stop().await;
}
