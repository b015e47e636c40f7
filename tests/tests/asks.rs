//! Requests of subagents and of opencode itself, and a person who never answers. On a real opencode.

use std::time::Duration;

use berth_server::Limits;
use berth_tests::{Options, SessionLog, Stack};
use berth_wire::{
    api::{CancelRequest, PermissionAnswer, PermissionDecision},
    event::{EventPayload, PermissionRequested, Resolution, ResolvedBy, Voice},
    turn::{TurnErrorReason, TurnState},
};
use serde_json::json;
use uuid::Uuid;

const ONCE: PermissionAnswer = PermissionAnswer { decision: PermissionDecision::Once, message: None };

/// A task for a subagent, written so that its marks are not taken for those of the script around it.
fn task(description: &str, script: &str) -> String {
    let arguments = json!({ "description": description, "subagent_type": "general", "prompt": format!("@stub2 {script}") });
    format!("tool:task:{}", arguments.to_string().replace("@stub2", "\\u0040stub2").replace('~', "\\u007e"))
}

fn bash(command: &str) -> String {
    format!("tool:bash:{}", json!({ "command": command, "description": "a test" }))
}

async fn request_of(stack: &Stack, session: Uuid, turn: Uuid) -> PermissionRequested {
    let mut asked = None;
    SessionLog::until(&stack.client, session, 0, "a request", |event| {
        if let (true, EventPayload::PermissionRequested(request)) =
            (event.turn_id == Some(turn), &event.payload)
        {
            asked = Some(request.clone());
        }
        asked.is_some()
    })
    .await;
    asked.expect("it was waited for")
}

fn resolutions(log: &SessionLog, turn: Uuid) -> Vec<(Resolution, ResolvedBy)> {
    let of = |payload: &EventPayload| match payload {
        EventPayload::PermissionResolved(end) => Some((end.resolution, end.by)),
        _ => None,
    };
    log.of(turn).filter_map(|event| of(&event.payload)).collect()
}

fn requests(log: &SessionLog, turn: Uuid) -> usize {
    log.of(turn).filter(|event| matches!(event.payload, EventPayload::PermissionRequested(_))).count()
}

fn grandchildren(limits: Limits) -> Options {
    let config = json!({
        "subagent_depth": 2,
        "agent": { "general": { "tools": { "task": true }, "permission": { "task": { "*": "allow" } } } },
    });
    Options {
        permission: json!({ "bash": { "*": "allow", "touch *": "ask" } }),
        config,
        limits,
        ..Options::default()
    }
}

/// A subagent's subagent asks, and the root answers.
fn nested(last: &str) -> String {
    let deep = task("deep", &format!("{}~>>~say:deep done", bash("touch by-a-grandchild")));
    format!("@stub {} >> {last}", task("middle", &format!("{deep}~>>~say:middle done")))
}

#[tokio::test]
async fn ct_3_a_grandchild_asks_once_through_a_cut_and_a_restart() {
    let mut stack = Stack::with(Options { cutter: true, ..grandchildren(Limits::default()) }).await;
    let session = stack.session().await.id;
    let turn = stack.post(session, &nested("say:all done")).await;
    let asked = request_of(&stack, session, turn.id).await;
    assert!(asked.tool_call_id.is_some(), "the root's task call");
    stack.cutter.as_ref().expect("it was asked for").cut_after(0);
    stack.restart_server().await;
    assert_eq!(request_of(&stack, session, turn.id).await.permission_id, asked.permission_id);
    stack.client.answer_permission(session, &asked.permission_id, &ONCE).await.expect("it is taken");
    let log = SessionLog::until_end(&stack.client, session, turn.id).await;
    log.check();
    assert_eq!(log.text(turn.id, Voice::Message), "all done", "{:?}", log.outcome(turn.id));
    assert_eq!(requests(&log, turn.id), 1);
    assert_eq!(resolutions(&log, turn.id), [(Resolution::Once, ResolvedBy::User)]);
    assert!(stack.work.join("by-a-grandchild").exists());

    std::fs::remove_file(stack.work.join("by-a-grandchild")).expect("it can be removed");
    // opencode 1.18.33 answers the abort and goes on with the root's next step: it takes a second one.
    let turn = stack.post(session, &nested("text:n=200,d=50")).await;
    request_of(&stack, session, turn.id).await;
    stack.client.cancel(session, CancelRequest::default()).await.expect("it is taken");
    let log = SessionLog::until_end(&stack.client, session, turn.id).await;
    assert_eq!(log.outcome(turn.id).state, TurnState::Cancelled);
    assert_eq!(resolutions(&log, turn.id), [(Resolution::Dropped, ResolvedBy::Opencode)]);
    let (next, log) = stack.prompt(session, "@stub say:clean").await;
    assert_eq!((log.text(next.id, Voice::Message).as_str(), requests(&log, next.id)), ("clean", 0));
    assert!(!stack.work.join("by-a-grandchild").exists());
    stack.stop().await;
}

