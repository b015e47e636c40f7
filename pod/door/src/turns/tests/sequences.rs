//! One test for each way in which a turn may go. The orders are those measured on opencode 1.15.4 and 1.18.33.

use super::*;

#[test]
fn a_text_turn() {
    let mut rig = Rig::new();
    let ticket = rig.prompt("s", Some("u1"));
    rig.expect(&["s u1 Admitted"], false);
    rig.accepted(&ticket);
    rig.user("s", "u1");
    rig.expect(&[], false);
    rig.busy("s");
    rig.expect(&["s u1 Started"], false);
    rig.assistant("s", "a1", "u1", false);
    rig.busy("s");
    rig.assistant("s", "a1", "u1", true);
    rig.assistant("s", "a1", "u1", true);
    rig.busy("s");
    rig.expect(&[], false);
    rig.status("s", "idle");
    rig.expect(&["s u1 Idle"], true);
    rig.event("session.idle", &json!({"sessionID": "s"}));
    rig.user("s", "u1");
    rig.expect(&[], true);
}

#[test]
fn the_id_may_be_opencodes_choice() {
    let mut rig = Rig::new();
    rig.prompt("s", None);
    rig.expect(&["s - Admitted"], false);
    rig.user("s", "u1");
    rig.busy("s");
    rig.idle("s");
    rig.expect(&["s u1 Started", "s u1 Idle"], true);
}

#[test]
fn an_old_message_that_changes_is_not_the_prompt() {
    let mut rig = Rig::new();
    rig.prompt("s", None);
    let old =
        json!({"id": "u0", "role": "user", "sessionID": "s", "time": {"created": 1_700_000_000_000_i64}});
    rig.event("message.updated", &json!({ "info": old }));
    rig.busy("s");
    rig.expect(&["s - Admitted"], false);
}

#[test]
fn an_idle_before_the_beginning_means_nothing() {
    let mut rig = Rig::new();
    rig.prompt("s", Some("u1"));
    rig.idle("s");
    rig.expect(&["s u1 Admitted"], false);
    rig.user("s", "u1");
    rig.expect(&[], false);
    rig.busy("s");
    rig.idle("s");
    rig.expect(&["s u1 Started", "s u1 Idle"], true);
}

#[test]
fn a_provider_error_closes_the_answer_after_the_idle() {
    let mut rig = Rig::new();
    rig.prompt("s", Some("u1"));
    rig.user("s", "u1");
    rig.busy("s");
    rig.assistant("s", "a1", "u1", false);
    rig.error("s");
    rig.idle("s");
    rig.expect(&["s u1 Admitted", "s u1 Started"], false);
    rig.assistant("s", "a1", "u1", true);
    rig.expect(&["s u1 Idle"], true);
    rig.idle("s");
    rig.expect(&[], true);
}

#[test]
fn an_answer_that_stays_open_is_asked_about() {
    let mut rig = Rig::new();
    rig.prompt("s", Some("u1"));
    rig.user("s", "u1");
    rig.busy("s");
    rig.assistant("s", "a1", "u1", false);
    rig.idle("s");
    rig.told();
    rig.pass(Duration::from_secs(6));
    assert_eq!(rig.actions.pop_back(), Some(confirm("s")));
    rig.confirmed("s", &absent(&[("u1", None, false), ("a1", Some("u1"), false)]));
    rig.expect(&["s u1 Idle"], true);
}

#[test]
fn a_retry_is_work() {
    let mut rig = Rig::new();
    rig.prompt("s", Some("u1"));
    rig.user("s", "u1");
    rig.status("s", "retry");
    rig.expect(&["s u1 Admitted", "s u1 Started"], false);
    rig.pass(Duration::from_hours(24));
    assert_eq!(rig.actions.pop_back(), Some(confirm("s")));
    rig.confirmed("s", &Evidence::Answered { busy: true, messages: Vec::new() });
    rig.expect(&[], false);
}

