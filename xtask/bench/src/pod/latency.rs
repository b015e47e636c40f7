//! From a prompt to its first delta, through the door and directly. IO.
//!
//! A real opencode takes 50 to 100 ms for it, and half as much more or less each time on a machine that does other
//! things too, so what the door adds cannot be seen there. A stand-in that answers at once shows it.

use std::time::Duration;

use tokio::time::sleep;

use super::{
    Figure, Programs,
    client::Way,
    figure::Relation,
    rig::{INTERNAL, PASSWORD, Pod, free_addresses, start_sidecar, write_secret},
    runtime,
    stand_in::StandIn,
    statistics::{Pairs, median},
};

/// Rounds of both ways; the door is closed while the direct way is measured, so opencode always has one subscriber.
const ROUNDS: usize = 10;

/// Counted prompts of each way in a round, after one that warms connections.
const PROMPTS: usize = 12;

/// Between two prompts: opencode still works for a turn after its end.
const REST: Duration = Duration::from_millis(100);

/// Counted pairs with the stand-in.
const PAIRS: usize = 200;

/// Runs it.
pub(super) fn run(programs: &Programs) -> anyhow::Result<Vec<Figure>> {
    runtime()?.block_on(async {
        let added = with_stand_in(programs).await?;
        let real = with_opencode(programs).await?;
        Ok(vec![
            Figure::compared("first-delta-added", "ms", added.medians(), (Relation::Added, added.added()))
                .at_most(2.0),
            Figure::compared("first-delta", "ms", real.medians(), (Relation::Added, real.added())),
        ])
    })
}

async fn with_stand_in(programs: &Programs) -> anyhow::Result<Pairs> {
    let folder = tempfile::tempdir()?;
    write_secret(&folder.path().join("secret"))?;
    let upstream = StandIn::start().await?;
    let [door, admin] = free_addresses();
    let sidecar = start_sidecar(programs, folder.path(), [door, admin, upstream.control]).await?;
    let ways = [Way::new(upstream.address, INTERNAL)?, Way::new(door, PASSWORD)?];
    let mut streams = [ways[0].subscribe().await?, ways[1].subscribe().await?];
    let mut pairs = Pairs::default();
    for pair in 0..=PAIRS {
        let mut times = [0.0; 2];
        for (nth, (way, events)) in ways.iter().zip(&mut streams).enumerate() {
            times[nth] = way.turn(events, &format!("ses_{pair:03}_{nth}"), "Hello").await?.first_delta;
        }
        if pair > 0 {
            pairs.push(times[0], times[1]);
        }
    }
    drop(streams);
    sidecar.stop().await?;
    Ok(pairs)
}

async fn with_opencode(programs: &Programs) -> anyhow::Result<Pairs> {
    let mut pod = Pod::start(programs).await?;
    let mut pairs = Pairs::default();
    for round in 0..=ROUNDS {
        pod.close_door().await?;
        let direct = first_delta(&pod.direct).await?;
        pod.open_door().await?;
        let through = first_delta(&pod.door).await?;
        if round > 0 {
            pairs.push(direct, through);
        }
    }
    pod.stop().await?;
    Ok(pairs)
}

/// The median of some prompts, in a session of their own: opencode becomes slower with each turn of a session.
async fn first_delta(way: &Way) -> anyhow::Result<f64> {
    let session = way.session().await?;
    let mut events = way.subscribe().await?;
    let mut times = Vec::new();
    for prompt in 0..=PROMPTS {
        let turn = way.turn(&mut events, &session, "@stub say:Yes.").await?;
        if prompt > 0 {
            times.push(turn.first_delta);
        }
        sleep(REST).await;
    }
    Ok(median(&times))
}
