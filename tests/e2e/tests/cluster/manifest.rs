//! From the manifest that people try to an answer, and to nothing again.

use std::process::Stdio;

use berth_api::{Sandbox, names};
use berth_e2e::{Case, Forward, MANIFEST, until};
use berth_tests::{Options, SessionLog, Stack, berth_program};
use berth_wire::{
    api::{PermissionAnswer, PermissionDecision},
    event::{EventPayload, PermissionRequested, Voice},
    turn::TurnState,
};
use serde_json::json;
use tokio::{io::AsyncWriteExt, process::Command};
use uuid::Uuid;

/// The sandbox of the manifest.
const SANDBOX: &str = "first";

const PROMPT: &str = "@stub think:n=3 | say:before | tool:bash:{\"command\":\"echo seen\",\"description\":\"See\"} >> say:after";

pub(crate) async fn to_answer_and_nothing_is_left(case: Case) {
    let of_namespace = ["--namespace", case.namespace.as_str()];
    let apply = ["apply", "--filename", MANIFEST];
    case.cluster.kubectl.run(apply.iter().chain(&of_namespace)).await.expect("the manifest is taken");
    case.ready(SANDBOX).await;

    let session = case.session(SANDBOX).await;
    let turn = case.post(session, PROMPT).await.id;
    let asked = case.wait_for(session, "a permission request", request).await;
    assert_eq!(asked.permission, "bash");
    let yes = PermissionAnswer { decision: PermissionDecision::Once, message: None };
    case.berth.answer_permission(session, &asked.permission_id, &yes).await.expect("the answer is taken");
    let log = SessionLog::until_end(&case.berth, session, turn).await;
    log.check();
    assert_eq!(log.outcome(turn).state, TurnState::Succeeded);
    assert_eq!(log.text(turn, Voice::Message), "beforeafter");
    assert_eq!(in_order(log.kinds(turn)), in_order(kinds_in_local_mode().await));

    through_the_command_line(&case).await;
    strangers_are_refused(&case, session).await;

    let delete = ["delete", "--wait=false", "--filename", MANIFEST];
    case.cluster.kubectl.run(delete.iter().chain(&of_namespace)).await.expect("the manifest is deleted");
    nothing_is_left(&case).await;
}

fn request(payload: &EventPayload) -> Option<PermissionRequested> {
    match payload {
        EventPayload::PermissionRequested(asked) => Some(asked.clone()),
        _ => None,
    }
}

/// Without the session's title, which another call of the model makes: it comes when it comes.
fn in_order(mut kinds: Vec<String>) -> Vec<String> {
    kinds.retain(|kind| kind != "session_info_update");
    kinds.dedup();
    kinds
}

/// What the same prompt gives on this machine, without a cluster.
async fn kinds_in_local_mode() -> Vec<String> {
    let options = Options { permission: json!({ "bash": "ask" }), ..Options::default() };
    let stack = Stack::with(options).await;
    let session = stack.session().await.id;
    let turn = stack.post(session, PROMPT).await.id;
    let asked = stack.wait_for_permission(session).await;
    let yes = PermissionAnswer { decision: PermissionDecision::Once, message: None };
    stack.client.answer_permission(session, &asked.permission_id, &yes).await.expect("the answer is taken");
    let log = SessionLog::until_end(&stack.client, session, turn).await;
    stack.stop().await;
    log.kinds(turn)
}

async fn through_the_command_line(case: &Case) {
    let sandbox = format!("{}/{SANDBOX}", case.namespace);
    let berth = |arguments: &[&str]| {
        let mut berth = Command::new(berth_program());
        berth.args(arguments).args(["--server", &case.cluster.server, "--sandbox", &sandbox, "--token-file"]);
        berth.arg(&case.cluster.token_file).kill_on_drop(true);
        berth.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        berth
    };
    let answered = berth(&["run", "--allow", PROMPT]).output().await.expect("berth runs");
    assert_eq!((answered.status.code(), said(&answered.stdout)), (Some(0), "before\nafter"), "{answered:?}");
    let refused = berth(&["run", "--deny", PROMPT]).output().await.expect("berth runs");
    assert_ne!(refused.status.code(), Some(0), "{refused:?}");

    let mut chat = berth(&["chat"]).spawn().expect("berth runs");
    let mut keys = chat.stdin.take().expect("it has a standard input");
    keys.write_all(b"@stub say:one-of-chat\n").await.expect("it reads");
    drop(keys);
    let chat = chat.wait_with_output().await.expect("berth runs");
    assert!(chat.status.success() && said(&chat.stdout).contains("one-of-chat"), "{chat:?}");
}

fn said(output: &[u8]) -> &str {
    std::str::from_utf8(output).expect("it is text").trim()
}

/// 401 at the door and at the server without the right secret.
async fn strangers_are_refused(case: &Case, session: Uuid) {
    let pod = format!("pod/{}", names::pod(SANDBOX));
    let door = Forward::start(&case.cluster.kubectl, &case.namespace, &pod, 4096)
        .await
        .expect("the door is reached");
    let http = reqwest::Client::builder().timeout(berth_e2e::LONG).build().expect("a client");
    let door = format!("http://{}/session", door.address);
    let password = case.password(SANDBOX).await;
    for (given, expected) in [(None, 401), (Some("wrong"), 401), (Some(password.as_str()), 200)] {
        let request = http.get(&door);
        let request = match given {
            Some(password) => request.basic_auth("opencode", Some(password)),
            None => request,
        };
        assert_eq!(request.send().await.expect("the door answers").status().as_u16(), expected);
    }
    let session = format!("{}/v1/sessions/{session}", case.cluster.server);
    let anonymous = http.get(&session).send().await.expect("the server answers");
    assert_eq!(anonymous.status().as_u16(), 401);
    let wrong = http.get(&session).bearer_auth(&password).send().await.expect("the server answers");
    assert_eq!(wrong.status().as_u16(), 401, "the door's password is no token");
}

/// Not even what all sandboxes of a namespace share: this was the last one.
async fn nothing_is_left(case: &Case) {
    case.gone::<Sandbox>(SANDBOX).await;
    let of_namespace = ["--namespace", case.namespace.as_str()];
    let kinds = ["api-resources", "--namespaced", "--verbs=list", "--output=name"];
    let kinds = case.cluster.kubectl.run(kinds).await.expect("the cluster tells its kinds");
    let kinds = kinds.split_whitespace().collect::<Vec<_>>().join(",");
    let of_berth = format!("{}={}", names::MANAGED_BY, names::MANAGER);
    let ours = ["get", &kinds, "--selector", &of_berth, "--output=name"];
    until("nothing of Berth to be left", async || {
        let left = case.cluster.kubectl.run(ours.iter().chain(&of_namespace)).await;
        let left = left.map_err(|error| format!("{error:#}"))?;
        if left.trim().is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
    let all =
        ["get", "pods,secrets,persistentvolumeclaims,services,networkpolicies,sandboxes", "--output=name"];
    let all = case.cluster.kubectl.run(all.iter().chain(&of_namespace)).await.expect("they can be listed");
    // The key of the model is the test's own.
    assert_eq!(all.trim(), "secret/model-keys");
}
