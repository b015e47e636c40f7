//! What a real opencode does not do on demand, by a fake one.

use std::os::unix::fs::PermissionsExt;

use berth_serve::{ServeConfig, ServePhase, ServeState, Supervisor};
use berth_testkit::fake_serve::{FakeControl, FakeServe, FakeServeConfig, Fault, TurnFault};
use berth_wire::door::ExitCause;
use tokio::sync::watch;

use super::*;

struct Fake {
    control: FakeControl,
    door: RunningDoor,
    _serve: watch::Sender<ServeState>,
    _guard: DropGuard,
    _tasks: JoinSet<()>,
}

fn state(address: std::net::SocketAddr) -> ServeState {
    ServeState {
        phase: ServePhase::Ready,
        boot: 1,
        boot_id: "boot".to_owned(),
        pid: Some(1),
        address: Some(address),
        version: Some("1.18.33".to_owned()),
        ..ServeState::new("/fake".into())
    }
}

impl Fake {
    async fn start(start_bound: Duration) -> Self {
        let config = FakeServeConfig { password: Some(INTERNAL.into()), ..FakeServeConfig::default() };
        let fake = FakeServe::bind("127.0.0.1:0".parse().expect("an address"), config).await.expect("a fake");
        let (control, address) = (fake.control(), fake.address());
        let shutdown = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let stop = shutdown.clone();
        tasks.spawn(async move { fake.run(stop).await.expect("the fake runs") });
        let (serve, watched) = watch::channel(ServeState::new("/fake".into()));
        let door = RunningDoor::start(watched, |config| config.start_bound = start_bound).await;
        serve.send_replace(state(address));
        door.ready().await;
        Self { control, door, _serve: serve, _guard: shutdown.drop_guard(), _tasks: tasks }
    }

    async fn session(&self) -> Session {
        let session = json_of(self.door.post("/session").json(&json!({}))).await;
        Session { id: session["id"].as_str().expect("an id").to_owned(), directory: "/fake".to_owned() }
    }

    async fn prompt(&self, session: &Session) -> String {
        self.prompt_for(session, "hello").await
    }

    async fn prompt_for(&self, session: &Session, text: &str) -> String {
        let id = ids::message_id();
        let request = self.door.post(&format!("/session/{}/prompt_async", session.id));
        let answer = request.json(&scripted(&id, text)).send().await.expect("an answer");
        assert_eq!(answer.status(), 204);
        id
    }

    async fn abort(&self, session: &Session) -> Response {
        let abort = self.door.post(&format!("/session/{}/abort", session.id)).send();
        timeout(LONG, abort).await.expect("in time").expect("an answer")
    }
}

/// A turn that is spoiled like this, and how it ends.
async fn ends(fault: TurnFault, expected: &[&str]) {
    let fake = Fake::start(Duration::from_secs(2)).await;
    let mut events = fake.door.events("/global/event", None).await;
    let session = fake.session().await;
    fake.control.spoil_once(Fault::Turn(fault));
    let id = fake.prompt(&session).await;
    let seen = turn(&mut events, &id, "ended").await;
    assert_eq!(phases(&seen, &session), expected, "{fault:?}: {}", story(&seen));
    idle(&fake.door).await;
    fake.control.mend();
    let id = fake.prompt(&session).await;
    let seen = turn(&mut events, &id, "ended").await;
    assert_eq!(
        phases(&seen, &session),
        ["admitted", "started", "ended idle"],
        "after {fault:?}: {}",
        story(&seen)
    );
    fake.door.stop().await;
}

#[tokio::test]
async fn a_prompt_that_never_starts() {
    ends(TurnFault::NeverStarts, &["admitted", "ended never_started"]).await;
}

#[tokio::test]
async fn an_opencode_that_never_begins_is_started_anew_by_its_supervisor() {
    let config = FakeServeConfig { password: Some(INTERNAL.into()), ..FakeServeConfig::default() };
    let fake = FakeServe::bind("127.0.0.1:0".parse().expect("an address"), config).await.expect("a fake");
    let (control, address) = (fake.control(), fake.address());
    let shutdown = CancellationToken::new();
    let (stop, _guard) = (shutdown.clone(), shutdown.drop_guard());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { fake.run(stop).await.expect("the fake runs") });
    // The process says where the fake answers, so what it answers outlives each run.
    let directory = tempfile::tempdir().expect("a directory");
    let program = directory.path().join("opencode");
    let script = format!("#!/bin/sh\necho 'opencode server listening on http://{address}'\nexec sleep 600\n");
    std::fs::write(&program, script).expect("a program");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("a program");
    let path = ("PATH".into(), "/usr/bin:/bin".into());
    let config =
        ServeConfig::new(program, directory.path(), directory.path().join("data"), INTERNAL.into(), [path]);
    let supervisor = Supervisor::start(config).await.expect("a supervisor");
    let door = RunningDoor::start_at(supervisor.link(), |config| config.start_bound = Duration::from_secs(2));
    let door = door.await;
    supervisor.ready(LONG).await.expect("an opencode that answers");
    door.ready().await;

    let mut events = door.events("/global/event", None).await;
    let session = json_of(door.post("/session").json(&json!({}))).await;
    let path = format!("/session/{}/prompt_async", session["id"].as_str().expect("an id"));
    let prompt = async || {
        let id = ids::message_id();
        let answer = door.post(&path).json(&scripted(&id, "hello")).send().await.expect("an answer");
        assert_eq!(answer.status(), 204);
        id
    };
    control.spoil_once(Fault::Turn(TurnFault::NeverStarts));
    let id = prompt().await;
    let seen = turn(&mut events, &id, "ended").await;
    assert_eq!(outcome(&seen), "never_started", "{}", story(&seen));
    let exited = until(&mut events, "end", |event| event["type"] == "berth.serve.exited").await;
    assert_eq!(exited.last().expect("an end")["properties"]["cause"], "NeverStarted");
    control.mend();
    let id = prompt().await;
    let seen = turn(&mut events, &id, "ended").await;
    assert_eq!(outcome(&seen), "idle", "{}", story(&seen));
    let state = supervisor.watch().borrow().clone();
    assert_eq!((state.boot, state.last_exit().map(|exit| exit.cause)), (2, Some(ExitCause::NeverStarted)));
    door.stop().await;
    supervisor.stop().await;
}