#[test]
fn prompts_of_one_run_end_with_it_once() {
    let mut rig = Rig::new();
    rig.prompt("s", Some("u1"));
    rig.user("s", "u1");
    rig.busy("s");
    rig.assistant("s", "a1", "u1", false);
    rig.prompt("s", Some("u2"));
    rig.user("s", "u2");
    rig.expect(&["s u1 Admitted", "s u1 Started", "s u2 Admitted"], false);
    rig.assistant("s", "a1", "u1", true);
    rig.busy("s");
    rig.expect(&["s u2 Started"], false);
    rig.assistant("s", "a2", "u2", false);
    rig.assistant("s", "a2", "u2", true);
    rig.idle("s");
    rig.expect(&["s u1 Idle", "s u2 Idle"], true);
}

#[test]
fn a_prompt_that_arrives_after_the_idle_has_a_run_of_its_own() {
    let mut rig = Rig::new();
    rig.prompt("s", Some("u1"));
    rig.user("s", "u1");
    rig.busy("s");
    rig.prompt("s", Some("u2"));
    rig.idle("s");
    rig.expect(&["s u1 Admitted", "s u1 Started", "s u2 Admitted", "s u1 Idle"], false);
    rig.user("s", "u2");
    rig.busy("s");
    rig.idle("s");
    rig.expect(&["s u2 Started", "s u2 Idle"], true);
}

#[test]
fn a_prompt_that_its_run_left_out_ends_when_opencode_is_asked() {
    let mut rig = Rig::new();
    rig.prompt("s", Some("u1"));
    rig.user("s", "u1");
    rig.busy("s");
    rig.prompt("s", Some("u2"));
    rig.user("s", "u2");
    rig.idle("s");
    rig.told();
    rig.pass(Duration::from_secs(3));
    assert_eq!(rig.actions.pop_back(), Some(confirm("s")));
    rig.confirmed("s", &absent(&[("u2", None, false)]));
    rig.expect(&["s u2 Idle"], true);
}

#[test]
fn the_same_ids_again_are_the_same_turn() {
    let mut rig = Rig::new();
    let first = rig.prompt("s", Some("u1"));
    let again = rig.prompt("s", Some("u1"));
    rig.change(|table, now, out| table.refused(&again, now, out));
    rig.expect(&["s u1 Admitted"], false);
    let again = rig.prompt("s", Some("u1"));
    rig.change(|table, now, out| table.refused(&first, now, out));
    rig.expect(&[], false);
    rig.accepted(&again);
    rig.user("s", "u1");
    rig.busy("s");
    rig.prompt("s", Some("u1"));
    rig.user("s", "u1");
    rig.idle("s");
    rig.expect(&["s u1 Started", "s u1 Idle"], true);
    // When it was the newest and had succeeded, opencode looks at it again and does nothing.
    rig.prompt("s", Some("u1"));
    rig.user("s", "u1");
    rig.busy("s");
    rig.idle("s");
    rig.expect(&["s u1 Admitted", "s u1 Started", "s u1 Idle"], true);
}

#[test]
fn a_note_is_no_turn() {
    let mut rig = Rig::new();
    let note = Admission { session: "s".to_owned(), directory: "/w".to_owned(), origin: TurnOrigin::Berth };
    let ticket = rig.change(|table, now, out| table.admit("boot", &note, now, out)).unwrap().unwrap();
    rig.learned(&ticket, &Found { no_reply: true, ..Found::default() });
    assert!(!rig.is_idle(), "it is not stored yet");
    rig.user("s", "u1");
    rig.expect(&[], true);
}

#[test]
fn an_agent_that_does_not_exist() {
    let mut rig = Rig::new();
    let ticket = rig.prompt("s", Some("u1"));
    rig.accepted(&ticket);
    rig.error("s");
    rig.error("s");
    rig.expect(&["s u1 Admitted"], false);
    rig.pass(Duration::from_secs(2));
    assert_eq!(rig.actions.pop_back(), Some(confirm("s")));
    rig.confirmed("s", &absent(&[]));
    rig.expect(&["s u1 Failed"], true);
    assert!(rig.actions.is_empty());
}

