//! The fence over real sockets: owners that freeze, wake and go away.

use std::{process::Stdio, sync::atomic::Ordering, time::Duration};

use berth_door::{DoorConfig, Metrics};
use berth_serve::ServeState;
use berth_wire::problem::ProblemType;
use prometheus_client::registry::Registry;
use reqwest::RequestBuilder;
use serde_json::json;
use tokio::{
    io::AsyncWriteExt,
    process::{Child, Command},
    sync::watch,
    task::JoinSet,
};

use crate::{
    proxy::ready_door,
    rig::{PASSWORD, RunningDoor, Upstream, killed, problem, until, within},
};

/// What an owner does: it prompts, aborts and answers.
const CALLS: [&str; 3] = ["/session/s/prompt_async", "/session/s/abort", "/permission/p/reply"];

fn stamped(call: RequestBuilder, epoch: &str, fence: u64) -> RequestBuilder {
    call.header("berth-epoch", epoch).header("berth-fence", fence.to_string()).json(&json!({}))
}

async fn status(call: RequestBuilder) -> u16 {
    within("answer", call.send()).await.expect("an answer").status().as_u16()
}

async fn refusal(call: RequestBuilder) -> Option<ProblemType> {
    problem(within("answer", call.send()).await.expect("an answer")).await.problem_type()
}

/// An owner in a process of its own, which reads its body from a pipe when `piped`.
fn owner(door: &RunningDoor, path: &str, epoch: &str, stopped: bool, piped: bool) -> Child {
    let stop = if stopped { "kill -STOP $$; " } else { "" };
    let body = if piped { "-T - -X POST" } else { "-d {}" };
    let script = format!(
        "{stop}exec curl -s -o /dev/null -w '%{{http_code}}' -u 'opencode:{PASSWORD}' -H Expect: \
         -H 'Berth-Epoch: {epoch}' -H 'Berth-Fence: 1' {body} {}",
        door.url(path)
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    command.spawn().expect("a shell and curl")
}

fn signal(owner: &Child, signal: nix::sys::signal::Signal) {
    let pid = i32::try_from(owner.id().expect("it lives")).expect("a pid");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).expect("it takes signals");
}

async fn frozen(owner: &Child) {
    let path = format!("/proc/{}/stat", owner.id().expect("it lives"));
    let is_stopped = || std::fs::read_to_string(&path).is_ok_and(|stat| stat.contains(") T "));
    until("a stopped owner", is_stopped).await;
}

/// The status that an owner got, after it woke.
async fn woken(owner: Child) -> String {
    signal(&owner, nix::sys::signal::Signal::SIGCONT);
    let output = within("end of the owner", owner.wait_with_output()).await.expect("an end");
    String::from_utf8(output.stdout).expect("digits")
}

#[tokio::test]
async fn an_owner_that_froze_before_its_request_can_do_nothing_when_it_wakes() {
    let (door, upstream, _serve) = ready_door().await;
    let epoch = door.raise(1).await;
    let owners = CALLS.map(|path| owner(&door, path, &epoch, true, false));
    for owner in &owners {
        frozen(owner).await;
    }
    door.raise(2).await;
    for owner in owners {
        assert_eq!(woken(owner).await, "409");
    }
    assert!(upstream.shared.paths().is_empty(), "{:?}", upstream.shared.paths());
}

#[tokio::test]
async fn an_owner_that_froze_within_its_request_holds_nobody_up_and_can_do_nothing_when_it_wakes() {
    let upstream = Upstream::start().await;
    let (_serve, state) = watch::channel(upstream.ready(1));
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let door = RunningDoor::start(state, |config| config.metrics = metrics).await;
    door.ready().await;
    let epoch = door.raise(1).await;
    let mut owners = Vec::new();
    for path in CALLS {
        let mut owner = owner(&door, path, &epoch, false, true);
        let stdin = owner.stdin.as_mut().expect("a pipe");
        stdin.write_all(b"{\"half\":").await.expect("it reads");
        owners.push(owner);
    }
    let received = || {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("metrics");
        let line = text.lines().find_map(|line| line.strip_prefix("berth_door_received_bytes_total "));
        line.expect("a counter").parse::<u64>().expect("a number")
    };
    // The fence that was raised above counts, too.
    let halves = 11 + 8 * 3;
    until("half of each request", || received() == halves).await;
    for owner in &owners {
        signal(owner, nix::sys::signal::Signal::SIGSTOP);
        frozen(owner).await;
    }
    door.raise(2).await;
    for mut owner in owners {
        let mut stdin = owner.stdin.take().expect("a pipe");
        stdin.write_all(b"1}").await.expect("it will read");
        drop(stdin);
        assert_eq!(woken(owner).await, "409");
    }
    assert!(upstream.shared.paths().is_empty(), "{:?}", upstream.shared.paths());
}

