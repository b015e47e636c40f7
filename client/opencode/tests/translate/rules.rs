//! The rules one by one, on short streams made by hand.

use berth_opencode::{Event, SessionTranslator, Snapshot, Translation, TurnPhase, model::SessionStatus};
use berth_wire::{
    event::{EventPayload, Resolution},
    turn::{TurnError, TurnErrorReason, TurnState},
};
use serde_json::json;

use crate::{
    made::{
        ROOT, apply, asked, assistant, assistant_json, delta, error, event, failed, finished, finished_json,
        idle, messages, outcome, resolutions, said, started, status, step_finish, text, text_json, tool,
        user,
    },
    replay::in_words,
};

#[test]
fn before_the_start_idle_means_nothing_and_no_abort_is_due() {
    let mut translator = SessionTranslator::new(ROOT);
    assert_eq!(translator.phase(), TurnPhase::Idle);
    translator.request_cancel();
    translator.begin_turn("msg_u1");
    assert_eq!(translator.phase(), TurnPhase::Admitted);
    translator.request_cancel();
    assert!(
        apply(&mut translator, &[idle(), status("busy"), idle(), user("msg_u1", 100), idle()]).is_empty()
    );
    assert!(!translator.abort_due() && translator.phase() == TurnPhase::Admitted);
    assert_eq!(apply(&mut translator, &[status("busy")]), [Translation::Started]);
    assert!(translator.abort_due());
}

#[test]
fn a_turn_ends_when_it_is_idle_after_its_last_step() {
    let mut translator = started();
    assert!(
        apply(&mut translator, &[finished("msg_a1", "msg_u1", 101, "tool-calls"), status("busy")]).is_empty()
    );
    assert!(apply(&mut translator, &[assistant("msg_a2", "msg_u1", 103)]).is_empty());
    assert!(apply(&mut translator, &[finished("msg_a2", "msg_u1", 103, "stop")]).is_empty());
    let out = apply(&mut translator, &[status("idle"), idle()]);
    let outcome = outcome(&out);
    assert_eq!(in_words(outcome), "Succeeded EndTurn");
    let usage = outcome.usage.unwrap();
    assert_eq!((usage.input_tokens, usage.output_tokens, usage.reasoning_tokens), (20, 4, 2));
    assert_eq!((usage.cache_read_tokens, usage.cache_write_tokens), (6, 8));
    assert!((usage.cost_usd - 0.5).abs() < 1e-9);
    assert_eq!(translator.phase(), TurnPhase::Idle);
}

#[test]
fn the_late_idle_of_the_turn_before_does_not_end_a_turn_between_its_steps() {
    let mut translator = started();
    let out = apply(&mut translator, &[idle(), finished("msg_a1", "msg_u1", 101, "tool-calls")]);
    assert!(out.is_empty() && translator.in_doubt());
    assert!(apply(&mut translator, &[status("busy")]).is_empty() && !translator.in_doubt());
}

#[test]
fn news_of_earlier_turns_is_not_taken_for_this_one() {
    let mut translator = started();
    apply(&mut translator, &[failed("msg_a1", "msg_u1", 101, "APIError"), idle()]);
    translator.begin_turn("msg_u2");
    // Late: the first turn's message, and one that opencode made for the first prompt after the second was stored.
    let late = [
        failed("msg_a1", "msg_u1", 101, "MessageAbortedError"),
        assistant("msg_a9", "msg_u1", 201),
        text("prt_9", "msg_a9", "late words", true),
        idle(),
    ];
    assert!(apply(&mut translator, &late[..1]).is_empty());
    assert_eq!(apply(&mut translator, &[user("msg_u2", 200), status("busy")]), [Translation::Started]);
    assert!(apply(&mut translator, &late[1..]).is_empty());
    let out = apply(
        &mut translator,
        &[assistant("msg_b1", "msg_u2", 202), finished("msg_b1", "msg_u2", 202, "stop")],
    );
    assert!(out.is_empty());
    assert_eq!(in_words(outcome(&apply(&mut translator, &[idle()]))), "Succeeded EndTurn");
}

