//! Several servers on one database file, each a process of its own, before one real pod: one of them owns the sandbox at a
//! time, and whatever happens to it, nothing is written twice and nothing runs twice.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use berth_opencode::{ClientError, FenceHolder};
use berth_tests::{Fleet, LEASE, SessionLog, within, words};
use berth_wire::{
    api::PostMessage,
    event::{EventPayload, SessionEvent, Voice},
    turn::TurnState,
};
use futures_util::{FutureExt, future::BoxFuture};
use nix::sys::signal::Signal;
use uuid::Uuid;

/// What a server logs when it learns that it is not the owner any more.
const TAKEN_OVER: &str = "another owner took the sandbox over";

async fn post(fleet: &Fleet, server: usize, session: Uuid, text: &str) -> Uuid {
    let key = Uuid::new_v4().to_string();
    let turn = fleet.client(server).post_message(session, &PostMessage::text(text), &key).await;
    turn.expect("the prompt is taken").id
}

async fn wait_for_text(fleet: &Fleet, server: usize, session: Uuid, turn: Uuid) {
    let said = |event: &SessionEvent| event.turn_id == Some(turn) && event.payload.as_chunk().is_some();
    SessionLog::until(&fleet.client(server), session, 0, "text", said).await;
}

async fn end(fleet: &Fleet, server: usize, session: Uuid, turn: Uuid) -> SessionLog {
    let log = SessionLog::until_end(&fleet.client(server), session, turn).await;
    log.check();
    assert_eq!(log.outcome(turn).state, TurnState::Succeeded, "{:?}", log.outcome(turn));
    log
}

/// How often the model was asked for an answer to a prompt with this text.
fn asked(fleet: &Fleet, prompt: &str) -> usize {
    let requests = fleet.model.requests();
    requests.iter().filter(|request| !request.title && request.prompt.contains(prompt)).count()
}

/// Somebody who believes to own the sandbox still.
#[derive(Debug)]
struct Believer;

impl FenceHolder for Believer {
    fn holds(&self) -> BoxFuture<'_, bool> {
        async { true }.boxed()
    }

    fn renew(&self) -> BoxFuture<'_, bool> {
        async { true }.boxed()
    }
}

