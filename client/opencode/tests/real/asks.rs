//! Permissions and questions.

use std::sync::Arc;

use berth_opencode::PermissionReply;
use berth_wire::event::{EventPayload, Question, Resolution, acp};
use serde_json::{Value, json};

use crate::{
    rig::{Answers, Rig, bash, in_words, is_chunk, is_request, task},
    server::Server,
};

const ASKING: &str = "touch asked-for";

fn asking(then: &str) -> String {
    format!("@stub {} >> say:{then}", bash(ASKING))
}

pub(crate) async fn permission_once(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    for _ in 0..2 {
        assert_eq!(rig.turn(&asking("thanks")).await, "Succeeded EndTurn");
        assert_eq!(rig.resolutions(), [Resolution::Once], "{}", rig.story());
        let call = rig.asked()[0].tool_call_id.clone();
        assert!(rig.calls().contains_key(call.as_deref().unwrap()));
    }
}

/// opencode's own `always` holds for the directory, so it has one of its own; it is forgotten with the instance.
pub(crate) async fn permission_always(server: Arc<Server>) {
    let mut rig = Rig::cold(server).await;
    rig.answers = Answers::Permission(PermissionReply::Always, None);
    assert_eq!(rig.turn(&asking("thanks")).await, "Succeeded EndTurn");
    assert_eq!(rig.resolutions(), [Resolution::Always]);
    let mut other = Rig::in_directory(Arc::clone(&rig.server), rig.directory.clone()).await;
    assert_eq!(other.turn(&asking("thanks")).await, "Succeeded EndTurn");
    assert!(other.asked().is_empty(), "it holds for other sessions, too: {}", other.story());
    rig.server.client.dispose_instance(&rig.directory).await.unwrap();
    assert_eq!(rig.turn(&asking("thanks")).await, "Succeeded EndTurn");
    assert_eq!(rig.asked().len(), 1, "{}", rig.story());
}

pub(crate) async fn permission_rejected(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    rig.answers = Answers::Permission(PermissionReply::Reject, None);
    assert_eq!(rig.turn(&asking("thanks")).await, "Failed PermissionRejected");
    assert_eq!(rig.resolutions(), [Resolution::Rejected]);
    rig.answers = Answers::Leave;
    rig.check_usable().await;
}

pub(crate) async fn permission_rejected_with_words(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    rig.answers = Answers::Permission(PermissionReply::Reject, Some("use another name"));
    assert_eq!(rig.turn(&asking("I see")).await, "Succeeded EndTurn");
    assert_eq!(rig.resolutions(), [Resolution::Rejected]);
    assert_eq!(rig.said(), "I see");
    assert_eq!(rig.statuses("bash"), [acp::ToolCallStatus::Failed]);
}

pub(crate) async fn permission_of_a_subagent(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    let work = task("ask", &format!("{}~>>~say:seen", bash(ASKING)));
    assert_eq!(rig.turn(&format!("@stub {work} >> say:done")).await, "Succeeded EndTurn");
    assert_eq!(rig.resolutions(), [Resolution::Once]);
    let call = rig.asked()[0].tool_call_id.clone();
    assert_eq!(rig.calls()[&call.unwrap()].0, "task");
}

pub(crate) async fn rejecting_one_rejects_the_others(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    rig.answers = Answers::Leave;
    rig.begin(&format!("@stub {} | {} >> say:done", bash("touch one"), bash("touch two"))).await;
    let both = |rig: &Rig| rig.asked().len() == 2;
    while !both(&rig) {
        rig.go_on_for(std::time::Duration::from_millis(50)).await;
    }
    let (first, second) = (rig.asked()[0].permission_id.clone(), rig.asked()[1].permission_id.clone());
    let client = rig.server.client.clone();
    client.reply_permission(&rig.directory, &first, PermissionReply::Reject, None).await.unwrap();
    assert_eq!(in_words(&rig.finish().await), "Failed PermissionRejected");
    assert_eq!(rig.resolutions(), [Resolution::Rejected; 2]);
    let error =
        client.reply_permission(&rig.directory, &second, PermissionReply::Once, None).await.unwrap_err();
    assert!(matches!(error, berth_opencode::ClientError::NotFound { .. }), "{error:?}");
}

