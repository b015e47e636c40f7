//! The journal behind a real opencode: kills, cuts of the subscription, and pictures.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use berth_serve::ServeState;
use berth_testkit::{Scale, ScriptedModel, provider_config};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
    sync::{Notify, watch},
    task::JoinSet,
    time::sleep,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    frames::{Frames, Seen, check, check_once, is_a_run, words},
    real_opencode::{START, Sandbox, create_session},
    rig::{RunningDoor, within},
};

/// An opencode with a scripted model.
struct Stage {
    sandbox: Sandbox,
    _model: JoinSet<std::io::Result<()>>,
    _shutdown: DropGuard,
}

impl Stage {
    async fn start() -> Self {
        let model = ScriptedModel::bind(([127, 0, 0, 1], 0).into()).await.expect("a model");
        let mut configuration = provider_config(model.address());
        configuration["snapshot"] = false.into();
        let shutdown = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(model.run(shutdown.clone()));
        let sandbox = Sandbox::with(&configuration).await;
        Self { sandbox, _model: tasks, _shutdown: shutdown.drop_guard() }
    }
}

async fn prompt(door: &RunningDoor, session: &str, script: &str) {
    let body = json!({"parts": [{"type": "text", "text": format!("@stub {script}")}]});
    let request = door.post(&format!("/session/{session}/prompt_async")).json(&body);
    let answer = within("answer", request.send()).await.expect("an answer");
    assert_eq!(answer.status(), 204);
}

fn is_idle(seen: &Seen, session: &str) -> bool {
    seen.kind == "session.idle" && seen.payload["properties"]["sessionID"] == session
}

fn place(all: &[Seen], kind: &str) -> usize {
    let places: Vec<usize> = (0..all.len()).filter(|index| all[*index].kind == kind).collect();
    assert_eq!(places.len(), 1, "{kind} at {places:?}");
    places[0]
}

#[tokio::test]
async fn opencode_killed_at_any_point_of_a_turn() {
    let stage = Stage::start().await;
    let door = stage.sandbox.door().await;
    let session = create_session(&door).await;
    let kills = Scale::current().pick(3, 20);
    let mut live = Frames::open(&door, None).await;
    let mut all = Vec::new();
    for seed in 0..kills {
        let mut random = StdRng::seed_from_u64(seed);
        prompt(&door, &session, "text:n=300,d=5").await;
        sleep(Duration::from_millis(random.random_range(0..1500))).await;
        let state = stage.sandbox.supervisor.watch().borrow().clone();
        let pid = state.pid.expect("a process").cast_signed();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGKILL).expect("kill");
        let seen = live.until("next run", |seen| seen.kind == "berth.serve.started").await;
        let (exited, started) = (place(&seen, "berth.serve.exited"), seen.len() - 1);
        assert_eq!(seen[exited].payload["properties"]["boot_id"], state.boot_id.as_str(), "seed {seed}");
        let between: Vec<&str> = seen[exited + 1..started].iter().map(|seen| seen.kind.as_str()).collect();
        assert!(between.iter().all(|kind| kind.starts_with("berth.")), "seed {seed}: {between:?}");
        assert!(is_a_run(&words(&seen, &session)), "seed {seed}");
        all.extend(seen);
        stage.sandbox.supervisor.ready(START).await.expect("an opencode that answers");
    }
    check(&all);
    check_once(&all);
    assert!(all.iter().all(|seen| seen.id.epoch == all[0].id.epoch), "a restart is no gap");
    let mut again = Frames::open(&door, Some(&all[0].id)).await;
    let newest = all.last().expect("events").id.clone();
    let mut late = again.until("newest", |seen| seen.id == newest).await;
    late.insert(0, all[0].clone());
    check(&late);
    check_once(&late);
    Scale::current().report("opencode_killed_at_any_point_of_a_turn", kills, &[("events", all.len() as u64)]);
    door.stop().await;
    stage.sandbox.supervisor.stop().await;
}

/// Stands between door and opencode, and cuts subscriptions.
struct Relay {
    address: SocketAddr,
    cut: Arc<Notify>,
    _tasks: JoinSet<()>,
}

