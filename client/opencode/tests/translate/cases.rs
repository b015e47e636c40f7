//! Hard cases that were seen in the field, on streams made by hand: subagents, modes, usage, removals, disposals.

use std::collections::BTreeMap;

use berth_opencode::{
    Awaits, DueRetry, Event, GlobalEvent, ModelReference, SessionTranslator, Snapshot, Translation,
    model::{PermissionRequest, SessionInfo, SessionStatus},
};
use berth_wire::{
    event::{EventPayload, MessageRemoved, PermissionRequested, ProviderRetry, Resolution, SUBSESSION_META},
    turn::{TurnErrorReason, TurnState},
};
use serde_json::{Value, json};

use crate::made::{
    ROOT, apply, asked, assistant, assistant_json, delta, event, failed, finished, finished_json, idle,
    messages, outcome, resolutions, said, started, status, text, tool, user,
};

fn session_info(id: &str, parent: Option<&str>, created: i64) -> SessionInfo {
    let info = json!({ "id": id, "parentID": parent, "title": "t", "directory": "/w", "time": { "created": created } });
    serde_json::from_value(info).unwrap()
}

fn created(info: &SessionInfo) -> GlobalEvent {
    event("session.created", &json!({ "info": info }))
}

/// A turn with a subagent that works for the task call of part `prt_task`.
fn with_subagent() -> SessionTranslator {
    let mut translator = started();
    let task = json!({ "status": "running", "input": { "description": "x" }, "metadata": { "sessionId": "ses_child" } });
    let part = json!({
        "id": "prt_task", "messageID": "msg_a1", "sessionID": ROOT, "type": "tool", "tool": "task", "callID": "call_t",
        "state": task,
    });
    let events = [
        created(&session_info("ses_child", Some(ROOT), 102)),
        event("message.part.updated", &json!({ "part": part })),
    ];
    let out = apply(&mut translator, &events);
    let Some(Translation::Update(payload)) = out.first() else { panic!("the task call in {out:?}") };
    assert_eq!(payload.to_parts().1["_meta"][SUBSESSION_META], "ses_child");
    translator
}

fn retry(session: &str, attempt: u64, next: i64) -> GlobalEvent {
    let status = json!({ "type": "retry", "attempt": attempt, "message": "stub says 429", "next": next });
    event("session.status", &json!({ "sessionID": session, "status": status }))
}

fn retries(out: &[Translation]) -> Vec<&ProviderRetry> {
    out.iter()
        .filter_map(|item| match item {
            Translation::Update(EventPayload::ProviderRetry(retry)) => Some(retry),
            _ => None,
        })
        .collect()
}

fn requests(out: &[Translation]) -> Vec<&PermissionRequested> {
    out.iter()
        .filter_map(|item| match item {
            Translation::Update(EventPayload::PermissionRequested(request)) => Some(request),
            _ => None,
        })
        .collect()
}

fn permission(id: &str, session: &str, message: &str) -> PermissionRequest {
    let Event::PermissionAsked(request) = asked(id, session, message).event else { panic!("a request") };
    request
}

const A_DAY_LATER: i64 = 1_796_121_056_836;

#[test]
fn ct_2_a_retry_in_a_day_is_told_and_observed() {
    let mut translator = started();
    let out = apply(&mut translator, &[retry(ROOT, 1, A_DAY_LATER)]);
    let told = retries(&out);
    assert_eq!((told[0].attempt, told[0].message.as_str()), (1, "stub says 429"));
    assert_eq!(told[0].next_at.map(jiff::Timestamp::as_millisecond), Some(A_DAY_LATER));
    assert_eq!(told[0].tool_call_id, None);
    let due = DueRetry { message: "stub says 429".to_owned(), at_ms: A_DAY_LATER };
    assert_eq!(translator.observe().unwrap().retry, Some(due));
    apply(&mut translator, &[status("busy")]);
    assert_eq!(translator.observe().unwrap().retry, None, "it was tried");
}