#[tokio::test]
async fn an_owner_that_was_paused_past_its_lease_writes_nothing_and_runs_nothing() {
    let mut fleet = Fleet::start(2).await;
    let session = fleet.session(0).await;
    let first = post(&fleet, 0, session, "@stub text:n=400,d=20").await;
    wait_for_text(&fleet, 0, session, first).await;
    fleet.servers[1].start();
    fleet.serves(1).await;

    fleet.servers[0].send(Signal::SIGSTOP);
    let queued = post(&fleet, 1, session, "@stub text:n=300,d=20").await;
    let log = end(&fleet, 1, session, first).await;
    assert_eq!(log.text(first, Voice::Message), words(400));
    wait_for_text(&fleet, 1, session, queued).await;

    // The door knows that the first one's fence is not the highest.
    let stale = fleet.opencode().fenced(1, Arc::new(Believer)).raise_fence().await;
    assert!(matches!(stale, Err(ClientError::StaleFence)), "{stale:?}");
    // A door that was started anew does not, until somebody raises it.
    fleet.sidecar.kill().await;
    fleet.servers[0].send(Signal::SIGCONT);
    fleet.sidecar.start();
    within("the word of the one that was paused", async {
        while !fleet.servers[0].log().contains(TAKEN_OVER) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;

    let log = end(&fleet, 1, session, queued).await;
    assert_eq!(log.text(queued, Voice::Message), words(300));
    let last = post(&fleet, 0, session, "@stub say:last").await;
    let log = end(&fleet, 0, session, last).await;
    assert_eq!(log.text(last, Voice::Message), "last");
    assert_eq!(log.text(first, Voice::Message), words(400));
    for prompt in ["n=400", "n=300", "say:last"] {
        assert_eq!(asked(&fleet, prompt), 1, "{prompt}");
    }
    assert!(!fleet.servers[1].log().contains(TAKEN_OVER), "the owner stayed the owner");
    fleet.stop().await;
}

#[tokio::test]
async fn a_server_that_is_told_to_stop_hands_over_at_once_and_its_streams_go_on_elsewhere() {
    let mut fleet = Fleet::start(2).await;
    fleet.servers[1].start();
    fleet.serves(1).await;
    let session = fleet.session(0).await;
    let turn = post(&fleet, 0, session, "@stub text:n=400,d=20").await;
    wait_for_text(&fleet, 1, session, turn).await;
    // Whichever owns the sandbox: in the end both have been told to stop.
    for (leaves, stays) in [(0, 1), (1, 0)] {
        let (status, took) = fleet.servers[leaves].terminate().await;
        assert_eq!(status.code(), Some(0));
        assert!(took < Duration::from_secs(10), "{took:?}");
        let left = Instant::now();
        let after = fleet.client(stays).get_session(session).await.expect("it is there").last_seq;
        let more = |event: &SessionEvent| {
            event.payload.as_chunk().is_some() || matches!(event.payload, EventPayload::TurnEnded(_))
        };
        SessionLog::until(&fleet.client(stays), session, after, "more text", more).await;
        println!("{:?} from the end of server {leaves} to the next text", left.elapsed());
        fleet.servers[leaves].start();
        fleet.serves(leaves).await;
    }
    let log = end(&fleet, 0, session, turn).await;
    assert_eq!(log.text(turn, Voice::Message), words(400));
    assert_eq!(asked(&fleet, "n=400"), 1);
    fleet.stop().await;
}

#[tokio::test]
async fn wishes_that_come_to_another_server_are_seen_by_the_owner() {
    let mut fleet = Fleet::start(2).await;
    let session = fleet.session(0).await;
    let turn = post(&fleet, 0, session, "@stub text:n=2000,d=20").await;
    wait_for_text(&fleet, 0, session, turn).await;
    fleet.servers[1].start();
    fleet.serves(1).await;
    let began = Instant::now();
    let body = berth_wire::api::CancelRequest::only(turn);
    fleet.client(1).cancel(session, body).await.expect("it is taken");
    let log = SessionLog::until_end(&fleet.client(1), session, turn).await;
    log.check();
    println!("{:?} from a cancel at another server to the end in its log", began.elapsed());
    assert_eq!(log.outcome(turn).state, TurnState::Cancelled);
    assert!(!fleet.servers[1].log().contains("turn ended"), "the owner ended it, not the other one");
    // Nobody has anything to do: the one with the newest prompt need not be the one that owns the sandbox.
    let next = post(&fleet, 1, session, "@stub say:next").await;
    assert_eq!(end(&fleet, 1, session, next).await.text(next, Voice::Message), "next");
    fleet.stop().await;
}

#[tokio::test]
async fn after_a_kill_another_server_takes_over_within_the_lease() {
    let mut fleet = Fleet::start(2).await;
    let session = fleet.session(0).await;
    let turn = post(&fleet, 0, session, "@stub text:n=400,d=20").await;
    wait_for_text(&fleet, 0, session, turn).await;
    fleet.servers[1].start();
    fleet.serves(1).await;
    fleet.servers[0].kill().await;
    let killed = Instant::now();
    let after = fleet.client(1).get_session(session).await.expect("it is there").last_seq;
    let more = |event: &SessionEvent| event.payload.as_chunk().is_some();
    SessionLog::until(&fleet.client(1), session, after, "more text", more).await;
    println!("{:?} from a kill to the next text, with a lease of {LEASE} s", killed.elapsed());
    let log = end(&fleet, 1, session, turn).await;
    assert_eq!(log.text(turn, Voice::Message), words(400));
    assert_eq!(asked(&fleet, "n=400"), 1);
    fleet.stop().await;
}