impl Relay {
    async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind the relay");
        let address = listener.local_addr().expect("an address");
        let (cut, mut tasks) = (Arc::new(Notify::new()), JoinSet::new());
        let cut_here = Arc::clone(&cut);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(pass(client, target, Arc::clone(&cut_here)));
            }
        });
        Self { address, cut, _tasks: tasks }
    }
}

async fn pass(mut client: TcpStream, target: SocketAddr, cut: Arc<Notify>) {
    let mut head = vec![0; 64];
    let Ok(length) = client.read(&mut head).await else { return };
    head.truncate(length);
    let Ok(mut server) = TcpStream::connect(target).await else { return };
    if server.write_all(&head).await.is_err() {
        return;
    }
    let copying = copy_bidirectional(&mut client, &mut server);
    if head.starts_with(b"GET /global/event ") {
        tokio::select! {
            _ = copying => {}
            () = cut.notified() => {}
        }
    } else {
        let _ = copying.await;
    }
}

/// A door whose supervisor names the relay's address.
async fn relayed(stage: &Stage) -> (RunningDoor, Relay, JoinSet<()>) {
    stage.sandbox.supervisor.ready(START).await.expect("an opencode that answers");
    let mut real = stage.sandbox.supervisor.watch();
    let relay = Relay::start(real.borrow().address.expect("an address")).await;
    let address = relay.address;
    let through = move |state: ServeState| ServeState { address: state.address.map(|_| address), ..state };
    let (told, receiver) = watch::channel(through(real.borrow().clone()));
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        while real.changed().await.is_ok() {
            told.send_replace(through(real.borrow_and_update().clone()));
        }
    });
    let door = RunningDoor::start(receiver, |_| {}).await;
    door.ready().await;
    (door, relay, tasks)
}

#[tokio::test]
async fn a_subscription_cut_while_opencode_lives_is_told() {
    let stage = Stage::start().await;
    let (door, relay, _tasks) = relayed(&stage).await;
    let session = create_session(&door).await;
    let cuts = Scale::current().pick(5, 40);
    let mut live = Frames::open(&door, None).await;
    prompt(&door, &session, "say:warm").await;
    let mut all = live.until("warm end", |seen| is_idle(seen, &session)).await;
    for seed in 0..cuts {
        let mut random = StdRng::seed_from_u64(seed);
        prompt(&door, &session, "text:n=100,d=10").await;
        sleep(Duration::from_millis(random.random_range(0..900))).await;
        let before = all.last().expect("events").id.clone();
        relay.cut.notify_waiters();
        let mut seen = live.until("word of the gap", |seen| seen.kind == "berth.resync").await;
        let heard = words(&seen, &session);
        assert!(is_a_run(&heard) && heard.first().is_none_or(|word| *word == 0), "seed {seed}: {heard:?}");
        assert_eq!(seen.last().expect("it").payload["properties"]["reason"], "upstream_gap");
        // What opencode says from now on is heard.
        prompt(&door, &session, "say:after").await;
        seen.extend(live.until("the answer", |seen| seen.payload["properties"]["delta"] == "after").await);
        seen.extend(live.until("end", |seen| is_idle(seen, &session)).await);
        // Who comes back with an id from before the cut reads the same.
        let mut late = Frames::open(&door, Some(&before)).await;
        let newest = seen.last().expect("events").id.clone();
        let read = late.until("newest", |seen| seen.id == newest).await;
        check(&read);
        let kept = |all: &[Seen]| -> Vec<_> { all.iter().map(|seen| seen.id.clone()).collect() };
        let (read, seen_ids) = (kept(&read), kept(&seen));
        assert!(read.iter().all(|id| seen_ids.contains(id)), "seed {seed}");
        assert_eq!(read.iter().filter(|id| id.seq == 1).count(), 1, "seed {seed}: one gap");
        all.extend(seen);
    }
    check(&all);
    check_once(&all);
    Scale::current().report("a_subscription_cut_while_opencode_lives_is_told", cuts, &[("cuts", cuts)]);
    door.stop().await;
    stage.sandbox.supervisor.stop().await;
}

