//! 20 sessions that stream 50 words a second each: what server and door use of the processor, against opencode. IO.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use futures_util::future::try_join_all;
use tokio::time::sleep;

use super::{
    Programs, Scale,
    server::{Server, is_delta, is_end, next},
};
use crate::pod::{Figure, figure::Relation, process::cpu, rig::Pod, runtime};

/// Sessions.
const SESSIONS: u32 = 20;

/// Words of each turn, 50 in a second.
const WORDS: u32 = 2_000;

/// Rounds, each with sessions of its own; the first one warms opencode and does not count.
const ROUNDS: u32 = 3;

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// Processor time that was used while all sessions streamed, in seconds.
#[derive(Debug, Default, Clone, Copy)]
struct Used {
    server: f64,
    door: f64,
    opencode: f64,
    wall: f64,
}

/// Runs it.
pub(super) fn run(programs: &Programs, scale: Scale) -> anyhow::Result<Vec<Figure>> {
    runtime()?.block_on(async {
        let pod = Pod::start(&programs.pod).await?;
        let server = Server::start(programs, &pod.root()?, pod.door_address()).await?;
        let mut used = Used::default();
        for round in 0..=scale.count(ROUNDS) {
            let seen = stream(&server, &pod, scale).await?;
            if round > 0 {
                used.server += seen.server;
                used.door += seen.door;
                used.opencode += seen.opencode;
                used.wall += seen.wall;
            }
        }
        let resident = server.resident()?;
        server.stop().await?;
        pod.stop().await?;
        Ok(figures(used, resident))
    })
}

fn figures(used: Used, resident: f64) -> Vec<Figure> {
    let load = |seconds: f64| seconds / used.wall * 100.0;
    let compared = |name, seconds: f64| {
        let pair = (load(used.opencode), load(seconds));
        Figure::compared(name, "% of a core", pair, (Relation::Ratio, seconds / used.opencode))
    };
    vec![
        compared("server-load-cpu", used.server + used.door),
        compared("server-load-cpu-server", used.server),
        compared("server-load-cpu-door", used.door),
        Figure::plain("server-load-memory", "MiB", resident),
    ]
}

/// Looks from when all sessions stream until the first one ends.
async fn stream(server: &Server, pod: &Pod, scale: Scale) -> anyhow::Result<Used> {
    let (streaming, ended) = (AtomicU32::new(0), AtomicU32::new(0));
    let prompt = format!("@stub text:n={},d=20", scale.count(WORDS).max(100));
    let follow = async |session: String| {
        let mut events = server.api.events(&session).await?;
        server.api.prompt(&session, &prompt).await?;
        while !is_delta(&next(&mut events).await?) {}
        streaming.fetch_add(1, Ordering::Relaxed);
        while !is_end(&next(&mut events).await?)? {}
        ended.fetch_add(1, Ordering::Relaxed);
        anyhow::Ok(())
    };
    let mut sessions = Vec::new();
    for _ in 0..SESSIONS {
        sessions.push(server.api.session().await?);
    }
    let measured = async {
        while streaming.load(Ordering::Relaxed) < SESSIONS {
            sleep(PAUSE).await;
        }
        let (begun, before) = (Instant::now(), now(server, pod)?);
        let mut after = before;
        while ended.load(Ordering::Relaxed) == 0 {
            after = now(server, pod)?;
            after.wall = begun.elapsed().as_secs_f64();
            sleep(PAUSE).await;
        }
        anyhow::Ok(Used {
            server: after.server - before.server,
            door: after.door - before.door,
            opencode: after.opencode - before.opencode,
            wall: after.wall,
        })
    };
    let (_, used) = tokio::try_join!(try_join_all(sessions.into_iter().map(follow)), measured)?;
    Ok(used)
}

fn now(server: &Server, pod: &Pod) -> anyhow::Result<Used> {
    Ok(Used { server: server.cpu()?, door: cpu(pod.sidecar()?)?, opencode: cpu(pod.opencode())?, wall: 0.0 })
}