#[test]
fn a_late_error_of_the_turn_before_harms_nobody() {
    let mut rig = Rig::new();
    rig.prompt("s", Some("u1"));
    rig.user("s", "u1");
    rig.busy("s");
    rig.error("s");
    rig.idle("s");
    rig.prompt("s", Some("u2"));
    rig.error("s");
    rig.user("s", "u2");
    rig.busy("s");
    rig.pass(Duration::from_secs(2));
    rig.expect(&["s u1 Admitted", "s u1 Started", "s u1 Idle", "s u2 Admitted", "s u2 Started"], false);
    assert!(rig.actions.is_empty(), "{:?}", rig.actions);
}

#[test]
fn a_refused_prompt_is_no_turn() {
    let mut rig = Rig::new();
    let ticket = rig.prompt("s", Some("u1"));
    rig.change(|table, now, out| table.refused(&ticket, now, out));
    rig.expect(&["s u1 Admitted", "s u1 Refused"], true);
}

#[test]
fn a_prompt_that_never_begins_restarts_opencode_once() {
    let mut rig = Rig::new();
    for session in ["s", "t"] {
        let ticket = rig.prompt(session, Some("u"));
        rig.accepted(&ticket);
    }
    rig.pass(Duration::from_secs(59));
    assert!(rig.actions.is_empty());
    rig.pass(Duration::from_secs(2));
    assert_eq!(rig.actions.drain(..).collect::<Vec<_>>(), [confirm("s"), confirm("t")]);
    rig.confirmed("s", &absent(&[]));
    rig.confirmed("t", &absent(&[("u", None, false)]));
    rig.expect(&["s u Admitted", "t u Admitted", "s u NeverStarted", "t u NeverStarted"], true);
    assert_eq!(rig.actions.drain(..).collect::<Vec<_>>(), [Action::Restart { boot_id: "boot".to_owned() }]);
}

#[test]
fn a_prompt_that_opencode_never_took_does_not_restart_it() {
    let mut rig = Rig::new();
    rig.prompt("s", Some("u1"));
    rig.pass(BOUND * 2);
    assert_eq!(rig.actions.pop_back(), Some(confirm("s")));
    rig.confirmed("s", &absent(&[]));
    rig.expect(&["s u1 Admitted", "s u1 NeverStarted"], true);
    assert!(rig.actions.is_empty());
}

#[test]
fn a_beginning_and_an_end_that_were_not_heard_are_found() {
    let mut rig = Rig::new();
    let ticket = rig.prompt("s", Some("u1"));
    rig.accepted(&ticket);
    rig.change(|table, now, out| table.hears("boot", false, now, out));
    assert_eq!(rig.table.idleness(), Idleness::Unknown);
    let count = rig.table.count();
    rig.change(|table, now, out| table.seed(&[], count, now, out));
    rig.pass(Duration::from_secs(1));
    assert!(rig.actions.contains(&confirm("s")), "{:?}", rig.actions);
    rig.confirmed("s", &absent(&[("u1", None, false), ("a1", Some("u1"), true)]));
    rig.expect(&["s u1 Admitted", "s u1 Idle"], true);
}

#[test]
fn a_broken_directory_does_not_hold_the_table_up() {
    let mut rig = Rig::new();
    let ticket = rig.prompt("s", Some("u1"));
    rig.accepted(&ticket);
    rig.pass(BOUND * 2);
    rig.confirmed("s", &Evidence::Broken);
    rig.expect(&["s u1 Admitted", "s u1 Failed"], true);
    assert!(!rig.actions.iter().any(|action| matches!(action, Action::Restart { .. })));
}

#[test]
fn an_opencode_that_does_not_answer_is_asked_again_and_then_restarted() {
    let mut rig = Rig::new();
    let ticket = rig.prompt("s", Some("u1"));
    rig.accepted(&ticket);
    rig.pass(BOUND * 2);
    for _ in 0..3 {
        assert_eq!(rig.actions.pop_back(), Some(confirm("s")));
        rig.confirmed("s", &Evidence::Silent);
        rig.pass(Duration::from_secs(3));
    }
    rig.expect(&["s u1 Admitted", "s u1 NeverStarted"], true);
    assert_eq!(rig.actions.pop_back(), Some(Action::Restart { boot_id: "boot".to_owned() }));
}

