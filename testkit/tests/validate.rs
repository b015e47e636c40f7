//! The rules of a session's log: a sound log breaks none, and each rule is broken by a log that breaks no other.

use berth_testkit::validate::{Entry, Extent, Fault, Violation, check, check_texts};
use berth_wire::{
    event::{
        EventPayload, PartReplaced, PartVoided, PermissionRequested, PermissionResolved, QuestionRequested,
        QuestionResolved, Resolution, ResolvedBy, TurnQueued, TurnStarted, Voice, acp,
    },
    turn::{TurnError, TurnErrorReason, TurnOutcome, TurnState, TurnStopReason, Usage},
};
use serde_json::{Value, json};

type Log = Vec<(Option<usize>, EventPayload)>;

fn broken(log: &Log, extent: Extent) -> Vec<Violation> {
    let entries: Vec<Entry<'_>> = log.iter().map(|(turn, payload)| Entry { turn: *turn, payload }).collect();
    check(&entries, extent)
}

fn queued() -> EventPayload {
    EventPayload::TurnQueued(TurnQueued { prompt: Vec::new() })
}

fn started() -> EventPayload {
    EventPayload::TurnStarted(TurnStarted { prompt: Vec::new() })
}

fn outcome() -> TurnOutcome {
    TurnOutcome { usage: Some(Usage::default()), ..TurnOutcome::succeeded(TurnStopReason::EndTurn) }
}

fn ended() -> EventPayload {
    EventPayload::TurnEnded(outcome())
}

fn says(part: &str, offset: u64, text: &str) -> EventPayload {
    EventPayload::chunk(Voice::Message, part, offset, text)
}

fn thinks(part: &str, offset: u64, text: &str) -> EventPayload {
    EventPayload::chunk(Voice::Thought, part, offset, text)
}

fn voided(part: &str) -> EventPayload {
    EventPayload::PartVoided(PartVoided { part_id: part.to_owned() })
}

fn replaced(part: &str, text: &str) -> EventPayload {
    let (part_id, text) = (part.to_owned(), text.to_owned());
    EventPayload::PartReplaced(PartReplaced { part_id, voice: Voice::Message, text })
}

fn call(id: &str) -> EventPayload {
    acp::SessionUpdate::ToolCall(acp::ToolCall::new(id.to_owned(), "ls")).into()
}

fn update(id: &str, fields: acp::ToolCallUpdateFields) -> EventPayload {
    acp::SessionUpdate::ToolCallUpdate(acp::ToolCallUpdate::new(id.to_owned(), fields)).into()
}

fn status(id: &str, status: acp::ToolCallStatus) -> EventPayload {
    update(id, acp::ToolCallUpdateFields::new().status(status))
}

fn runs(id: &str, input: Value) -> EventPayload {
    update(id, acp::ToolCallUpdateFields::new().status(acp::ToolCallStatus::InProgress).raw_input(input))
}

fn completed(id: &str) -> EventPayload {
    status(id, acp::ToolCallStatus::Completed)
}

fn asks(id: &str) -> EventPayload {
    EventPayload::PermissionRequested(PermissionRequested {
        permission_id: id.to_owned(),
        permission: "bash".to_owned(),
        patterns: Vec::new(),
        always: Vec::new(),
        tool_call_id: None,
        title: "ls".to_owned(),
        metadata: Value::Null,
        expires_at: None,
    })
}

fn settled(id: &str, resolution: Resolution) -> EventPayload {
    let permission_id = id.to_owned();
    EventPayload::PermissionResolved(PermissionResolved { permission_id, resolution, by: ResolvedBy::User })
}

fn questions(id: &str) -> EventPayload {
    let question_id = id.to_owned();
    EventPayload::QuestionRequested(QuestionRequested {
        question_id,
        questions: Vec::new(),
        tool_call_id: None,
    })
}

fn answered(id: &str, resolution: Resolution) -> EventPayload {
    let question_id = id.to_owned();
    EventPayload::QuestionResolved(QuestionResolved { question_id, resolution, by: ResolvedBy::User })
}

fn title() -> EventPayload {
    acp::SessionUpdate::SessionInfoUpdate(acp::SessionInfoUpdate::new().title("A title".to_owned())).into()
}

/// One turn of these entries, from start to end.
fn turn(content: impl IntoIterator<Item = EventPayload>) -> Log {
    let content = content.into_iter().chain([ended()]);
    std::iter::once(started()).chain(content).map(|payload| (Some(1), payload)).collect()
}

fn end_of(outcome: TurnOutcome) -> Log {
    vec![(Some(1), started()), (Some(1), EventPayload::TurnEnded(outcome))]
}