#[test]
fn a_turn_goes_on_under_messages_that_opencode_inserts() {
    let mut translator = started();
    let mut summary = assistant_json("msg_a2", "msg_compaction", 110);
    summary["summary"] = json!(true);
    let out = apply(
        &mut translator,
        &[
            error("ContextOverflowError", "too long"),
            failed("msg_a1", "msg_u1", 101, "ContextOverflowError"),
            user("msg_compaction", 109),
            event("message.updated", &json!({ "info": summary })),
            text("prt_s", "msg_a2", "A summary for the model.", true),
            finished("msg_a2", "msg_compaction", 110, "stop"),
            user("msg_synthetic", 120),
            assistant("msg_a3", "msg_synthetic", 121),
            text("prt_1", "msg_a3", "Going on.", true),
            finished("msg_a3", "msg_synthetic", 121, "stop"),
        ],
    );
    assert_eq!(said(&out), "Going on.");
    assert!(
        matches!(&out[0], Translation::Update(EventPayload::TurnError(error)) if error.reason == TurnErrorReason::ContextOverflow),
        "{out:?}"
    );
    assert_eq!(in_words(outcome(&apply(&mut translator, &[idle()]))), "Succeeded EndTurn");
}

#[test]
fn an_abort_ends_the_turn_when_it_has_returned() {
    for returned_first in [true, false] {
        let mut translator = started();
        translator.request_cancel();
        assert!(translator.abort_due());
        translator.abort_sent();
        assert!(!translator.abort_due());
        let mut out = Vec::new();
        if returned_first {
            out.extend(translator.abort_returned());
        }
        let events = [
            error("MessageAbortedError", "Aborted"),
            idle(),
            failed("msg_a1", "msg_u1", 101, "MessageAbortedError"),
            idle(),
        ];
        out.extend(apply(&mut translator, &events));
        if !returned_first {
            assert!(out.is_empty());
            out.extend(translator.abort_returned());
        }
        assert_eq!(in_words(outcome(&out)), "Cancelled Cancelled");
    }
}

#[test]
fn an_abort_without_an_answer_is_due_again() {
    let mut translator = started();
    translator.request_cancel();
    translator.abort_sent();
    translator.abort_failed();
    assert!(translator.abort_due());
}

#[test]
fn an_abort_that_did_not_stop_the_turn_is_due_again_at_its_next_step() {
    let mut translator = started();
    translator.request_cancel();
    translator.abort_sent();
    assert!(translator.abort_returned().is_empty());
    assert!(!translator.abort_due());
    let next = [finished("msg_a1", "msg_u1", 101, "tool-calls"), assistant("msg_a2", "msg_u1", 103)];
    assert!(apply(&mut translator, &next).is_empty());
    assert!(translator.abort_due());
    translator.abort_sent();
    translator.abort_returned();
    let out = apply(&mut translator, &[failed("msg_a2", "msg_u1", 103, "MessageAbortedError"), idle()]);
    assert_eq!(in_words(outcome(&out)), "Cancelled Cancelled");
}

#[test]
fn a_turn_that_had_ended_by_itself_is_not_cancelled() {
    for (event, expected) in [
        (finished("msg_a1", "msg_u1", 101, "stop"), "Succeeded EndTurn"),
        (failed("msg_a1", "msg_u1", 101, "APIError"), "Failed ProviderError"),
        (finished("msg_a1", "msg_u1", 101, "tool-calls"), "Cancelled Cancelled"),
    ] {
        let mut translator = started();
        translator.request_cancel();
        translator.abort_sent();
        let mut out = apply(&mut translator, &[event, idle()]);
        out.extend(translator.abort_returned());
        assert_eq!(in_words(outcome(&out)), expected);
    }
}

#[test]
fn an_early_abort_leaves_no_message_and_ends_all_the_same() {
    let mut translator = SessionTranslator::new(ROOT);
    translator.begin_turn("msg_u1");
    apply(&mut translator, &[user("msg_u1", 100), status("busy")]);
    translator.request_cancel();
    translator.abort_sent();
    let mut out = apply(&mut translator, &[idle()]);
    out.extend(translator.abort_returned());
    assert_eq!(in_words(outcome(&out)), "Cancelled Cancelled");
}