#[test]
fn ct_2_a_subagents_retry_is_told_under_its_task_call() {
    let mut translator = with_subagent();
    let out =
        apply(&mut translator, &[retry("ses_child", 1, A_DAY_LATER), retry("ses_child", 1, A_DAY_LATER)]);
    let told = retries(&out);
    assert_eq!(told.len(), 1, "once");
    assert_eq!(told[0].tool_call_id.as_deref(), Some("prt_task"));
    assert_eq!(translator.observe().unwrap().retry.map(|retry| retry.at_ms), Some(A_DAY_LATER));
    assert!(apply(&mut translator, &[retry("ses_stranger", 1, 5)]).is_empty());
    apply(&mut translator, &[event("session.idle", &json!({ "sessionID": "ses_child" }))]);
    assert_eq!(translator.observe().unwrap().retry, None);
}

#[test]
fn ct_2_a_subagents_retry_that_began_in_a_gap_is_told() {
    let mut translator = started();
    translator.mark_gap();
    let next = SessionStatus::Retry { attempt: 2, message: "stub says 429".to_owned(), next: A_DAY_LATER };
    let out = translator.reconcile(&Snapshot {
        messages: messages(&[(assistant_json("msg_a1", "msg_u1", 101), Vec::new())]),
        status: Some(SessionStatus::Busy),
        sessions: vec![session_info("ses_child", Some(ROOT), 103)],
        statuses: BTreeMap::from([("ses_child".to_owned(), next)]),
        ..Snapshot::default()
    });
    assert_eq!(retries(&out).len(), 1, "{out:?}");
}

#[test]
fn ct_3_a_grandchild_that_was_made_and_asked_in_a_gap_is_asked_for_once() {
    let mut translator = with_subagent();
    translator.mark_gap();
    let snapshot = Snapshot {
        messages: messages(&[(assistant_json("msg_a1", "msg_u1", 101), Vec::new())]),
        status: Some(SessionStatus::Busy),
        sessions: vec![
            session_info("ses_child", Some(ROOT), 102),
            session_info("ses_grandchild", Some("ses_child"), 103),
            session_info("ses_stranger", Some("ses_other"), 103),
        ],
        permissions: vec![
            permission("per_1", "ses_grandchild", "msg_g"),
            permission("per_2", "ses_stranger", "msg_s"),
        ],
        ..Snapshot::default()
    };
    let mut out = translator.reconcile(&snapshot);
    out.extend(translator.reconcile(&snapshot));
    // The event itself comes late, or again from a journal.
    out.extend(apply(&mut translator, &[asked("per_1", "ses_grandchild", "msg_g")]));
    let asked: Vec<_> = requests(&out).iter().map(|request| request.permission_id.as_str()).collect();
    assert_eq!(asked, ["per_1"]);
    assert_eq!(requests(&out)[0].tool_call_id.as_deref(), Some("prt_task"));
    assert_eq!(translator.observe().unwrap().awaits, Awaits::Person);
    // Answered, or settled with the turn: either way once.
    let replied = json!({ "sessionID": "ses_grandchild", "requestID": "per_1", "reply": "once" });
    assert_eq!(
        resolutions(&apply(&mut translator, &[event("permission.replied", &replied)])),
        [Resolution::Once]
    );
    assert_ne!(translator.observe().unwrap().awaits, Awaits::Person);
}

#[test]
fn ct_3_what_subagents_of_an_earlier_turn_left_listed_is_not_asked_again() {
    let mut translator = started();
    let out = translator.reconcile(&Snapshot {
        messages: messages(&[(assistant_json("msg_a1", "msg_u1", 101), Vec::new())]),
        status: Some(SessionStatus::Busy),
        sessions: vec![session_info("ses_old", Some(ROOT), 99)],
        permissions: vec![permission("per_1", "ses_old", "msg_o")],
        ..Snapshot::default()
    });
    assert!(requests(&out).is_empty(), "{out:?}");
}