/// A long turn on a busy machine: now and then a question is not answered in time.
#[test]
fn only_questions_that_go_unanswered_in_a_row_count() {
    let works = Evidence::Answered { busy: true, messages: Vec::new() };
    let mends: [&dyn Fn(&mut Rig); 2] = [&|rig| rig.busy("s"), &|rig| rig.confirmed("s", &works)];
    for mend in mends {
        let mut rig = Rig::new();
        rig.prompt("s", Some("u1"));
        rig.user("s", "u1");
        rig.busy("s");
        rig.told();
        for _ in 0..4 {
            rig.pass(BOUND * 2);
            assert_eq!(rig.actions.pop_back(), Some(confirm("s")));
            rig.confirmed("s", &Evidence::Silent);
            rig.pass(Duration::from_secs(3));
            mend(&mut rig);
        }
        rig.expect(&[], false);
    }
}

#[test]
fn an_abort_while_it_runs_passes_and_the_end_waits_for_its_answer() {
    let mut rig = Rig::new();
    rig.prompt("s", Some("u1"));
    rig.user("s", "u1");
    rig.busy("s");
    rig.assistant("s", "a1", "u1", false);
    rig.told();
    assert_eq!(rig.abort("s"), Plan::Pass);
    rig.error("s");
    rig.idle("s");
    rig.assistant("s", "a1", "u1", true);
    rig.idle("s");
    rig.expect(&[], false);
    rig.abort_returned("s");
    rig.expect(&["s u1 Aborted"], true);
}

#[test]
fn an_abort_before_the_beginning_is_held_and_sent_then() {
    let mut rig = Rig::new();
    let ticket = rig.prompt("s", Some("u1"));
    let Plan::Hold(held) = rig.abort("s") else { panic!("it passes") };
    assert_eq!(held, [ticket.number]);
    rig.idle("s");
    rig.user("s", "u1");
    assert!(rig.actions.is_empty() && !rig.table.held("s", &held));
    rig.busy("s");
    assert_eq!(rig.actions.drain(..).collect::<Vec<_>>(), [send_abort("s")]);
    rig.assistant("s", "a1", "u1", false);
    rig.idle("s");
    rig.assistant("s", "a1", "u1", true);
    rig.idle("s");
    assert!(!rig.table.held("s", &held));
    rig.expect(&["s u1 Admitted", "s u1 Started"], false);
    rig.abort_returned("s");
    assert!(rig.table.held("s", &held));
    rig.expect(&["s u1 Aborted"], true);
}

#[test]
fn an_abort_that_came_to_nothing_is_sent_again() {
    let mut rig = Rig::new();
    rig.prompt("s", Some("u1"));
    rig.abort("s");
    rig.user("s", "u1");
    rig.busy("s");
    rig.actions.clear();
    rig.abort_returned("s");
    rig.pass(Duration::from_secs(4));
    assert_eq!(rig.actions.pop_back(), Some(confirm("s")));
    rig.confirmed("s", &Evidence::Answered { busy: true, messages: Vec::new() });
    assert_eq!(rig.actions.pop_back(), Some(send_abort("s")));
    // Or opencode went idle, and on.
    rig.idle("s");
    rig.assistant("s", "a1", "u1", false);
    assert_eq!(rig.actions.pop_back(), None, "the last one is not answered yet");
    rig.abort_returned("s");
    rig.idle("s");
    rig.expect(&["s u1 Admitted", "s u1 Started"], false);
    rig.assistant("s", "a1", "u1", true);
    rig.expect(&["s u1 Aborted"], true);
}

