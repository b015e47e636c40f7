//! What stands between a session of ours and one of opencode's: a first look, somebody else's prompts, files and models
//! in prompts, broken directories. On a real opencode.

use std::time::Duration;

use berth_opencode::{Prompt, PromptPart as Part, ids, model::Role};
use berth_server::Limits;
use berth_tests::{Options, SessionLog, Stack, within};
use berth_wire::{
    api::{ModelChoice, PostMessage, PromptPart, SandboxPhase},
    event::Voice,
    turn::{TurnErrorReason, TurnState},
};
use serde_json::json;
use uuid::Uuid;

async fn root_of(stack: &Stack, session: Uuid) -> String {
    let session = stack.client.get_session(session).await.expect("it is there");
    session.opencode_session_id.expect("a prompt was sent")
}

async fn post(stack: &Stack, session: Uuid, body: PostMessage) -> Uuid {
    let key = Uuid::new_v4().to_string();
    stack.client.post_message(session, &body, &key).await.expect("the prompt is taken").id
}

fn reason(log: &SessionLog, turn: Uuid) -> Option<TurnErrorReason> {
    log.outcome(turn).error.as_ref().map(|error| error.reason)
}

#[tokio::test]
async fn somebody_elses_turn_is_waited_for() {
    let stack = Stack::start().await;
    let session = stack.session().await.id;
    stack.prompt(session, "@stub say:first").await;
    let (root, directory) = (root_of(&stack, session).await, stack.work.to_str().expect("a plain name"));
    let opencode = stack.opencode();
    let foreign = ids::message_id();
    let prompt = Prompt::new(&*foreign, vec![Part::text("@stub text:n=40,d=50")]);
    opencode.send_prompt(directory, &root, &prompt).await.expect("the prompt is taken");
    let (ours, log) = stack.prompt(session, "@stub say:ours").await;
    assert_eq!(log.text(ours.id, Voice::Message), "ours", "nothing of the other turn is in ours");
    let messages = opencode.list_messages(directory, &root, 100).await.expect("they are listed");
    let answered = |message: &str| {
        let answers = messages.iter().filter(|other| other.info.parent_id.as_deref() == Some(message));
        answers.filter_map(|answer| answer.info.time.completed).max().expect("it was answered")
    };
    let last = messages.iter().rfind(|message| message.info.role == Role::User).expect("our prompt");
    assert_ne!(last.info.id, foreign, "ours came after");
    assert!(last.info.time.created >= answered(&foreign), "ours was sent after the other's end");
    stack.stop().await;
}

#[tokio::test]
async fn a_prompt_with_files_an_agent_and_a_model_reaches_opencode() {
    let stack = Stack::start().await;
    let session = stack.session().await.id;
    std::fs::write(stack.work.join("note.txt"), "from the directory\n").expect("a file");
    let file = |mime: &str, filename: Option<&str>, url: String| PromptPart::File {
        mime: mime.to_owned(),
        filename: filename.map(str::to_owned),
        url,
    };
    let data = |mime: &str, base64: &str| format!("data:{mime};base64,{base64}");
    let body = PostMessage {
        parts: vec![
            PromptPart::text("@stub say:seen"),
            file("text/plain", Some("a.txt"), data("text/plain", "ZnJvbSBhIGRhdGEgVVJMCg==")),
            file("image/png", Some("dot.png"), data("image/png", DOT)),
            file("text/plain", Some("note.txt"), format!("file://{}/note.txt", stack.work.display())),
            PromptPart::Agent { name: "general".to_owned() },
        ],
        model: Some(ModelChoice { provider_id: "scripted".to_owned(), model_id: "eyes".to_owned() }),
        agent: Some("plan".to_owned()),
    };
    let turn = post(&stack, session, body).await;
    let log = SessionLog::until_end(&stack.client, session, turn).await;
    log.check();
    assert_eq!(log.outcome(turn).state, TurnState::Succeeded, "{:?}", log.outcome(turn));
    assert_eq!(log.text(turn, Voice::Message), "seen");
    let (root, directory) = (root_of(&stack, session).await, stack.work.to_str().expect("a plain name"));
    let messages = stack.opencode().list_messages(directory, &root, 10).await.expect("they are listed");
    let answer = messages.iter().find(|message| message.info.role == Role::Assistant).expect("an answer");
    let (model, agent) = (answer.info.model().expect("a model"), answer.info.agent.as_deref());
    assert_eq!((model.model_id.as_str(), agent), ("eyes", Some("plan")));

    for (body, expected) in [
        (
            PostMessage {
                model: Some(ModelChoice { provider_id: "scripted".to_owned(), model_id: "nope".to_owned() }),
                ..PostMessage::text("@stub say:x")
            },
            TurnErrorReason::ModelNotFound,
        ),
        (
            PostMessage { agent: Some("nobody".to_owned()), ..PostMessage::text("@stub say:x") },
            TurnErrorReason::AgentNotFound,
        ),
    ] {
        let turn = post(&stack, session, body).await;
        let log = SessionLog::until_end(&stack.client, session, turn).await;
        assert_eq!(reason(&log, turn), Some(expected), "{:?}", log.outcome(turn));
    }
    let model = Some(ModelChoice { provider_id: "scripted".to_owned(), model_id: "m".to_owned() });
    let turn = post(&stack, session, PostMessage { model, ..PostMessage::text("@stub say:clean") }).await;
    let log = SessionLog::until_end(&stack.client, session, turn).await;
    assert_eq!(log.text(turn, Voice::Message), "clean");
    stack.stop().await;
}