#[test]
fn ct_4_a_doom_loop_is_asked_without_a_call_and_settled_with_the_turn() {
    let doom = |id: &str| {
        json!({ "id": id, "sessionID": ROOT, "permission": "doom_loop", "patterns": ["bash"], "always": ["bash"],
            "metadata": { "tool": "bash", "input": { "command": "echo same" } } })
    };
    let mut translator = SessionTranslator::new(ROOT);
    translator.begin_turn("msg_u1");
    // In the time of real ids: the prompt at 1796034639444 ms, the request 10 ms after it.
    let prompt = 1_796_034_639_444;
    apply(&mut translator, &[user("msg_u1", prompt), status("busy"), assistant("msg_a1", "msg_u1", prompt)]);
    let out = apply(&mut translator, &[event("permission.asked", &doom("per_22c01cb43001QkI6m0EvDAGSQB"))]);
    let asked = requests(&out);
    assert_eq!((asked[0].permission.as_str(), asked[0].title.as_str()), ("doom_loop", "doom_loop: bash"));
    assert_eq!(asked[0].tool_call_id, None);
    let out = apply(&mut translator, &[failed("msg_a1", "msg_u1", prompt, "MessageAbortedError"), idle()]);
    assert_eq!(resolutions(&out), [Resolution::Dropped]);

    // opencode lists it for ever. It names no message, so its age tells that it is none of a later turn's: also for a
    // translator that has never seen it.
    let mut later = SessionTranslator::new(ROOT);
    later.begin_turn("msg_u2");
    let listed = Snapshot {
        messages: messages(&[(
            json!({ "id": "msg_u2", "sessionID": ROOT, "role": "user", "time": { "created": prompt + 60_000 } }),
            Vec::new(),
        )]),
        status: Some(SessionStatus::Busy),
        permissions: vec![serde_json::from_value(doom("per_22c01cb43001QkI6m0EvDAGSQB")).unwrap()],
        ..Snapshot::default()
    };
    assert!(requests(&later.reconcile(&listed)).is_empty());
}

#[test]
fn an_agent_is_told_when_it_changes() {
    let by = |id: &str, agent: &str| {
        let mut info = assistant_json(id, "msg_u1", 101);
        info["agent"] = json!(agent);
        event("message.updated", &json!({ "info": info }))
    };
    let mut summary = assistant_json("msg_a4", "msg_u1", 101);
    (summary["agent"], summary["summary"]) = (json!("compaction"), json!(true));
    let mut translator = started();
    let out = apply(
        &mut translator,
        &[
            by("msg_a2", "plan"),
            by("msg_a3", "plan"),
            event("message.updated", &json!({ "info": summary })),
            by("msg_a5", "build"),
            by("msg_a2", "plan"),
        ],
    );
    let modes: Vec<Value> = out
        .iter()
        .filter_map(|item| match item {
            Translation::Update(payload) => Some(payload.to_parts().1["currentModeId"].clone()),
            _ => None,
        })
        .collect();
    assert_eq!(modes, ["plan", "build"]);
}

#[test]
fn usage_is_told_after_each_step_once_the_models_size_is_known() {
    let model = ModelReference { provider_id: "p".to_owned(), model_id: "m".to_owned() };
    let step = |id: &str, created: i64| {
        let mut info = finished_json(id, "msg_u1", created, "tool-calls");
        (info["providerID"], info["modelID"]) = (json!("p"), json!("m"));
        event("message.updated", &json!({ "info": info }))
    };
    let usage = |out: &[Translation]| -> Vec<(u64, u64, f64)> {
        let updates = out.iter().filter_map(|item| match item {
            Translation::Update(payload) => Some(payload.to_parts()),
            _ => None,
        });
        updates
            .filter(|(kind, _)| kind == "usage_update")
            .map(|(_, value)| {
                let number = |key: &str| value[key].as_u64().unwrap();
                (number("used"), number("size"), value["cost"]["amount"].as_f64().unwrap())
            })
            .collect()
    };
    let mut translator = started();
    assert!(usage(&apply(&mut translator, &[step("msg_a2", 102)])).is_empty());
    assert_eq!(translator.unsized_model(), Some(&model));
    // Input 10, output 2, read from the cache 3, written to it 4: reasoning is not seen again.
    assert_eq!(usage(&translator.set_context_size(model, 1000)), [(19, 1000, 0.25)]);
    assert_eq!(translator.unsized_model(), None);
    let out = apply(&mut translator, &[step("msg_a3", 103), step("msg_a3", 103), step("msg_a2", 102)]);
    assert_eq!(usage(&out), [(19, 1000, 0.5)]);
    // The next turn's cost is on top of it.
    apply(&mut translator, &[finished("msg_a3", "msg_u1", 103, "stop"), idle()]);
    translator.begin_turn("msg_u1");
    assert_eq!(
        usage(&apply(&mut translator, &[user("msg_u1", 200), step("msg_b1", 201)])),
        [(19, 1000, 0.75)]
    );
}