#[test]
fn the_callers_reason_for_an_abort_names_the_end() {
    let mut translator = started();
    let deadline = TurnError {
        reason: TurnErrorReason::DeadlineExceeded,
        message: "15 min".to_owned(),
        retry_at: None,
        cause: None,
    };
    translator.request_abort(deadline);
    assert!(translator.abort_due());
    translator.abort_sent();
    let mut out = apply(&mut translator, &[failed("msg_a1", "msg_u1", 101, "MessageAbortedError"), idle()]);
    out.extend(translator.abort_returned());
    assert_eq!(in_words(outcome(&out)), "Failed DeadlineExceeded");
}

#[test]
fn a_model_that_never_finishes_is_aborted_once() {
    let mut translator = started();
    let mut out = Vec::new();
    for (index, id) in ["msg_a1", "msg_a2", "msg_a3", "msg_a4"].iter().enumerate() {
        let created = 101 + i64::try_from(index).unwrap();
        let step =
            [assistant(id, "msg_u1", created), finished(id, "msg_u1", created, "unknown"), status("busy")];
        out.extend(apply(&mut translator, &step));
        let aborts = out.iter().filter(|item| matches!(item, Translation::Abort(_))).count();
        assert_eq!((aborts, translator.abort_due()), (usize::from(index >= 2), index >= 2));
    }
    translator.abort_sent();
    out.extend(translator.abort_returned());
    out.extend(apply(&mut translator, &[idle()]));
    assert_eq!(in_words(outcome(&out)), "Failed ProviderStreamIncomplete");
}

#[test]
fn unknown_finishes_with_tool_calls_are_no_loop() {
    let mut translator = started();
    for id in ["msg_a1", "msg_a2", "msg_a3", "msg_a4"] {
        let state = json!({ "status": "completed", "input": { "command": "ls" }, "output": "a" });
        let part = format!("prt_{id}");
        let step =
            [assistant(id, "msg_u1", 101), tool(&part, id, &state), finished(id, "msg_u1", 101, "unknown")];
        let out = apply(&mut translator, &step);
        assert!(!out.iter().any(|item| matches!(item, Translation::Abort(_))));
    }
}

#[test]
fn an_error_before_the_start_refuses_the_prompt_and_its_echo_is_no_news() {
    let mut translator = SessionTranslator::new(ROOT);
    translator.begin_turn("msg_u1");
    let out = apply(&mut translator, &[error("UnknownError", "Agent not found: \"x\"")]);
    assert_eq!(in_words(outcome(&out)), "Failed AgentNotFound");
    translator.begin_turn("msg_u2");
    let echo = error("UnknownError", "UnknownError: UnknownError\n    at SessionPrompt.createUserMessage");
    assert!(apply(&mut translator, &[echo]).is_empty());
    assert_eq!(translator.phase(), TurnPhase::Admitted);
    let out = apply(&mut translator, &[error("UnknownError", "no such thing")]);
    assert_eq!(in_words(outcome(&out)), "Failed PromptRejected");
}

#[test]
fn an_error_that_a_snapshot_told_first_does_not_refuse_the_next_prompt() {
    let mut translator = started();
    let report = error("UnknownError", "why");
    let mut answer = finished_json("msg_a1", "msg_u1", 101, "error");
    answer["error"] = json!({ "name": "UnknownError", "data": { "message": "why" } });
    let snapshot = Snapshot { messages: messages(&[(answer, vec![])]), ..Snapshot::default() };
    let out = translator.reconcile(&snapshot);
    assert_eq!(in_words(outcome(&out)), "Failed OpencodeError");
    translator.begin_turn("msg_u2");
    // Each error comes twice.
    assert!(apply(&mut translator, &[report.clone(), report]).is_empty());
    assert_eq!(translator.phase(), TurnPhase::Admitted);
    let out = apply(&mut translator, &[error("UnknownError", "no such thing")]);
    assert_eq!(in_words(outcome(&out)), "Failed PromptRejected");
}

#[test]
fn an_abort_of_somebody_else_is_no_refusal() {
    let mut translator = SessionTranslator::new(ROOT);
    translator.begin_turn("msg_u1");
    assert!(apply(&mut translator, &[error("MessageAbortedError", "Aborted")]).is_empty());
    assert_eq!(translator.phase(), TurnPhase::Admitted);
}