#[tokio::test]
async fn raising_waits_for_calls_of_the_lower_fence_though_their_owner_is_gone() {
    let (door, upstream, _serve) = ready_door().await;
    let epoch = door.raise(1).await;
    upstream.shared.hold.send_replace(true);
    let owner = owner(&door, CALLS[0], &epoch, false, false);
    until("the call at opencode", || upstream.shared.paths().len() == 1).await;
    signal(&owner, nix::sys::signal::Signal::SIGKILL);
    within("end of the owner", owner.wait_with_output()).await.expect("an end");
    let answer = door.put("/berth/fence").json(&json!({"fence": 2}));
    let mut raising = JoinSet::new();
    raising.spawn(async move { status(answer).await });
    let asked = async {
        while door.state().await["fence"]["fence"] != 2 {
            tokio::task::yield_now().await;
        }
    };
    within("the raise at the door", asked).await;
    assert_eq!(status(stamped(door.post(CALLS[1]), &epoch, 1)).await, 409, "from the first moment on");
    assert!(raising.try_join_next().is_none(), "the call of the old owner goes on");
    upstream.shared.hold.send_replace(false);
    let raised = within("raised fence", raising.join_next()).await.expect("it was asked for");
    assert_eq!(raised.expect("no panic"), 200);
    assert_eq!(status(stamped(door.post(CALLS[1]), &epoch, 2)).await, 200);
}

#[tokio::test]
async fn what_a_call_still_makes_is_neither_looked_for_nor_made_again() {
    let (door, upstream, _serve) = ready_door().await;
    let epoch = door.raise(1).await;
    let make = |key: &str| stamped(door.post("/session/make"), &epoch, 1).header("berth-key", key);
    let look = |key: &str| door.get("/head/x").header("berth-key", key);
    upstream.shared.hold.send_replace(true);
    let (mut makers, call) = (JoinSet::new(), make("a").send());
    makers.spawn(call);
    until("the call at opencode", || upstream.shared.paths().len() == 1).await;
    makers.shutdown().await;
    assert_eq!(refusal(look("a")).await, Some(ProblemType::Busy), "it goes on without its caller");
    assert_eq!(refusal(make("a")).await, Some(ProblemType::Busy));
    assert_eq!(status(look("b")).await, 418);
    assert_eq!(status(door.get("/head/x")).await, 418);
    assert_eq!(upstream.shared.paths().len(), 1);
    upstream.shared.hold.send_replace(false);
    let ended = async {
        while status(look("a")).await != 418 {
            tokio::task::yield_now().await;
        }
    };
    within("end of the call", ended).await;
    assert_eq!(status(make("a")).await, 200);
    assert_eq!(refusal(look("a b")).await, Some(ProblemType::InvalidHeader));
    let seen: serde_json::Value = make("a").send().await.unwrap().json().await.unwrap();
    assert_eq!(seen, json!(true));
    let seen: serde_json::Value = look("a").send().await.unwrap().json().await.unwrap();
    assert!(!seen["headers"].to_string().contains("berth-"), "{seen}");
}

