//! Completions and man pages, as a shell and a reader get them; suggestions; and what goes into pipes.

use std::{fs, process::Command};

use crate::process::{Berth, finish};

#[tokio::test]
async fn completions_are_scripts_of_their_shells() {
    for (shell, sign) in [("bash", "_berth"), ("zsh", "#compdef berth"), ("fish", "complete -c berth")] {
        let done = finish(Berth::new().command(&["completions", shell]), "").await;
        assert_eq!((done.code, done.err.as_str()), (0, ""));
        assert!(done.out.contains(sign), "{shell}: {}", &done.out[..done.out.len().min(500)]);
    }
}

#[tokio::test]
async fn bash_completes_commands_and_options() {
    let berth = Berth::new();
    let script = finish(berth.command(&["completions", "bash"]), "").await.out;
    let complete = |words: &[&str]| {
        let line = format!(
            "{script}\nCOMP_WORDS=({}); COMP_CWORD={}; _berth berth '{}' x; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            words.join(" "),
            words.len() - 1,
            words[words.len() - 1],
        );
        let output = Command::new("bash").args(["--norc", "-c", &line]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(complete(&["berth", "sess"]).contains("sessions"));
    assert!(complete(&["berth", "run", "--mo"]).contains("--model"));
}

#[tokio::test]
async fn man_pages_are_shown_and_written() {
    let berth = Berth::new();
    let page = finish(berth.command(&["man", "sessions", "export"]), "").await;
    assert_eq!(page.code, 0, "{}", page.err);
    assert!(page.out.contains(".TH berth-sessions-export"), "{}", page.out);
    let wrong = finish(berth.command(&["man", "nonsense"]), "").await;
    assert_eq!(wrong.code, 2);
    assert!(wrong.err.contains("berth-doctor"), "it says which there are: {}", wrong.err);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("man1");
    let all = finish(berth.command(&["man", "--output", path.to_str().unwrap()]), "").await;
    assert_eq!(all.code, 0, "{}", all.err);
    for name in ["berth.1", "berth-run.1", "berth-sessions-list.1"] {
        assert!(fs::read_to_string(path.join(name)).unwrap().contains(".SH NAME"), "{name}");
    }
}

#[tokio::test]
async fn a_slip_of_the_finger_is_suggested_a_command() {
    for (typed, meant) in [("sesions", "sessions"), ("docter", "doctor"), ("statu", "status")] {
        let done = finish(Berth::new().command(&[typed]), "").await;
        assert_eq!(done.code, 2);
        assert!(done.err.contains(&format!("'{meant}'")), "{}", done.err);
    }
}

#[tokio::test]
async fn a_server_without_a_token_is_told_where_to_get_one() {
    let done = finish(Berth::new().command(&["status", "--server", "http://127.0.0.1:9"]), "").await;
    assert_eq!(done.code, 2);
    assert!(done.err.contains("BERTH_TOKEN_FILE") && done.err.contains("`token`"), "{}", done.err);
}

#[tokio::test]
async fn a_reader_that_goes_away_is_no_error() {
    let berth = Berth::new();
    let script = format!("'{}' man | true; exit ${{PIPESTATUS[0]}}", env!("CARGO_BIN_EXE_berth"));
    let mut command = berth.command(&[]);
    command = {
        let mut shell = tokio::process::Command::new("bash");
        shell.args(["-c", &script]).env_clear();
        for (name, value) in command.as_std().get_envs() {
            shell.env(name, value.unwrap());
        }
        shell.stdin(std::process::Stdio::piped());
        shell.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        shell
    };
    let done = finish(command, "").await;
    // It may have written everything before the reader went.
    assert!(matches!(done.code, 0 | 1) && done.err.is_empty(), "{} {}", done.code, done.err);
}