#[test]
fn an_error_that_is_not_the_end_is_told_when_the_turn_goes_on() {
    let mut translator = started();
    assert!(apply(&mut translator, &[error("UnknownError", "hiccup")]).is_empty());
    let out = apply(&mut translator, &[status("busy")]);
    assert!(matches!(&out[..], [Translation::Update(EventPayload::TurnError(_))]), "{out:?}");
}

#[test]
fn opencode_that_exits_leaves_text_and_closes_the_rest() {
    let mut translator = started();
    let mut out = apply(
        &mut translator,
        &[
            text("prt_1", "msg_a1", "", false),
            delta("prt_1", "msg_a1", "half a sen"),
            tool("prt_2", "msg_a1", &json!({ "status": "running", "input": { "command": "make" } })),
            asked("per_1", ROOT, "msg_a1"),
        ],
    );
    out.extend(translator.serve_exited("signal 9"));
    assert_eq!(said(&out), "half a sen");
    assert_eq!(in_words(outcome(&out)), "Failed OpencodeExited");
    let text = format!("{out:?}");
    assert!(text.contains("Dropped") && text.contains("Failed"), "{text}");
    assert!(matches!(out.last(), Some(Translation::Ended(_))));
    assert!(translator.serve_exited("again").is_empty());
}

#[test]
fn a_torn_part_waits_for_its_whole_text() {
    let mut translator = started();
    let mut out =
        apply(&mut translator, &[text("prt_1", "msg_a1", "", false), delta("prt_1", "msg_a1", "one ")]);
    translator.mark_gap();
    out.extend(translator.reconcile(&Snapshot {
        messages: messages(&[(
            assistant_json("msg_a1", "msg_u1", 101),
            vec![text_json("prt_1", "msg_a1", "", false)],
        )]),
        status: Some(SessionStatus::Busy),
        ..Snapshot::default()
    }));
    out.extend(apply(&mut translator, &[delta("prt_1", "msg_a1", "three ")]));
    assert_eq!(said(&out), "one ");
    out.extend(apply(&mut translator, &[text("prt_1", "msg_a1", "one two three ", true)]));
    assert_eq!(said(&out), "one two three ");
    let replaced = apply(&mut translator, &[text("prt_1", "msg_a1", "one, two", true)]);
    assert!(matches!(&replaced[..], [Translation::Update(EventPayload::PartReplaced(_))]), "{replaced:?}");
}

#[test]
fn events_that_a_snapshot_covers_already_double_nothing() {
    let mut translator = started();
    translator.mark_gap();
    let mut out = translator.reconcile(&Snapshot {
        messages: messages(&[(
            assistant_json("msg_a1", "msg_u1", 101),
            vec![text_json("prt_1", "msg_a1", "all of it", true), text_json("prt_2", "msg_a1", "", false)],
        )]),
        status: Some(SessionStatus::Busy),
        ..Snapshot::default()
    });
    out.extend(apply(
        &mut translator,
        &[
            text("prt_1", "msg_a1", "", false),
            delta("prt_1", "msg_a1", "all of it"),
            text("prt_1", "msg_a1", "all of it", true),
            text("prt_2", "msg_a1", "", false),
            delta("prt_2", "msg_a1", ", and more"),
        ],
    ));
    assert_eq!(said(&out), "all of it, and more");
}

#[test]
fn an_open_part_of_a_snapshot_waits_for_its_end() {
    for (shown, begun_again) in [("", false), ("all of", false), ("all of", true)] {
        let mut translator = started();
        translator.mark_gap();
        let part = text_json("prt_1", "msg_a1", shown, false);
        let mut out = translator.reconcile(&Snapshot {
            messages: messages(&[(assistant_json("msg_a1", "msg_u1", 101), vec![part])]),
            status: Some(SessionStatus::Busy),
            ..Snapshot::default()
        });
        if begun_again {
            // Events from before the snapshot, which covers them.
            out.extend(apply(
                &mut translator,
                &[text("prt_1", "msg_a1", "", false), delta("prt_1", "msg_a1", "all of")],
            ));
        }
        out.extend(apply(&mut translator, &[delta("prt_1", "msg_a1", " it")]));
        assert_eq!(said(&out), shown);
        out.extend(apply(&mut translator, &[text("prt_1", "msg_a1", "all of it", true)]));
        assert_eq!(said(&out), "all of it");
        assert!(!format!("{out:?}").contains("PartReplaced"), "{out:?}");
    }
}

