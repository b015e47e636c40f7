//! Sandboxes that come, move and go while the server runs, and a password that their door does not take any more.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use berth_wire::{
    problem::ProblemType,
    turn::{TurnErrorReason, TurnState},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::watch,
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{
    door::FakeDoor,
    rig::{Rig, limits, sandbox, within},
};
use crate::{
    app::App,
    config::Limits,
    directory::{SandboxAddress, SandboxDirectory, Unready},
    metrics::Metrics,
};

/// How long a look waits for word before the next one.
const LOOK: Duration = Duration::from_millis(200);

/// A directory that changes.
#[derive(Debug)]
struct Moving {
    known: Mutex<Vec<SandboxAddress>>,
    /// What is not there is gone; else it is only not known.
    complete: AtomicBool,
    changed: watch::Sender<()>,
    refusals: watch::Sender<usize>,
    /// How often it was asked whether one is gone.
    asked: watch::Sender<usize>,
    unready: Mutex<Option<Unready>>,
    at_work: watch::Sender<bool>,
}

impl Moving {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            known: Mutex::default(),
            complete: AtomicBool::new(true),
            changed: watch::channel(()).0,
            refusals: watch::channel(0).0,
            asked: watch::channel(0).0,
            unready: Mutex::default(),
            at_work: watch::channel(false).0,
        })
    }

    fn set(&self, known: Vec<SandboxAddress>) {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = known;
        self.changed.send_replace(());
    }
}

impl SandboxDirectory for Moving {
    fn changes(&self) -> Option<watch::Receiver<()>> {
        Some(self.changed.subscribe())
    }

    fn refused(&self, _namespace: &str, _name: &str) {
        self.refusals.send_modify(|count| *count += 1);
    }

    fn at_work(&self, _namespace: &str, _name: &str, at_work: bool) {
        self.at_work.send_replace(at_work);
    }

