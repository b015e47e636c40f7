//! Tasks given to subagents, at any depth.

use std::sync::Arc;

use berth_opencode::PermissionReply;
use berth_wire::{
    event::{Resolution, SUBSESSION_META, acp},
    turn::{TurnError, TurnErrorReason},
};

use crate::{
    rig::{Answers, Rig, bash, in_words, is_request, is_retry, is_running_call, task},
    server::{Server, Version},
};

fn children_told(rig: &Rig) -> Vec<String> {
    let mut children: Vec<String> = rig
        .acp()
        .filter_map(|update| match update {
            acp::SessionUpdate::ToolCall(call) => call.meta.as_ref(),
            acp::SessionUpdate::ToolCallUpdate(call) => call.meta.as_ref(),
            _ => None,
        })
        .filter_map(|meta| Some(meta.get(SUBSESSION_META)?.as_str()?.to_owned()))
        .collect();
    children.sort();
    children.dedup();
    children
}

async fn children_listed(rig: &Rig) -> Vec<String> {
    let listed = rig.server.client.list_children(&rig.directory, &rig.session).await.unwrap();
    let mut ids: Vec<String> = listed.into_iter().map(|session| session.id).collect();
    ids.sort();
    ids
}

pub(crate) async fn one_subagent(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    let work = task("look", &format!("{}~>>~say:seen", bash("echo from the subagent")));
    assert_eq!(rig.turn(&format!("@stub {work} >> say:done")).await, "Succeeded EndTurn");
    assert_eq!(rig.said(), "done", "a subagent's words are not the agent's");
    assert_eq!(rig.statuses("task"), [acp::ToolCallStatus::Completed], "{}", rig.story());
    assert_eq!(children_told(&rig), children_listed(&rig).await);
}

pub(crate) async fn two_subagents_at_once(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    let script = format!(
        "@stub {} | {} >> say:done",
        task("a", "text:n=20,d=10,w=a"),
        task("b", "text:n=20,d=10,w=b")
    );
    assert_eq!(rig.turn(&script).await, "Succeeded EndTurn");
    assert_eq!(rig.statuses("task"), [acp::ToolCallStatus::Completed; 2], "{}", rig.story());
    let children = children_told(&rig);
    assert_eq!(children.len(), 2);
    assert_eq!(children, children_listed(&rig).await);
}

pub(crate) async fn a_failing_subagent(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    let script = format!("@stub {} >> say:it failed", task("fail", "status:400"));
    assert_eq!(rig.turn(&script).await, "Succeeded EndTurn");
    assert_eq!(rig.said(), "it failed");
    let expected = match rig.server.version {
        Version::Old => acp::ToolCallStatus::Completed,
        Version::Pinned => acp::ToolCallStatus::Failed,
    };
    assert_eq!(rig.statuses("task"), [expected], "{}", rig.story());
}

pub(crate) async fn an_aborted_subagent(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    rig.begin(&format!("@stub {} >> say:done", task("slow", "text:n=500,d=50"))).await;
    rig.until("running task", is_running_call).await;
    rig.go_on_for(std::time::Duration::from_millis(300)).await;
    assert_eq!(rig.cancel().await, "Cancelled Cancelled");
    rig.wait_until_idle().await;
    for child in children_told(&rig) {
        let busy = rig.server.client.session_status(&rig.directory).await.unwrap();
        assert!(!busy.contains_key(&child), "its subagent was aborted, too");
    }
    rig.check_usable().await;
}

pub(crate) async fn ct_2_a_subagent_whose_retry_is_due_in_a_day(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    rig.begin(&format!("@stub {} >> say:done", task("wait", "status:429,ra=86400"))).await;
    rig.until("retry", is_retry).await;
    let retry = rig.retries()[0].clone();
    assert!(rig.calls().contains_key(retry.tool_call_id.as_deref().unwrap()), "{}", rig.story());
    let due = rig.translator.observe().unwrap().retry.expect("it waits for a retry");
    assert_eq!(Some(due.at_ms), retry.next_at.map(jiff::Timestamp::as_millisecond));
    let error = TurnError {
        reason: TurnErrorReason::RateLimited,
        message: due.message,
        retry_at: retry.next_at,
        cause: None,
    };
    rig.translator.request_abort(error);
    rig.abort_if_due().await;
    assert_eq!(in_words(&rig.finish().await), "Failed RateLimited");
    rig.check_usable().await;
}

fn nested(last: &str) -> String {
    let deep = task("deep", &format!("{}~>>~say:deep done", bash("touch by-a-grandchild")));
    format!("@stub {} >> {last}", task("middle", &format!("{deep}~>>~say:middle done")))
}

/// The event of the request is lost: the session and its request are found by reading the state.
pub(crate) async fn ct_3_a_grandchild_asks(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    rig.answers = Answers::Leave;
    rig.begin(&nested("say:all done")).await;
    rig.until("request", is_request).await;
    let (id, call) = (rig.asked()[0].permission_id.clone(), rig.asked()[0].tool_call_id.clone());
    assert_eq!(rig.asked()[0].permission, "bash");
    assert!(rig.calls().contains_key(call.as_deref().unwrap()), "the root's task call: {}", rig.story());
    // Direct children only: the one that asks is not among them.
    assert_eq!(children_listed(&rig).await.len(), 1);
    let snapshot =
        rig.server.client.snapshot(&rig.directory, &rig.session, rig.translator.prompt()).await.unwrap();
    assert_eq!(snapshot.sessions.len(), 2, "{:?}", snapshot.sessions);

    // Another translator that has seen nothing, as after a takeover without a stored state.
    let mut other = berth_opencode::SessionTranslator::new(&rig.session);
    other.begin_turn(rig.translator.prompt().unwrap());
    let out = other.reconcile(&snapshot);
    assert_eq!(out.iter().filter(|item| is_request(item)).count(), 1, "{out:?}");

    rig.lose_events();
    rig.reconcile().await;
    assert_eq!(rig.asked().len(), 1, "asked once: {}", rig.story());
    rig.server.client.reply_permission(&rig.directory, &id, PermissionReply::Once, None).await.unwrap();
    assert_eq!(in_words(&rig.finish().await), "Succeeded EndTurn");
    assert_eq!(rig.resolutions(), [Resolution::Once]);
    assert_eq!(rig.said(), "all done");
}

/// The pinned version answers the abort, and goes on with the root's next step: it takes a second one.
pub(crate) async fn ct_3_a_grandchild_asks_and_the_root_is_cancelled(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    rig.answers = Answers::Leave;
    rig.begin(&nested("text:n=200,d=50")).await;
    rig.until("request", is_request).await;
    let outcome = rig.cancel().await;
    assert_eq!(outcome, "Cancelled Cancelled", "{}", rig.story());
    assert_eq!(rig.resolutions(), [Resolution::Dropped]);
    rig.answers = Answers::Permission(PermissionReply::Once, None);
    rig.check_usable().await;
    // opencode lists the request for ever; it is none of a later turn's.
    rig.begin("@stub text:n=20,d=50").await;
    rig.until("text", crate::rig::is_chunk).await;
    rig.reconcile().await;
    assert!(rig.asked().is_empty(), "{}", rig.story());
    assert_eq!(in_words(&rig.finish().await), "Succeeded EndTurn");
}