#[test]
fn a_retry_that_was_missed_voids_what_it_cut_off() {
    let step = |part: &str| {
        let part = json!({ "id": part, "messageID": "msg_a1", "sessionID": ROOT, "type": "step-start" });
        event("message.part.updated", &json!({ "part": part }))
    };
    let mut translator = started();
    let mut out = apply(
        &mut translator,
        &[step("prt_1"), text("prt_2", "msg_a1", "", false), delta("prt_2", "msg_a1", "lost")],
    );
    out.extend(apply(&mut translator, &[step("prt_1")]));
    assert_eq!(said(&out), "lost");
    let again = [step("prt_3"), text("prt_4", "msg_a1", "", false), delta("prt_4", "msg_a1", "found")];
    out.extend(apply(&mut translator, &again));
    assert_eq!(said(&out), "found");
}

#[test]
fn a_retry_is_told_once() {
    let mut translator = started();
    let retry = |attempt: u64| SessionStatus::Retry { attempt, message: "503".to_owned(), next: 1_000 };
    let properties = json!({ "sessionID": ROOT, "status": retry(1) });
    let mut out = apply(&mut translator, &[event("session.status", &properties)]);
    for attempt in [1, 2] {
        let status = Some(retry(attempt));
        out.extend(translator.reconcile(&Snapshot { status, ..Snapshot::default() }));
    }
    let attempts: Vec<_> = out
        .iter()
        .filter_map(|item| match item {
            Translation::Update(EventPayload::ProviderRetry(retry)) => Some(retry.attempt),
            _ => None,
        })
        .collect();
    assert_eq!(attempts, [1, 2]);
}

#[test]
fn deltas_of_an_unknown_part_wait_for_its_kind() {
    let mut translator = started();
    assert!(apply(&mut translator, &[delta("prt_1", "msg_a1", "one ")]).is_empty());
    let out = apply(&mut translator, &[text("prt_1", "msg_a1", "", false), delta("prt_1", "msg_a1", "two")]);
    assert_eq!(said(&out), "one two");
}

#[test]
fn nothing_ends_in_a_gap() {
    let mut translator = started();
    translator.mark_gap();
    assert!(apply(&mut translator, &[finished("msg_a1", "msg_u1", 101, "stop"), idle()]).is_empty());
    assert!(translator.in_doubt());
    let part = text_json("prt_1", "msg_a1", "missed", true);
    let out = translator.reconcile(&Snapshot {
        messages: messages(&[(finished_json("msg_a1", "msg_u1", 101, "stop"), vec![part])]),
        ..Snapshot::default()
    });
    assert_eq!((said(&out).as_str(), in_words(outcome(&out)).as_str()), ("missed", "Succeeded EndTurn"));
}

/// The end of a turn after a look at its state, which shows this text whole.
fn ends_with(translator: &mut SessionTranslator, part: &str, text: &str) {
    let part = text_json(part, "msg_a2", text, true);
    let out = translator.reconcile(&Snapshot {
        messages: messages(&[(finished_json("msg_a2", "msg_u1", 103, "stop"), vec![part])]),
        ..Snapshot::default()
    });
    assert_eq!((said(&out).as_str(), in_words(outcome(&out)).as_str()), (text, "Succeeded EndTurn"));
}

/// After a gap was mended: what the stream tells from then on may begin later than it should.
#[test]
fn after_a_gap_events_alone_are_no_end() {
    // The state was read before the second step had begun, and in the middle of its text.
    for shown in [Vec::new(), vec![text_json("prt_2", "msg_a2", "", false)]] {
        let mut translator = started();
        translator.mark_gap();
        let mut found = vec![(finished_json("msg_a1", "msg_u1", 101, "tool-calls"), Vec::new())];
        if !shown.is_empty() {
            found.push((assistant_json("msg_a2", "msg_u1", 103), shown));
        }
        let busy = Some(SessionStatus::Busy);
        let snapshot = Snapshot { messages: messages(&found), status: busy, ..Snapshot::default() };
        assert!(translator.reconcile(&snapshot).is_empty());
        let late = [finished("msg_a2", "msg_u1", 103, "stop"), status("idle"), idle()];
        assert_eq!(apply(&mut translator, &late), [], "nothing was said in the second step");
        assert!(translator.in_doubt());
        ends_with(&mut translator, "prt_2", "all of it");
    }
}