pub(crate) async fn permission_left_behind_by_an_abort(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    rig.answers = Answers::Leave;
    rig.begin(&asking("thanks")).await;
    rig.until("request", is_request).await;
    let left = rig.asked()[0].permission_id.clone();
    assert_eq!(rig.cancel().await, "Cancelled Cancelled");
    assert_eq!(rig.resolutions(), [Resolution::Dropped]);
    let listed = rig.server.client.list_permissions(&rig.directory).await.unwrap();
    assert!(listed.iter().any(|request| request.id == left), "opencode lists it for ever");
    rig.begin("@stub text:n=20,d=50").await;
    rig.until("text", is_chunk).await;
    rig.reconcile().await;
    assert!(rig.asked().is_empty(), "{}", rig.story());
    assert_eq!(in_words(&rig.finish().await), "Succeeded EndTurn");
}

pub(crate) async fn ct_4_a_doom_loop(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    let call = bash("echo same");
    let script = format!("@stub {call} | {call} | {call} >> say:done");
    assert_eq!(rig.turn(&script).await, "Succeeded EndTurn");
    let asked = rig.asked();
    assert_eq!((asked.len(), asked[0].permission.as_str()), (1, "doom_loop"), "{}", rig.story());
    assert_eq!(asked[0].patterns, ["bash"]);
    assert_eq!(asked[0].tool_call_id, None, "opencode names no call");

    rig.answers = Answers::Leave;
    rig.begin(&script).await;
    rig.until("request", is_request).await;
    assert_eq!(rig.cancel().await, "Cancelled Cancelled");
    assert_eq!(rig.resolutions(), [Resolution::Dropped]);
    // A translator that knows nothing of it does not take the listed one for a later turn's.
    rig.translator = berth_opencode::SessionTranslator::new(&rig.session);
    rig.begin("@stub text:n=20,d=50").await;
    rig.until("text", is_chunk).await;
    rig.reconcile().await;
    assert!(rig.asked().is_empty(), "{}", rig.story());
    assert_eq!(in_words(&rig.finish().await), "Succeeded EndTurn");
}

fn questions(questions: &Value) -> String {
    format!("@stub tool:question:{} >> say:thanks", json!({ "questions": questions }))
}

fn colour() -> String {
    questions(&json!([{ "question": "Which colour?", "header": "Colour",
        "options": [{ "label": "Red", "description": "r" }, { "label": "Blue", "description": "b" }] }]))
}

pub(crate) async fn question_answered(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    rig.answers = Answers::Question(vec![vec!["Blue".to_owned()]]);
    assert_eq!(rig.turn(&colour()).await, "Succeeded EndTurn");
    assert_eq!(rig.resolutions(), [Resolution::Answered]);
    let told = rig.calls().into_values().next().unwrap().2;
    assert!(told.contains("Blue"), "{told}");
}

pub(crate) async fn question_dismissed(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    rig.answers = Answers::Dismiss;
    assert_eq!(rig.turn(&colour()).await, "Failed PermissionRejected");
    assert_eq!(rig.resolutions(), [Resolution::Rejected]);
    rig.check_usable().await;
}

pub(crate) async fn question_aborted(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    rig.answers = Answers::Leave;
    rig.begin(&colour()).await;
    rig.until("question", is_request).await;
    assert_eq!(rig.cancel().await, "Cancelled Cancelled");
    assert_eq!(rig.resolutions(), [Resolution::Dropped]);
    rig.check_usable().await;
}

/// In a directory of its own: the answer must go to the same instance.
pub(crate) async fn ct_5_several_questions(server: Arc<Server>) {
    let mut rig = Rig::cold(server).await;
    let option = |label: &str| json!({ "label": label, "description": "" });
    let script = questions(&json!([
        { "question": "A?", "header": "A", "options": [option("x"), option("y")] },
        { "question": "B?", "header": "B", "multiple": true, "options": [option("p"), option("q")] },
        { "question": "C?", "header": "C", "options": [option("z")] },
    ]));
    let answers: [&[&str]; 3] = [&["x"], &["p", "q"], &["free text"]];
    rig.answers = Answers::Question(
        answers.iter().map(|labels| labels.iter().map(|&label| label.to_owned()).collect()).collect(),
    );
    assert_eq!(rig.turn(&script).await, "Succeeded EndTurn");
    let asked: Vec<&Vec<Question>> = rig
        .updates()
        .filter_map(|payload| match payload {
            EventPayload::QuestionRequested(request) => Some(&request.questions),
            _ => None,
        })
        .collect();
    let asked: Vec<_> =
        asked[0].iter().map(|question| (question.question.as_str(), question.multiple)).collect();
    assert_eq!(asked, [("A?", false), ("B?", true), ("C?", false)]);
    let told = rig.calls().into_values().next().unwrap().2;
    assert!(["p, q", "free text"].iter().all(|answer| told.contains(answer)), "{told}");
}
