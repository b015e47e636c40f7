//! SV-7: open event streams do not hold up the end of `berth up`, nor of `berth-controller serve`.

use std::{
    process::Stdio,
    time::{Duration, Instant},
};

use berth_tests::{Fleet, SessionLog, UpProcess, send, within};
use berth_wire::{
    api::{CreateSession, PostMessage},
    event::SessionEvent,
};
use nix::sys::signal::Signal;
use tokio::{
    io::AsyncReadExt,
    process::{Child, Command},
};

/// Within this the program has ended after SIGTERM, whatever its clients do.
const STATED: Duration = Duration::from_secs(15);

fn curl((url, token): (String, String), session: &str) -> Child {
    Command::new("curl")
        .args([
            "-sSN",
            "-H",
            &format!("authorization: Bearer {token}"),
            &format!("{url}/v1/sessions/{session}/events"),
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("curl runs")
}

#[tokio::test]
async fn sv_7_streams_end_cleanly_and_one_that_never_reads_is_left_behind() {
    let up = UpProcess::start().await;
    let client = up.client();
    let new = CreateSession::default();
    let session = client.create_session("local", "default", &new).await.expect("a session").id.to_string();
    let long = client.create_session("local", "default", &new).await.expect("a session").id;
    // More than the sockets of a client that does not read can hold.
    let prompt = PostMessage::text("@stub text:n=60000,d=0");
    let turn = client.post_message(long, &prompt, "long").await.expect("a prompt");
    SessionLog::until_end(&client, long, turn.id).await.check();

    let mut idle: Vec<Child> = (0..50).map(|_| curl(up.address(), &session)).collect();
    let mut stuck = curl(up.address(), &long.to_string());
    within("the streams to be open", async {
        while !up.metrics().await.contains("berth_server_event_streams 51") {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    let begun = Instant::now();
    up.stop().await;
    assert!(begun.elapsed() < STATED, "it took {:?}", begun.elapsed());
    for stream in &mut idle {
        let ended = within("the end of a stream", stream.wait()).await.expect("it ends");
        assert_eq!(ended.code(), Some(0), "a stream ends as an answer does, and does not break");
    }
    let mut rest = Vec::new();
    let mut output = stuck.stdout.take().expect("its output");
    within("what is left of the other", output.read_to_end(&mut rest)).await.expect("it can be read");
    assert!(!rest.is_empty());
}

/// Waits until so many event streams are open at the first server.
async fn streams_open(fleet: &Fleet, count: usize) {
    let (url, _) = fleet.address(0);
    within("the streams to be open", async {
        loop {
            let answer = reqwest::get(format!("{url}/metrics")).await.expect("the server answers");
            let counted = answer.text().await.expect("text");
            if counted.contains(&format!("berth_server_event_streams {count}\n")) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn sv_7_the_servers_program_ends_beside_open_streams_and_gives_its_lease_up() {
    let mut fleet = Fleet::start(1).await;
    let client = fleet.client(0);
    let session = fleet.session(0).await;
    let prompt = PostMessage::text("@stub say:before");
    let turn = client.post_message(session, &prompt, "before").await.expect("a prompt");
    SessionLog::until_end(&client, session, turn.id).await.check();
    let mut streams: Vec<Child> = (0..50).map(|_| curl(fleet.address(0), &session.to_string())).collect();
    streams_open(&fleet, 50).await;
    let (status, elapsed) = fleet.servers[0].terminate().await;
    assert_eq!(status.code(), Some(0), "{}", fleet.servers[0].log());
    assert!(elapsed < STATED, "it took {elapsed:?}");
    for stream in &mut streams {
        let ended = within("the end of a stream", stream.wait()).await.expect("it ends");
        assert_eq!(ended.code(), Some(0));
    }
    // Another server would wait for a lease that was not given up.
    fleet.servers[0].start();
    fleet.serves(0).await;
    let turn = client.post_message(session, &PostMessage::text("@stub say:after"), "after").await;
    SessionLog::until_end(&client, session, turn.expect("a prompt").id).await.check();
    fleet.stop().await;
}

#[tokio::test]
async fn sv_7_a_second_sigterm_ends_it_at_once() {
    let up = UpProcess::start().await;
    let client = up.client();
    let new = CreateSession::default();
    let session = client.create_session("local", "default", &new).await.expect("a session").id;
    client.post_message(session, &PostMessage::text("@stub hang"), "k").await.expect("a prompt");
    let elapsed = up.stop_twice().await;
    assert!(elapsed < STATED, "it took {elapsed:?}");
}

/// opencode is stopped where it stands, in the middle of a turn: it answers nobody, and no signal but SIGKILL ends it.
#[tokio::test]
async fn sv_7_a_wedged_opencode_holds_up_no_program() {
    let mut fleet = Fleet::start(1).await;
    let client = fleet.client(0);
    let session = fleet.session(0).await;
    let prompt = PostMessage::text("@stub text:n=2000,d=20");
    client.post_message(session, &prompt, "wedged").await.expect("a prompt");
    let said = |event: &SessionEvent| event.payload.as_chunk().is_some();
    SessionLog::until(&client, session, 0, "text", said).await;
    let mut stream = curl(fleet.address(0), &session.to_string());
    streams_open(&fleet, 1).await;
    send(fleet.opencode_pid().await.expect("it runs"), Signal::SIGSTOP);

    let (status, elapsed) = fleet.servers[0].terminate().await;
    assert_eq!(status.code(), Some(0), "{}", fleet.servers[0].log());
    assert!(elapsed < STATED, "the server took {elapsed:?}");
    let ended = within("the end of a stream", stream.wait()).await.expect("it ends");
    assert_eq!(ended.code(), Some(0));
    for program in [&mut fleet.sidecar, &mut fleet.supervisor] {
        let (status, elapsed) = program.terminate().await;
        assert_eq!(status.code(), Some(0), "{}", program.log());
        assert!(elapsed < STATED, "{} took {elapsed:?}", program.name);
    }
    fleet.stop().await;
}

#[tokio::test]
async fn sv_7_a_wedged_opencode_does_not_hold_up_local_mode() {
    let up = UpProcess::start().await;
    let client = up.client();
    let new = CreateSession::default();
    let session = client.create_session("local", "default", &new).await.expect("a session").id;
    let prompt = PostMessage::text("@stub text:n=2000,d=20");
    client.post_message(session, &prompt, "wedged").await.expect("a prompt");
    let said = |event: &SessionEvent| event.payload.as_chunk().is_some();
    SessionLog::until(&client, session, 0, "text", said).await;
    for pid in up.processes() {
        send(pid, Signal::SIGSTOP);
    }
    let begun = Instant::now();
    up.stop().await;
    assert!(begun.elapsed() < STATED, "it took {:?}", begun.elapsed());
}
