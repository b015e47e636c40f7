//! The program, started with what a person may get wrong.
#![expect(clippy::unwrap_used, reason = "a test stops at the first thing that it did not expect")]

use std::{
    path::Path,
    process::{Command, Output},
};

mod damage;

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_berth-controller"))
        .args(arguments)
        .env_clear()
        .output()
        .expect("it runs")
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn help_has_examples_and_the_exit_codes() {
    let help = run(&["serve", "--help"]);
    let text = String::from_utf8_lossy(&help.stdout);
    assert_eq!(help.status.code(), Some(0));
    for part in ["Examples:", "\"door_url\"", "Exit codes:", "--lease <SECONDS>"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(run(&["--version"]).status.code(), Some(0));
    assert_eq!(run(&["serve"]).status.code(), Some(64));
    assert_eq!(run(&["rule"]).status.code(), Some(64));
}

#[test]
fn a_file_that_cannot_be_used_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("token"), "t").unwrap();
    std::fs::write(path("sandboxes.json"), r#"{"sandboxes":[]}"#).unwrap();
    let serve = |database: &str, token: &str| {
        let (database, token, sandboxes) = (path(database), path(token), path("sandboxes.json"));
        run(&[
            "serve",
            "--database",
            &database,
            "--token-file",
            &token,
            "--sandboxes",
            &sandboxes,
            "--listen",
            "127.0.0.1:0",
        ])
    };
    let no_token = serve("berth.db", "no-token");
    assert_eq!(no_token.status.code(), Some(78));
    assert!(words(&no_token).contains("no-token"), "{}", words(&no_token));
    std::fs::write(path("no.db"), "this is no database, and long enough for that to show: ".repeat(20))
        .unwrap();
    let no_database = serve("no.db", "token");
    assert_eq!(no_database.status.code(), Some(74));
    let said = words(&no_database);
    assert!(said.contains(&path("no.db")) && said.contains("not a database"), "{said}");
    assert!(!Path::new(&path("berth.db")).exists(), "nothing is made before everything else is right");
}
