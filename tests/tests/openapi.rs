//! The OpenAPI document against the server: schemathesis makes requests out of it, valid and not, and compares each answer
//! with what the document promises. On a real opencode.

use std::{path::Path, process::Stdio, time::Duration};

use berth_tests::{Scale, Stack, schemathesis_program};
use secrecy::ExposeSecret;
use tokio::{process::Command, time::timeout};
use uuid::Uuid;

/// Bound on a quick run, on a machine that does other things too.
const QUICK: Duration = Duration::from_mins(4);
/// Bound on a thorough one.
const SOAK: Duration = Duration::from_mins(30);
/// What is asked of each answer.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
    response_schema_conformance,response_headers_conformance,unsupported_method";
/// Streams have no end.
const STREAM: &str = "/v1/sessions/{id}/events";

/// Names of things that exist, for requests that shall get beyond a 404.
fn known(session: Uuid, turn: Uuid) -> String {
    format!(
        "[parameters]\n\
         \"path.namespace\" = \"local\"\n\
         \"path.name\" = \"default\"\n\
         \"path.id\" = \"{session}\"\n\
         [[operations]]\n\
         include-path-regex = \"^/v1/turns/\"\n\
         parameters = {{ \"path.id\" = \"{turn}\" }}\n"
    )
}

async fn check(stack: &Stack, folder: &Path, more: &[&str]) {
    let scale = Scale::current();
    let authorization = format!("Authorization: Bearer {}", stack.token.expose_secret());
    let url = format!("http://{}/openapi.json", stack.server);
    let mut command = Command::new(schemathesis_program());
    command
        .args(["run", &url, "--header", &authorization, "--checks", CHECKS, "--exclude-path", STREAM])
        .args(["--max-examples", scale.pick("4", "100"), "--seed", "1"])
        .args(["--phases", "examples,coverage,fuzzing,stateful", "--request-timeout", "60", "--no-color"])
        .args(more)
        .current_dir(folder)
        .env("HYPOTHESIS_STORAGE_DIRECTORY", folder)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = timeout(scale.pick(QUICK, SOAK), command.output()).await;
    let output = output.expect("it ends in time").expect("schemathesis runs");
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{errors}");
    let counts = said.lines().find(|line| line.contains("generated,")).expect("it counts its requests");
    scale.report("openapi", 1, &[("requests", first_number(counts))]);
    stack.client.list_sandboxes().await.expect("the server goes on");
}

fn first_number(text: &str) -> u64 {
    text.split_whitespace().find_map(|word| word.parse().ok()).unwrap_or_default()
}

#[tokio::test]
async fn no_answer_to_a_stranger_is_undocumented_and_none_is_a_defect() {
    let stack = Stack::start().await;
    let folder = tempfile::tempdir().expect("a folder can be made");
    check(&stack, folder.path(), &[]).await;
    stack.stop().await;
}

#[tokio::test]
async fn no_answer_about_what_exists_is_undocumented_and_none_is_a_defect() {
    let stack = Stack::start().await;
    let session = stack.session().await.id;
    std::fs::write(stack.work.join("a.txt"), "a").expect("a file can be written");
    let (turn, _) = stack.prompt(session, "@stub say:x").await;
    let folder = tempfile::tempdir().expect("a folder can be made");
    std::fs::write(folder.path().join("schemathesis.toml"), known(session, turn.id)).expect("a file");
    check(&stack, folder.path(), &["--exclude-method", "DELETE"]).await;
    let turns = stack.client.list_turns(session).await.expect("the session is there still");
    assert!(turns.len() > 1, "requests got beyond 404");
    stack.stop().await;
}
