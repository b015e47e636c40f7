//! What sessions did to files, the files themselves, files in prompts, and what a sandbox offers. On a real opencode.

use std::{os::unix::fs::symlink, path::Path, time::Duration};

use berth_client::FileContent;
use berth_tests::{Options, Stack, within};
use berth_wire::{
    api::{AgentMode, FileChange, FileChangeStatus, ModelChoice, PostMessage, PromptPart, Turn},
    problem::{Problem, ProblemType},
    turn::{TurnErrorReason, TurnState},
};
use futures_util::TryStreamExt;
use uuid::Uuid;

/// A script that writes these files, then says so.
fn writes(files: &[(&Path, &str)]) -> String {
    let call = |(path, content): &(&Path, &str)| {
        let input = serde_json::json!({ "filePath": path, "content": content });
        format!("tool:write:{input}")
    };
    format!("@stub {} >> say:done", files.iter().map(call).collect::<Vec<_>>().join(" | "))
}

/// The changes, once they are as wanted: opencode tells of a turn's some moments after its end.
async fn diff_when(
    stack: &Stack,
    session: Uuid,
    turn: Option<Uuid>,
    wanted: impl Fn(&[FileChange]) -> bool,
) -> Vec<FileChange> {
    within("the diff", async {
        loop {
            let changes = stack.client.diff(session, turn).await.expect("a diff");
            if wanted(&changes) {
                return changes;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await
}

fn seen(changes: &[FileChange]) -> Vec<(&str, FileChangeStatus, u64, u64)> {
    let seen = |change: &'_ FileChange| (change.status, change.additions, change.deletions);
    changes
        .iter()
        .map(|change| {
            let (status, additions, deletions) = seen(change);
            (change.path.as_str(), status, additions, deletions)
        })
        .collect()
}

async fn bytes(content: FileContent) -> Vec<u8> {
    content
        .into_stream()
        .try_fold(Vec::new(), |mut all, piece| async move {
            all.extend_from_slice(&piece);
            Ok(all)
        })
        .await
        .expect("the whole file")
}

#[tokio::test]
async fn a_session_tells_what_it_changed() {
    let stack = Stack::with(Options { git: true, ..Options::default() }).await;
    let session = stack.session().await.id;
    assert!(stack.client.diff(session, None).await.expect("a diff").is_empty());
    let (one, two) = (stack.work.join("one.txt"), stack.work.join("two.txt"));
    let (first, _) = stack.prompt(session, &writes(&[(&one, "a\nb\n"), (&two, "x\n")])).await;
    let changes = diff_when(&stack, session, None, |changes| changes.len() == 2).await;
    let added = FileChangeStatus::Added;
    assert_eq!(seen(&changes), [("one.txt", added, 2, 0), ("two.txt", added, 1, 0)]);
    let changes_one = r#"@stub tool:bash:{"command":"printf 'a\nc\n' > one.txt; rm two.txt","description":"x"} >> say:done"#;
    let (second, _) = stack.prompt(session, changes_one).await;
    let changes = diff_when(&stack, session, Some(second.id), |changes| changes.len() == 2).await;
    let (modified, deleted) = (FileChangeStatus::Modified, FileChangeStatus::Deleted);
    assert_eq!(seen(&changes), [("one.txt", modified, 1, 1), ("two.txt", deleted, 0, 1)]);
    let whole = stack.client.diff(session, None).await.expect("a diff");
    assert_eq!(seen(&whole), [("one.txt", added, 2, 0)], "what was made and removed is no change");
    assert_eq!(whole[0].patch.as_deref(), Some("--- /dev/null\n+++ b/one.txt\n@@ -0,0 +1,2 @@\n+a\n+c\n"));
    let other = stack.session().await.id;
    let refused = stack.client.diff(other, Some(first.id)).await.expect_err("another session's turn");
    assert_eq!(refused.problem().and_then(Problem::problem_type), Some(ProblemType::NotFound));
    stack.stop().await;
}

#[tokio::test]
async fn files_of_a_session_are_listed_and_read() {
    let stack = Stack::start().await;
    let session = stack.session().await.id;
    std::fs::create_dir(stack.work.join("sub")).unwrap();
    let odd: Vec<u8> = (0..=255).cycle().take(3_000_001).collect();
    std::fs::write(stack.work.join("sub/odd.bin"), &odd).unwrap();
    std::fs::write(stack.work.join("a.md"), "  # a\n\n").unwrap();
    symlink("/etc/passwd", stack.work.join("out")).unwrap();
    let names = |entries: Vec<berth_wire::api::FileEntry>| -> Vec<String> {
        entries.into_iter().map(|entry| entry.path).collect()
    };
    assert_eq!(names(stack.client.list_files(session, "").await.expect("a list")), ["a.md", "sub"]);
    assert_eq!(names(stack.client.list_files(session, "sub").await.expect("a list")), ["sub/odd.bin"]);
    let file = stack.client.read_file(session, "a.md").await.expect("a file");
    assert_eq!((file.content_type(), file.length()), ("text/markdown", Some(7)));
    assert_eq!(bytes(file).await, b"  # a\n\n");
    assert_eq!(bytes(stack.client.read_file(session, "sub/odd.bin").await.expect("a file")).await, odd);
    for (path, kind) in [
        ("nope", ProblemType::NotFound),
        ("out", ProblemType::Invalid),
        ("sub", ProblemType::Invalid),
        ("/etc/passwd", ProblemType::InvalidParameter),
        ("sub/../../x", ProblemType::InvalidParameter),
    ] {
        let refused = stack.client.read_file(session, path).await.expect_err(path);
        assert_eq!(refused.problem().and_then(Problem::problem_type), Some(kind), "{path}");
    }
    stack.stop().await;
}

#[tokio::test]
async fn a_sandbox_tells_its_models_and_agents() {
    let stack = Stack::start().await;
    let models = stack.client.list_models("local", "default").await.expect("models");
    let default: Vec<_> = models.iter().filter(|model| model.default).collect();
    assert_eq!(default.len(), 1, "{models:?}");
    let agents = stack.client.list_agents("local", "default").await.expect("agents");
    let mode = |name: &str| agents.iter().find(|agent| agent.name == name).map(|agent| agent.mode);
    assert_eq!((mode("build"), mode("general")), (Some(AgentMode::Primary), Some(AgentMode::Subagent)));
    assert_eq!(mode("title"), None, "those for opencode's own use are not told");
    stack.stop().await;
}

async fn run(stack: &Stack, session: Uuid, body: &PostMessage) -> Turn {
    let key = Uuid::new_v4().to_string();
    let turn = stack.client.post_message(session, body, &key).await.expect("the prompt is taken");
    berth_tests::SessionLog::until_end(&stack.client, session, turn.id).await.check();
    stack.client.get_turn(turn.id).await.expect("the turn")
}

#[tokio::test]
async fn an_unknown_model_or_agent_is_told_as_such() {
    let stack = Stack::start().await;
    let session = stack.session().await.id;
    let mut body = PostMessage::text("@stub say:x");
    body.agent = Some("nobody".to_owned());
    let turn = run(&stack, session, &body).await;
    assert_eq!(turn.error.map(|error| error.reason), Some(TurnErrorReason::AgentNotFound));
    let models = stack.client.list_models("local", "default").await.expect("models");
    let known = models.into_iter().find(|model| model.default).expect("one is the default").id;
    let mut body = PostMessage::text("@stub say:x");
    body.model = Some(ModelChoice { model_id: "none".to_owned(), ..known.clone() });
    let turn = run(&stack, session, &body).await;
    assert_eq!(turn.error.map(|error| error.reason), Some(TurnErrorReason::ModelNotFound));
    // The model of a prompt stays the session's.
    body.model = Some(known.clone());
    let turn = run(&stack, session, &body).await;
    assert_eq!((turn.state, turn.model), (TurnState::Succeeded, Some(known)));
    body.agent = Some("plan".to_owned());
    assert_eq!(run(&stack, session, &body).await.state, TurnState::Succeeded);
    stack.stop().await;
}

#[tokio::test]
async fn files_in_a_prompt_reach_the_model_and_a_retry_has_them_too() {
    let stack = Stack::start().await;
    let session = stack.session().await.id;
    std::fs::write(stack.work.join("notes.txt"), "the-content-of-notes\n").unwrap();
    let url = format!("file://{}", stack.work.join("notes.txt").display());
    let file = |url: &str, name: &str, mime: &str| PromptPart::File {
        mime: mime.to_owned(),
        filename: Some(name.to_owned()),
        url: url.to_owned(),
    };
    let parts = vec![
        PromptPart::text("@stub say:seen"),
        file(&url, "notes.txt", "text/plain"),
        file("data:text/plain;base64,dGhlLWNvbnRlbnQtb2YtZGF0YQ==", "data.txt", "text/plain"),
    ];
    let turn = run(&stack, session, &PostMessage::new(parts)).await;
    assert_eq!(turn.state, TurnState::Succeeded, "{turn:?}");
    let asked = format!("{:?}", stack.model.requests());
    for content in ["the-content-of-notes", "the-content-of-data"] {
        assert!(asked.contains(content), "{content}");
    }
    let shown = serde_json::to_string(&turn.prompt).unwrap();
    assert!(!shown.contains("base64"), "{shown}");
    let part = stack.client.read_part(turn.id, 2).await.expect("the part");
    assert_eq!(bytes(part).await, b"the-content-of-data");
    let refused = stack.client.retry_turn(turn.id, "k").await.expect_err("it succeeded");
    let kind = refused.problem().and_then(Problem::problem_type);
    assert_eq!(kind, Some(ProblemType::TurnNotRetryable));

    let data = "data:text/plain;base64,c2Vjb25kLWNvbnRlbnQ=";
    let parts = vec![PromptPart::text("@stub status:400"), file(data, "b.txt", "text/plain")];
    let failed = run(&stack, session, &PostMessage::new(parts)).await;
    assert_eq!(failed.state, TurnState::Failed, "{failed:?}");
    let again = stack.client.retry_turn(failed.id, "k").await.expect("it is queued");
    assert_eq!((again.retry_of, again.ordinal), (Some(failed.id), failed.ordinal + 1));
    berth_tests::SessionLog::until_end(&stack.client, session, again.id).await.check();
    let count = format!("{:?}", stack.model.requests()).matches("second-content").count();
    assert!(count >= 2, "the retry has its file too: {count}");
    let usage = stack.client.get_session(session).await.expect("the session").usage;
    assert!(usage.output_tokens > 0);
    stack.stop().await;
}

#[tokio::test]
async fn the_largest_file_in_a_prompt_holds_nobody_up() {
    let stack = Stack::start().await;
    let (session, other) = (stack.session().await.id, stack.session().await.id);
    let text = "A".repeat(berth_wire::api::DATA_URL_MAX / 3 * 4);
    let file = PromptPart::File {
        mime: "application/pdf".to_owned(),
        filename: Some("large.pdf".to_owned()),
        url: format!("data:application/pdf;base64,{text}"),
    };
    let body = PostMessage::new(vec![PromptPart::text("@stub say:seen"), file]);
    let plain = PostMessage::text("@stub text:n=50,d=5");
    let (large, small) = tokio::join!(run(&stack, session, &body), run(&stack, other, &plain));
    assert_eq!((large.state, small.state), (TurnState::Succeeded, TurnState::Succeeded), "{:?}", large.error);
    let part = stack.client.read_part(large.id, 1).await.expect("the part");
    assert_eq!(bytes(part).await.len(), text.len() / 4 * 3);
    stack.stop().await;
}

#[tokio::test]
async fn what_was_reverted_is_marked_in_the_history() {
    let stack = Stack::start().await;
    let session = stack.session().await.id;
    let (first, _) = stack.prompt(session, "@stub say:first").await;
    let (second, _) = stack.prompt(session, "@stub say:second").await;
    let root = stack.client.get_session(session).await.unwrap().opencode_session_id.expect("it exists");
    let directory = stack.work.to_str().expect("a plain name");
    let messages = stack.opencode().list_messages(directory, &root, 10).await.expect("messages");
    let prompt = messages.iter().rev().find(|message| message.info.parent_id.is_none()).expect("a prompt");
    let reverted = stack
        .raw_opencode(
            "POST",
            &format!("/session/{root}/revert"),
            serde_json::json!({ "messageID": prompt.info.id }),
        )
        .await;
    assert!(reverted.is_success(), "{reverted}");
    let (third, _) = stack.prompt(session, "@stub say:third").await;
    let history = stack.client.history(session).await.expect("a history");
    let marks: Vec<_> = history.iter().map(|turn| (turn.turn.id, turn.text.as_str(), turn.removed)).collect();
    assert_eq!(marks, [(first.id, "first", false), (second.id, "second", true), (third.id, "third", false)]);
    assert_eq!(history[2].turn.state, TurnState::Succeeded);
    stack.stop().await;
}