#[tokio::test]
async fn a_prompt_that_is_refused_late() {
    ends(TurnFault::RefusedLate, &["admitted", "ended failed"]).await;
}

#[tokio::test]
async fn an_answer_that_is_never_closed() {
    ends(TurnFault::LeftOpen, &["admitted", "started", "ended idle"]).await;
}

#[tokio::test]
async fn events_that_are_doubled_or_out_of_order() {
    for fault in [TurnFault::Doubled, TurnFault::IdleTwice, TurnFault::LostBusy, TurnFault::OutOfOrder] {
        ends(fault, &["admitted", "started", "ended idle"]).await;
    }
}

#[tokio::test]
async fn an_abort_waits_for_a_late_start() {
    let fake = Fake::start(Duration::from_secs(30)).await;
    let mut events = fake.door.events("/global/event", None).await;
    let session = fake.session().await;
    fake.control.spoil_once(Fault::Turn(TurnFault::StartsLate(700)));
    let id = fake.prompt(&session).await;
    let answer = fake.abort(&session).await;
    assert_eq!((answer.status().as_u16(), answer.text().await.expect("a body").as_str()), (200, "true"));
    let seen = turn(&mut events, &id, "ended").await;
    assert_eq!(phases(&seen, &session), ["admitted", "started", "ended aborted"], "{}", story(&seen));
    let aborts = fake.control.requests().iter().filter(|request| request.path.ends_with("/abort")).count();
    assert_eq!(aborts, 1, "one was sent, when it had started");
    fake.door.stop().await;
}

#[tokio::test]
async fn a_door_that_closes_says_so_to_an_abort_that_waits() {
    let fake = Fake::start(Duration::from_secs(30)).await;
    let session = fake.session().await;
    fake.control.spoil_once(Fault::Turn(TurnFault::NeverStarts));
    fake.prompt(&session).await;
    let abort = fake.door.post(&format!("/session/{}/abort", session.id)).send();
    let mut calls = JoinSet::new();
    calls.spawn(async move { abort.await.expect("an answer") });
    let armed = async {
        while !json_of(fake.door.get("/berth/turns")).await.to_string().contains(r#""aborting":true"#) {
            tokio::task::yield_now().await;
        }
    };
    timeout(LONG, armed).await.expect("the abort at the door");
    fake.door.stop().await;
    let answer = timeout(LONG, calls.join_next()).await.expect("in time").expect("it was asked for");
    let problem = crate::rig::problem(answer.expect("no panic")).await;
    assert_eq!(problem.problem_type(), Some(berth_wire::problem::ProblemType::ShuttingDown));
}

#[tokio::test]
async fn an_opencode_that_was_not_there_when_the_door_came_is_idle() {
    for phase in [ServePhase::Stopped, ServePhase::Starting] {
        let stopped = ServeState { phase, instance: "one".to_owned(), ..ServeState::new("/fake".into()) };
        let (_serve, watched) = watch::channel(stopped);
        let door = RunningDoor::start(watched, |_| {}).await;
        idle(&door).await;
        door.stop().await;
    }
}

#[tokio::test]
async fn an_abort_of_what_never_starts_is_answered_when_that_is_known() {
    let fake = Fake::start(Duration::from_secs(2)).await;
    let session = fake.session().await;
    fake.control.spoil_once(Fault::Turn(TurnFault::NeverStarts));
    fake.prompt(&session).await;
    let answer = fake.abort(&session).await;
    assert_eq!((answer.status().as_u16(), answer.text().await.expect("a body").as_str()), (200, "true"));
    idle(&fake.door).await;
    let sent = fake.control.requests().iter().any(|request| request.path.ends_with("/abort"));
    assert!(!sent, "there was nothing to abort");
    fake.door.stop().await;
}

#[tokio::test]
async fn an_abort_that_opencode_does_not_heed_is_sent_again() {
    let fake = Fake::start(Duration::from_secs(30)).await;
    let mut events = fake.door.events("/global/event", None).await;
    let session = fake.session().await;
    fake.control.spoil(Fault::Turn(TurnFault::Deaf));
    let id = fake.prompt_for(&session, "@stub text:n=1000,d=100").await;
    turn(&mut events, &id, "started").await;
    assert_eq!(fake.abort(&session).await.status(), 200);
    let aborts = || fake.control.requests().iter().filter(|request| request.path.ends_with("/abort")).count();
    crate::rig::until("second abort", || aborts() > 1).await;
    assert_eq!(json_of(fake.door.get("/berth/turns")).await["activity"], "busy");
    fake.control.mend();
    fake.door.stop().await;
}