/// Where no gap was told of, but something is missing all the same.
#[test]
fn a_step_that_lacks_its_end_is_no_end() {
    let begins = [finished("msg_a1", "msg_u1", 101, "tool-calls"), assistant("msg_a2", "msg_u1", 103)];
    // The text's end was not heard; neither that of the step; nothing of the step.
    let end_of_text = vec![text("prt_2", "msg_a2", "", false), step_finish("msg_a2")];
    for heard in [end_of_text, vec![text("prt_2", "msg_a2", "", false)], Vec::new()] {
        let mut translator = started();
        assert!(apply(&mut translator, &begins).is_empty());
        for event in heard.iter().chain(&[finished("msg_a2", "msg_u1", 103, "stop"), idle()]) {
            assert_eq!(translator.apply(event), [], "{heard:?}");
        }
        assert!(translator.in_doubt());
        ends_with(&mut translator, "prt_2", "all of it");
    }
}

#[test]
fn an_unproved_end_is_believed_at_the_third_look() {
    for (info, expected) in [
        (assistant_json("msg_a1", "msg_u1", 101), "Failed OpencodeError"),
        (finished_json("msg_a1", "msg_u1", 101, "tool-calls"), "Failed OpencodeError"),
    ] {
        let mut translator = started();
        let snapshot = Snapshot { messages: messages(&[(info, Vec::new())]), ..Snapshot::default() };
        assert!(translator.reconcile(&snapshot).is_empty() && translator.in_doubt());
        assert!(translator.reconcile(&snapshot).is_empty());
        assert_eq!(in_words(outcome(&translator.reconcile(&snapshot))), expected);
    }
}

#[test]
fn a_whole_turn_that_was_missed_comes_out_of_one_snapshot() {
    let mut translator = SessionTranslator::new(ROOT);
    translator.begin_turn("msg_u1");
    translator.mark_gap();
    let prompt = json!({ "id": "msg_u1", "sessionID": ROOT, "role": "user", "time": { "created": 100 } });
    let part = text_json("prt_1", "msg_a1", "done", true);
    let out = translator.reconcile(&Snapshot {
        messages: messages(&[
            (prompt, Vec::new()),
            (finished_json("msg_a1", "msg_u1", 101, "stop"), vec![part]),
        ]),
        ..Snapshot::default()
    });
    assert_eq!(out[0], Translation::Started);
    assert_eq!((said(&out).as_str(), in_words(outcome(&out)).as_str()), ("done", "Succeeded EndTurn"));
}

#[test]
fn a_request_settled_in_a_gap_is_told_by_its_tool() {
    let rejected = json!({ "status": "error", "input": {}, "error": "The user rejected permission to use this specific tool call." });
    let running = json!({ "status": "running", "input": { "command": "ls" }, "metadata": { "output": "a" } });
    for (state, expected) in [(rejected, Resolution::Rejected), (running, Resolution::Once)] {
        let mut translator = started();
        let pending = json!({ "status": "pending", "input": {} });
        apply(&mut translator, &[tool("prt_1", "msg_a1", &pending), asked("per_1", ROOT, "msg_a1")]);
        translator.mark_gap();
        let part = json!({
            "id": "prt_1", "messageID": "msg_a1", "sessionID": ROOT, "type": "tool", "tool": "bash", "callID": "call_1",
            "state": state,
        });
        let out = translator.reconcile(&Snapshot {
            messages: messages(&[(assistant_json("msg_a1", "msg_u1", 101), vec![part])]),
            status: Some(SessionStatus::Busy),
            ..Snapshot::default()
        });
        assert_eq!(resolutions(&out), [expected]);
    }
}