#[test]
fn what_runs_is_observed_here_and_in_subagents() {
    let mut translator = with_subagent();
    assert_eq!(translator.observe().unwrap().awaits, Awaits::Model, "a task call waits for its subagent");
    let of_child = |state: &str| {
        let part = json!({
            "id": "prt_c", "messageID": "msg_c", "sessionID": "ses_child", "type": "tool", "tool": "bash",
            "callID": "call_1", "state": { "status": state, "input": {} },
        });
        event("message.part.updated", &json!({ "part": part }))
    };
    for (state, runs) in [("pending", false), ("running", true), ("completed", false), ("running", true)] {
        assert!(apply(&mut translator, &[of_child(state)]).is_empty());
        assert_eq!(translator.observe().unwrap().awaits == Awaits::Tool, runs, "{state}");
    }
    apply(&mut translator, &[event("session.idle", &json!({ "sessionID": "ses_child" }))]);
    assert_eq!(translator.observe().unwrap().awaits, Awaits::Model);
    apply(&mut translator, &[tool("prt_1", "msg_a1", &json!({ "status": "running", "input": {} }))]);
    assert_eq!(translator.observe().unwrap().awaits, Awaits::Tool);
    assert_eq!(translator.observe().unwrap().steps, 1);
}

fn removed(message: &str) -> GlobalEvent {
    event("message.removed", &json!({ "sessionID": ROOT, "messageID": message }))
}

fn part_removed(message: &str, part: &str) -> GlobalEvent {
    event("message.part.removed", &json!({ "sessionID": ROOT, "messageID": message, "partID": part }))
}

