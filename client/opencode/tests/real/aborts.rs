//! A cancel in each state of a turn, and what ends turns otherwise.

use std::{sync::Arc, time::Duration};

use crate::{
    rig::{Rig, bash, in_words, is_chunk, is_retry, is_running_call},
    server::Server,
};

const CANCELLED: &str = "Cancelled Cancelled";

/// In a cold directory, where opencode answers an abort before it has begun, and runs the prompt all the same.
pub(crate) async fn before_the_start(server: Arc<Server>) {
    let mut rig = Rig::cold(server).await;
    rig.begin(&format!("@stub {} >> say:done", bash("echo it-ran > it-ran"))).await;
    assert_eq!(rig.cancel().await, CANCELLED);
    rig.check_usable().await;
}

pub(crate) async fn while_streaming(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    let prompt = rig.begin("scenario: slow").await;
    rig.until("text", is_chunk).await;
    assert_eq!(rig.cancel().await, CANCELLED);
    assert_eq!(rig.said(), rig.kept(&prompt).await, "what was streamed is what opencode keeps");
    rig.check_usable().await;
}

pub(crate) async fn while_the_provider_hangs(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    rig.begin("@stub say:word | hang").await;
    rig.until("text", is_chunk).await;
    assert_eq!(rig.cancel().await, CANCELLED);
    rig.check_usable().await;
}

pub(crate) async fn before_the_provider_answers(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    rig.begin("@stub hangpre").await;
    rig.go_on_for(Duration::from_millis(700)).await;
    assert_eq!(rig.cancel().await, CANCELLED);
    rig.check_usable().await;
}

pub(crate) async fn while_a_tool_runs(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    rig.begin(&format!("@stub {} >> say:done", bash("sleep 60"))).await;
    rig.until("running tool", is_running_call).await;
    rig.go_on_for(Duration::from_millis(200)).await;
    assert_eq!(rig.cancel().await, CANCELLED);
    rig.check_usable().await;
}

pub(crate) async fn while_a_retry_waits(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    rig.begin("@stub status:500").await;
    rig.until("retry", is_retry).await;
    assert_eq!(rig.cancel().await, CANCELLED);
    rig.check_usable().await;
}

/// Through opencode itself, beside us.
pub(crate) async fn by_somebody_else(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    rig.begin("scenario: slow").await;
    rig.until("text", is_chunk).await;
    rig.server.client.abort(&rig.directory, &rig.session).await.unwrap();
    assert_eq!(in_words(&rig.finish().await), CANCELLED);
    rig.check_usable().await;
}

/// opencode aborts the turns of an instance before it closes it.
pub(crate) async fn disposed_in_mid_turn(server: Arc<Server>) {
    let mut rig = Rig::cold(server).await;
    rig.begin("scenario: slow").await;
    rig.until("text", is_chunk).await;
    rig.server.client.dispose_instance(&rig.directory).await.unwrap();
    assert_eq!(in_words(&rig.finish().await), CANCELLED);
    rig.check_usable().await;
}
