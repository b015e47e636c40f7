//! What a plain turn can have in it.

use std::sync::Arc;

use berth_opencode::{ModelReference, Prompt, PromptPart, SessionPatch, ids};
use berth_wire::event::{Voice, acp};
use serde_json::json;

use crate::{
    rig::{Rig, bash, in_words, is_chunk},
    server::{Server, Version},
};

const DONE: acp::ToolCallStatus = acp::ToolCallStatus::Completed;

pub(crate) async fn thought_and_text(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    let prompt = rig.begin("scenario: thought").await;
    let outcome = rig.finish().await;
    assert_eq!(in_words(&outcome), "Succeeded EndTurn");
    assert!(outcome.usage.unwrap().output_tokens > 0);
    assert_eq!(rig.voice(Voice::Thought), "First I think, in three pieces.");
    assert_eq!(rig.said(), "Then I answer.");
    assert_eq!(rig.kept(&prompt).await, rig.said());
}

pub(crate) async fn parallel_tools(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    assert_eq!(rig.turn("scenario: parallel").await, "Succeeded EndTurn");
    assert_eq!(rig.statuses("bash"), [DONE; 3], "{}", rig.story());
    let told: String = rig.calls().into_values().map(|(.., told)| told).collect();
    assert!(["first", "second", "third"].iter().all(|line| told.contains(line)));
    assert_eq!(rig.said(), "I run three commands at once.All three have run.");
}

pub(crate) async fn edit(server: Arc<Server>) {
    let mut rig = Rig::cold(server).await;
    assert_eq!(rig.turn("scenario: edit").await, "Succeeded EndTurn");
    let path = format!("{}/edited-by-berth.txt", rig.directory);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\nTWO\nthree\n");
    let diff = json!({ "type": "diff", "path": path, "oldText": "two", "newText": "TWO" });
    let told = rig.calls().into_values().find(|(name, ..)| name == "edit").unwrap().2;
    assert!(told.contains(&diff.to_string()) || told.contains("\"oldText\":\"two\""), "{told}");
    assert!(told.contains("\"line\":2"), "{told}");
}

pub(crate) async fn apply_patch(server: Arc<Server>) {
    let mut rig = Rig::cold(server).await;
    std::fs::write(format!("{}/a.txt", rig.directory), "one\ntwo\nthree\n").unwrap();
    let patch = "*** Begin Patch\n*** Update File: a.txt\n@@\n one\n-two\n+2\n three\n*** Add File: c.txt\n+new\n*** End Patch";
    let script = format!("@stub tool:apply_patch:{} >> say:done", json!({ "patchText": patch }));
    let model = ModelReference { provider_id: "scripted".to_owned(), model_id: "gpt-5".to_owned() };
    let prompt =
        Prompt { model: Some(model), ..Prompt::new(ids::message_id(), vec![PromptPart::text(script)]) };
    rig.begin_with(&prompt).await;
    assert_eq!(in_words(&rig.finish().await), "Succeeded EndTurn");
    let (name, status, told) = rig.calls().into_values().next().unwrap();
    assert_eq!((name.as_str(), status), ("apply_patch", DONE), "{}", rig.story());
    for expected in [
        "\"oldText\":\"one\\ntwo\\nthree\\n\"",
        "\"newText\":\"one\\n2\\nthree\\n\"",
        &format!("\"path\":\"{}/c.txt\"", rig.directory),
        "\"newText\":\"new\\n\"",
    ] {
        assert!(told.contains(expected), "{expected} in {told}");
    }
}

pub(crate) async fn plan(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    let todos = json!({ "todos": [
        { "content": "A", "status": "in_progress", "priority": "high" },
        { "content": "B", "status": "pending", "priority": "low" },
    ] });
    let script = format!("@stub tool:todowrite:{todos} >> say:planned");
    assert_eq!(rig.turn(&script).await, "Succeeded EndTurn");
    let plan = rig.acp().find_map(|update| match update {
        acp::SessionUpdate::Plan(plan) => Some(plan.entries.len()),
        _ => None,
    });
    assert_eq!(plan, Some(2), "{}", rig.story());
    let listed = rig.server.client.list_todos(&rig.directory, &rig.session).await.unwrap();
    assert_eq!(listed.iter().map(|todo| todo.content.as_str()).collect::<Vec<_>>(), ["A", "B"]);
}