/// A picture of noise, 810 KB.
fn noise_png() -> Vec<u8> {
    let (width, height) = (900_u32, 300_u32);
    let mut random = StdRng::seed_from_u64(2);
    let mut pixels = Vec::new();
    for _ in 0..height {
        pixels.push(0);
        pixels.extend((0..width * 3).map(|_| random.random::<u8>()));
    }
    let mut header = [width.to_be_bytes(), height.to_be_bytes()].concat();
    header.extend([8, 2, 0, 0, 0]);
    let mut zlib = vec![0x78, 0x01];
    let blocks = pixels.chunks(65_535);
    let last = blocks.len() - 1;
    for (index, block) in blocks.enumerate() {
        let length = u16::try_from(block.len()).expect("a block");
        zlib.push(u8::from(index == last));
        zlib.extend(length.to_le_bytes());
        zlib.extend((!length).to_le_bytes());
        zlib.extend(block);
    }
    let (a, b) = pixels.iter().fold((1_u32, 0_u32), |(a, b), byte| {
        let a = (a + u32::from(*byte)) % 65_521;
        (a, (b + a) % 65_521)
    });
    zlib.extend(((b << 16) | a).to_be_bytes());
    let mut png = b"\x89PNG\r\n\x1a\n".to_vec();
    for (kind, data) in [(b"IHDR", &header), (b"IDAT", &zlib), (b"IEND", &Vec::new())] {
        let body = [kind.as_slice(), data].concat();
        png.extend(u32::try_from(data.len()).expect("a length").to_be_bytes());
        png.extend(&body);
        png.extend(crc32(&body).to_be_bytes());
    }
    png
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 })
    })
}

#[tokio::test]
async fn dr_2_twenty_pictures_in_one_turn_cost_the_others_nothing() {
    let stage = Stage::start().await;
    let door = stage.sandbox.door().await;
    let picture = stage.sandbox.work.join("noise.png");
    std::fs::write(&picture, noise_png()).expect("a picture");
    let (looks, talks) = (create_session(&door).await, create_session(&door).await);
    let mut live = Frames::open(&door, None).await;
    prompt(&door, &talks, "say:warm").await;
    let warm = live.until("warm end", |seen| is_idle(seen, &talks)).await;
    let before = warm.last().expect("events").id.clone();
    let pictures = Scale::current().pick(5, 20);
    let read = format!("tool:read:{}", json!({ "filePath": picture }));
    prompt(&door, &talks, "text:n=500,d=10").await;
    prompt(&door, &looks, &format!("{} >> say:ok", vec![read; pictures].join(" >> "))).await;
    let (mut looked, mut talked) = (false, false);
    let (mut all, mut back) = (Vec::new(), 0);
    while !(looked && talked) {
        let seen = live.next().await;
        looked |= is_idle(&seen, &looks);
        talked |= is_idle(&seen, &talks);
        let large = seen.bytes > 500_000;
        all.push(seen);
        if large && back < 3 {
            // A client comes back with an id from before, each time further behind.
            back += 1;
            let mut again = Frames::open(&door, Some(&before)).await;
            let newest = all.last().expect("events").id.seq;
            let read = again.until("newest", |seen| seen.id.seq >= newest).await;
            assert!(read.iter().all(|seen| seen.kind != "berth.resync"), "32 MiB hold it");
            check(&read);
        }
    }
    check(&all);
    check_once(&all);
    assert_eq!(words(&all, &talks), (0..500).collect::<Vec<_>>());
    let large = all.iter().filter(|seen| seen.bytes > 500_000).count();
    let largest = all.iter().map(|seen| seen.bytes).max().unwrap_or_default();
    assert!(large >= pictures && largest < 16 << 20, "{large} large frames, {largest} bytes the largest");
    assert!(back > 0);
    let counts = [("large_frames", large as u64), ("largest_bytes", largest as u64)];
    Scale::current().report("dr_2_twenty_pictures_in_one_turn_cost_the_others_nothing", 1, &counts);
    door.stop().await;
    stage.sandbox.supervisor.stop().await;
}