/// opencode carries on what the door before had sent, and the next door cannot see it.
#[tokio::test]
async fn a_new_door_does_not_make_again_what_the_one_before_may_still_make() {
    let upstream = Upstream::start().await;
    let (serve, state) = watch::channel(ServeState::new("/work".into()));
    let first = RunningDoor::start(state.clone(), |_| {}).await;
    serve.send_replace(upstream.ready(1));
    first.ready().await;
    upstream.shared.hold.send_replace(true);
    let mut makers = JoinSet::new();
    makers.spawn(first.post("/session/make").header("berth-key", "a").send());
    until("the call at opencode", || upstream.shared.paths().len() == 1).await;
    drop(first);

    let settle = |config: &mut DoorConfig| config.settle = Duration::from_mins(10);
    let next = RunningDoor::start(state, settle).await;
    next.ready().await;
    let make = || next.post("/session/make").header("berth-key", "a");
    assert_eq!(refusal(make()).await, Some(ProblemType::Busy));
    assert_eq!(upstream.shared.paths().len(), 1, "it was not sent");
    assert_eq!(status(next.get("/head/x").header("berth-key", "a")).await, 418, "what is there can be seen");
    upstream.shared.hold.send_replace(false);
    assert_eq!(status(next.post("/session/make")).await, 200, "what has no key is nobody's");
    // The next run of opencode carries nothing from before.
    let second = Upstream::start().await;
    serve.send_replace(ServeState { exits: killed(1).exits, ..second.ready(2) });
    upstream.cut_events();
    let made = async { while status(make()).await != 200 {} };
    within("a session", made).await;
    assert_eq!(second.shared.paths().len(), 1);
}

#[tokio::test]
async fn a_door_that_found_an_opencode_at_work_makes_things_after_a_while() {
    let upstream = Upstream::start().await;
    let (_serve, state) = watch::channel(upstream.ready(1));
    let door = RunningDoor::start(state, |config| config.settle = Duration::from_millis(300)).await;
    door.ready().await;
    let make = || door.post("/session/make").header("berth-key", "a");
    let made = async { while status(make()).await != 200 {} };
    within("a session", made).await;
}

#[tokio::test]
async fn raising_has_a_bound_and_says_what_goes_on() {
    let upstream = Upstream::start().await;
    let (_serve, state) = watch::channel(upstream.ready(1));
    let door = RunningDoor::start(state, |config| config.fence_wait = Duration::from_millis(50)).await;
    door.ready().await;
    let epoch = door.raise(1).await;
    upstream.shared.hold.send_replace(true);
    let mut calls = JoinSet::new();
    let call = stamped(door.post(CALLS[0]), &epoch, 1);
    calls.spawn(async move { status(call).await });
    until("the call at opencode", || upstream.shared.paths().len() == 1).await;
    let busy = problem(door.put("/berth/fence").json(&json!({"fence": 2})).send().await.unwrap()).await;
    assert_eq!(busy.problem_type(), Some(ProblemType::Busy));
    assert_eq!(
        (&busy.extensions["calls"][0]["class"], &busy.extensions["calls"][0]["session"]),
        (&"prompt".into(), &"s".into())
    );
    upstream.shared.hold.send_replace(false);
    assert_eq!(within("end", calls.join_next()).await.unwrap().unwrap(), 200);
    door.raise(2).await;
}

#[tokio::test]
async fn a_door_that_was_started_anew_refuses_the_epoch_of_the_one_before() {
    let (before, upstream, serve) = ready_door().await;
    let epoch = before.raise(7).await;
    before.stop().await;
    let after = RunningDoor::start(serve.subscribe(), |_| {}).await;
    after.ready().await;
    for path in CALLS {
        let refused = refusal(stamped(after.post(path), &epoch, 7)).await;
        assert_eq!(refused, Some(ProblemType::StaleEpoch), "{path}");
    }
    assert!(upstream.shared.paths().is_empty());
    let epoch = after.raise(7).await;
    assert_eq!(after.state().await["fence"], json!({"epoch": epoch, "fence": 7}));
    for path in CALLS {
        assert_eq!(status(stamped(after.post(path), &epoch, 7)).await, 200, "{path}");
    }
}