#[test]
fn a_held_abort_is_over_with_a_turn_that_never_begins() {
    let mut rig = Rig::new();
    let ticket = rig.prompt("s", Some("u1"));
    let Plan::Hold(held) = rig.abort("s") else { panic!("it passes") };
    rig.change(|table, now, out| table.refused(&ticket, now, out));
    assert!(rig.table.held("s", &held));
    assert!(rig.is_idle());
}

#[test]
fn one_abort_is_for_all_that_is_admitted() {
    let mut rig = Rig::new();
    rig.prompt("s", Some("u1"));
    rig.prompt("s", Some("u2"));
    let Plan::Hold(held) = rig.abort("s") else { panic!("it passes") };
    rig.user("s", "u1");
    rig.busy("s");
    assert_eq!(rig.actions.pop_back(), Some(send_abort("s")));
    rig.abort_returned("s");
    rig.idle("s");
    assert!(!rig.table.held("s", &held));
    rig.user("s", "u2");
    rig.busy("s");
    assert_eq!(rig.actions.pop_back(), Some(send_abort("s")));
    rig.abort_returned("s");
    rig.idle("s");
    assert!(rig.table.held("s", &held));
    assert!(rig.is_idle());
    rig.told();
    assert_eq!(rig.abort("s"), Plan::Pass);
}

#[test]
fn an_abort_of_a_run_takes_what_is_queued_in_it_along() {
    let mut rig = Rig::new();
    rig.prompt("s", Some("u1"));
    rig.user("s", "u1");
    rig.busy("s");
    rig.prompt("s", Some("u2"));
    rig.user("s", "u2");
    assert_eq!(rig.abort("s"), Plan::Pass);
    rig.idle("s");
    rig.abort_returned("s");
    rig.told();
    rig.pass(Duration::from_secs(3));
    rig.confirmed("s", &absent(&[("u2", None, false)]));
    rig.expect(&["s u2 Aborted"], true);
}

#[test]
fn the_second_idle_of_an_aborted_turn_is_not_the_end_of_the_next() {
    let mut rig = Rig::new();
    rig.prompt("s", Some("u1"));
    rig.user("s", "u1");
    rig.busy("s");
    rig.assistant("s", "a1", "u1", false);
    rig.abort("s");
    rig.idle("s");
    rig.prompt("s", Some("u2"));
    rig.user("s", "u2");
    rig.busy("s");
    rig.abort_returned("s");
    rig.told();
    rig.assistant("s", "a1", "u1", true);
    rig.idle("s");
    rig.expect(&["s u1 Aborted"], false);
    rig.assistant("s", "a2", "u2", false);
    rig.pass(Duration::from_secs(4));
    assert_eq!(rig.actions.pop_back(), Some(confirm("s")));
    rig.confirmed("s", &absent(&[("a2", Some("u2"), false)]));
    rig.expect(&[], false);
    rig.assistant("s", "a2", "u2", true);
    rig.idle("s");
    rig.expect(&["s u2 Idle"], true);
}

#[test]
fn a_subagent_belongs_to_its_parents_turn() {
    let mut rig = Rig::new();
    rig.prompt("s", Some("u1"));
    rig.user("s", "u1");
    rig.busy("s");
    rig.child("c", "s");
    rig.user("c", "cu");
    rig.busy("c");
    rig.assistant("c", "ca", "cu", false);
    rig.told();
    // An abort of 1.15.4 ends the parent first.
    rig.abort("s");
    rig.idle("s");
    rig.abort_returned("s");
    rig.expect(&[], false);
    rig.idle("c");
    rig.expect(&["s u1 Aborted"], true);
}

#[test]
fn what_nobody_asked_for_here_is_a_turn_too() {
    let mut rig = Rig::new();
    rig.user("s", "u1");
    assert!(rig.is_idle(), "a message is no work");
    rig.busy("s");
    assert!(!rig.is_idle());
    rig.assistant("s", "a1", "u1", false);
    rig.assistant("s", "a1", "u1", true);
    rig.idle("s");
    rig.expect(&["s u1 Started", "s u1 Idle"], true);
}