pub(crate) async fn agents_and_usage(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    let mut modes = Vec::new();
    let mut usage = Vec::new();
    for agent in ["plan", "build"] {
        let prompt = Prompt {
            agent: Some(agent.to_owned()),
            ..Prompt::new(ids::message_id(), vec![PromptPart::text("@stub say:one")])
        };
        rig.begin_with(&prompt).await;
        rig.until("step", is_chunk).await;
        if let Some(model) = rig.translator.unsized_model().cloned() {
            let sizes = rig.server.client.context_sizes(&rig.directory).await.unwrap();
            let out = rig.translator.set_context_size(model.clone(), sizes[&model]);
            rig.record(out);
        }
        assert_eq!(in_words(&rig.finish().await), "Succeeded EndTurn");
        for update in rig.acp() {
            match update {
                acp::SessionUpdate::CurrentModeUpdate(mode) => modes.push(mode.current_mode_id.to_string()),
                acp::SessionUpdate::UsageUpdate(update) => usage.push((update.used, update.size)),
                _ => {}
            }
        }
    }
    assert_eq!(modes, ["plan", "build"]);
    // The scripted model counts 11 tokens in and one out for each piece.
    assert_eq!(usage, [(12, 200_000), (12, 200_000)]);
}

pub(crate) async fn title_and_metadata(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    let client = rig.server.client.clone();
    assert_eq!(rig.turn("@stub say:hello").await, "Succeeded EndTurn");
    let patch = SessionPatch { title: Some("A title".to_owned()), permission: Some(Vec::new()) };
    let patched = client.patch_session(&rig.directory, &rig.session, &patch).await.unwrap();
    assert_eq!(patched.title, "A title");
    let listed = client.list_sessions(&rig.directory).await.unwrap();
    let found = listed.into_iter().find(|session| session.id == rig.session).unwrap();
    let read = client.get_session(&rig.directory, &rig.session).await.unwrap();
    assert_eq!(found.berth_session_id(), read.berth_session_id());
    // 1.15.4 does not keep metadata: a session of it that was made before a crash is not found again.
    assert_eq!(found.berth_session_id().is_some(), rig.server.version == Version::Pinned);
    rig.begin("@stub say:again").await;
    rig.finish().await;
    let titled = rig.acp().any(|update| matches!(update, acp::SessionUpdate::SessionInfoUpdate(_)));
    assert!(titled, "{}", rig.story());
    assert!(client.session_diffs(&rig.directory, &rig.session).await.unwrap().is_empty());
    assert!(client.list_children(&rig.directory, &rig.session).await.unwrap().is_empty());
    client.delete_session(&rig.directory, &rig.session).await.unwrap();
    let error = client.get_session(&rig.directory, &rig.session).await.unwrap_err();
    assert!(matches!(error, berth_opencode::ClientError::NotFound { .. }), "{error:?}");
}

/// Ids in ACP are those of parts, whatever ids the model gives.
pub(crate) async fn calls_of_one_id(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    let script = format!("@stub {} >> {} >> say:done", bash("echo 1"), bash("echo 2"));
    assert_eq!(rig.turn(&script).await, "Succeeded EndTurn");
    let calls = rig.calls();
    assert_eq!(calls.len(), 2);
    assert!(calls.keys().all(|id| id.starts_with("prt_")), "{calls:?}");
}

pub(crate) async fn pages_of_messages(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    let first = rig.begin("@stub say:1").await;
    rig.finish().await;
    for number in 2..=3 {
        rig.turn(&format!("@stub say:{number}")).await;
    }
    let client = &rig.server.client;
    let newest = client.message_page(&rig.directory, &rig.session, 4, None).await.unwrap();
    assert_eq!(newest.messages.len(), 4);
    let before = newest.before.expect("there are older ones");
    let oldest = client.message_page(&rig.directory, &rig.session, 4, Some(&before)).await.unwrap();
    assert_eq!((oldest.messages.len(), oldest.before), (2, None));
    assert_eq!(oldest.messages[0].info.id, first.message_id);
    let all = client.messages_back_to(&rig.directory, &rig.session, &first.message_id).await.unwrap();
    assert_eq!(all.len(), 6);
    assert!(all.windows(2).all(|pair| pair[0].info.id < pair[1].info.id));
}
