//! Every transition of a session, by table: from a stage, what happens, what is done about it, and where that leads.

use std::time::Duration;

use berth_opencode::{ClientError, EnsuredHow, PromptContent, Snapshot, model::SessionStatus};
use berth_wire::{
    api::{ModelChoice, PermissionDecision, PromptPart},
    door::TurnEnding,
    event::{EventPayload, TurnStarted},
    turn::TurnErrorReason as R,
};
use jiff::Timestamp;
use serde_json::json;
use tokio::time::Instant;

use self::bench::{
    Bench, FIRST, SECOND, abort, event, late, prepared, prompt_stored, refused, status, turn, unprepared,
};
use super::{Input, Running};
use crate::{
    config::Limits,
    runner::calls::{CallResult, Look, PrepareError},
    store::{Answer, OpenAsk, OpenTurn, SessionWork, TurnOptions, UnreadableTurn, Unusable},
};

mod bench;

const SECOND_LONG: Duration = Duration::from_secs(1);

/// One line of the table: where, what happens, what is done, where that leads.
type Line = (&'static str, Bench, &'static [&'static str], &'static str);

fn check(lines: Vec<Line>) {
    for (name, bench, did, stage) in lines {
        assert_eq!(bench.did, did, "{name}");
        assert_eq!(bench.stage(), stage, "{name}");
    }
}

#[test]
fn a_queued_turn_waits_longer_for_a_sandbox_without_a_place() {
    let queued = |work: &mut SessionWork| work.queued = Some(turn(FIRST));
    let unready = |runs| Bench::rest().open(false).rows(queued).unready(runs);
    let ends: &[_] = &["Failed SandboxNotReady", "reread"];
    let minutes = Duration::from_mins;
    let new = |work: &mut SessionWork| {
        let turn = OpenTurn { queued_at: Timestamp::UNIX_EPOCH + minutes(10), ..turn(FIRST) };
        work.queued = Some(turn);
    };
    check(vec![
        ("its programs run, and it is not ready", unready(true).tick_after(minutes(2)), ends, "rest"),
        ("it has no place", unready(false).tick_after(minutes(14)), &[], "rest"),
        ("it gets none", unready(false).tick_after(minutes(15)), ends, "rest"),
        (
            "it has none for long, and the turn is new",
            unready(false).wait(minutes(20)).rows(new).step(Input::Tick),
            &[],
            "rest",
        ),
    ]);
}

#[test]
fn a_queued_turn_is_started_when_nothing_stands_in_the_way() {
    let queued = |work: &mut SessionWork| work.queued = Some(turn(FIRST));
    let closed = || Bench::rest().open(false).rows(queued);
    check(vec![
        ("nothing is wanted", Bench::rest(), &[] as &[_], "rest"),
        ("first of all opencode is looked at", Bench::preparing(), &["prepare"], "preparing"),
        ("the sandbox is away", closed(), &[], "rest"),
        ("it comes back", closed().open(true).step(Input::Open { booted: true }), &["prepare"], "preparing"),
        (
            "it stays away",
            closed().tick_after(Duration::from_mins(2)),
            &["Failed SandboxUnavailable", "reread"],
            "rest",
        ),
        ("all is well", Bench::starting(), &["session ses_1", "begin 11"], "starting"),
        (
            "it is written that it runs",
            Bench::starting().step(Input::Begun(true)),
            &["post", "reread"],
            "running",
        ),
        ("it was cancelled meanwhile", Bench::starting().step(Input::Begun(false)), &["reread"], "rest"),
        (
            "the session is deleted meanwhile",
            Bench::preparing().rows(|work| work.deleted = true).done(prepared("ses_1", EnsuredHow::Created)),
            &["session ses_1", "delete"],
            "deleting",
        ),
        (
            "the turn after a good one, of which nobody told anything",
            Bench::finished().rows(|work| work.queued = Some(turn(SECOND))),
            &["begin 12"],
            "starting",
        ),
        (
            "the turn after a good one, where somebody else's came between",
            Bench::finished().step(Input::Foreign).rows(|work| work.queued = Some(turn(SECOND))),
            &["prepare"],
            "preparing",
        ),
        (
            "the turn after a good one, where the subscription broke",
            Bench::finished().step(Input::Lost).rows(|work| work.queued = Some(turn(SECOND))),
            &["prepare"],
            "preparing",
        ),
        ("the turn after a failure waits a moment", Bench::after_a_failure(), &[], "rest"),
        (
            "then opencode is looked at",
            Bench::after_a_failure().tick_after(Duration::from_millis(250)),
            &["prepare"],
            "preparing",
        ),
        (
            "opencode lost the session",
            Bench::after_a_failure().tick_after(SECOND_LONG).done(prepared("ses_2", EnsuredHow::Created)),
            &["session ses_2", "reset", "begin 12"],
            "starting",
        ),
    ]);
}

#[test]
fn what_keeps_a_turn_from_being_started_has_its_reason() {
    let fails = |error: PrepareError| Bench::preparing().done(unprepared(error));
    let busy = || fails(PrepareError::Busy);
    check(vec![
        ("opencode does not answer", fails(late().into()), &[] as &[_], "rest"),
        ("a moment later", fails(late().into()).tick_after(SECOND_LONG), &["prepare"], "preparing"),
        (
            "for too long",
            fails(late().into()).tick_after(Duration::from_mins(2)),
            &["Failed SandboxUnavailable", "reread"],
            "rest",
        ),
        ("the gate is closed for an hour", Bench::preparing().kept_out(60), &["prepare"], "preparing"),
        (
            "the sandbox goes away with its gate closed",
            Bench::preparing().kept_out(60).done(unprepared(late())).tick_after(Duration::from_mins(2)),
            &["Failed SandboxUnavailable", "reread"],
            "rest",
        ),
        (
            "the gate stays closed",
            Bench::preparing().kept_out(123),
            &["Failed SandboxUnavailable", "reread"],
            "rest",
        ),
        ("somebody else's turn runs", busy(), &[], "rest"),
        ("it is waited for", busy().tick_after(Duration::from_mins(2)), &["prepare"], "preparing"),
        (
            "for as long as a turn may take",
            busy().tick_after(Duration::from_mins(15)),
            &["Failed SessionBusy", "reread"],
            "rest",
        ),
        (
            "another program answers",
            fails(ClientError::UnsupportedVersion { seen: "version 2.0.0".to_owned() }.into()),
            &["Failed UnsupportedVersion", "reread"],
            "rest",
        ),
        (
            "the directory's configuration is broken",
            fails(refused(400, "ConfigJsonError").into()),
            &["Failed DirectoryUnusable", "reread"],
            "rest",
        ),
        (
            "the password is wrong",
            fails(ClientError::Unauthorized.into()),
            &["Failed SandboxUnavailable", "reread"],
            "rest",
        ),
    ]);
}

#[test]
fn a_prompt_is_handed_over_once_and_again_only_where_nothing_was_begun() {
    let posted = |error| Bench::posting().done(CallResult::Posted(Err(error)));
    let looked = |look| Bench::looking().done(CallResult::Looked(Ok(look)));
    check(vec![
        ("it was taken", Bench::admitted(), &[] as &[_], "running"),
        (
            "opencode refuses it",
            posted(refused(400, "BadRequest")),
            &["Failed PromptRejected", "reread"],
            "rest",
        ),
        (
            "the directory's configuration was broken meanwhile",
            posted(refused(400, "ConfigInvalidError")),
            &["Failed DirectoryUnusable", "reread"],
            "rest",
        ),
        ("opencode stumbles over it", posted(refused(500, "UnknownError")), &[], "running"),
        (
            "an answer that says nothing",
            posted(ClientError::UnexpectedBody { seen: "a web page".to_owned() }),
            &[],
            "running",
        ),
        ("the call broke", Bench::doubtful(), &[], "running"),
        ("what came of it is looked up", Bench::looking(), &["look"], "running"),
        ("nothing", looked(Look::Nothing), &["post"], "running"),
        ("it is worked on", looked(Look::Working), &[], "running"),
        (
            "not before the subscription stands",
            Bench::doubtful().open(false).step(Input::Tick),
            &[],
            "running",
        ),
        (
            "it began after all",
            Bench::doubtful().hear(&prompt_stored()).hear(&status("busy")).step(Input::Tick),
            &[],
            "running",
        ),
        ("the gate is closed for an hour", Bench::posting().gated(60), &["look"], "running"),
        (
            "it opens",
            Bench::posting().gated(60).done(CallResult::Looked(Ok(Look::Nothing))),
            &["post"],
            "running",
        ),
        (
            "the gate stays closed",
            Bench::posting().gated(123),
            &["Failed SandboxUnavailable", "reread"],
            "rest",
        ),
        (
            "the sandbox goes away with its gate closed",
            Bench::posting()
                .gated(60)
                .done(CallResult::Looked(Err(late())))
                .tick_after(Duration::from_mins(2)),
            &["Failed SandboxUnavailable", "reread"],
            "rest",
        ),
        (
            "it does not get through",
            Bench::looking().done(CallResult::Looked(Err(late()))).tick_after(Duration::from_mins(1)),
            &["Failed SandboxUnavailable", "reread"],
            "rest",
        ),
    ]);
}

#[test]
fn a_prompt_that_opencode_has_not_begun_is_sent_again() {
    let rebooted = || {
        let ended = Bench::admitted().open(false).step(Input::BootEnded("killed"));
        ended.open(true).step(Input::Open { booted: true })
    };
    let swallowed = || (0..3).fold(Bench::started().hear(&status("idle")), |bench, _| bench.snapshot());
    check(vec![
        ("opencode died before it began", rebooted(), &["look"] as &[_], "running"),
        (
            "it is sent to the next run",
            rebooted().done(CallResult::Looked(Ok(Look::Nothing))),
            &["post"],
            "running",
        ),
        (
            "it had begun, and nobody saw it",
            rebooted().done(CallResult::Looked(Ok(Look::Answered))),
            &["Failed OpencodeExited", "reread"],
            "rest",
        ),
        ("opencode passed it over", swallowed(), &["look"], "running"),
        ("it is sent again", swallowed().done(CallResult::Looked(Ok(Look::Nothing))), &["post"], "running"),
        (
            "and passed over again",
            (0..3).fold(
                swallowed()
                    .done(CallResult::Looked(Ok(Look::Nothing)))
                    .done(CallResult::Posted(Ok(())))
                    .hear(&status("busy"))
                    .hear(&status("idle")),
                |bench, _| bench.snapshot(),
            ),
            &["Failed PromptSwallowed", "reread"],
            "rest",
        ),
    ]);
}

#[test]
fn a_turn_ends_once_for_its_reason() {
    let minutes = Duration::from_mins;
    check(vec![
        ("by itself", Bench::finished(), &["Succeeded", "reread"] as &[_], "rest"),
        (
            "with opencode",
            Bench::answering().step(Input::BootEnded("killed")),
            &["Failed OpencodeExited", "reread"],
            "rest",
        ),
        (
            "nothing was heard of its beginning",
            Bench::admitted().tick_after(minutes(1)),
            &["look", "active 60"],
            "running",
        ),
        (
            "it never began",
            Bench::admitted().tick_after(minutes(1)).done(CallResult::Looked(Ok(Look::Nothing))),
            &["Failed NotStarted", "reread"],
            "rest",
        ),
        (
            "whether it began cannot be told",
            Bench::admitted().tick_after(minutes(1)).done(CallResult::Looked(Err(late()))),
            &["Failed NotStarted", "reread"],
            "rest",
        ),
        (
            "it had begun, and the events were lost",
            Bench::admitted().tick_after(minutes(1)).done(CallResult::Looked(Ok(Look::Working))),
            &[],
            "running",
        ),
        ("its time is up", Bench::answering().tick_after(minutes(15)), &["active 900", "abort"], "running"),
        (
            "its prompt was removed",
            Bench::answering().hear(&event("message.removed", json!({ "messageID": "msg_1" }))),
            &["abort"],
            "running",
        ),
        (
            "the abort has no effect",
            Bench::answering()
                .tick_after(minutes(15))
                .tick_after(SECOND_LONG)
                .done(CallResult::Aborted(Ok(())))
                .tick_after(minutes(1)),
            &["Failed DeadlineExceeded", "reread"],
            "rest",
        ),
    ]);
}

#[test]
fn an_abort_is_a_cancel_only_where_somebody_asked_for_it() {
    let aborted = || Bench::answering().hear(&abort()).hear(&status("idle"));
    check(vec![
        (
            "aborted by another client, as the door saw",
            aborted().word(TurnEnding::Aborted),
            &["Cancelled", "reread"] as &[_],
            "rest",
        ),
        (
            "aborted by nobody",
            aborted().word(TurnEnding::Interrupted),
            &["Failed Interrupted", "reread"],
            "rest",
        ),
        ("the door's word is waited for", aborted(), &[], "running"),
        ("the rows are read meanwhile", aborted().rows(|_| {}), &[], "running"),
        (
            "the door's word came before",
            Bench::answering().word(TurnEnding::Aborted).hear(&abort()).hear(&status("idle")),
            &["Cancelled", "reread"],
            "rest",
        ),
        (
            "the door's word does not come",
            aborted().tick_after(SECOND_LONG * 5),
            &["Failed Interrupted", "reread"],
            "rest",
        ),
        (
            "the door's word is on another turn",
            aborted().step(Input::EndedAtDoor(Some("msg_0"), TurnEnding::Aborted)),
            &[],
            "running",
        ),
    ]);
}

#[test]
fn a_cancel_ends_a_turn_wherever_it_stands() {
    let minute = Duration::from_mins(1);
    check(vec![
        ("not begun: an abort would be lost", Bench::admitted().cancelled(), &[] as &[_], "running"),
        (
            "it begins",
            Bench::admitted().cancelled().hear(&prompt_stored()).hear(&status("busy")),
            &["abort"],
            "running",
        ),
        ("begun", Bench::started().cancelled(), &["abort"], "running"),
        ("asked for again", Bench::started().cancelled().cancelled(), &[], "running"),
        ("the abort did not arrive", Bench::unaborted(), &[], "running"),
        ("whatever happens meanwhile", Bench::unaborted().step(Input::Alive), &[], "running"),
        ("a moment later", Bench::unaborted().tick_after(Duration::from_millis(500)), &["abort"], "running"),
        (
            "it had its effect, but is not answered",
            Bench::answering().cancelled().hear(&abort()).hear(&status("idle")),
            &[],
            "running",
        ),
        (
            "it is answered",
            Bench::answering()
                .cancelled()
                .hear(&abort())
                .hear(&status("idle"))
                .done(CallResult::Aborted(Ok(()))),
            &["Cancelled", "reread"],
            "rest",
        ),
        (
            "opencode goes on",
            Bench::answering()
                .cancelled()
                .step(Input::Tick)
                .done(CallResult::Aborted(Ok(())))
                .tick_after(minute),
            &["Failed OpencodeError", "reread"],
            "rest",
        ),
    ]);
}

#[test]
fn an_abort_that_does_not_arrive_is_sent_less_and_less_often() {
    let (mut bench, mut pauses) = (Bench::unaborted(), Vec::new());
    for _ in 0..6 {
        let pause = bench.session.due().expect("it is tried again") - bench.at.now;
        pauses.push(pause.as_millis());
        bench = bench.tick_after(pause);
        assert_eq!(bench.did, ["abort"]);
        assert_eq!(bench.session.due(), None, "it is on its way");
        bench = bench.done(CallResult::Aborted(Err(late())));
    }
    assert_eq!(pauses, [500, 1000, 2000, 4000, 4000, 4000]);
}

#[test]
fn a_cancel_ends_a_turn_of_which_nothing_is_known() {
    let minute = Duration::from_mins(1);
    check(vec![
        (
            "the prompt may not have arrived: it is not sent again",
            Bench::looking().cancelled().step(Input::Tick).done(CallResult::Looked(Ok(Look::Nothing))),
            &[] as &[_],
            "running",
        ),
        (
            "it did not",
            Bench::looking()
                .cancelled()
                .step(Input::Tick)
                .wait(minute / 4)
                .done(CallResult::Looked(Ok(Look::Nothing))),
            &["Cancelled", "reread"],
            "rest",
        ),
        ("waiting for a person", Bench::asking().cancelled(), &["abort"], "running"),
        (
            "the session is deleted",
            Bench::answering().rows(|work| work.deleted = true),
            &["abort"],
            "running",
        ),
        (
            "an abort that is on its way holds the next turn back",
            Bench::started()
                .cancelled()
                .step(Input::BootEnded("killed"))
                .rows(|work| work.queued = Some(turn(SECOND)))
                .tick_after(minute),
            &[],
            "rest",
        ),
    ]);
}

#[test]
fn an_ask_is_answered_once_by_a_person_or_by_its_deadline() {
    let decide = |work: &mut SessionWork| {
        work.asks = vec![OpenAsk {
            id: "per_1".to_owned(),
            request: EventPayload::TurnStarted(TurnStarted { prompt: vec![] }),
            expires_at: Timestamp::MAX,
            answer: Some(Answer::Permission { decision: PermissionDecision::Once, message: None }),
        }];
    };
    let quarter = Duration::from_mins(15);
    let (once, reject) =
        (&["reply per_1 Permission(Once, None)"] as &[_], &["reply per_1 Permission(Reject, None)"] as &[_]);
    let told = |result| Bench::asking().rows(decide).done(CallResult::Replied("per_1".to_owned(), result));
    check(vec![
        ("asked", Bench::asking(), &["ask per_1"] as &[_], "running"),
        ("a person answers", Bench::asking().rows(decide), once, "running"),
        ("told once", Bench::asking().rows(decide).step(Input::Tick), &[], "running"),
        ("it did not arrive", told(Err(late())), once, "running"),
        ("opencode refuses the answer", told(Err(refused(400, "BadRequest"))), &[], "running"),
        (
            "the deadline is the next try",
            told(Err(refused(400, "BadRequest"))).tick_after(quarter),
            reject,
            "running",
        ),
        ("nobody answers", Bench::asking().tick_after(quarter), reject, "running"),
        (
            "opencode confirms",
            Bench::asking()
                .rows(decide)
                .hear(&event("permission.replied", json!({ "requestID": "per_1", "reply": "once" }))),
            &["asked per_1"],
            "running",
        ),
    ]);
}

#[test]
fn a_session_is_deleted_and_never_tried_for_ever_in_a_broken_directory() {
    let refuse = || CallResult::Deleted(Err(refused(400, "ConfigJsonError")));
    let away = || CallResult::Deleted(Err(late()));
    check(vec![
        (
            "opencode knows nothing of it",
            Bench::rest().rows(|work| work.deleted = true),
            &["remove"] as &[_],
            "deleting",
        ),
        (
            "opencode may have one that nobody heard of",
            Bench::rest().rows(|work| (work.prompted, work.deleted) = (true, true)),
            &["delete"],
            "deleting",
        ),
        ("opencode has it", Bench::deleting(), &["delete"], "deleting"),
        ("it is gone there", Bench::deleting().done(CallResult::Deleted(Ok(()))), &["remove"], "deleting"),
        ("it could not be deleted", Bench::deleting().done(away()), &[], "rest"),
        ("soon after", Bench::deleting().done(away()).tick_after(SECOND_LONG), &["delete"], "deleting"),
    ]);
    let mut pauses = Vec::new();
    let mut bench = Bench::deleting();
    while bench.did != ["remove"] {
        bench = bench.done(refuse());
        let Some(due) = bench.session.due() else { break };
        let pause = due - bench.at.now;
        pauses.push(pause.as_secs());
        bench = bench.tick_after(pause);
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256], "then ours goes without opencode's");
    let (bench, mut longest) = (Bench::deleting(), 0);
    (0..20).fold(bench, |bench, _| {
        let bench = bench.done(away());
        let pause = bench.session.due().expect("it is tried again") - bench.at.now;
        longest = longest.max(pause.as_secs());
        bench.tick_after(pause)
    });
    assert_eq!(longest, 300, "a sandbox that is away is waited for");
}