#[test]
fn messages_of_opencodes_own_in_the_middle_start_nothing() {
    let mut rig = Rig::new();
    rig.prompt("s", Some("u1"));
    rig.user("s", "u1");
    rig.busy("s");
    rig.assistant("s", "a1", "u1", false);
    rig.assistant("s", "a1", "u1", true);
    rig.error("s");
    rig.user("s", "compaction");
    rig.busy("s");
    rig.assistant("s", "summary", "compaction", false);
    rig.assistant("s", "summary", "compaction", true);
    rig.user("s", "synthetic");
    rig.busy("s");
    rig.assistant("s", "a2", "synthetic", false);
    rig.assistant("s", "a2", "synthetic", true);
    rig.expect(&["s u1 Admitted", "s u1 Started"], false);
    rig.idle("s");
    rig.expect(&["s u1 Idle"], true);
}

#[test]
fn the_answer_shows_a_beginning_whose_prompt_was_not_heard() {
    for id in [Some("u1"), None] {
        let mut rig = Rig::new();
        rig.prompt("s", id);
        rig.busy("s");
        rig.told();
        rig.assistant("s", "a1", "u1", false);
        rig.expect(&["s u1 Started"], false);
        rig.assistant("s", "a1", "u1", true);
        rig.idle("s");
        rig.expect(&["s u1 Idle"], true);
    }
}

#[test]
fn deleting_a_session_does_not_end_its_turn() {
    let mut rig = Rig::new();
    rig.prompt("s", Some("u1"));
    rig.user("s", "u1");
    rig.busy("s");
    rig.told();
    rig.event("session.deleted", &json!({"info": {"id": "s"}}));
    rig.expect(&[], false);
    rig.idle("s");
    rig.expect(&["s u1 Idle"], true);
}

#[test]
fn disposing_of_an_instance_ends_what_runs_in_it() {
    let mut rig = Rig::new();
    rig.prompt("s", Some("u1"));
    rig.user("s", "u1");
    rig.busy("s");
    rig.prompt("t", Some("u2"));
    rig.told();
    rig.event("server.instance.disposed", &json!({"directory": "/w"}));
    rig.expect(&["s u1 Disposed"], false);
    rig.user("t", "u2");
    rig.busy("t");
    rig.idle("t");
    rig.expect(&["t u2 Started", "t u2 Idle"], true);
}

#[test]
fn nothing_outlives_opencode() {
    let mut rig = Rig::new();
    let late = rig.prompt("s", Some("u1"));
    rig.prompt("t", Some("u2"));
    rig.user("t", "u2");
    rig.busy("t");
    rig.told();
    rig.change(|table, _, out| table.exited("another", out));
    rig.expect(&[], false);
    rig.change(|table, _, out| table.exited("boot", out));
    let mut told = rig.told();
    told.sort();
    assert_eq!(told, ["s u1 Exited", "t u2 Exited"]);
    assert!(rig.is_idle());
    rig.change(|table, now, out| table.hears("boot2", true, now, out));
    rig.accepted(&late);
    rig.expect(&[], true);
    let admission =
        Admission { session: "s".to_owned(), directory: "/w".to_owned(), origin: TurnOrigin::Berth };
    let stale = rig.change(|table, now, out| table.admit("boot", &admission, now, out));
    assert!(stale.is_none(), "a request to a run that is over");
}

#[test]
fn a_found_opencode_is_unknown_until_it_was_asked() {
    let mut rig = Rig::new();
    rig.change(|table, now, out| table.hears("other", false, now, out));
    assert_eq!(rig.table.idleness(), Idleness::Unknown);
    assert_eq!(rig.actions.pop_back(), Some(Action::Seed { boot_id: "other".to_owned() }));
    let count = rig.table.count();
    // Heard of while opencode was being asked: the events know better.
    rig.busy("t");
    rig.idle("t");
    rig.busy("v");
    let working = |session: &str, parent: Option<&str>| Working {
        session: session.to_owned(),
        directory: "/w".to_owned(),
        parent: parent.map(str::to_owned),
    };
    let working = [working("s", None), working("t", None), working("u", Some("s")), working("v", None)];
    rig.change(|table, now, out| table.seed(&working, count, now, out));
    let busy = ["s", "u", "v"].map(str::to_owned).to_vec();
    assert_eq!(rig.table.idleness(), Idleness::Busy(busy), "t has ended");
    rig.idle("u");
    rig.idle("s");
    rig.idle("v");
    rig.expect(&["s - Started", "v - Started", "s - Idle", "v - Idle"], true);
}

