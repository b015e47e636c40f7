//! The runner between a real store and a fake door, which plays what a real opencode does only in unlucky moments.

use std::time::Duration;

use berth_opencode::{GlobalEvent, SessionTranslator, StreamItem, WatchdogLimits};
use berth_wire::{
    admission::{FenceState, GateState},
    api::{PermissionDecision, SandboxPhase},
    door::DoorState,
    event::{EventPayload, Resolution, ResolvedBy},
    problem::ProblemType,
    turn::{TurnErrorReason, TurnState},
};
use serde_json::{Value, json};
use sqlx::{Connection, SqliteConnection, sqlite::SqliteConnectOptions};
use uuid::Uuid;

use self::rig::{Rig, limits, sandbox, traceparent, within};
use super::{
    link::LinkEvent,
    owner::{Owner, OwnerError},
    unless_panicked,
};
use crate::{
    config::Limits,
    store::{Cancel, Change, Commit, Removed, SessionCommit},
};

mod defect;
mod door;
mod fence;
mod lease;
mod moves;
mod rig;

#[tokio::test]
async fn an_abort_that_a_restart_cut_off_is_sent_again() {
    let mut rig = Rig::started(limits()).await;
    let session = rig.session().await;
    let (turn, run) = rig.begin(session, 1).await;
    rig.door.hold("POST /abort");
    rig.store.request_cancel(session, Cancel::Oldest).await.unwrap();
    rig.door.wait_for("POST /abort", 1).await;
    run.title("Stored with the state of the abort");
    rig.wait_for_kind(session, "session_info_update").await;
    rig.stop().await;
    rig.start();
    rig.door.wait_for("POST /abort", 2).await;
    run.aborted();
    assert_eq!(rig.end_of(session, turn).await.state, TurnState::Cancelled);
    rig.stop().await;
}

#[tokio::test]
async fn calls_for_a_prompt_carry_its_trace() {
    let mut rig = Rig::started(limits()).await;
    let session = rig.session().await;
    let mut turns = Vec::new();
    for count in 1..=2 {
        let (turn, run) = rig.begin(session, count).await;
        run.complete();
        run.idle();
        rig.end_of(session, turn).await;
        turns.push(turn);
    }
    let made = rig.door.seen("POST /session").remove(0);
    assert_eq!(made.traceparent, Some(traceparent(turns[0])));
    for (turn, seen) in turns.into_iter().zip(rig.door.seen("POST /prompt_async")) {
        assert_eq!(seen.traceparent, Some(traceparent(turn)));
    }
    rig.stop().await;
}

#[tokio::test]
async fn a_title_that_comes_after_the_turns_end_is_kept() {
    let mut rig = Rig::started(limits()).await;
    let session = rig.session().await;
    let (turn, run) = rig.begin(session, 1).await;
    run.complete();
    run.idle();
    rig.end_of(session, turn).await;
    run.title("Late");
    rig.wait_for_kind(session, "session_info_update").await;
    assert_eq!(rig.store.session(session).await.unwrap().unwrap().title.as_deref(), Some("Late"));
    rig.stop().await;
}

/// The session is idle, and not in the owner's mind: another one keeps the owner.
#[tokio::test]
async fn a_message_that_is_removed_from_an_idle_session_is_told() {
    let mut rig = Rig::started(limits()).await;
    let (idle, other) = (rig.session().await, rig.session().await);
    let (turn, run) = rig.begin(idle, 1).await;
    run.complete();
    run.idle();
    rig.end_of(idle, turn).await;
    rig.stop().await;
    rig.start();
    rig.begin(other, 2).await;
    rig.door.emit(&json!({
        "type": "message.removed", "properties": { "sessionID": run.root, "messageID": run.user },
    }));
    rig.wait_for_kind(idle, "message_removed").await;
    assert_eq!(rig.store.turn_row(turn).await.unwrap().unwrap().removed, Removed::Wholly);
    rig.stop().await;
}

