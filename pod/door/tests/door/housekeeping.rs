//! What the door does by itself: it disposes of idle directories, starts a large opencode anew, and warms the first
//! directory. Against a real opencode.

use std::{path::Path, time::Duration};

use berth_door::Metrics;
use berth_serve::ServeLink;
use berth_testkit::Scale;
use berth_wire::door::ExitCause;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::Instant};

use crate::{
    real_opencode::{START, Sandbox, create_session, json_of},
    rig::{Events, INTERNAL, RunningDoor, client, until, within},
};

/// A counter of a door.
pub(crate) fn count(registry: &Registry, name: &str) -> u64 {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).expect("metrics");
    let name = format!("berth_door_{name}_total ");
    let line = text.lines().find_map(|line| line.strip_prefix(&name));
    line.expect("a counter").parse().expect("a number")
}

async fn ready(sandbox: &Sandbox, change: impl FnOnce(&mut berth_door::DoorConfig)) -> RunningDoor {
    let door = RunningDoor::start_at(sandbox.supervisor.link(), change).await;
    sandbox.supervisor.ready(START).await.expect("an opencode that answers");
    door.ready().await;
    door
}

/// opencode's resident memory, in MiB.
async fn resident(link: &ServeLink) -> u64 {
    link.memory().await.expect("a supervisor").opencode >> 20
}

/// The least and the most that opencode holds within this time: it takes memory, and gives it back, little by little.
async fn resident_within(link: &ServeLink, time: Duration) -> (u64, u64) {
    let (begun, first) = (Instant::now(), resident(link).await);
    let (mut least, mut most) = (first, first);
    while begun.elapsed() < time {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now = resident(link).await;
        (least, most) = (least.min(now), most.max(now));
    }
    (least, most)
}

fn query(directory: &Path) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("directory", &directory.to_string_lossy()).finish()
}