#[test]
fn an_answer_from_before_events_were_missed_or_of_another_run_says_nothing() {
    let mut rig = Rig::new();
    rig.change(|table, now, out| table.hears("other", false, now, out));
    let count = rig.table.count();
    rig.change(|table, now, out| table.hears("other", false, now, out));
    rig.change(|table, now, out| table.seed(&[], count, now, out));
    assert_eq!(rig.table.idleness(), Idleness::Unknown, "it is asked again");
    let count = rig.table.count();
    rig.change(|table, _, out| table.exited("other", out));
    let working = Working { session: "s".to_owned(), directory: "/w".to_owned(), parent: None };
    rig.change(|table, now, out| table.seed(&[working], count, now, out));
    rig.expect(&[], true);
}

#[test]
fn a_call_that_lasts_as_long_as_its_turn_ends_it_when_opencode_knows_of_no_other_end() {
    let mut rig = Rig::new();
    let ticket = rig.prompt("s", None);
    rig.change(|table, now, out| table.answered(&ticket, now, out));
    rig.expect(&["s - Admitted"], false);
    rig.pass(Duration::from_secs(2));
    assert_eq!(rig.actions.pop_back(), Some(confirm("s")));
    rig.confirmed("s", &absent(&[]));
    rig.expect(&["s - Idle"], true);
    assert!(rig.actions.is_empty());
}

#[test]
fn an_answer_that_overtakes_the_events_of_its_turn_makes_no_second_one() {
    let mut rig = Rig::new();
    let ticket = rig.prompt("s", None);
    rig.change(|table, now, out| table.answered(&ticket, now, out));
    rig.user("s", "u1");
    rig.busy("s");
    rig.assistant("s", "a1", "u1", false);
    rig.assistant("s", "a1", "u1", true);
    rig.expect(&["s - Admitted", "s u1 Started"], false);
    rig.idle("s");
    rig.expect(&["s u1 Idle"], true);
}

#[test]
fn a_prompt_too_long_to_be_looked_at_whole_may_be_a_note() {
    let mut rig = Rig::new();
    let ticket = rig.prompt("s", None);
    rig.learned(&ticket, &Found { cut: true, ..Found::default() });
    rig.accepted(&ticket);
    rig.user("s", "u1");
    rig.pass(BOUND);
    assert_eq!(rig.actions.pop_back(), Some(confirm("s")));
    rig.confirmed("s", &absent(&[("u1", None, false)]));
    rig.expect(&["s - Admitted", "s u1 Idle"], true);
    assert!(rig.actions.is_empty(), "nor is opencode started anew for it");
}

#[test]
fn a_session_takes_a_bounded_number_of_turns() {
    let mut rig = Rig::new();
    for _ in 0..super::super::session::TURNS {
        rig.prompt("s", None);
    }
    let admission =
        Admission { session: "s".to_owned(), directory: "/w".to_owned(), origin: TurnOrigin::Berth };
    let more = rig.change(|table, now, out| table.admit("boot", &admission, now, out));
    assert!(more.unwrap().is_err());
}

#[test]
fn sessions_in_which_nothing_runs_are_forgotten() {
    let mut rig = Rig::new();
    rig.prompt("kept", Some("u1"));
    for number in 0..10_000 {
        rig.idle(&format!("s{number}"));
    }
    assert!(rig.table.forgotten >= 5_000, "{}", rig.table.forgotten);
    assert!(!rig.is_idle());
}

