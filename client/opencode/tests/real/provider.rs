//! What a provider can answer.

use std::{sync::Arc, time::Duration};

use berth_opencode::{ModelReference, Prompt, PromptPart, ids};
use berth_wire::turn::{TurnError, TurnErrorReason};
use jiff::{SignedDuration, Timestamp};

use crate::{
    rig::{Rig, in_words, is_retry},
    server::{Server, Version},
};

pub(crate) async fn error_400(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    assert_eq!(rig.turn("@stub status:400").await, "Failed ProviderError");
    rig.check_usable().await;
}

pub(crate) async fn error_401(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    assert_eq!(rig.turn("@stub status:401").await, "Failed ProviderUnauthorized");
    rig.check_usable().await;
}

pub(crate) async fn error_429_with_retry_after(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    let began = Timestamp::now();
    assert_eq!(rig.turn("@stub status:429,times=1,ra=2 | say:let in").await, "Succeeded EndTurn");
    assert_eq!((rig.retries().len(), rig.said().as_str()), (1, "let in"), "{}", rig.story());
    let next = rig.retries()[0].next_at.unwrap();
    assert!(next.duration_since(began) >= SignedDuration::from_secs(1), "{next}");
}

pub(crate) async fn error_500_then_success(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    assert_eq!(rig.turn("@stub status:500,times=1 | say:the second time").await, "Succeeded EndTurn");
    assert_eq!((rig.retries().len(), rig.said().as_str()), (1, "the second time"));
}

/// The old version asks again without a word, and goes on in the same part; it keeps the beginning twice itself.
pub(crate) async fn cut_after_partial_text(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    let prompt = rig.begin("scenario: cut").await;
    assert_eq!(in_words(&rig.finish().await), "Succeeded EndTurn");
    assert_eq!(rig.said(), rig.kept(&prompt).await, "{}", rig.story());
    let whole = "This sentence breaks off and is whole the second time.";
    match rig.server.version {
        Version::Old => assert!(rig.said().ends_with(whole), "{}", rig.story()),
        Version::Pinned => assert_eq!(rig.said(), whole, "{}", rig.story()),
    }
}

pub(crate) async fn garbage(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    assert_eq!(rig.turn("scenario: garbage").await, "Failed OpencodeError");
    rig.check_usable().await;
}

/// The pinned version would call the model for ever.
pub(crate) async fn no_finish(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    assert_eq!(rig.turn("@stub text:n=2 | eof").await, "Failed ProviderStreamIncomplete");
    rig.wait_until_idle().await;
    rig.check_usable().await;
}

pub(crate) async fn length(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    assert_eq!(rig.turn("@stub say:too long | length").await, "Succeeded MaxTokens");
}

/// opencode sleeps, and only its status tells why.
pub(crate) async fn ct_2_a_retry_that_is_due_in_a_day(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    let began = Timestamp::now();
    rig.begin("@stub status:429,ra=86400").await;
    rig.until("retry", is_retry).await;
    let retry = rig.retries()[0].clone();
    let next = retry.next_at.unwrap();
    assert!(next.duration_since(began) > SignedDuration::from_hours(23), "{next}");
    let message = rig.translator.observe().unwrap().retry.unwrap().message;
    assert!(message.contains("429"), "{message}");
    rig.translator.request_abort(TurnError {
        reason: TurnErrorReason::RateLimited,
        message,
        retry_at: Some(next),
        cause: None,
    });
    rig.abort_if_due().await;
    let outcome = rig.finish().await;
    assert_eq!(in_words(&outcome), "Failed RateLimited");
    assert_eq!(outcome.error.unwrap().retry_at, Some(next));
    assert!(Timestamp::now().duration_since(began) < SignedDuration::from_secs(60));
    rig.check_usable().await;
}

fn part() -> Vec<PromptPart> {
    vec![PromptPart::text("@stub say:clean")]
}

/// A model that was named stays the session's, also when there is none of that name.
pub(crate) async fn bad_model(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    let model =
        |id: &str| Some(ModelReference { provider_id: "scripted".to_owned(), model_id: id.to_owned() });
    rig.begin_with(&Prompt { model: model("nope"), ..Prompt::new(ids::message_id(), part()) }).await;
    assert_eq!(in_words(&rig.finish().await), "Failed ModelNotFound");
    // What opencode repeats of the error ends no later turn.
    rig.begin_with(&Prompt { model: model("m"), ..Prompt::new(ids::message_id(), part()) }).await;
    assert_eq!(in_words(&rig.finish().await), "Succeeded EndTurn");
}

pub(crate) async fn bad_agent(server: Arc<Server>) {
    let mut rig = Rig::new(server).await;
    let agent = Some("nope".to_owned());
    rig.begin_with(&Prompt { agent, ..Prompt::new(ids::message_id(), part()) }).await;
    assert_eq!(in_words(&rig.finish().await), "Failed AgentNotFound");
    rig.go_on_for(Duration::from_millis(200)).await;
    rig.check_usable().await;
}