#[test]
fn a_running_turn_is_resumed_with_what_was_used_of_its_time() {
    let resumed = |active| {
        let (work, state) = (Bench::answering().work, Bench::answering().session.state_to_save());
        let running = work.running.clone().map(|turn| OpenTurn { active, ..turn });
        Bench::new(SessionWork { running, translator: state, ..work })
    };
    check(vec![
        (
            "a minute is left",
            resumed(Duration::from_mins(14)).rows(|_| {}).tick_after(Duration::from_secs(59)),
            &["active 899"] as &[_],
            "running",
        ),
        (
            "it is used up",
            resumed(Duration::from_mins(14)).rows(|_| {}).tick_after(Duration::from_mins(1)),
            &["active 900", "abort"],
            "running",
        ),
    ]);
    let lost = || {
        let work = Bench::answering().work;
        Bench::new(SessionWork { translator: Some("{}".to_owned()), ..work.clone() }).rows(|_| {})
    };
    check(vec![(
        "its state is not understood",
        lost(),
        &["Failed StateUnreadable", "reread"] as &[_],
        "rest",
    )]);
}

#[test]
fn a_turn_whose_rows_are_not_understood_ends_and_the_others_go_on() {
    let unreadable =
        |id, runs| vec![UnreadableTurn { id, runs, why: Unusable::Value, error: "no JSON".to_owned() }];
    let resumed = |bench: Bench, change: fn(&mut SessionWork)| {
        let Bench { mut session, mut work, .. } = bench;
        work.translator = session.state_to_save();
        change(&mut work);
        Bench::new(work)
    };
    let lost = || {
        let bench = resumed(Bench::asking(), |work| work.running = None);
        bench.rows(|work| work.unreadable = unreadable(FIRST, true))
    };
    let next = |work: &mut SessionWork| {
        (work.unreadable, work.queued) = (Vec::new(), Some(turn(SECOND)));
    };
    check(vec![
        (
            "a prompt that waits",
            Bench::rest().rows(|work| work.unreadable = unreadable(FIRST, false)),
            &["Failed StateUnreadable", "reread"] as &[_],
            "rest",
        ),
        (
            "a prompt that waits behind a turn",
            Bench::answering().rows(|work| work.unreadable = unreadable(SECOND, false)),
            &["Failed StateUnreadable", "reread"],
            "running",
        ),
        ("a turn that runs", lost(), &["asked per_1", "Failed StateUnreadable", "reread"], "rest"),
        ("the prompt behind it", lost().rows(next), &["prepare"], "preparing"),
        (
            "an ask of a turn that runs",
            resumed(Bench::answering(), |_| {}).rows(|work| work.unreadable = unreadable(FIRST, true)),
            &["Failed StateUnreadable", "reread"],
            "rest",
        ),
    ]);
}