    fn unready(&self, _namespace: &str, _name: &str) -> Option<Unready> {
        self.unready.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn list(&self) -> Vec<SandboxAddress> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn find(&self, namespace: &str, name: &str) -> Option<SandboxAddress> {
        self.list().into_iter().find(|address| address.namespace == namespace && address.name == name)
    }

    fn is_gone(&self, namespace: &str, name: &str) -> bool {
        self.asked.send_modify(|count| *count += 1);
        self.complete.load(Ordering::Relaxed) && self.find(namespace, name).is_none()
    }
}

#[tokio::test]
async fn a_sandbox_that_comes_later_is_run_and_followed_to_where_it_moves() {
    let mut rig = Rig::new(limits()).await;
    let directory = Moving::new();
    rig.start_with(&(Arc::clone(&directory) as Arc<dyn SandboxDirectory>));
    let session = rig.session().await;
    rig.post(session, "go").await;
    directory.set(vec![rig.address.clone()]);
    rig.begun(1).await;
    let next = FakeDoor::start().await;
    directory.set(vec![SandboxAddress { door_url: next.url.clone(), ..rig.address.clone() }]);
    next.wait_for("PUT /berth/fence", 1).await;
    rig.stop().await;
}

#[tokio::test]
async fn a_password_that_is_refused_is_told_and_the_next_one_is_used() {
    let mut rig = Rig::new(limits()).await;
    let directory = Moving::new();
    let mut refusals = directory.refusals.subscribe();
    rig.door.refuse_as("PUT /berth/fence", ProblemType::Unauthorized);
    directory.set(vec![rig.address.clone()]);
    rig.start_with(&(Arc::clone(&directory) as Arc<dyn SandboxDirectory>));
    let session = rig.session().await;
    rig.post(session, "go").await;
    within("the refusal", refusals.wait_for(|count| *count > 0)).await.unwrap();
    directory.set(vec![SandboxAddress { door_password: "another".into(), ..rig.address.clone() }]);
    rig.begun(1).await;
    rig.stop().await;
}

/// Something that answers everything, and proves nothing.
async fn impostor() -> (String, JoinSet<()>) {
    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut task = JoinSet::new();
    task.spawn(async move {
        let mut request = [0; 4096];
        while let Ok((mut caller, _)) = listener.accept().await {
            if caller.read(&mut request).await.is_ok() {
                let _ = caller.write_all(ANSWER).await;
            }
        }
    });
    (url, task)
}

/// What listens there is no door that proves itself, as after an exchange of its password of which nobody has told.
#[tokio::test]
async fn a_door_that_does_not_know_the_password_is_told_and_the_next_one_is_used() {
    let mut rig = Rig::new(limits()).await;
    let directory = Moving::new();
    let mut refusals = directory.refusals.subscribe();
    let (door_url, _task) = impostor().await;
    let pod_uid = Some("pod-1".to_owned());
    directory.set(vec![SandboxAddress { door_url, pod_uid, ..rig.address.clone() }]);
    rig.start_with(&(Arc::clone(&directory) as Arc<dyn SandboxDirectory>));
    let session = rig.session().await;
    rig.post(session, "go").await;
    within("the refusal", refusals.wait_for(|count| *count > 0)).await.unwrap();
    directory.set(vec![rig.address.clone()]);
    rig.begun(1).await;
    rig.stop().await;
}

#[tokio::test]
async fn it_is_told_whether_there_is_work() {
    let mut rig = Rig::new(Limits { linger: Duration::from_millis(100), ..limits() }).await;
    let (session, directory) = (rig.session().await, Moving::new());
    let mut at_work = directory.at_work.subscribe();
    directory.set(vec![rig.address.clone()]);
    rig.start_with(&(Arc::clone(&directory) as Arc<dyn SandboxDirectory>));
    let (_, run) = rig.begin(session, 1).await;
    within("word of work", at_work.wait_for(|at_work| *at_work)).await.unwrap();
    run.complete();
    run.idle();
    within("word of its end", at_work.wait_for(|at_work| !at_work)).await.unwrap();
    rig.stop().await;
}

fn unschedulable() -> Unready {
    Unready { reason: "Unschedulable".to_owned(), message: "0/1 nodes are available".to_owned(), runs: false }
}

#[tokio::test]
async fn what_waits_for_too_long_for_a_sandbox_without_a_place_ends_with_its_reason() {
    let short = Limits { unplaced: Duration::from_secs(1), ..limits() };
    for found in [false, true] {
        let mut rig = Rig::new(short.clone()).await;
        let (session, directory) = (rig.session().await, Moving::new());
        directory.complete.store(false, Ordering::Relaxed);
        *directory.unready.lock().unwrap() = Some(unschedulable());
        if found {
            // There is a name, and nothing behind it.
            let nowhere = "http://127.0.0.1:9".to_owned();
            directory.set(vec![SandboxAddress { door_url: nowhere, ..rig.address.clone() }]);
        }
        let (first, second) = (rig.post(session, "go").await, rig.post(session, "go").await);
        rig.start_with(&(Arc::clone(&directory) as Arc<dyn SandboxDirectory>));
        for turn in [first, second] {
            let error = rig.end_of(session, turn).await.error.unwrap();
            assert_eq!(error.reason, TurnErrorReason::SandboxNotReady, "{error:?}");
            assert_eq!(error.cause.as_deref(), Some("Unschedulable"));
            assert!(error.message.contains("0/1 nodes are available"), "{error:?}");
        }
        // It is given a place: what comes then runs.
        *directory.unready.lock().unwrap() = None;
        directory.set(vec![rig.address.clone()]);
        rig.post(session, "go").await;
        rig.begun(1).await;
        rig.stop().await;
    }
}

async fn reason_of(rig: &Rig, session: Uuid, turn: Uuid) -> TurnErrorReason {
    rig.end_of(session, turn).await.error.unwrap().reason
}

#[tokio::test]
async fn what_was_wished_of_a_sandbox_that_is_deleted_ends() {
    let mut rig = Rig::new(limits()).await;
    let directory = Moving::new();
    directory.set(vec![rig.address.clone()]);
    rig.start_with(&(Arc::clone(&directory) as Arc<dyn SandboxDirectory>));
    let session = rig.session().await;
    let (running, _run) = rig.begin(session, 1).await;
    let (next, last) = (rig.post(session, "next").await, rig.post(session, "last").await);
    directory.set(Vec::new());
    for turn in [running, next, last] {
        assert_eq!(reason_of(&rig, session, turn).await, TurnErrorReason::SandboxGone);
    }
    let before = rig.turn(running).await.error.unwrap().message;
    assert_ne!(before, rig.turn(next).await.error.unwrap().message, "one of them may have left work behind");
    // A session goes without the sandbox that it was in.
    let mut work = rig.store.watch_work(&sandbox());
    assert!(rig.store.request_delete(session).await.unwrap());
    within("the session's end", async {
        while !rig.store.load_work(&sandbox()).await.unwrap().is_empty() {
            directory.set(Vec::new());
            let _ = tokio::time::timeout(LOOK, work.changed()).await;
        }
    })
    .await;
    // One of the same name is another one, and is cared for.
    directory.set(vec![rig.address.clone()]);
    let again = rig.session().await;
    rig.post(again, "go").await;
    rig.begun(2).await;
    rig.stop().await;
}

#[tokio::test]
async fn what_was_wished_of_a_sandbox_that_was_deleted_while_nobody_watched_ends() {
    let mut rig = Rig::new(limits()).await;
    let (session, directory) = (rig.session().await, Moving::new());
    let turn = rig.post(session, "go").await;
    rig.start_with(&(Arc::clone(&directory) as Arc<dyn SandboxDirectory>));
    assert_eq!(reason_of(&rig, session, turn).await, TurnErrorReason::SandboxGone);
    rig.stop().await;
}

#[tokio::test]
async fn a_sandbox_that_is_not_known_yet_is_not_gone() {
    let mut rig = Rig::new(limits()).await;
    let (session, directory) = (rig.session().await, Moving::new());
    directory.complete.store(false, Ordering::Relaxed);
    let turn = rig.post(session, "go").await;
    let mut asked = directory.asked.subscribe();
    rig.start_with(&(Arc::clone(&directory) as Arc<dyn SandboxDirectory>));
    within("a look at it", asked.wait_for(|count| *count > 0)).await.unwrap();
    assert_eq!(rig.turn(turn).await.state, TurnState::Queued);
    directory.set(vec![rig.address.clone()]);
    directory.complete.store(true, Ordering::Relaxed);
    rig.begun(1).await;
    // Nor is one that cannot be found for a while.
    directory.complete.store(false, Ordering::Relaxed);
    let seen = *directory.asked.borrow();
    directory.set(Vec::new());
    within("a look at it", asked.wait_for(|count| *count > seen)).await.unwrap();
    assert_eq!(rig.turn(turn).await.state, TurnState::Running);
    rig.stop().await;
}

#[tokio::test]
async fn a_read_whose_password_is_refused_is_made_once_more_with_the_next_one() {
    let rig = Rig::new(limits()).await;
    let directory = Moving::new();
    directory.set(vec![rig.address.clone()]);
    let app = App::new(
        Arc::clone(&rig.store),
        Arc::clone(&directory) as Arc<dyn SandboxDirectory>,
        rig.limits.clone(),
        CancellationToken::new(),
        Metrics::default(),
    );
    rig.door.refuse_as("GET /berth/turns", ProblemType::Unauthorized);
    let mut refusals = directory.refusals.subscribe();
    let other = Arc::clone(&directory);
    let moved = SandboxAddress { door_password: "another".into(), ..rig.address.clone() };
    let renew = async {
        within("the refusal", refusals.wait_for(|count| *count > 0)).await.unwrap();
        other.set(vec![moved]);
    };
    let read = app.read_at_door("local", "default", |client| async move { client.door_turns().await });
    let (turns, ()) = tokio::join!(read, renew);
    assert!(turns.unwrap().is_ok());
    assert_eq!(*directory.refusals.borrow(), 1);
}