fn error() -> TurnError {
    TurnError {
        reason: TurnErrorReason::ProviderError,
        message: "no".to_owned(),
        retry_at: None,
        cause: None,
    }
}

#[test]
fn a_sound_log_breaks_no_rule() {
    let first = [
        queued(),
        started(),
        thinks("prt_1", 0, "hm"),
        says("prt_2", 0, "one "),
        says("prt_2", 4, "two"),
        call("call_1"),
        asks("per_1"),
        settled("per_1", Resolution::Once),
        runs("call_1", json!({})),
        completed("call_1"),
        questions("que_1"),
        answered("que_1", Resolution::Rejected),
        says("prt_3", 0, "lost"),
        voided("prt_3"),
        replaced("prt_2", "other"),
        says("prt_2", 5, " words"),
        ended(),
    ];
    let mut log: Log = first.into_iter().map(|payload| (Some(1), payload)).collect();
    log.push((None, title()));
    // Queued while the first one ran, and cancelled before it began.
    log.insert(3, (Some(2), queued()));
    log.push((Some(2), EventPayload::TurnEnded(TurnOutcome::cancelled())));
    // Tool calls have ids of their own in each turn.
    log.extend(
        turn([call("call_1"), status("call_1", acp::ToolCallStatus::Failed)])
            .into_iter()
            .map(|(_, payload)| (Some(3), payload)),
    );
    log.push((None, EventPayload::Unknown { kind: "of_a_newer_berth".to_owned(), payload: json!({}) }));
    assert_eq!(broken(&log, Extent::Whole), []);
    for length in 0..log.len() {
        assert_eq!(broken(&log[..length].to_vec(), Extent::SoFar), [], "the first {length} entries");
    }
}

/// The log breaks this rule at this place, and no other.
macro_rules! breaks {
    ($($test:ident: $log:expr => $at:literal, $fault:expr;)*) => {
        $(
            #[test]
            fn $test() {
                assert_eq!(broken(&$log, Extent::Whole), [Violation { at: $at, what: $fault }]);
            }
        )*
    };
}