#[test]
fn each_queued_turn_has_a_wait_of_its_own() {
    let away = Bench::rest().open(false).rows(|work| work.queued = Some(turn(FIRST)));
    let next = away.wait(Duration::from_mins(1)).rows(|work| work.queued = Some(turn(SECOND)));
    let next = next.tick_after(Duration::from_secs(61));
    assert!(next.did.is_empty(), "two minutes after the first began to wait: {:?}", next.did);
    let next = next.tick_after(Duration::from_mins(1));
    assert_eq!(next.did, ["Failed SandboxUnavailable", "reread"]);
}

#[test]
fn state_is_read_after_a_gap_and_until_it_is_there() {
    let bench = Bench::answering().step(Input::Gap);
    assert!(bench.wants_snapshot());
    assert_eq!(bench.session.prompt(), Some("msg_1"));
    let bench = bench.step(Input::Snapshot(Err(late())));
    assert!(!bench.wants_snapshot(), "the others have their turn");
    let bench = bench.tick_after(SECOND_LONG);
    assert!(bench.wants_snapshot());
    let bench = bench.step(Input::Snapshot(Ok(Box::new(Snapshot::default()))));
    assert!(!bench.wants_snapshot());
    assert!(!Bench::finished().step(Input::Gap).wants_snapshot(), "nothing runs");
}

