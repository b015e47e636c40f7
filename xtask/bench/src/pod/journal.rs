//! What the sidecar holds and uses at the loads that its journal is designed for, in real time. IO.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use anyhow::{Context, ensure};
use berth_wire::sse::SseReader;
use tokio::time::{Instant, sleep_until, timeout};

use super::{
    Figure, Programs,
    client::Way,
    load::{CHATTY, DESIGN, Load},
    process::{cpu, memory},
    rig::{PASSWORD, free_addresses, start_sidecar, write_secret},
    runtime,
    stand_in::StandIn,
};

/// How long the last events may take to arrive.
const ARRIVAL_BOUND: Duration = Duration::from_secs(10);

/// How far back a cursor must reach, in seconds.
const PROMISED: f64 = 60.0;

/// What was seen of a load.
#[derive(Debug)]
struct Seen {
    resident: f64,
    peak: f64,
    ring: f64,
    held: f64,
    cpu: f64,
}

/// Runs it.
pub(super) fn run(programs: &Programs) -> anyhow::Result<Vec<Figure>> {
    runtime()?.block_on(async {
        let design = carry(programs, DESIGN).await.context(DESIGN.name)?;
        let chatty = carry(programs, CHATTY).await.context(CHATTY.name)?;
        Ok(vec![
            Figure::plain("journal-design-held", "s", design.held).at_least(PROMISED),
            Figure::plain("journal-design-ring", "MiB", design.ring),
            Figure::plain("journal-design-memory", "MiB", design.resident),
            Figure::plain("journal-design-memory-peak", "MiB", design.peak),
            Figure::plain("journal-design-cpu", "% of a core", design.cpu),
            Figure::plain("journal-chatty-held", "s", chatty.held).at_least(PROMISED),
            Figure::plain("journal-chatty-ring", "MiB", chatty.ring),
            Figure::plain("journal-chatty-memory", "MiB", chatty.resident),
            Figure::plain("journal-chatty-memory-peak", "MiB", chatty.peak),
            Figure::plain("journal-chatty-cpu", "% of a core", chatty.cpu),
        ])
    })
}

async fn carry(programs: &Programs, load: Load) -> anyhow::Result<Seen> {
    let folder = tempfile::tempdir()?;
    write_secret(&folder.path().join("secret"))?;
    let upstream = StandIn::start().await?;
    let [door, admin] = free_addresses();
    let sidecar = start_sidecar(programs, folder.path(), [door, admin, upstream.control]).await?;
    let mut events = Way::new(door, PASSWORD)?.subscribe().await?;
    let before = cpu(sidecar.pid())?;
    let (begun, last) = (Instant::now(), AtomicUsize::new(usize::MAX));
    let sending = async {
        let mut sent = 0;
        for millisecond in 0..Load::LENGTH {
            for frame in load.at(millisecond) {
                upstream.send(&frame)?;
                sent += 1;
            }
            sleep_until(begun + Duration::from_millis(u64::from(millisecond) + 1)).await;
        }
        last.store(sent, Ordering::Relaxed);
        anyhow::Ok(sent)
    };
    let (sent, newest) = tokio::try_join!(sending, follow(&mut events, &last))?;
    ensure!(newest >= sent, "the subscriber was given {newest} of {sent} events");
    let elapsed = begun.elapsed().as_secs_f64();
    let cpu = (cpu(sidecar.pid())? - before) / elapsed * 100.0;
    let held = memory(sidecar.pid())?;
    let metrics = Way::new(admin, "")?.get("/metrics").send().await?.error_for_status()?.text().await?;
    let metric = |name| metric(&metrics, name).with_context(|| format!("no metric {name}"));
    let seen = Seen {
        resident: held.resident,
        peak: held.peak,
        ring: metric("berth_door_journal_bytes")? / 1024.0 / 1024.0,
        held: metric("berth_door_journal_held_seconds")?,
        cpu,
    };
    drop(events);
    sidecar.stop().await?;
    Ok(seen)
}

/// Reads until the last event; gives the number of the newest in its epoch, which counts those that were superseded
/// too.
async fn follow(events: &mut SseReader, last: &AtomicUsize) -> anyhow::Result<usize> {
    let (mut first, mut newest) = (None, 0);
    loop {
        let Ok(event) = timeout(ARRIVAL_BOUND, events.next()).await else { return Ok(newest) };
        let event = event.context("the stream ended")??;
        let Some(id) = event.id.as_deref().and_then(|id| id.rsplit_once('-')) else { continue };
        let number: usize = id.1.parse()?;
        newest = number + 1 - *first.get_or_insert(number);
        if newest >= last.load(Ordering::Relaxed) {
            return Ok(newest);
        }
    }
}

fn metric(text: &str, name: &str) -> Option<f64> {
    let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok();
    text.lines().find_map(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_found_by_its_whole_name() {
        let text = "# TYPE a_bytes gauge\na_bytes_total 1\na_bytes 2.5\n";
        assert_eq!(metric(text, "a_bytes"), Some(2.5));
        assert_eq!(metric(text, "bytes"), None);
    }
}
