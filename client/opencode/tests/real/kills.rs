//! opencode is killed in mid-turn and started again on its data. Each has an opencode of its own.

use std::{sync::Arc, time::Duration};

use berth_opencode::TurnPhase;

use crate::{
    rig::{Rig, bash, in_words, is_chunk, is_running_call},
    server::Server,
};

async fn own(server: Arc<Server>) -> Arc<Server> {
    Arc::new(Server::start(server.version).await)
}

async fn start_again(server: &Server) {
    server.kill().await;
    server.boot().await;
    server.prove_events().await;
}

/// The prompt is gone, and the translator says that it never began: it is sent again under the same ids.
pub(crate) async fn right_after_a_cold_post(server: Arc<Server>) {
    let mut rig = Rig::cold(own(server).await).await;
    let prompt = rig.begin("@stub say:from the second run").await;
    start_again(&rig.server).await;
    rig.lose_events();
    rig.reconcile().await;
    assert_eq!(rig.translator.phase(), TurnPhase::Admitted, "{}", rig.story());
    rig.send(&prompt).await;
    assert_eq!(in_words(&rig.finish().await), "Succeeded EndTurn");
    assert_eq!(rig.said(), "from the second run");
    rig.server.kill().await;
}

/// What was streamed stays, though opencode itself keeps nothing of it; nothing is run again.
pub(crate) async fn in_mid_text(server: Arc<Server>) {
    let mut rig = Rig::new(own(server).await).await;
    let prompt = rig.begin("@stub text:n=100,d=50").await;
    rig.until("text", is_chunk).await;
    rig.go_on_for(Duration::from_millis(300)).await;
    start_again(&rig.server).await;
    let out = rig.translator.serve_exited("killed by a test");
    rig.record(out);
    assert_eq!(in_words(&rig.finish().await), "Failed OpencodeExited");
    assert!(rig.said().starts_with("word0 word1 "), "{}", rig.said());
    assert_eq!(rig.kept(&prompt).await, "");
    rig.lose_events();
    rig.check_usable().await;
    rig.server.kill().await;
}

pub(crate) async fn in_a_tool(server: Arc<Server>) {
    let mut rig = Rig::new(own(server).await).await;
    rig.begin(&format!("@stub {} >> say:done", bash("sleep 5"))).await;
    rig.until("running tool", is_running_call).await;
    start_again(&rig.server).await;
    let out = rig.translator.serve_exited("killed by a test");
    rig.record(out);
    assert_eq!(in_words(&rig.finish().await), "Failed OpencodeExited");
    assert_eq!(rig.statuses("bash"), [berth_wire::event::acp::ToolCallStatus::Failed]);
    rig.lose_events();
    rig.check_usable().await;
    rig.server.kill().await;
}