/// A PNG of one pixel.
const DOT: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==";

/// The first prompt looks before it leaps; a directory that was broken works again when its file is mended.
#[tokio::test]
async fn dr_1_a_broken_directory_fails_a_turn_with_its_file_and_works_again_when_mended() {
    let stack = Stack::start().await;
    stack.opencode_pid().await;
    let file = stack.work.join("opencode.json");
    std::fs::write(&file, "{\"permission\": {\"bash\": \"ask\", \"key\": \"sk-secret\"").expect("a file");
    let session = stack.session().await.id;
    let (turn, log) = stack.prompt(session, "@stub say:x").await;
    assert_eq!(reason(&log, turn.id), Some(TurnErrorReason::DirectoryUnusable), "{:?}", log.outcome(turn.id));
    let message = log.outcome(turn.id).error.as_ref().map(|error| error.message.clone()).unwrap_or_default();
    assert!(message.contains("opencode.json") && message.contains("line 1"), "{message}");
    assert!(!message.contains("sk-secret"), "{message}");
    std::fs::remove_file(&file).expect("it can be removed");
    // The door starts opencode anew for it, at most each ten seconds.
    within("the mended directory to work", async {
        loop {
            let (turn, log) = stack.prompt(session, "@stub say:mended").await;
            if log.outcome(turn.id).state == TurnState::Succeeded {
                return assert_eq!(log.text(turn.id, Voice::Message), "mended");
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    })
    .await;
    stack.stop().await;
}

async fn restart_opencode(stack: &Stack) {
    let pid = stack.opencode_pid().await;
    let sent = tokio::process::Command::new("kill").args(["-KILL", &pid.to_string()]).status().await;
    assert!(sent.expect("kill runs").success());
    let door = stack.opencode();
    within("another opencode", async {
        loop {
            let state = door.door_state().await.expect("the door answers");
            if state.phase == SandboxPhase::Ready && state.pid.is_some_and(|other| other != pid) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
}

const TOUCH: &str = r#"@stub tool:bash:{"command":"touch ran","description":"Touch"} >> say:done"#;

/// A task for a subagent that touches a file, written so that its marks are not taken for those of the script around it.
fn delegated(agent: &str) -> String {
    let prompt = r#"@stub2 tool:bash:{"command":"touch ran","description":"Touch"}"#;
    let task = json!({ "description": "touch", "subagent_type": agent, "prompt": prompt });
    format!("@stub tool:task:{} >> say:done", task.to_string().replace("@stub2", "\\u0040stub2"))
}

/// What a project may bring along, one path in each: in place of opencode's own agent, in `opencode.json` for agents of the
/// user's, an agent of its own, and a subagent of its own.
fn loosen(work: &std::path::Path) {
    let agents = work.join(".opencode/agent");
    std::fs::create_dir_all(&agents).expect("a folder can be made");
    for (name, mode) in [("build", "primary"), ("loose", "primary"), ("helper", "subagent")] {
        let text =
            format!("---\ndescription: {name}\nmode: {mode}\npermission:\n  bash: allow\n---\nYou build.\n");
        std::fs::write(agents.join(format!("{name}.md")), text).expect("a file");
    }
    let allow = json!({ "permission": { "bash": "allow" } });
    let config = json!({ "agent": { "plain": allow, "careful": allow } });
    std::fs::write(work.join("opencode.json"), config.to_string()).expect("a file");
}

/// What the README says of local mode: the project's files loosen a person's policy, unless they are left out.
async fn sv_5(left_out: bool) {
    let environment = if left_out { vec![("OPENCODE_DISABLE_PROJECT_CONFIG", "1")] } else { Vec::new() };
    // What the user says of an agent itself holds against the project's `opencode.json`; what is said for all does not.
    let careful = json!({ "mode": "primary", "permission": { "bash": "ask" } });
    let config = json!({ "agent": { "plain": { "mode": "primary" }, "careful": careful } });
    let permission = json!({ "bash": "ask" });
    let limits = Limits { ask: Duration::from_secs(1), ..Limits::default() };
    let stack = Stack::with(Options { permission, environment, limits, config, ..Options::default() }).await;
    loosen(&stack.work);
    restart_opencode(&stack).await;
    let subagent = delegated(if left_out { "general" } else { "helper" });
    for (agent, prompt, asks) in [
        (None, TOUCH, left_out),
        (Some("plain"), TOUCH, left_out),
        (Some("careful"), TOUCH, true),
        (Some("careful"), &*subagent, left_out),
    ] {
        let session = stack.session().await.id;
        let body = PostMessage { agent: agent.map(str::to_owned), ..PostMessage::text(prompt) };
        let turn = post(&stack, session, body).await;
        let log = SessionLog::until_end(&stack.client, session, turn).await;
        log.check();
        let asked = log.kinds(turn).iter().any(|kind| kind == "permission_requested");
        let ran = std::fs::remove_file(stack.work.join("ran")).is_ok();
        assert_eq!((asked, ran), (asks, !asks), "{agent:?} {prompt}: {:?}", log.outcome(turn));
    }
    // Somebody who asks for the project's own agent gets it, or hears that there is none.
    let session = stack.session().await.id;
    let body = PostMessage { agent: Some("loose".to_owned()), ..PostMessage::text(TOUCH) };
    let turn = post(&stack, session, body).await;
    let log = SessionLog::until_end(&stack.client, session, turn).await;
    let unknown = left_out.then_some(TurnErrorReason::AgentNotFound);
    assert_eq!((reason(&log, turn), stack.work.join("ran").exists()), (unknown, !left_out));
    stack.stop().await;
}

#[tokio::test]
async fn sv_5_the_projects_configuration_can_loosen_the_policy() {
    sv_5(false).await;
}

#[tokio::test]
async fn sv_5_a_projects_configuration_that_is_left_out_loosens_nothing() {
    sv_5(true).await;
}

#[tokio::test]
async fn sv_6_an_old_session_obeys_new_rules() {
    let stack = Stack::with(Options { permission: json!({}), ..Options::default() }).await;
    let rules = |action: &str| {
        let config = json!({ "permission": { "bash": action } }).to_string();
        std::fs::write(stack.work.join("opencode.json"), config).expect("a file");
    };
    rules("allow");
    restart_opencode(&stack).await;
    let session = stack.session().await.id;
    stack.prompt(session, TOUCH).await;
    std::fs::remove_file(stack.work.join("ran")).expect("it ran");
    rules("deny");
    restart_opencode(&stack).await;
    let (turn, log) = stack.prompt(session, TOUCH).await;
    assert!(!stack.work.join("ran").exists(), "{:?}", log.outcome(turn.id));
    stack.stop().await;
}
