//! Many clients on one session that streams: when each of them has an event, and what that costs the server. IO.

use std::time::Instant;

use anyhow::{Context, ensure};
use futures_util::future::try_join_all;
use tokio_util::task::TaskTracker;

use super::{
    Programs, Scale,
    server::{Server, is_end, next},
};
use crate::pod::{
    Figure,
    figure::Relation,
    rig::Pod,
    runtime,
    statistics::{median, percentile},
};

/// Clients.
const CLIENTS: u32 = 200;

/// Words of the turn that they see, 50 in a second.
const WORDS: u32 = 1_000;

/// What was seen of a turn.
struct Seen {
    /// From the first client that has an event to the last one, in milliseconds, event by event.
    delays: Vec<f64>,
    /// Processor time of the server, in seconds.
    used: f64,
    /// Seconds that the turn took.
    wall: f64,
}

/// Runs it.
pub(super) fn run(programs: &Programs, scale: Scale) -> anyhow::Result<Vec<Figure>> {
    runtime()?.block_on(async {
        let pod = Pod::start(&programs.pod).await?;
        let server = Server::start(programs, &pod.root()?, pod.door_address()).await?;
        let warm = server.api.session().await?;
        server.api.turn(&mut server.api.events(&warm).await?, &warm, "@stub say:Yes.").await?;
        let clients = scale.count(CLIENTS);
        let one = stream(&server, 1, scale).await?;
        let many = stream(&server, clients, scale).await?;
        server.stop().await?;
        pod.stop().await?;
        Ok(figures(&one, &many, clients))
    })
}

fn figures(one: &Seen, many: &Seen, clients: u32) -> Vec<Figure> {
    #[expect(clippy::cast_precision_loss, reason = "some hundreds")]
    let each = |seen: &Seen, clients: u32| seen.used / (f64::from(clients) * seen.delays.len() as f64) * 1e6;
    let (alone, shared) = (each(one, 1), each(many, clients));
    vec![
        Figure::plain("server-fan-out-delay", "ms", median(&many.delays)),
        Figure::plain("server-fan-out-delay-99", "ms", percentile(&many.delays, 0.99)),
        Figure::compared(
            "server-fan-out-cpu",
            "µs/event",
            (alone, shared),
            (Relation::Ratio, shared / alone),
        ),
        Figure::compared(
            "server-fan-out-load",
            "% of a core",
            (one.used / one.wall * 100.0, many.used / many.wall * 100.0),
            (Relation::Added, (many.used / many.wall - one.used / one.wall) * 100.0),
        ),
    ]
}

/// A turn in a session of its own, before so many clients.
async fn stream(server: &Server, clients: u32, scale: Scale) -> anyhow::Result<Seen> {
    let session = server.api.session().await?;
    let mut readers = Vec::new();
    for _ in 0..clients {
        readers.push(server.api.events(&session).await?);
    }
    let (before, begun, tasks) = (server.cpu()?, Instant::now(), TaskTracker::new());
    let watched = readers.into_iter().map(|mut events| {
        tasks.spawn(async move {
            let mut arrivals = Vec::new();
            loop {
                let event = next(&mut events).await?;
                arrivals.push(Instant::now());
                let seq = arrivals.len().to_string();
                ensure!(event.id.as_deref() == Some(&*seq), "{:?} came as the {seq}th", event.id);
                if is_end(&event)? {
                    return Ok(arrivals);
                }
            }
        })
    });
    let watched: Vec<_> = watched.collect();
    server.api.prompt(&session, &format!("@stub text:n={},d=20", scale.count(WORDS))).await?;
    let arrivals = try_join_all(watched).await?.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let (used, wall) = (server.cpu()? - before, begun.elapsed().as_secs_f64());
    Ok(Seen { delays: delays(&arrivals)?, used, wall })
}

/// Event by event, how much later the last client had it than the first.
fn delays(arrivals: &[Vec<Instant>]) -> anyhow::Result<Vec<f64>> {
    let events = arrivals.first().context("no client")?.len();
    ensure!(arrivals.iter().all(|client| client.len() == events), "not all clients were given all events");
    let delay = |event: usize| {
        let times = arrivals.iter().filter_map(|client| client.get(event));
        let (first, last) = (times.clone().min()?, times.max()?);
        Some(last.duration_since(*first).as_secs_f64() * 1e3)
    };
    (0..events).map(|event| delay(event).context("no client")).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_last_counts_against_the_first() {
        let begun = Instant::now();
        let client = |milliseconds: &[u64]| -> Vec<Instant> {
            milliseconds.iter().map(|milliseconds| begun + Duration::from_millis(*milliseconds)).collect()
        };
        let delays = delays(&[client(&[1, 10]), client(&[4, 10]), client(&[2, 15])]).unwrap();
        assert!((delays[0] - 3.0).abs() < 1e-6 && (delays[1] - 5.0).abs() < 1e-6, "{delays:?}");
        assert!(super::delays(&[client(&[1, 2]), client(&[1])]).is_err());
    }
}
