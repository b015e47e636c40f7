//! Every capture, whole: it is what the manifest says, its log breaks no rule, and some logs are written out.

use std::collections::BTreeSet;

use berth_opencode::replay::{Recording, Replay, manifest::Seen};

use crate::replay::{Capture, Look, all, bytes, files, manifest};

#[test]
fn the_manifest_lists_every_capture() {
    let listed: BTreeSet<String> = manifest().entries.into_keys().collect();
    assert_eq!(listed, files().into_iter().collect());
}

#[test]
fn every_capture_is_what_the_manifest_says() {
    let manifest = manifest();
    for file in files() {
        let replay = Replay::of(Recording::read(bytes(&file)));
        let violations = replay.sessions.iter().map(|session| session.violations().len()).sum();
        let compared = manifest.compare(&file, &Seen::of(&replay, violations));
        assert_eq!(compared.map_err(|mismatch| mismatch.to_string()), Ok(()), "{file}");
    }
}

#[test]
fn no_log_breaks_a_rule() {
    let captures = all();
    assert!(captures.len() > 90, "only {} sessions", captures.len());
    for capture in captures {
        assert_eq!(capture.whole().violations(), [], "{}", capture.name);
    }
}

/// The whole translation of one capture.
macro_rules! translations {
    ($($test:ident: $name:literal,)*) => {
        $(
            #[test]
            fn $test() {
                insta::assert_snapshot!(Capture::load($name).whole().to_text());
            }
        )*
    };
}

translations! {
    reasoning_then_text: "1.18.33-reasoning",
    a_shell_tool: "1.18.33-bash-allow",
    two_tools_at_once: "1.18.33-two-tools",
    a_file_written_read_and_edited: "1.18.33-write",
    a_tool_that_does_not_exist: "1.18.33-tool-invalid",
    a_permission_given_once: "1.18.33-perm-new-once",
    a_permission_rejected: "1.18.33-perm-new-reject",
    a_permission_rejected_with_words: "1.18.33-perm-new-reject-msg",
    an_abort_with_a_permission_open: "1.18.33-perm-abort",
    an_abort_while_streaming: "1.18.33-abort-stream",
    a_question_answered: "1.18.33-question-reply",
    a_question_dismissed: "1.18.33-question-reject",
    a_list_of_things_to_do: "1.18.33-todo",
    a_subagent_that_asks: "1.18.33-subagent-perm-config",
    a_connection_lost_in_mid_text: "1.18.33-prov-drop-partial",
    a_provider_error: "1.18.33-prov-400",
    a_line_of_garbage: "1.18.33-garbage",
    a_stream_without_a_finish: "1.18.33-nofinish",
    a_model_that_does_not_exist: "1.18.33-prompt-badmodel",
    an_agent_that_does_not_exist: "1.18.33-prompt-badagent",
}