#[test]
fn an_ending_is_told_as_what_it_is() {
    assert_eq!(serde_json::to_value(TurnEnding::NeverStarted).unwrap(), "never_started");
}

/// An answer of the session `s` that ended as aborted.
fn closed_as_aborted(rig: &mut Rig, id: &str, parent: &str) {
    let error = json!({"name": "MessageAbortedError", "data": {"message": "Aborted"}});
    let time = json!({"created": 1, "completed": 2});
    let info = json!({"id": id, "role": "assistant", "parentID": parent, "sessionID": "s", "time": time, "error": error});
    rig.event("message.updated", &json!({"sessionID": "s", "info": info}));
}

#[test]
fn an_abort_before_the_model_was_asked_may_have_spoilt_the_directory() {
    let mut rig = Rig::new();
    rig.prompt("s", Some("u1"));
    assert_eq!(rig.table.spoil("/w"), None);
    rig.abort("s");
    rig.user("s", "u1");
    rig.busy("s");
    assert_eq!(rig.table.spoil("/w"), Some(Spoil::Suspected), "the abort is sent");
    rig.assistant("s", "a1", "u1", false);
    closed_as_aborted(&mut rig, "a1", "u1");
    rig.idle("s");
    rig.abort_returned("s");
    rig.expect(&["s u1 Admitted", "s u1 Started", "s u1 Aborted"], true);
    assert_eq!(rig.table.spoil("/w"), Some(Spoil::Suspected));
    rig.event("server.instance.disposed", &json!({"directory": "/w"}));
    assert_eq!(rig.table.spoil("/w"), None);
}

#[test]
fn an_abort_after_the_model_was_asked_spoils_nothing() {
    let mut rig = Rig::new();
    rig.prompt("s", Some("u1"));
    rig.user("s", "u1");
    rig.busy("s");
    rig.assistant("s", "a1", "u1", false);
    rig.busy("s");
    rig.abort("s");
    closed_as_aborted(&mut rig, "a1", "u1");
    rig.idle("s");
    rig.abort_returned("s");
    rig.expect(&["s u1 Admitted", "s u1 Started", "s u1 Aborted"], true);
    assert_eq!(rig.table.spoil("/w"), None);
}

#[test]
fn a_run_that_ends_as_aborted_unasked_is_interrupted_and_shows_a_spoilt_directory() {
    let mut rig = Rig::new();
    rig.prompt("s", Some("u1"));
    rig.user("s", "u1");
    rig.busy("s");
    rig.assistant("s", "a1", "u1", false);
    closed_as_aborted(&mut rig, "a1", "u1");
    rig.idle("s");
    rig.expect(&["s u1 Admitted", "s u1 Started", "s u1 Interrupted"], true);
    assert_eq!(rig.table.spoil("/w"), Some(Spoil::Seen));
}

#[test]
fn an_abort_of_a_session_in_which_nothing_runs_spoils_nothing() {
    let mut rig = Rig::new();
    rig.abort("s");
    rig.abort_returned("s");
    assert_eq!(rig.table.spoil("/w"), None);
}

#[test]
fn an_answer_that_an_aborted_turn_left_open_does_not_hold_up_the_next() {
    let mut rig = Rig::new();
    rig.prompt("s", Some("u1"));
    rig.user("s", "u1");
    rig.busy("s");
    rig.assistant("s", "a1", "u1", false);
    rig.abort("s");
    rig.idle("s");
    rig.abort_returned("s");
    rig.pass(Duration::from_secs(10));
    rig.confirmed("s", &absent(&[("u1", None, true), ("a1", Some("u1"), false)]));
    rig.expect(&["s u1 Admitted", "s u1 Started", "s u1 Aborted"], true);
    rig.prompt("s", Some("u2"));
    rig.user("s", "u2");
    rig.busy("s");
    rig.assistant("s", "a2", "u2", false);
    rig.assistant("s", "a2", "u2", true);
    rig.idle("s");
    rig.expect(&["s u2 Admitted", "s u2 Started", "s u2 Idle"], true);
}