breaks! {
    a_payload_without_its_kinds_shape:
        vec![(None, EventPayload::from_parts("plan", json!({ "entries": 7 })))]
        => 0, Fault::Malformed("plan".to_owned());
    usage_that_is_no_number: {
        let usage = json!({ "input_tokens": "eleven" });
        let ended = json!({ "state": "succeeded", "stop_reason": "end_turn", "usage": usage });
        vec![(None, EventPayload::from_parts("turn_ended", ended))]
    } => 0, Fault::Malformed("turn_ended".to_owned());
    text_outside_of_any_turn: vec![(None, says("prt_1", 0, "x"))]
        => 0, Fault::OutsideTurn("agent_message_chunk".to_owned());
    text_before_the_start: {
        let mut log = turn([]);
        log.insert(0, (Some(1), says("prt_1", 0, "x")));
        log
    } => 0, Fault::BeforeStart("agent_message_chunk".to_owned());
    queued_after_the_start: turn([queued()]) => 1, Fault::QueuedLate;
    started_twice: turn([started()]) => 1, Fault::StartedTwice;
    two_turns_at_once: {
        let mut log = turn([]);
        log.insert(1, (Some(2), started()));
        log.push((Some(2), ended()));
        log
    } => 1, Fault::Overlap;
    ended_twice: turn([ended()]) => 2, Fault::EndedTwice;
    text_after_the_end: turn([ended(), says("prt_1", 0, "x")])[..3].to_vec()
        => 2, Fault::AfterEnd("agent_message_chunk".to_owned());
    no_end: turn([])[..1].to_vec() => 1, Fault::NoEnd;
    success_without_a_start: vec![(Some(1), queued()), (Some(1), ended())]
        => 1, Fault::NeverStarted;

    text_without_a_place: {
        let content = acp::ContentBlock::Text(acp::TextContent::new("x"));
        turn([acp::SessionUpdate::AgentMessageChunk(acp::ContentChunk::new(content)).into()])
    } => 1, Fault::NoPosition;
    a_part_without_its_beginning: turn([says("prt_1", 3, "x")])
        => 1, Fault::PartUnseen { part: "prt_1".to_owned(), offset: 3 };
    voided_without_having_been: turn([voided("prt_1")]) => 1, Fault::VoidedUnseen("prt_1".to_owned());
    a_hole: turn([says("prt_1", 0, "one"), says("prt_1", 5, "x")])
        => 2, Fault::PartBroken { part: "prt_1".to_owned(), length: 3, offset: 5 };
    a_double: turn([says("prt_1", 0, "one"), says("prt_1", 0, "one")])
        => 2, Fault::PartBroken { part: "prt_1".to_owned(), length: 3, offset: 0 };
    voided_in_another_turn: {
        let second = turn([voided("prt_1")]).into_iter().map(|(_, payload)| (Some(2), payload));
        turn([says("prt_1", 0, "one")]).into_iter().chain(second).collect()
    } => 4, Fault::PartReused("prt_1".to_owned());
    more_of_a_voided_part: turn([says("prt_1", 0, "one"), voided("prt_1"), says("prt_1", 3, "x")])
        => 3, Fault::AfterVoid("prt_1".to_owned());
    a_part_in_another_voice: turn([says("prt_1", 0, "one"), thinks("prt_1", 3, "x")])
        => 2, Fault::PartReused("prt_1".to_owned());
    a_part_in_another_turn: {
        let second = turn([says("prt_1", 3, "x")]).into_iter().map(|(_, payload)| (Some(2), payload));
        turn([says("prt_1", 0, "one")]).into_iter().chain(second).collect()
    } => 4, Fault::PartReused("prt_1".to_owned());
    a_part_replaced_in_another_turn: {
        let second = turn([replaced("prt_1", "x")]).into_iter().map(|(_, payload)| (Some(2), payload));
        turn([says("prt_1", 0, "one")]).into_iter().chain(second).collect()
    } => 4, Fault::PartReused("prt_1".to_owned());

    an_update_without_its_call: turn([completed("call_1")]) => 1, Fault::ToolUnseen("call_1".to_owned());
    a_call_told_twice: turn([call("call_1"), call("call_1"), status("call_1", acp::ToolCallStatus::Failed)])
        => 2, Fault::ToolReused("call_1".to_owned());
    running_without_input:
        turn([call("call_1"), status("call_1", acp::ToolCallStatus::InProgress), status("call_1", acp::ToolCallStatus::Failed)])
        => 2, Fault::ToolInputMissing("call_1".to_owned());
    completed_without_input: turn([call("call_1"), completed("call_1")])
        => 2, Fault::ToolInputMissing("call_1".to_owned());
    input_that_is_half_json: turn([call("call_1"), runs("call_1", json!("{\"command\":")), completed("call_1")])
        => 2, Fault::ToolInputBroken("call_1".to_owned());
    back_to_pending:
        turn([
            call("call_1"),
            runs("call_1", json!({})),
            status("call_1", acp::ToolCallStatus::Pending),
            completed("call_1"),
        ])
        => 3, Fault::ToolWentBack("call_1".to_owned());
    two_final_states:
        turn([call("call_1"), runs("call_1", json!({})), completed("call_1"), completed("call_1")])
        => 4, Fault::ToolAfterFinal("call_1".to_owned());
    a_call_left_open: turn([call("call_1"), runs("call_1", json!({}))])
        => 3, Fault::ToolLeftOpen { id: "call_1".to_owned(), status: acp::ToolCallStatus::InProgress };

    success_without_usage: end_of(TurnOutcome { usage: None, ..outcome() }) => 1, Fault::UsageMissing;
    a_negative_cost:
        end_of(TurnOutcome { usage: Some(Usage { cost_usd: -1.0, ..Usage::default() }), ..outcome() })
        => 1, Fault::UsageNotNumeric(-1.0);
    an_end_that_is_none: end_of(TurnOutcome { state: TurnState::Running, ..outcome() })
        => 1, Fault::NotFinal(TurnState::Running);
    success_without_a_reason: end_of(TurnOutcome { stop_reason: None, ..outcome() })
        => 1, Fault::StopReasonMissing(TurnState::Succeeded);
    success_by_cancelling: end_of(TurnOutcome { stop_reason: Some(TurnStopReason::Cancelled), ..outcome() })
        => 1, Fault::StopReasonNotAllowed(TurnState::Succeeded, TurnStopReason::Cancelled);
    success_by_the_bound_on_calls:
        end_of(TurnOutcome { stop_reason: Some(TurnStopReason::MaxTurnRequests), ..outcome() })
        => 1, Fault::StopReasonNotAllowed(TurnState::Succeeded, TurnStopReason::MaxTurnRequests);
    cancelled_by_coming_to_an_end:
        end_of(TurnOutcome { stop_reason: Some(TurnStopReason::EndTurn), ..TurnOutcome::cancelled() })
        => 1, Fault::StopReasonNotAllowed(TurnState::Cancelled, TurnStopReason::EndTurn);
    failure_without_an_error: end_of(TurnOutcome { state: TurnState::Failed, stop_reason: None, ..outcome() })
        => 1, Fault::ErrorMissing(TurnState::Failed);
    success_with_an_error: end_of(TurnOutcome { error: Some(error()), ..outcome() })
        => 1, Fault::ErrorNotAllowed(TurnState::Succeeded);

    asked_twice: turn([asks("per_1"), asks("per_1"), settled("per_1", Resolution::Once)])
        => 2, Fault::AskedTwice("per_1".to_owned());
    settled_without_having_been_asked: turn([settled("per_1", Resolution::Once)])
        => 1, Fault::NeverAsked("per_1".to_owned());
    settled_twice:
        turn([questions("que_1"), answered("que_1", Resolution::Answered), answered("que_1", Resolution::Dropped)])
        => 3, Fault::SettledTwice("que_1".to_owned());
    a_permission_answered_as_a_question: turn([asks("per_1"), settled("per_1", Resolution::Answered)])
        => 2, Fault::ResolutionNotAllowed { id: "per_1".to_owned(), resolution: Resolution::Answered };
    a_question_allowed_as_a_permission: turn([questions("que_1"), answered("que_1", Resolution::Always)])
        => 2, Fault::ResolutionNotAllowed { id: "que_1".to_owned(), resolution: Resolution::Always };
    a_request_left_open: turn([asks("per_1")]) => 2, Fault::AskLeftOpen("per_1".to_owned());
}