#[test]
fn state_that_cannot_be_read_is_read_less_and_less_often() {
    let (mut bench, mut pauses) = (Bench::answering().step(Input::Gap), Vec::new());
    for _ in 0..7 {
        assert!(bench.wants_snapshot());
        bench = bench.step(Input::Snapshot(Err(late())));
        let mut seconds = 0;
        while !bench.wants_snapshot() && seconds < 100 {
            seconds += 1;
            bench = bench.hear(&status("busy")).tick_after(SECOND_LONG);
        }
        pauses.push(seconds);
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
    let bench = bench.step(Input::Snapshot(Err(late()))).step(Input::Open { booted: true });
    assert!(bench.wants_snapshot(), "opencode is another one");
    let bench = bench.snapshot().step(Input::Gap).step(Input::Snapshot(Err(late()))).tick_after(SECOND_LONG);
    assert!(bench.wants_snapshot(), "it could be read meanwhile");
}

/// What opencode told may not have been heard, the turn's end included.
#[test]
fn state_is_read_when_nothing_is_heard_of_a_turn() {
    let bench = Bench::answering().tick_after(Duration::from_secs(9));
    assert!(!bench.wants_snapshot());
    let bench = bench.hear(&status("busy")).tick_after(Duration::from_secs(9));
    assert!(!bench.wants_snapshot(), "something was heard meanwhile");
    let bench = bench.tick_after(SECOND_LONG);
    assert!(bench.wants_snapshot());
    let works = Snapshot { status: Some(SessionStatus::Busy), ..Snapshot::default() };
    let bench = bench.step(Input::Snapshot(Ok(Box::new(works)))).tick_after(Duration::from_secs(9));
    assert!(!bench.wants_snapshot());
    assert!(bench.tick_after(SECOND_LONG).wants_snapshot(), "again and again");
    let waits = Bench::admitted().tick_after(Duration::from_secs(11));
    assert!(!waits.wants_snapshot(), "before the start other rules count");
}

#[test]
fn a_session_is_let_go_when_nothing_was_to_do_for_long() {
    let mut bench = Bench::finished().rows(|work| work.running = None);
    assert!(bench.session.is_done() && !bench.session.is_over(bench.at.now));
    let bench_at = bench.at.now + Limits::default().linger;
    assert!(bench.session.is_over(bench_at));
    let mut bench = bench.rows(|work| work.queued = Some(turn(SECOND)));
    assert!(!bench.session.is_done() && !bench.session.is_over(bench_at));
}

#[test]
fn a_prompt_carries_what_was_given_under_ids_that_repeat() {
    let file = PromptPart::File {
        mime: "image/png".to_owned(),
        filename: Some("a.png".to_owned()),
        url: "file:///work/a.png".to_owned(),
    };
    let model = ModelChoice { provider_id: "p".to_owned(), model_id: "m".to_owned() };
    let asked = OpenTurn {
        prompt: vec![PromptPart::text("look"), file, PromptPart::Agent { name: "general".to_owned() }],
        options: TurnOptions { model: Some(model), agent: Some("plan".to_owned()), ..TurnOptions::default() },
        ..turn(FIRST)
    };
    let id = "msg_22ac8eb89001BnfjGYH1RshWeX".to_owned();
    let running = Running::new(&asked, id.clone(), Limits::default().watchdog, Instant::now());
    let prompt = running.to_prompt();
    let ids: Vec<&str> = prompt.parts.iter().map(|part| part.id.as_str()).collect();
    let stem = "prt_22ac8eb89001BnfjGYH1RshW";
    assert_eq!(ids, [format!("{stem}00"), format!("{stem}01"), format!("{stem}02")]);
    assert_eq!(ids[0].len(), id.len(), "as opencode's own");
    assert_eq!(prompt.parts[0].content, PromptContent::Text("look".to_owned()));
    assert!(
        matches!(&prompt.parts[1].content, PromptContent::File { url, .. } if url == "file:///work/a.png")
    );
    assert_eq!(prompt.parts[2].content, PromptContent::Agent("general".to_owned()));
    assert_eq!(
        (prompt.agent.as_deref(), prompt.model.map(|model| model.model_id)),
        (Some("plan"), Some("m".to_owned()))
    );
    let again = Running::resumed(
        &OpenTurn { message_id: Some(id), ..asked },
        Limits::default().watchdog,
        Instant::now(),
    );
    let again = again.expect("it was handed over").to_prompt();
    assert!(again.parts.iter().map(|part| &part.id).eq(ids), "sent again under the same ids");
}

#[test]
fn reasons_are_as_the_table_says() {
    // What is new in the table, so that a name that changes is seen.
    let names = [R::SessionBusy, R::DirectoryUnusable, R::UnsupportedVersion, R::PromptSwallowed];
    let names = names.map(|reason| serde_json::to_value(reason).expect("a name"));
    assert_eq!(names, ["SessionBusy", "DirectoryUnusable", "UnsupportedVersion", "PromptSwallowed"]);
}