#[test]
fn requests_that_stay_listed_after_their_turn_are_not_asked_again() {
    let mut translator = started();
    let Event::PermissionAsked(request) = asked("per_1", ROOT, "msg_a1").event else { panic!("a request") };
    let out = apply(&mut translator, &[asked("per_1", ROOT, "msg_a1"), asked("per_1", ROOT, "msg_a1")]);
    assert_eq!(out.len(), 1, "asked once");
    let Event::PermissionAsked(answered) = asked("per_0", ROOT, "msg_a1").event else { panic!("a request") };
    let replied =
        event("permission.replied", &json!({ "sessionID": ROOT, "requestID": "per_0", "reply": "always" }));
    let out = apply(&mut translator, &[asked("per_0", ROOT, "msg_a1"), replied]);
    assert_eq!(resolutions(&out), [Resolution::Always]);
    let permissions = vec![request.clone(), answered];
    let stale = Snapshot { permissions, status: Some(SessionStatus::Busy), ..Snapshot::default() };
    assert!(translator.reconcile(&stale).is_empty(), "answered, or open already");
    let out = apply(&mut translator, &[failed("msg_a1", "msg_u1", 101, "MessageAbortedError"), idle()]);
    assert_eq!(resolutions(&out), [Resolution::Dropped]);
    translator.begin_turn("msg_u2");
    apply(&mut translator, &[user("msg_u2", 200), status("busy"), assistant("msg_b1", "msg_u2", 201)]);
    let Event::PermissionAsked(unseen) = asked("per_2", ROOT, "msg_a1").event else { panic!("a request") };
    let listed = Snapshot {
        permissions: vec![request, unseen],
        status: Some(SessionStatus::Busy),
        ..Snapshot::default()
    };
    assert!(translator.reconcile(&listed).is_empty());
}

#[test]
fn a_grandchilds_request_is_one_of_the_root() {
    let mut translator = started();
    let session = |id: &str, parent: &str| {
        event(
            "session.created",
            &json!({ "info": { "id": id, "parentID": parent, "title": "t", "directory": "/w" } }),
        )
    };
    let task = json!({ "status": "running", "input": {}, "metadata": { "sessionId": "ses_child" } });
    let events = [
        session("ses_stranger", "ses_other"),
        session("ses_child", ROOT),
        tool("prt_1", "msg_a1", &task),
        session("ses_grandchild", "ses_child"),
        asked("per_0", "ses_stranger", "msg_x"),
        asked("per_1", "ses_grandchild", "msg_g"),
    ];
    let out = apply(&mut translator, &events);
    let asks: Vec<_> = out
        .iter()
        .filter_map(|item| match item {
            Translation::Update(EventPayload::PermissionRequested(request)) => Some(request),
            _ => None,
        })
        .collect();
    assert_eq!(asks.len(), 1);
    assert_eq!((asks[0].permission_id.as_str(), asks[0].tool_call_id.as_deref()), ("per_1", Some("prt_1")));
}

#[test]
fn long_turns_keep_a_small_state_and_the_whole_usage() {
    let mut translator = started();
    let mut largest = 0;
    for step in 0..300_i64 {
        let id = format!("msg_a{step:04}");
        let part = format!("prt_{step:04}");
        let created = 200 + step;
        let events = [
            assistant(&id, "msg_u1", created),
            text(&part, &id, "", false),
            delta(&part, &id, "word"),
            text(&part, &id, "word", true),
            finished(&id, "msg_u1", created, "tool-calls"),
            finished(&id, "msg_u1", created, "tool-calls"),
        ];
        apply(&mut translator, &events);
        largest = largest.max(serde_json::to_string(&translator).unwrap().len());
        if step == 0 {
            apply(&mut translator, &[finished("msg_a1", "msg_u1", 101, "tool-calls")]);
        }
    }
    assert!(largest < 20_000, "{largest} bytes");
    // News of a step that is no longer kept counts nothing twice.
    apply(&mut translator, &[finished("msg_a0000", "msg_u1", 200, "tool-calls")]);
    let out = apply(&mut translator, &[finished("msg_a0299", "msg_u1", 499, "stop"), idle()]);
    assert_eq!(outcome(&out).usage.unwrap().input_tokens, 301 * 10);
}

#[test]
fn the_caller_may_give_up() {
    let mut translator = SessionTranslator::new(ROOT);
    translator.begin_turn("msg_u1");
    let error = TurnError {
        reason: TurnErrorReason::NotStarted,
        message: "60 s".to_owned(),
        retry_at: None,
        cause: None,
    };
    assert_eq!(outcome(&translator.fail(error)).state, TurnState::Failed);
    assert_eq!(translator.phase(), TurnPhase::Idle);
}
