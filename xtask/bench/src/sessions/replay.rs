//! A long log, given out to one client that reads as fast as it can. IO.

use std::time::Instant;

use anyhow::{Context, ensure};
use futures_util::StreamExt;

use super::{
    Programs, Scale,
    seed::Owned,
    server::{DATABASE, Server, next},
};
use crate::{
    pod::{
        Figure,
        figure::Relation,
        rig::{free_addresses, write_secret},
        runtime,
        statistics::Pairs,
    },
    server::serve_stream,
};

/// Events in the log.
const EVENTS: u32 = 100_000;

/// Counted pairs.
const PAIRS: u32 = 7;

/// Runs it.
pub(super) fn run(programs: &Programs, scale: Scale) -> anyhow::Result<Vec<Figure>> {
    runtime()?.block_on(async {
        let folder = tempfile::tempdir()?;
        let root = folder.path().canonicalize()?;
        write_secret(&root.join("secret"))?;
        let events = scale.count(EVENTS);
        let owned = Owned::open(&root.join(DATABASE)).await?;
        let session = owned.session_of(events as usize).await?.to_string();
        owned.close().await?;
        // Nothing is to do in the sandbox, so nobody asks for its door.
        let [door] = free_addresses();
        let server = Server::start(programs, &root, door).await?;
        let bytes = whole(&server, &session, events).await?;
        let plain = serve_stream(&bytes)?;
        let (mut seconds, mut used) = (Pairs::default(), 0.0);
        let pairs = scale.count(PAIRS);
        for pair in 0..=pairs {
            let from_memory = read(server.api.plain(&plain).await?, bytes.len()).await?;
            let before = server.cpu()?;
            let replayed = read(server.api.stream(&session).await?, bytes.len()).await?;
            if pair > 0 {
                used += server.cpu()? - before;
                seconds.push(from_memory, replayed);
            }
        }
        server.stop().await?;
        let (from_memory, replayed) = seconds.medians();
        #[expect(clippy::cast_precision_loss, reason = "some megabytes")]
        let mebibytes = bytes.len() as f64 / 1024.0 / 1024.0;
        let (events, pairs) = (f64::from(events), f64::from(pairs));
        let ratio = (Relation::Ratio, 1.0 / seconds.ratio());
        Ok(vec![
            Figure::compared("server-replay", "events/s", (events / from_memory, events / replayed), ratio),
            Figure::compared(
                "server-replay-bytes",
                "MiB/s",
                (mebibytes / from_memory, mebibytes / replayed),
                ratio,
            ),
            Figure::plain("server-replay-cpu", "µs/event", used / pairs / events * 1e6),
        ])
    })
}

/// All bytes of the log, checked to be all events.
async fn whole(server: &Server, session: &str, events: u32) -> anyhow::Result<Vec<u8>> {
    let mut reader = server.api.events(session).await?;
    for expected in 1..=events {
        let event = next(&mut reader).await?;
        ensure!(
            event.id.as_deref() == Some(expected.to_string().as_str()),
            "{event:?} is not the {expected}th"
        );
    }
    drop(reader);
    let mut body = server.api.stream(session).await?.bytes_stream();
    let (mut bytes, last) = (Vec::new(), format!("id: {events}\n"));
    while !ends_with(&bytes, &last) {
        bytes.extend_from_slice(&body.next().await.context("the stream ended")??);
    }
    Ok(bytes)
}

/// Whether the last event has come, whole.
fn ends_with(bytes: &[u8], last: &str) -> bool {
    let tail = &bytes[bytes.len().saturating_sub(4096)..];
    tail.ends_with(b"\n\n") && tail.windows(last.len()).any(|window| window == last.as_bytes())
}

/// How long it takes until so many bytes have come, in seconds.
async fn read(answer: reqwest::Response, length: usize) -> anyhow::Result<f64> {
    let begun = Instant::now();
    let mut body = answer.bytes_stream();
    let mut left = length;
    while left > 0 {
        let piece = body.next().await.context("the stream ended")??;
        left = left.checked_sub(piece.len()).context("more came than is in the log")?;
    }
    Ok(begun.elapsed().as_secs_f64())
}
