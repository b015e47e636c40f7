//! The OpenAPI document against the server: schemathesis makes requests out of it, valid and not, and compares each answer
//! with what the document promises. On a real opencode.

use std::{process::Stdio, time::Duration};

use berth_tests::{Scale, Stack, schemathesis_program};
use secrecy::ExposeSecret;
use tokio::{process::Command, time::timeout};

/// Bound on a quick run, on a machine that does other things too.
const QUICK: Duration = Duration::from_mins(4);
/// Bound on a thorough one.
const SOAK: Duration = Duration::from_mins(30);

/// What is asked of each answer.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
    response_schema_conformance,response_headers_conformance,unsupported_method";

#[tokio::test]
async fn no_answer_is_undocumented_and_none_is_a_defect() {
    let stack = Stack::start().await;
    stack.opencode_pid().await;
    let scale = Scale::current();
    let folder = tempfile::tempdir().expect("a folder can be made");
    let authorization = format!("Authorization: Bearer {}", stack.token.expose_secret());
    let url = format!("http://{}/openapi.json", stack.server);
    let examples = scale.pick("4", "100");
    let mut command = Command::new(schemathesis_program());
    command
        .args(["run", &url, "--header", &authorization, "--max-examples", examples, "--seed", "1"])
        .args(["--checks", CHECKS])
        // Streams have no end.
        .args(["--exclude-path", "/v1/sessions/{id}/events"])
        .args(["--phases", "examples,coverage,fuzzing,stateful", "--request-timeout", "60", "--no-color"])
        .current_dir(folder.path())
        .env("HYPOTHESIS_STORAGE_DIRECTORY", folder.path())
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = timeout(scale.pick(QUICK, SOAK), command.output()).await;
    let output = output.expect("it ends in time").expect("schemathesis runs");
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{errors}");
    stack.stop().await;
}