#[test]
fn a_permission_is_not_settled_as_a_question() {
    let log = turn([asks("id_1"), answered("id_1", Resolution::Rejected)]);
    let (never, open) = (Fault::NeverAsked("id_1".to_owned()), Fault::AskLeftOpen("id_1".to_owned()));
    assert_eq!(
        broken(&log, Extent::Whole),
        [Violation { at: 2, what: never }, Violation { at: 3, what: open }]
    );
}

#[test]
fn a_turn_that_never_started_may_end_in_any_other_way() {
    let failed = TurnOutcome::failed(TurnErrorReason::DeadlineExceeded, "too late");
    for outcome in [TurnOutcome::cancelled(), failed] {
        let log = vec![(Some(1), queued()), (Some(1), EventPayload::TurnEnded(outcome))];
        assert_eq!(broken(&log, Extent::Whole), []);
    }
}

#[test]
fn a_turn_may_fail_for_the_bound_on_calls() {
    let outcome = TurnOutcome {
        stop_reason: Some(TurnStopReason::MaxTurnRequests),
        ..TurnOutcome::failed(TurnErrorReason::DeadlineExceeded, "too many")
    };
    assert_eq!(broken(&end_of(outcome), Extent::Whole), []);
}

#[test]
fn text_is_what_the_backend_said_in_the_end() {
    let log =
        turn([says("prt_1", 0, "one"), says("prt_2", 0, "two"), says("prt_3", 0, "lost"), voided("prt_3")]);
    let differences = |finals: &[(&str, Voice, &str)], extent| {
        let entries: Vec<Entry<'_>> =
            log.iter().map(|(turn, payload)| Entry { turn: *turn, payload }).collect();
        let finals = finals.iter().map(|(id, voice, text)| ((*id).to_owned(), (*voice, (*text).to_owned())));
        check_texts(&entries, &finals.collect(), extent)
    };
    let differs = |part: &str, folded: Option<&str>, wanted: Option<&str>| {
        let (part, folded, wanted) = (part.to_owned(), folded.map(str::to_owned), wanted.map(str::to_owned));
        [Violation { at: log.len(), what: Fault::TextDiffers { part, folded, wanted } }]
    };
    let (one, two) = (("prt_1", Voice::Message, "one"), ("prt_2", Voice::Message, "two"));
    assert_eq!(differences(&[one, two], Extent::Whole), []);
    assert_eq!(differences(&[one], Extent::SoFar), []);
    assert_eq!(differences(&[one], Extent::Whole), differs("prt_2", Some("two"), None));
    let other = ("prt_2", Voice::Message, "to");
    assert_eq!(differences(&[one, other], Extent::Whole), differs("prt_2", Some("two"), Some("to")));
    let thought = ("prt_2", Voice::Thought, "two");
    assert_eq!(differences(&[one, thought], Extent::Whole), differs("prt_2", Some("two"), Some("two")));
    let more = ("prt_4", Voice::Message, "four");
    assert_eq!(differences(&[one, two, more], Extent::Whole), differs("prt_4", None, Some("four")));
}