#[test]
fn sv_9_messages_of_earlier_turns_that_are_removed_are_told_once() {
    let mut translator = started();
    apply(&mut translator, &[finished("msg_a1", "msg_u1", 101, "stop"), idle()]);
    translator.begin_turn("msg_u2");
    // A revert: opencode removes its messages when the next prompt comes.
    let out = apply(
        &mut translator,
        &[removed("msg_u1"), removed("msg_a1"), removed("msg_a1"), removed("msg_none")],
    );
    let told: Vec<_> = out
        .iter()
        .map(|item| match item {
            Translation::Update(EventPayload::MessageRemoved(removed)) => removed.message_id.as_str(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(told, ["msg_u1", "msg_a1"]);
    assert_eq!(translator.ignored_removals(), 2);
    let events = [
        user("msg_u2", 200),
        status("busy"),
        assistant("msg_b1", "msg_u2", 201),
        finished("msg_b1", "msg_u2", 201, "stop"),
        idle(),
    ];
    assert_eq!(outcome(&apply(&mut translator, &events)).state, TurnState::Succeeded);
}

/// Of more turns than are remembered, also while nothing runs, and what opencode made is told apart by its time.
#[test]
fn sv_9_messages_of_turns_that_are_long_past_are_told() {
    let id = |ms: u64| format!("msg_{:012x}BnfjGYH1RshWeX", ms * 0x1000);
    let told = |out: &[Translation], id: &str| {
        let removed = MessageRemoved { message_id: id.to_owned() };
        assert_eq!(out, [Translation::Update(EventPayload::MessageRemoved(removed))], "{id}");
    };
    let mut translator = SessionTranslator::new(ROOT);
    for turn in 1..=80 {
        let (prompt, step, at) = (id(turn * 10), id(turn * 10 + 1), turn.cast_signed() * 10);
        translator.begin_turn(&prompt);
        let events = [
            user(&prompt, at),
            status("busy"),
            assistant(&step, &prompt, at + 1),
            finished(&step, &prompt, at + 1, "stop"),
            idle(),
        ];
        assert_eq!(outcome(&apply(&mut translator, &events)).state, TurnState::Succeeded);
    }
    told(&apply(&mut translator, &[removed(&id(10))]), &id(10));
    translator.begin_turn(&id(900));
    told(&apply(&mut translator, &[removed(&id(11))]), &id(11));
    apply(&mut translator, &[user(&id(900), 900), status("busy")]);
    told(&apply(&mut translator, &[removed(&id(20))]), &id(20));
    assert_eq!(translator.ignored_removals(), 0);
    assert!(apply(&mut translator, &[removed(&id(905)), removed(&id(20))]).is_empty());
    assert_eq!(translator.ignored_removals(), 2, "one that is newer, and one that is known");
}

#[test]
fn sv_9_a_removed_prompt_ends_its_turn() {
    let mut translator = started();
    let out = apply(&mut translator, &[removed("msg_u1")]);
    let [Translation::Abort(error)] = &out[..] else { panic!("an abort in {out:?}") };
    assert_eq!(error.reason, TurnErrorReason::PromptRemoved);
    assert!(translator.abort_due());
    translator.abort_sent();
    translator.abort_returned();
    let out = apply(&mut translator, &[failed("msg_a1", "msg_u1", 101, "MessageAbortedError"), idle()]);
    assert_eq!(outcome(&out).error.as_ref().unwrap().reason, TurnErrorReason::PromptRemoved);

    // Before the start nothing is there to be aborted.
    translator.begin_turn("msg_u2");
    let out = apply(&mut translator, &[user("msg_u2", 200), removed("msg_u2")]);
    assert_eq!(outcome(&out).error.as_ref().unwrap().reason, TurnErrorReason::PromptRemoved);
}

#[test]
fn sv_9_what_was_removed_of_a_running_turn_is_void_and_does_not_come_back() {
    let mut translator = started();
    let running = json!({ "status": "running", "input": { "command": "ls" } });
    let mut out = apply(
        &mut translator,
        &[
            text("prt_1", "msg_a1", "", false),
            delta("prt_1", "msg_a1", "gone"),
            text("prt_2", "msg_a1", "kept", true),
            tool("prt_3", "msg_a1", &running),
            part_removed("msg_a1", "prt_1"),
            part_removed("msg_a1", "prt_3"),
            part_removed("msg_none", "prt_9"),
            // Later news of it.
            text("prt_1", "msg_a1", "gone and back", true),
            tool("prt_3", "msg_a1", &running),
        ],
    );
    assert_eq!(said(&out), "kept");
    assert_eq!(translator.ignored_removals(), 1);
    assert_eq!(translator.observe().unwrap().awaits, Awaits::Model);
    // The whole step; what is told of it later makes it no step again.
    out.extend(apply(
        &mut translator,
        &[
            assistant("msg_a2", "msg_u1", 102),
            text("prt_4", "msg_a2", "also gone", true),
            removed("msg_a2"),
            assistant("msg_a2", "msg_u1", 102),
            text("prt_4", "msg_a2", "also gone", true),
            finished("msg_a1", "msg_u1", 101, "stop"),
            idle(),
        ],
    ));
    assert_eq!(said(&out), "kept");
    assert_eq!(outcome(&out).state, TurnState::Succeeded);
}

#[test]
fn a_disposed_instance_ends_a_turn_that_it_left_open() {
    let disposed = |directory: &str| event("server.instance.disposed", &json!({ "directory": directory }));
    let mut translator = started();
    assert!(!translator.concerns(&disposed("/w")), "its directory is not known");
    let mut root = session_info(ROOT, None, 1);
    root.title = String::new();
    apply(&mut translator, &[event("session.updated", &json!({ "info": root }))]);
    assert!(translator.concerns(&disposed("/w")) && !translator.concerns(&disposed("/other")));
    assert!(apply(&mut translator, &[disposed("/other")]).is_empty());
    let out = apply(&mut translator, &[disposed("/w")]);
    assert_eq!(outcome(&out).error.as_ref().unwrap().reason, TurnErrorReason::InstanceDisposed);

    // The next instance may still take a prompt that had not begun.
    translator.begin_turn("msg_u2");
    assert!(apply(&mut translator, &[disposed("/w")]).is_empty());
    let out =
        apply(&mut translator, &[user("msg_u2", 200), status("busy"), event("global.disposed", &json!({}))]);
    assert_eq!(outcome(&out).error.as_ref().unwrap().reason, TurnErrorReason::InstanceDisposed);
}