#[tokio::test]
async fn directories_over_the_cap_go_but_for_the_own_and_those_at_work_and_come_back_when_asked_for() {
    let scale = Scale::current();
    let many = scale.pick(8, 30);
    let sandbox = Sandbox::start().await;
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let door = ready(&sandbox, |config| {
        config.directories = 3;
        config.metrics = metrics;
    })
    .await;
    let directories: Vec<_> = (0..many).map(|number| sandbox.work.join(format!("d{number}"))).collect();
    for directory in &directories {
        std::fs::create_dir(directory).expect("a directory");
    }
    let mut events = door.events("/global/event", None).await;
    let mut watched = door.events(&format!("/event?{}", query(&directories[1])), None).await;
    let busy = query(&directories[0]);
    let session = json_of(door.post(&format!("/session?{busy}")).json(&json!({}))).await;
    let path = format!("/session/{}/shell?{busy}", session["id"].as_str().expect("an id"));
    let release = sandbox.work.join("release");
    let command = format!("until test -e {}; do sleep 0.1; done; echo whole", release.display());
    let shell = door.post(&path).json(&json!({"agent": "build", "command": command}));
    let mut work = JoinSet::new();
    work.spawn(async move { json_of(shell).await });
    let busy_turns = async {
        while json_of(door.get("/berth/turns")).await["activity"] != "busy" {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within("the tool at work", busy_turns).await;
    // A link to the directory at work is no directory of its own, that nobody works in.
    let link = sandbox.work.join("link");
    std::os::unix::fs::symlink(&directories[0], &link).expect("a link");
    json_of(door.get(&format!("/session/status?{}", query(&link)))).await;
    let link = sandbox.supervisor.link();
    let few = resident(&link).await;
    // A read boots an instance; nothing is disposed of while the gate is held.
    json_of(door.put("/berth/gate").json(&json!({"owner": "x", "ttl_ms": 600_000, "phase": "draining"})))
        .await;
    for directory in &directories[1..] {
        json_of(door.get(&format!("/session/status?{}", query(directory)))).await;
    }
    let looked_at = scale.pick(Duration::ZERO, Duration::from_secs(20));
    let (_, all) = resident_within(&link, looked_at).await;
    assert_eq!(count(&registry, "disposed_directories"), 0);
    let generation = door.generation().await;
    json_of(door.delete(&format!("/berth/gate?generation={generation}"))).await;
    let last = sandbox.work.join("last");
    std::fs::create_dir(&last).expect("a directory");
    json_of(door.get(&format!("/session/status?{}", query(&last)))).await;
    // The own one, the one at work and one more stay.
    let expected = u64::try_from(many).expect("a number") - 1;
    until("disposals", || count(&registry, "disposed_directories") >= expected).await;
    let mut gone = Vec::new();
    while gone.len() < usize::try_from(expected).expect("a number") {
        gone.push(next_disposed(&mut events).await);
    }
    let (after, _) = resident_within(&link, looked_at).await;
    let counts = [
        ("directories", expected + 3),
        ("disposed", expected),
        ("mib_with_two", few),
        ("mib_with_all", all),
        ("mib_after", after),
    ];
    println!("opencode's memory: {counts:?}");
    let test = "directories_over_the_cap_go_but_for_the_own_and_those_at_work_and_come_back_when_asked_for";
    scale.report(test, 0, &counts);
    assert!(!gone.contains(&directories[0].to_string_lossy().into_owned()), "{gone:?}");
    assert!(!gone.contains(&sandbox.work.to_string_lossy().into_owned()), "{gone:?}");
    assert_eq!(gone.first().map(String::as_str), directories[1].to_str(), "the longest unused first");
    std::fs::write(&release, "").expect("a file");
    let whole = within("the tool's end", work.join_next()).await.expect("it runs").expect("no panic");
    assert!(whole.to_string().contains("whole"), "{whole}");
    // A subscriber outlives its directory's instance, and a prompt boots it again.
    let again = query(&directories[1]);
    json_of(door.post(&format!("/session?{again}")).json(&json!({}))).await;
    while watched.next().await.1["type"] != "session.created" {}
}

/// The directory of the next instance that is closed.
async fn next_disposed(events: &mut Events) -> String {
    loop {
        let (_, event) = events.next().await;
        if event["type"] == "server.instance.disposed" {
            return event["properties"]["directory"].as_str().expect("a directory").to_owned();
        }
    }
}

#[tokio::test]
async fn a_directory_whose_instance_opencode_closed_itself_is_not_disposed_of_again() {
    let sandbox = Sandbox::start().await;
    let door = ready(&sandbox, |config| config.directories = 3).await;
    let directories = ["a", "b", "c", "d"].map(|name| sandbox.work.join(name));
    let mut events = door.events("/global/event", None).await;
    for directory in &directories {
        std::fs::create_dir(directory).expect("a directory");
    }
    let [first, second, third, fourth] = &directories;
    let boot = async |directory| {
        json_of(door.get(&format!("/session/status?{}", query(directory)))).await;
    };
    boot(first).await;
    boot(second).await;
    let address = sandbox.supervisor.watch().borrow().address.expect("an address");
    let dispose = client().post(format!("http://{address}/instance/dispose?{}", query(first)));
    json_of(dispose.basic_auth("opencode", Some(INTERNAL))).await;
    assert_eq!(next_disposed(&mut events).await, first.to_string_lossy());
    // With opencode's own, three have an instance after this, and four after the next.
    boot(third).await;
    boot(fourth).await;
    assert_eq!(next_disposed(&mut events).await, second.to_string_lossy(), "the longest unused that is left");
}

#[tokio::test]
async fn an_idle_opencode_that_holds_too_much_is_started_anew_and_nobody_notices() {
    let sandbox = Sandbox::start().await;
    let door = ready(&sandbox, |config| {
        config.memory_watermark = 1;
        config.recycle_idle = Duration::from_millis(300);
    })
    .await;
    let session = create_session(&door).await;
    let mut calls = JoinSet::new();
    for number in 0..20_u64 {
        let url = door.url(&format!("/session/{session}"));
        let request = crate::rig::client().patch(url).basic_auth("opencode", Some(crate::rig::PASSWORD));
        let request = request.json(&json!({ "title": format!("title {number}") }));
        calls.spawn(async move {
            tokio::time::sleep(Duration::from_millis(number * 100)).await;
            json_of(request).await["title"].clone()
        });
    }
    let mut serve = sandbox.supervisor.watch();
    let restarted =
        within("the next run", serve.wait_for(|state| state.boot == 2)).await.expect("a supervisor");
    assert_eq!(restarted.last_exit().map(|exit| exit.cause), Some(ExitCause::Recycled));
    drop(restarted);
    while let Some(title) = within("renames", calls.join_next()).await {
        assert!(title.expect("no panic").is_string());
    }
    within("rest", door.ready()).await;
    let state = door.state().await;
    assert_eq!(state["boot"], 2, "at most once within the rest: {state}");
    sandbox.supervisor.stop().await;
}

#[tokio::test]
async fn the_first_directory_is_warm_before_anybody_asks() {
    let sandbox = Sandbox::start().await;
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let door = ready(&sandbox, |config| config.metrics = metrics).await;
    until("the warmed directory", || count(&registry, "prewarmed") == 1).await;
    let begun = Instant::now();
    let status: Value = json_of(door.get("/session/status")).await;
    assert_eq!(status, json!({}));
    tracing::info!(elapsed_ms = begun.elapsed().as_millis(), "status of a warm directory");
}