#[tokio::test]
async fn after_a_failed_turn_the_next_prompt_waits_until_opencode_is_idle() {
    let mut rig = Rig::started(limits()).await;
    let session = rig.session().await;
    let (turn, run) = rig.begin(session, 1).await;
    run.failed();
    assert_eq!(rig.end_of(session, turn).await.state, TurnState::Failed);
    rig.door.set_status(json!({ &run.root: { "type": "busy" } }));
    let looks = rig.door.seen("GET /session/status").len();
    rig.post(session, "next").await;
    rig.door.wait_for("GET /session/status", looks + 2).await;
    assert_eq!(rig.door.seen("POST /prompt_async").len(), 1, "opencode still works");
    rig.door.set_status(json!({}));
    rig.door.wait_for("POST /prompt_async", 2).await;
    rig.stop().await;
}

#[tokio::test]
async fn a_session_deleted_while_it_is_made_sure_of_runs_nothing_and_leaves_nothing() {
    let mut rig = Rig::started(limits()).await;
    let session = rig.session().await;
    let held = rig.door.hold("POST /session");
    rig.post(session, "go").await;
    rig.door.wait_for("POST /session", 1).await;
    rig.store.request_delete(session).await.unwrap();
    held.cancel();
    rig.door.wait_for("DELETE /ses_1", 1).await;
    assert!(rig.door.seen("POST /prompt_async").is_empty());
    within("the rows to be removed", async {
        while !rig.store.load_work(&sandbox()).await.unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    rig.stop().await;
}

/// The call that makes opencode's session takes longer than the owner waits, and ends after the owner looked again.
#[tokio::test]
async fn a_session_that_opencode_makes_slowly_is_made_once() {
    let mut rig = Rig::started(Limits { call: Duration::from_secs(1), ..limits() }).await;
    let session = rig.session().await;
    let held = rig.door.hold("POST /session");
    rig.post(session, "go").await;
    rig.door.wait_for("POST /session", 1).await;
    rig.door.wait_for("GET /session", 2).await;
    // Where it is not refused, the second look finds nothing, and a session is made.
    rig.door.wait_for("GET /session", 3).await;
    held.cancel();
    let run = rig.begun(1).await;
    assert_eq!((run.root.as_str(), rig.door.seen("POST /session").len()), ("ses_1", 1));
    rig.stop().await;
}

/// Its making was given up, and so was the turn, before anybody heard of it.
#[tokio::test]
async fn a_session_of_opencode_that_nobody_heard_of_is_deleted_with_ours() {
    let short = Duration::from_secs(1);
    let mut rig = Rig::started(Limits { call: short, unreachable: short, ..limits() }).await;
    let session = rig.session().await;
    let held = rig.door.hold("POST /session");
    let turn = rig.post(session, "go").await;
    rig.door.wait_for("POST /session", 1).await;
    assert_eq!(rig.end_of(session, turn).await.state, TurnState::Failed);
    rig.store.request_delete(session).await.unwrap();
    let looks = rig.door.seen("GET /session").len();
    rig.door.wait_for("GET /session", looks + 1).await;
    held.cancel();
    rig.door.wait_for("DELETE /ses_1", 1).await;
    rig.stop().await;
}

#[tokio::test]
async fn a_session_of_opencode_is_known_although_its_first_prompt_was_cancelled() {
    let mut rig = Rig::started(limits()).await;
    let session = rig.session().await;
    let held = rig.door.hold("POST /session");
    let turn = rig.post(session, "go").await;
    rig.door.wait_for("POST /session", 1).await;
    rig.store.request_cancel(session, Cancel::Oldest).await.unwrap();
    held.cancel();
    assert_eq!(rig.end_of(session, turn).await.state, TurnState::Cancelled);
    rig.store.request_delete(session).await.unwrap();
    rig.door.wait_for("DELETE /ses_1", 1).await;
    assert!(rig.door.seen("POST /prompt_async").is_empty());
    rig.stop().await;
}

#[tokio::test]
async fn a_session_that_was_made_before_a_crash_is_found_by_our_id() {
    let mut rig = Rig::new(limits()).await;
    let session = rig.session().await;
    rig.door.know_session("ses_7", session);
    rig.start();
    let (turn, run) = rig.begin(session, 1).await;
    assert_eq!(run.root, "ses_7");
    run.complete();
    run.idle();
    assert_eq!(rig.end_of(session, turn).await.state, TurnState::Succeeded);
    assert!(rig.door.seen("POST /session").is_empty(), "none is made");
    rig.stop().await;
}

/// While a restore puts another history under opencode the gate is closed: reads pass, and may find nothing.
#[tokio::test]
async fn a_session_that_is_missing_while_the_gate_is_closed_is_not_made_anew() {
    let mut rig = Rig::started(limits()).await;
    let session = rig.session().await;
    let (turn, run) = rig.begin(session, 1).await;
    run.failed();
    rig.end_of(session, turn).await;
    let gone = json!({ "name": "NotFoundError", "data": { "message": "Session not found: ses_1" } });
    rig.door.refuse("GET /session/ses_1", 404, gone);
    rig.door.refuse("GET /session", 200, json!([]));
    rig.door.refuse_as("POST /session", ProblemType::Gated);
    let (next, run) = rig.begin(session, 2).await;
    assert_eq!(run.root, "ses_1");
    run.complete();
    run.idle();
    assert_eq!(rig.end_of(session, next).await.state, TurnState::Succeeded);
    assert_eq!(rig.door.seen("POST /session").len(), 2, "the first one, and the one that the gate kept out");
    let kinds: Vec<String> = rig.log(session).await.iter().map(|event| event.payload.to_parts().0).collect();
    assert!(!kinds.contains(&"session_reset".to_owned()), "{kinds:?}");
    rig.stop().await;
}

#[tokio::test]
async fn a_session_that_opencode_lost_is_made_anew_once_and_the_log_says_so() {
    let mut rig = Rig::started(limits()).await;
    let session = rig.session().await;
    let (turn, run) = rig.begin(session, 1).await;
    run.failed();
    rig.end_of(session, turn).await;
    rig.door.forget_sessions();
    rig.post(session, "next").await;
    let run = rig.begun(2).await;
    run.complete();
    run.idle();
    rig.wait_for_kind(session, "session_reset").await;
    rig.post(session, "after").await;
    assert_eq!(rig.begun(3).await.root, run.root);
    assert_eq!(rig.door.seen("POST /session").len(), 2);
    rig.stop().await;
}

#[tokio::test]
async fn a_turn_ends_although_opencode_goes_on_after_the_abort() {
    let mut rig = Rig::started(Limits { stop: Duration::from_millis(300), ..limits() }).await;
    let session = rig.session().await;
    let (turn, run) = rig.begin(session, 1).await;
    rig.door.set_status(json!({ &run.root: { "type": "busy" } }));
    rig.store.request_cancel(session, Cancel::Oldest).await.unwrap();
    rig.door.wait_for("POST /abort", 1).await;
    let outcome = rig.end_of(session, turn).await;
    assert_eq!(outcome.error.unwrap().reason, TurnErrorReason::OpencodeError);
    rig.stop().await;
}

/// What an owner stored of a turn's wall clock counts for the next one.
#[tokio::test]
async fn the_wall_clock_of_a_turn_goes_on_across_a_restart() {
    let mut rig = Rig::started(limits()).await;
    let session = rig.session().await;
    let (turn, run) = rig.begin(session, 1).await;
    rig.wait_for_kind(session, "turn_started").await;
    rig.stop().await;
    let taken = rig.lease().await.1;
    let change = Change::TurnActive { turn_id: turn, active: rig.limits.watchdog.turn };
    let sessions =
        vec![SessionCommit { session_id: session, translator: None, events: vec![], changes: vec![change] }];
    let commit = Commit {
        sandbox: sandbox(),
        fence: taken.fence,
        lease: Duration::from_secs(1),
        cursor: taken.cursor,
        boot_id: taken.boot_id,
        sessions,
    };
    rig.store.commit(commit).await.unwrap();
    rig.store.release(&sandbox(), taken.fence).await.unwrap();
    rig.start();
    rig.door.wait_for("POST /abort", 1).await;
    run.aborted();
    let outcome = rig.end_of(session, turn).await;
    assert_eq!(outcome.error.unwrap().reason, TurnErrorReason::DeadlineExceeded);
    rig.stop().await;
}

#[tokio::test]
async fn a_turn_past_its_deadline_ends_although_the_abort_is_refused() {
    let short = Duration::from_millis(300);
    let watchdog = WatchdogLimits { turn: short, ..limits().watchdog };
    let mut rig = Rig::started(Limits { watchdog, stop: short, ..limits() }).await;
    let session = rig.session().await;
    for _ in 0..100 {
        rig.door.refuse("POST /abort", 500, json!({ "name": "UnknownError" }));
    }
    let (turn, _run) = rig.begin(session, 1).await;
    let outcome = rig.end_of(session, turn).await;
    assert_eq!(outcome.error.unwrap().reason, TurnErrorReason::DeadlineExceeded);
    rig.stop().await;
}

#[tokio::test]
async fn an_abort_on_its_way_holds_back_the_next_turn() {
    let mut rig = Rig::started(limits()).await;
    let (session, other) = (rig.session().await, rig.session().await);
    let (turn, _run) = rig.begin(session, 1).await;
    rig.post(session, "next").await;
    let held = rig.door.hold("POST /abort");
    rig.store.request_cancel(session, Cancel::Oldest).await.unwrap();
    rig.door.wait_for("POST /abort", 1).await;
    rig.door.reboot("boot-2", true);
    assert_eq!(rig.end_of(session, turn).await.state, TurnState::Failed);
    // Two turns elsewhere, the first of which fails: by the time of the second, the other session's could have begun.
    let (_, elsewhere) = rig.begin(other, 2).await;
    elsewhere.failed();
    rig.post(other, "elsewhere").await;
    let elsewhere = rig.handed(3).await;
    assert_eq!(elsewhere.root, "ses_2");
    held.cancel();
    rig.door.wait_for("POST /prompt_async", 4).await;
    assert_eq!(rig.door.seen("POST /abort").len(), 1, "nothing aborts the next turn");
    rig.stop().await;
}

#[tokio::test]
async fn an_answer_that_opencode_refuses_is_not_sent_over_and_over() {
    let mut rig = Rig::started(Limits { ask: Duration::from_secs(2), ..limits() }).await;
    let session = rig.session().await;
    for _ in 0..100 {
        rig.door.refuse("POST /per_1/reply", 400, json!({ "name": "BadRequest" }));
    }
    let (_, run) = rig.begin(session, 1).await;
    run.ask("per_1");
    rig.wait_for_kind(session, "permission_requested").await;
    rig.decide(session, "per_1", PermissionDecision::Once).await;
    let second = rig.door.wait_for("POST /per_1/reply", 2).await;
    assert_eq!(second.body["reply"], "reject", "the deadline's default is the next try");
    rig.stop().await;
}

fn resolution_of(payload: &EventPayload, id: &str) -> Option<(Resolution, ResolvedBy)> {
    match payload {
        EventPayload::PermissionResolved(end) if end.permission_id == id => Some((end.resolution, end.by)),
        _ => None,
    }
}

#[tokio::test]
async fn an_ask_that_was_rejected_with_another_one_is_not_told_as_granted() {
    let mut rig = Rig::started(limits()).await;
    let session = rig.session().await;
    let (_, run) = rig.begin(session, 1).await;
    run.ask("per_1");
    rig.wait_for_kind(session, "permission_requested").await;
    let held = rig
        .door
        .hold_and_answer("POST /per_1/reply", Some((404, json!({ "_tag": "PermissionNotFoundError" }))));
    rig.decide(session, "per_1", PermissionDecision::Once).await;
    rig.door.wait_for("POST /per_1/reply", 1).await;
    run.replied("per_1", "reject");
    held.cancel();
    let end = rig.wait_for(session, "its end", |event| resolution_of(&event.payload, "per_1")).await;
    assert_eq!(end, (Resolution::Rejected, ResolvedBy::Opencode));
    rig.stop().await;
}

#[tokio::test]
async fn an_answer_that_was_on_its_way_at_a_restart_is_sent_again() {
    let mut rig = Rig::started(limits()).await;
    let session = rig.session().await;
    let (_, run) = rig.begin(session, 1).await;
    run.ask("per_1");
    rig.wait_for_kind(session, "permission_requested").await;
    rig.door.hold("POST /per_1/reply");
    rig.decide(session, "per_1", PermissionDecision::Once).await;
    rig.door.wait_for("POST /per_1/reply", 1).await;
    rig.stop().await;
    rig.start();
    rig.door.wait_for("POST /per_1/reply", 2).await;
    run.replied("per_1", "once");
    let end = rig.wait_for(session, "its end", |event| resolution_of(&event.payload, "per_1")).await;
    assert_eq!(end, (Resolution::Once, ResolvedBy::User));
    rig.stop().await;
}

#[tokio::test]
async fn a_cancelled_prompt_that_may_have_been_taken_is_aborted_when_it_begins() {
    let mut rig = Rig::started(limits()).await;
    let session = rig.session().await;
    let held = rig.door.hold_and_answer("POST /prompt_async", Some((503, Value::Null)));
    let turn = rig.post(session, "go").await;
    let run = rig.handed(1).await;
    rig.store.request_cancel(session, Cancel::Oldest).await.unwrap();
    held.cancel();
    rig.door.wait_for("GET /message", 2).await;
    assert_eq!(rig.turn(turn).await.state, TurnState::Running, "opencode may have the prompt");
    assert_eq!(rig.door.seen("POST /prompt_async").len(), 1, "what is not wanted is not sent again");
    run.begin();
    rig.door.wait_for("POST /abort", 1).await;
    run.aborted();
    assert_eq!(rig.end_of(session, turn).await.state, TurnState::Cancelled);
    rig.stop().await;
}

#[tokio::test]
async fn a_run_of_opencode_that_ended_unseen_ends_its_turns() {
    let mut rig = Rig::started(limits()).await;
    let session = rig.session().await;
    let (turn, _run) = rig.begin(session, 1).await;
    rig.door.reboot("boot-2", false);
    let outcome = rig.end_of(session, turn).await;
    assert_eq!(outcome.error.unwrap().reason, TurnErrorReason::OpencodeExited);
    rig.stop().await;
}

/// A session whose turn another server had started, with this state of the translation.
async fn started_elsewhere(rig: &Rig, translator: &str) -> (Uuid, Uuid) {
    let session_id = rig.session().await;
    let turn_id = rig.post(session_id, "go").await;
    let (lease, _) = rig.lease().await;
    let (fence, lease) = (lease.fence(), lease.lasts());
    let changes = vec![
        Change::OpencodeSession { id: "ses_1".to_owned() },
        Change::TurnStarted { turn_id, message_id: "msg_1".to_owned() },
    ];
    let translator = Some(translator.to_owned());
    let sessions = vec![SessionCommit { session_id, translator, events: vec![], changes }];
    let cursor = Some("e-0".to_owned());
    let commit =
        Commit { sandbox: sandbox(), fence, lease, cursor, boot_id: Some("boot-1".to_owned()), sessions };
    rig.store.commit(commit).await.unwrap();
    (session_id, turn_id)
}

fn begun() -> SessionTranslator {
    let mut translator = SessionTranslator::new("ses_1");
    translator.begin_turn("msg_1");
    translator
}

#[tokio::test]
async fn a_prompt_whose_sandbox_is_away_after_a_restart_fails() {
    let mut rig = Rig::new(Limits { unreachable: Duration::from_secs(1), ..limits() }).await;
    let (session, turn) = started_elsewhere(&rig, &serde_json::to_string(&begun()).unwrap()).await;
    rig.address.door_url = "http://127.0.0.1:1".to_owned();
    rig.start();
    let outcome = rig.end_of(session, turn).await;
    assert_eq!(outcome.error.unwrap().reason, TurnErrorReason::SandboxUnavailable);
    rig.stop().await;
}

#[tokio::test]
async fn a_turn_whose_state_is_not_understood_ends() {
    let mut rig = Rig::new(limits()).await;
    let (session, turn) = started_elsewhere(&rig, "{\"from\":\"elsewhere\"}").await;
    rig.start();
    let outcome = rig.end_of(session, turn).await;
    assert_eq!(outcome.error.unwrap().reason, TurnErrorReason::StateUnreadable);
    rig.stop().await;
}

#[tokio::test]
async fn the_turns_of_a_damaged_session_end_and_no_other_waits_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut rig = Rig::on(folder.path(), limits()).await;
    let (spoilt, whole) = (rig.session().await, rig.session().await);
    let lost = [rig.post(spoilt, "lost").await, rig.post(spoilt, "lost too").await];
    let other = rig.post(whole, "go").await;
    let options = SqliteConnectOptions::new().filename(folder.path().join("berth.db"));
    let mut rows = SqliteConnection::connect_with(&options).await.unwrap();
    let spoil = "UPDATE build_session SET directory = CAST(x'ff' AS TEXT) WHERE id = ?";
    sqlx::query(spoil).bind(spoilt).execute(&mut rows).await.unwrap();
    rows.close().await.unwrap();
    rig.start();
    for lost in lost {
        let error = rig.end_of(spoilt, lost).await.error.unwrap();
        assert_eq!(error.reason, TurnErrorReason::StateUnreadable);
        assert!(error.message.contains("a new session"), "{}", error.message);
    }
    let run = rig.begun(1).await;
    run.complete();
    run.idle();
    assert_eq!(rig.end_of(whole, other).await.state, TurnState::Succeeded);
    assert!(rig.store.request_delete(spoilt).await.unwrap());
    within("its deletion", async {
        while rig.store.load_work(&sandbox()).await.unwrap().iter().any(|work| work.id == spoilt) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    rig.stop().await;
}

#[tokio::test]
async fn a_turn_whose_row_is_not_understood_ends_and_no_other_waits_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut rig = Rig::on(folder.path(), limits()).await;
    let (spoilt, whole) = (rig.session().await, rig.session().await);
    let (lost, next) = (rig.post(spoilt, "lost").await, rig.post(spoilt, "next").await);
    let other = rig.post(whole, "go").await;
    let options = SqliteConnectOptions::new().filename(folder.path().join("berth.db"));
    let mut rows = SqliteConnection::connect_with(&options).await.unwrap();
    sqlx::query("UPDATE turn SET prompt = '{' WHERE id = ?").bind(lost).execute(&mut rows).await.unwrap();
    rows.close().await.unwrap();
    rig.start();
    let error = rig.end_of(spoilt, lost).await.error.unwrap();
    assert_eq!(error.reason, TurnErrorReason::StateUnreadable);
    for count in 1..=2 {
        let run = rig.begun(count).await;
        run.complete();
        run.idle();
    }
    for (session, turn) in [(spoilt, next), (whole, other)] {
        assert_eq!(rig.end_of(session, turn).await.state, TurnState::Succeeded);
    }
    rig.stop().await;
}

#[tokio::test]
async fn a_gap_that_was_open_at_a_restart_is_closed() {
    let mut rig = Rig::new(limits()).await;
    let mut translator = begun();
    let open = message("msg_2", "assistant", &json!({ "created": 2 }));
    translator.apply(&GlobalEvent::from_value(open).unwrap());
    translator.mark_gap();
    let (session, turn) = started_elsewhere(&rig, &serde_json::to_string(&translator).unwrap()).await;
    let mut done = message("msg_2", "assistant", &json!({ "created": 2, "completed": 3 }));
    done["properties"]["info"]["finish"] = json!("stop");
    rig.door.set_messages(vec![json!({ "info": done["properties"]["info"] })]);
    rig.start();
    assert_eq!(rig.end_of(session, turn).await.state, TurnState::Succeeded, "what was missed is read");
    rig.stop().await;
}

#[tokio::test]
async fn a_server_that_is_told_to_stop_does_not_wait_for_state_that_is_being_read() {
    let mut rig = Rig::started(limits()).await;
    let session = rig.session().await;
    rig.begin(session, 1).await;
    rig.wait_for_kind(session, "turn_started").await;
    let held = rig.door.hold("GET /message");
    let looks = rig.door.seen("GET /message").len();
    rig.door
        .emit(&json!({ "type": "berth.resync", "properties": { "reason": "upstream_gap", "oldest": null } }));
    rig.door.wait_for("GET /message", looks + 1).await;
    let since = std::time::Instant::now();
    rig.stop().await;
    assert!(since.elapsed() < Duration::from_secs(8), "the read's own bound is 10 s: {:?}", since.elapsed());
    drop(held);
}

#[tokio::test]
async fn a_panic_ends_the_owner_and_not_its_runner() {
    let panics = async { panic!("a defect") };
    assert!(matches!(unless_panicked::<()>(panics).await, Err(OwnerError::Panicked)));
}

/// Lets an owner that does not run by itself finish its calls.
async fn finish_calls(owner: &mut Owner) {
    while let Some(done) = owner.calls.join_next().await {
        owner.finish_call(done.unwrap()).await.unwrap();
    }
}

fn item(seq: u64, payload: &Value) -> LinkEvent {
    let cursor = Some(format!("e-{seq}").parse().unwrap());
    let event = GlobalEvent::from_value(json!({ "payload": payload })).unwrap();
    LinkEvent::Item(Box::new(StreamItem { cursor, event }))
}

fn message(id: &str, role: &str, time: &Value) -> Value {
    let mut info = json!({ "id": id, "sessionID": "ses_1", "role": role, "time": time });
    if role == "assistant" {
        info["parentID"] = json!("msg_1");
    }
    json!({ "type": "message.updated", "properties": { "sessionID": "ses_1", "info": info } })
}

#[tokio::test]
async fn the_cursor_never_moves_without_the_state_of_every_session() {
    let rig = Rig::new(limits()).await;
    let (first, _) = started_elsewhere(&rig, &serde_json::to_string(&begun()).unwrap()).await;
    let second = rig.session().await;
    let mut owner = rig.owner().await;
    owner.read_wishes().await.unwrap();
    let state = DoorState {
        phase: SandboxPhase::Ready,
        boot: 1,
        boot_id: "boot-1".to_owned(),
        pid: None,
        version: None,
        epoch: "e".to_owned(),
        seq: 0,
        fence: FenceState::default(),
        gate: GateState::default(),
        last_exit: None,
    };
    owner.take_event(LinkEvent::Opened(Box::new(state))).await.unwrap();
    owner.take_event(LinkEvent::Connected).await.unwrap();
    finish_calls(&mut owner).await;
    owner.take_event(item(1, &message("msg_1", "user", &json!({ "created": 1 })))).await.unwrap();
    let step = message("msg_2", "assistant", &json!({ "created": 2, "completed": 3 }));
    owner.take_event(item(2, &step)).await.unwrap();
    rig.post(second, "elsewhere").await;
    owner.read_wishes().await.unwrap();
    finish_calls(&mut owner).await;
    assert_eq!(rig.door.seen("POST /prompt_async").len(), 2);

    let stored = rig.owner().await;
    assert_eq!(stored.cursor.as_ref().unwrap().seq, 2);
    let work = rig.store.load_work(&sandbox()).await.unwrap();
    let work = work.iter().find(|work| work.id == first).unwrap();
    let stored: SessionTranslator = serde_json::from_str(work.translator.as_deref().unwrap()).unwrap();
    assert_eq!(Some(&stored), owner.sessions[&first].translator());
}