#[tokio::test]
async fn ct_3_a_grandchild_whom_nobody_answers_is_refused_at_the_deadline() {
    let limits = Limits { ask: Duration::from_secs(2), ..Limits::default() };
    let stack = Stack::with(grandchildren(limits)).await;
    let session = stack.session().await.id;
    let (turn, log) = stack.prompt(session, &nested("say:all done")).await;
    assert_eq!(resolutions(&log, turn.id), [(Resolution::Rejected, ResolvedBy::Deadline)]);
    assert!(!stack.work.join("by-a-grandchild").exists());
    let (next, log) = stack.prompt(session, "@stub say:clean").await;
    assert_eq!(log.text(next.id, Voice::Message), "clean");
    stack.stop().await;
}

#[tokio::test]
async fn ct_4_a_doom_loop_is_a_request_of_its_own_kind() {
    let limits = Limits { ask: Duration::from_secs(4), ..Limits::default() };
    let stack = Stack::with(Options { limits, ..Options::default() }).await;
    let session = stack.session().await.id;
    let call = bash("echo same");
    let script = format!("@stub {call} | {call} | {call} >> say:done");

    let turn = stack.post(session, &script).await;
    let asked = request_of(&stack, session, turn.id).await;
    assert_eq!((asked.permission.as_str(), asked.patterns), ("doom_loop", vec!["bash".to_owned()]));
    let always = PermissionAnswer { decision: PermissionDecision::Always, message: None };
    stack.client.answer_permission(session, &asked.permission_id, &always).await.expect("it is taken");
    let log = SessionLog::until_end(&stack.client, session, turn.id).await;
    log.check();
    assert_eq!(log.text(turn.id, Voice::Message), "done");

    // "Always" holds for the loop, and is no rule for bash.
    let (turn, log) = stack.prompt(session, &script).await;
    assert_eq!(resolutions(&log, turn.id), [(Resolution::Once, ResolvedBy::Rule)]);

    // Nobody answers in another session: the deadline's default, and nothing is left of it.
    let other = stack.session().await.id;
    let (turn, log) = stack.prompt(other, &script).await;
    assert_eq!(resolutions(&log, turn.id), [(Resolution::Rejected, ResolvedBy::Deadline)]);
    let reason = log.outcome(turn.id).error.as_ref().map(|error| error.reason);
    assert_eq!(reason, Some(TurnErrorReason::PermissionRejected), "{:?}", log.outcome(turn.id));
    let (next, log) = stack.prompt(other, "@stub say:clean").await;
    assert_eq!((log.text(next.id, Voice::Message).as_str(), requests(&log, next.id)), ("clean", 0));

    let turn = stack.post(other, &script).await;
    request_of(&stack, other, turn.id).await;
    stack.client.delete_session(other).await.expect("it is taken");
    let (next, log) = stack.prompt(session, "@stub say:clean").await;
    assert_eq!((log.text(next.id, Voice::Message).as_str(), requests(&log, next.id)), ("clean", 0));
    stack.stop().await;
}

#[tokio::test]
async fn a_person_who_never_answers_is_not_waited_for_longer_than_the_deadline() {
    let limits = Limits { ask: Duration::from_secs(1), ..Limits::default() };
    let stack =
        Stack::with(Options { permission: json!({ "bash": "ask" }), limits, ..Options::default() }).await;
    let session = stack.session().await.id;
    let (turn, log) = stack.prompt(session, &format!("@stub {} >> say:never", bash("touch ran"))).await;
    assert_eq!(resolutions(&log, turn.id), [(Resolution::Rejected, ResolvedBy::Deadline)]);
    let reason = log.outcome(turn.id).error.as_ref().map(|error| error.reason);
    assert_eq!(reason, Some(TurnErrorReason::PermissionRejected));
    let question = json!({ "questions": [{ "question": "A?", "header": "A", "options": [{ "label": "x", "description": "" }] }] });
    let (turn, log) = stack.prompt(session, &format!("@stub tool:question:{question} >> say:never")).await;
    let settled = log.of(turn.id).any(|event| match &event.payload {
        EventPayload::QuestionResolved(end) => {
            (end.resolution, end.by) == (Resolution::Rejected, ResolvedBy::Deadline)
        }
        _ => false,
    });
    assert!(settled, "{:?}", log.kinds(turn.id));
    let (next, log) = stack.prompt(session, "@stub say:clean").await;
    assert_eq!(log.text(next.id, Voice::Message), "clean");
    assert!(!stack.work.join("ran").exists());
    stack.stop().await;
}
