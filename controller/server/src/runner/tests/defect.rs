//! A defect of ours: a store in which every commit panics that holds a certain word.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use berth_wire::{
    api::{PromptPart, Session, Turn},
    turn::{TurnErrorReason, TurnState},
};
use serde_json::json;
use tokio::sync::watch;
use uuid::Uuid;

use super::rig::{Rig, limits};
use crate::store::{
    Acquired, Answer, Answered, Cancel, Commit, Enqueued, HistoryRow, LogBounds, LogPage, NewSession,
    NewTurn, PromptFile, Retried, Retry, SandboxKey, SessionQuery, SessionWork, Store, StoreError, TurnQuery,
    store_methods,
};

const POISON: &str = "poison";

/// The store, but for what it panics at.
struct Poisoned {
    inner: Arc<dyn Store>,
    panics: AtomicUsize,
}

/// A method of the trait for each of these, by the inner store's.
macro_rules! passed_on {
    ($(async fn $name:ident($($argument:ident: $kind:ty),*) -> $output:ty;)+) => {
        #[async_trait]
        impl Store for Poisoned {
            $(async fn $name(&self, $($argument: $kind),*) -> Result<$output, StoreError> {
                self.inner.$name($($argument),*).await
            })+

            async fn commit(&self, commit: Commit) -> Result<(), StoreError> {
                let events = commit.sessions.iter().flat_map(|session| &session.events);
                if events.into_iter().any(|event| event.payload.to_parts().1.to_string().contains(POISON)) {
                    self.panics.fetch_add(1, Ordering::SeqCst);
                    panic!("this test's defect");
                }
                self.inner.commit(commit).await
            }

            fn watch_session(&self, session_id: Uuid) -> watch::Receiver<u64> {
                self.inner.watch_session(session_id)
            }

            fn watch_work(&self, sandbox: &SandboxKey) -> watch::Receiver<u64> {
                self.inner.watch_work(sandbox)
            }

            async fn close(&self) {
                self.inner.close().await;
            }
        }
    };
}

store_methods!(passed_on);

async fn poisoned() -> (Rig, Arc<Poisoned>) {
    let mut rig = Rig::new(limits()).await;
    let store = Arc::new(Poisoned { inner: Arc::clone(&rig.store), panics: AtomicUsize::new(0) });
    rig.store = Arc::clone(&store) as Arc<dyn Store>;
    rig.start();
    (rig, store)
}

/// Nothing is missing that the panics had to do with: they are counted, and as many as it takes.
fn check_panics(rig: &Rig, store: &Poisoned) {
    assert_eq!(store.panics.load(Ordering::SeqCst), 3);
    let counted = rig.metrics.encode().unwrap();
    assert!(counted.contains("berth_server_owner_defects_total 3"), "{counted}");
}

#[tokio::test]
async fn a_turn_at_which_the_server_breaks_off_again_and_again_ends_and_no_other() {
    let (mut rig, store) = poisoned().await;
    let (bad, good) = (rig.session().await, rig.session().await);
    let (other, beside) = rig.begin(good, 1).await;
    rig.wait_for_kind(good, "turn_started").await;
    let (turn, run) = rig.begin(bad, 2).await;
    rig.wait_for_kind(bad, "turn_started").await;
    // What opencode tells of the other one to whoever looks.
    let user =
        json!({ "id": beside.user, "sessionID": beside.root, "role": "user", "time": { "created": 1 } });
    let assistant = json!({
        "id": format!("{}z", beside.user), "sessionID": beside.root, "role": "assistant", "parentID": beside.user,
        "time": { "created": 2 },
    });
    rig.door
        .set_messages(vec![json!({ "info": user, "parts": [] }), json!({ "info": assistant, "parts": [] })]);
    rig.door.set_status(json!({ beside.root.clone(): { "type": "busy" } }));

    run.say(POISON);
    let error = rig.end_of(bad, turn).await.error.unwrap();
    assert_eq!(error.reason, TurnErrorReason::ServerDefect);
    assert!(error.message.contains("a defect of Berth"), "{}", error.message);
    check_panics(&rig, &store);

    let next = rig.post(bad, "go on").await;
    let run = rig.begun(3).await;
    run.complete();
    run.idle();
    assert_eq!(rig.end_of(bad, next).await.state, TurnState::Succeeded, "the session is usable");
    rig.door.set_status(json!({}));
    beside.complete();
    beside.idle();
    assert_eq!(rig.end_of(good, other).await.state, TurnState::Succeeded, "the other one went on");
    check_panics(&rig, &store);
    rig.stop().await;
}

#[tokio::test]
async fn a_prompt_at_which_the_server_breaks_off_ends_and_those_behind_it_run() {
    let (mut rig, store) = poisoned().await;
    let session = rig.session().await;
    let (turn, next) = (rig.post(session, POISON).await, rig.post(session, "go on").await);
    let error = rig.end_of(session, turn).await.error.unwrap();
    assert_eq!(error.reason, TurnErrorReason::ServerDefect);
    let run = rig.begun(1).await;
    run.complete();
    run.idle();
    assert_eq!(rig.end_of(session, next).await.state, TurnState::Succeeded);
    check_panics(&rig, &store);
    rig.stop().await;
}