#[tokio::test]
async fn stamps_and_fences_of_every_other_kind_are_refused_and_people_need_none() {
    let (door, upstream, _serve) = ready_door().await;
    let epoch = door.raise(5).await;
    let path = CALLS[0];
    let header = Some(ProblemType::InvalidHeader);
    assert_eq!(refusal(door.post(path).header("berth-fence", "5")).await, header);
    assert_eq!(refusal(door.post(path).header("berth-epoch", &epoch)).await, header);
    assert_eq!(refusal(stamped(door.post(path), &epoch, 0)).await, header);
    assert_eq!(refusal(stamped(door.post(path), &epoch, 4)).await, Some(ProblemType::StaleFence));
    assert_eq!(refusal(stamped(door.post(path), &epoch, 6)).await, Some(ProblemType::StaleFence));
    let lower = problem(door.put("/berth/fence").json(&json!({"fence": 4})).send().await.unwrap()).await;
    assert_eq!(
        (lower.problem_type(), &lower.extensions["fence"]),
        (Some(ProblemType::StaleFence), &5.into())
    );
    for body in [json!({"fence": 0}), json!({"fence": -1}), json!({}), json!({"fence": 6, "x": 1})] {
        assert_eq!(
            refusal(door.put("/berth/fence").json(&body)).await,
            Some(ProblemType::InvalidBody),
            "{body}"
        );
    }
    let large = "x".repeat(20_000);
    assert_eq!(refusal(door.put("/berth/fence").body(large)).await, Some(ProblemType::BodyTooLarge));
    door.raise(5).await;
    assert!(upstream.shared.paths().is_empty());
    assert_eq!(status(door.post(path).json(&json!({}))).await, 200);
    // What reads needs no stamp, and a wrong one does no harm.
    assert_eq!(status(stamped(door.get("/head/x"), "other", 1)).await, 418);
    assert_eq!(upstream.shared.documents.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_fenced_body_arrives_whole_without_the_stamp_and_has_a_bound() {
    let (door, upstream, _serve) = ready_door().await;
    let epoch = door.raise(1).await;
    let body = json!({"text": "x".repeat(1_000_000)});
    assert_eq!(status(stamped(door.post(CALLS[0]), &epoch, 1).json(&body)).await, 200);
    let taken = upstream.shared.taken.lock().unwrap()[0].1.clone();
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&taken).unwrap(), body);
    let seen: serde_json::Value =
        stamped(door.post("/head/x"), &epoch, 1).send().await.unwrap().json().await.unwrap();
    assert!(!seen["headers"].to_string().contains("berth-"), "{seen}");
    let large = vec![b' '; 65 * 1024 * 1024];
    let refused = stamped(door.post(CALLS[0]), &epoch, 1).body(large).send().await;
    // The answer may be lost, since the door stops reading.
    if let Ok(answer) = refused {
        assert_eq!(problem(answer).await.problem_type(), Some(ProblemType::BodyTooLarge));
    }
    assert_eq!(upstream.shared.paths().len(), 1);
}

#[tokio::test]
async fn fenced_bodies_wait_for_each_other_where_all_do_not_fit() {
    let upstream = Upstream::start().await;
    let (_serve, state) = watch::channel(upstream.ready(1));
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let door = RunningDoor::start(state, |config| {
        config.metrics = metrics;
        config.fenced_bytes = 1024 * 1024;
    })
    .await;
    door.ready().await;
    let epoch = door.raise(1).await;
    let held = || {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("metrics");
        let line = text.lines().find_map(|line| line.strip_prefix("berth_door_fenced_bytes "));
        line.expect("a gauge").parse::<u64>().expect("a number")
    };
    let body = json!({"text": "x".repeat(400_000)});
    upstream.shared.hold.send_replace(true);
    let mut calls = JoinSet::new();
    for _ in 0..8 {
        let call = stamped(door.post(CALLS[0]), &epoch, 1).json(&body);
        calls.spawn(async move { status(call).await });
    }
    until("two calls at opencode", || upstream.shared.paths().len() == 2).await;
    assert!((800_000..1024 * 1024).contains(&held()), "{} bytes", held());
    upstream.shared.hold.send_replace(false);
    while let Some(status) = within("answers", calls.join_next()).await {
        assert_eq!(status.expect("no panic"), 200);
    }
    assert_eq!(upstream.shared.paths().len(), 8);
    until("room again", || held() == 0).await;
}
