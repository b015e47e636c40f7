//! How a prompt starts, and what comes of sending it again: measured rows, with what the client makes of them.

use std::{sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use berth_opencode::{
    Prompt, PromptContent, PromptPart, TurnPhase, ids,
    model::{PartKind, Role},
};
use berth_wire::event::EventPayload;
use serde_json::json;
use tokio::{io::AsyncWriteExt, net::TcpStream};

use crate::{
    rig::{Rig, bash, in_words, is_chunk, prompt},
    server::{PASSWORD, Server, Version},
    sized,
};

/// A cancel at this time after a prompt in a directory that has not booted, or has.
async fn cancelled_after(server: &Arc<Server>, cold: bool, wait: Duration) {
    let mut rig = if cold { Rig::cold(Arc::clone(server)).await } else { Rig::new(Arc::clone(server)).await };
    let file = format!("{}/ran-{}", rig.directory, rig.session);
    let script = format!("@stub {} >> text:n=10,d=100", bash(&format!("sleep 3; echo > {file}")));
    rig.begin(&script).await;
    rig.go_on_for(wait).await;
    assert_eq!(rig.cancel().await, "Cancelled Cancelled", "after {wait:?}, cold {cold}");
    rig.wait_until_idle().await;
    assert!(!std::path::Path::new(&file).exists(), "it went on after {wait:?}, cold {cold}: {}", rig.story());
    rig.check_usable().await;
    if cold {
        // Each directory that has booted takes some 40 MB.
        rig.server.client.dispose_instance(&rig.directory).await.unwrap();
    }
}

pub(crate) async fn cold_aborts(server: Arc<Server>) {
    for round in 0..sized(1, 5) {
        for wait in [0, 50, 200, 400, 600] {
            cancelled_after(&server, true, Duration::from_millis(wait + 7 * round)).await;
        }
    }
}

pub(crate) async fn warm_aborts(server: Arc<Server>) {
    for round in 0..sized(1, 10) {
        for wait in [0, 5, 20, 50, 100] {
            cancelled_after(&server, false, Duration::from_millis(wait + round)).await;
        }
    }
}

/// How often the model was asked for turns of prompts that name this session.
fn asked(rig: &Rig) -> usize {
    let requests = rig.server.model.requests();
    requests.iter().filter(|request| !request.title && request.prompt.contains(&rig.session)).count()
}

pub(crate) async fn sent_again_while_it_runs(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    let prompt = rig.begin(&format!("{}\n@stub text:n=20,d=50", rig.session)).await;
    rig.send(&prompt).await;
    rig.until("text", is_chunk).await;
    for _ in 0..sized(2, 20) {
        rig.send(&prompt).await;
    }
    assert_eq!(in_words(&rig.finish().await), "Succeeded EndTurn");
    assert_eq!(rig.said(), rig.kept(&prompt).await);
    assert_eq!(asked(&rig), 1, "no second run");
    rig.wait_until_idle().await;
    rig.check_usable().await;
}

pub(crate) async fn sent_again_when_it_is_the_newest(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    let prompt = rig.begin(&format!("@stub say:once in {}", rig.session)).await;
    assert_eq!(in_words(&rig.finish().await), "Succeeded EndTurn");
    let before = rig.log.len();
    for _ in 0..sized(2, 20) {
        rig.send(&prompt).await;
        rig.go_on_for(Duration::from_millis(100)).await;
    }
    rig.wait_until_idle().await;
    assert_eq!(asked(&rig), 1, "no second run");
    assert!(rig.log[before..].iter().all(|item| !is_chunk(item)), "{}", rig.story());
    rig.check_usable().await;
}

/// It runs a second time, which is no turn of ours: that is why nothing is sent again once it has begun.
async fn runs_again_outside_of_turns(rig: &mut Rig, prompt: &Prompt) {
    let (asked_before, told_before) = (asked(rig), rig.log.len());
    rig.send(prompt).await;
    while asked(rig) == asked_before {
        rig.go_on_for(Duration::from_millis(50)).await;
    }
    check_outside_of_turns(rig, told_before).await;
}

async fn check_outside_of_turns(rig: &mut Rig, told_before: usize) {
    rig.wait_until_idle().await;
    rig.go_on_for(Duration::from_millis(300)).await;
    assert_eq!(rig.translator.phase(), TurnPhase::Idle);
    assert!(rig.log[told_before..].iter().all(|item| !is_chunk(item)), "{}", rig.story());
    rig.check_usable().await;
}

pub(crate) async fn sent_again_after_an_abort(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    let prompt = rig.begin(&format!("{}\n@stub text:n=20,d=50", rig.session)).await;
    rig.until("text", is_chunk).await;
    assert_eq!(rig.cancel().await, "Cancelled Cancelled");
    rig.wait_until_idle().await;
    runs_again_outside_of_turns(&mut rig, &prompt).await;
}

pub(crate) async fn sent_again_after_an_error(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    let prompt = rig.begin(&format!("{}\n@stub status:400", rig.session)).await;
    assert_eq!(in_words(&rig.finish().await), "Failed ProviderError");
    rig.wait_until_idle().await;
    runs_again_outside_of_turns(&mut rig, &prompt).await;
}

pub(crate) async fn sent_again_when_a_newer_one_exists(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    let older = rig.begin(&format!("@stub say:older in {}", rig.session)).await;
    assert_eq!(in_words(&rig.finish().await), "Succeeded EndTurn");
    let newer = format!("@stub say:newer in {}", rig.session);
    assert_eq!(rig.turn(&newer).await, "Succeeded EndTurn");
    match rig.server.version {
        Version::Pinned => runs_again_outside_of_turns(&mut rig, &older).await,
        // The old version takes it as answered.
        Version::Old => {
            let (asked_before, told_before) = (asked(&rig), rig.log.len());
            rig.send(&older).await;
            rig.go_on_for(Duration::from_secs(1)).await;
            assert_eq!(asked(&rig), asked_before);
            check_outside_of_turns(&mut rig, told_before).await;
        }
    }
}

/// Nobody reads the answer: the connection is reset right behind the request.
pub(crate) async fn a_connection_reset_after_the_post(server: Arc<Server>) {
    for _ in 0..sized(2, 18) {
        let mut rig = Rig::new(Arc::clone(&server)).await;
        let prompt = prompt(&format!("{}\n@stub say:it runs all the same", rig.session));
        rig.expect(&prompt);
        let PromptContent::Text(text) = &prompt.parts[0].content else { panic!("a text") };
        let body = json!({
            "messageID": prompt.message_id,
            "parts": [{ "id": prompt.parts[0].id, "type": "text", "text": text }],
        })
        .to_string();
        let credentials = STANDARD.encode(format!("opencode:{PASSWORD}"));
        let directory = rig.directory.replace('/', "%2F");
        let request = format!(
            "POST /session/{}/prompt_async?directory={directory} HTTP/1.1\r\nhost: x\r\nauthorization: Basic {credentials}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            rig.session,
            body.len(),
        );
        let mut stream = TcpStream::connect(("127.0.0.1", rig.server.port)).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        stream.set_zero_linger().unwrap();
        drop(stream);
        // Sending the same ids again is what a runner does now, and it is safe.
        rig.send(&prompt).await;
        assert_eq!(in_words(&rig.finish().await), "Succeeded EndTurn");
        assert_eq!(rig.said(), "it runs all the same");
        rig.wait_until_idle().await;
        assert_eq!(asked(&rig), 1, "no second run");
    }
}

/// A prompt that somebody sends beside us is folded into the turn, and the last answer is to it.
pub(crate) async fn a_note_in_mid_turn(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    let ours = rig.begin(&format!("@stub {} >> say:the last word", bash("sleep 1"))).await;
    rig.until("running tool", crate::rig::is_running_call).await;
    let note = prompt("only a note");
    rig.send(&note).await;
    assert_eq!(in_words(&rig.finish().await), "Succeeded EndTurn");
    assert_eq!(rig.said(), "the last word", "{}", rig.story());
    let messages =
        rig.server.client.messages_back_to(&rig.directory, &rig.session, &ours.message_id).await.unwrap();
    let last = messages.iter().rfind(|message| message.info.role == Role::Assistant).unwrap();
    assert_eq!(last.info.parent_id.as_ref(), Some(&note.message_id));
    rig.wait_until_idle().await;
    rig.check_usable().await;
}

/// The connection is lost in the middle of the text, and made again.
pub(crate) async fn a_gap_in_mid_turn(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    let script = format!("@stub text:n=30,d=30,w=a | {} >> text:n=30,d=30,w=c", bash("echo b"));
    let prompt = rig.begin(&script).await;
    rig.until("text", is_chunk).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    rig.lose_events();
    rig.reconcile().await;
    assert_eq!(in_words(&rig.finish().await), "Succeeded EndTurn");
    assert_eq!(rig.said(), rig.kept(&prompt).await);
    assert_eq!(rig.said().split_whitespace().count(), 60);
}

/// Messages that a revert removes go with the next prompt, inside its stream.
pub(crate) async fn sv_9_a_revert(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    assert_eq!(rig.turn("@stub say:one").await, "Succeeded EndTurn");
    let second = rig.begin("@stub say:two").await;
    assert_eq!(in_words(&rig.finish().await), "Succeeded EndTurn");
    rig.wait_until_idle().await;
    revert(&rig, &second.message_id).await;
    assert_eq!(rig.turn("@stub say:three").await, "Succeeded EndTurn");
    assert_eq!(rig.said(), "three");
    let removed: Vec<_> = rig
        .updates()
        .filter_map(|payload| match payload {
            EventPayload::MessageRemoved(removed) => Some(removed.message_id.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(removed.len(), 2, "{}", rig.story());
    assert_eq!(removed[0], second.message_id);
}

/// Berth never does this itself, so the client has no call for it.
async fn revert(rig: &Rig, message: &str) {
    let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_mins(1)).build().unwrap();
    let url = format!("http://127.0.0.1:{}/session/{}/revert", rig.server.port, rig.session);
    let request =
        http.post(url).query(&[("directory", &rig.directory)]).basic_auth("opencode", Some(PASSWORD));
    let answer = request.json(&json!({ "messageID": message })).send().await.unwrap();
    assert_eq!(answer.status(), 200);
}

pub(crate) async fn files_agents_and_system(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    let part = |content| PromptPart { id: ids::part_id(), content };
    let file = PromptContent::File {
        mime: "text/plain".to_owned(),
        url: format!("data:text/plain;base64,{}", STANDARD.encode("from a file")),
        filename: Some("a.txt".to_owned()),
    };
    let parts = vec![
        PromptPart::text("@stub say:seen"),
        part(file),
        part(PromptContent::Agent("general".to_owned())),
    ];
    let mut sent = Prompt::new(ids::message_id(), parts);
    (sent.system, sent.variant) = (Some("be brief".to_owned()), Some("low".to_owned()));
    rig.begin_with(&sent).await;
    // The same ids again double no part.
    rig.send(&sent).await;
    assert_eq!(in_words(&rig.finish().await), "Succeeded EndTurn");
    let messages =
        rig.server.client.messages_back_to(&rig.directory, &rig.session, &sent.message_id).await.unwrap();
    let stored = messages.iter().find(|message| message.info.id == sent.message_id).unwrap();
    let texts: Vec<&str> = stored
        .parts
        .iter()
        .filter_map(|part| match &part.kind {
            PartKind::Text(text) => Some(text.text.as_str()),
            _ => None,
        })
        .collect();
    assert!(texts.contains(&"from a file"), "opencode reads it into the prompt: {texts:?}");
    for part in &sent.parts {
        assert_eq!(stored.parts.iter().filter(|stored| stored.id == part.id).count(), 1, "{part:?}");
    }
}
