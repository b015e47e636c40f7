//! A turn of 5,000 deltas through the door and directly: its wall, the door's share of the processor, and memory. IO.

use std::time::Duration;

use anyhow::ensure;
use tokio::time::sleep;

use super::{
    Figure, Programs,
    client::Way,
    figure::Relation,
    process::{cpu, memory},
    rig::Pod,
    runtime,
    statistics::{Pairs, largest},
    timed::Turn,
};

/// Counted pairs.
const PAIRS: usize = 15;

/// Deltas of one turn.
const DELTAS: usize = 5_000;

/// After opencode went idle, until its work for the turn is over.
const REST: Duration = Duration::from_millis(300);

/// What was seen of the door.
#[derive(Debug, Default)]
struct OfDoor {
    fresh: Vec<f64>,
    after: Vec<f64>,
    /// Processor time of the door, and of opencode.
    used: (f64, f64),
}

/// Runs it.
pub(super) fn run(programs: &Programs) -> anyhow::Result<Vec<Figure>> {
    runtime()?.block_on(async {
        let mut pod = Pod::start(programs).await?;
        let (mut walls, mut of_door) = (Pairs::default(), OfDoor::default());
        for pair in 0..=PAIRS {
            // Not always in the same order.
            let (direct, through) = if pair % 2 == 0 {
                let direct = directly(&mut pod).await?;
                (direct, through_door(&mut pod, pair > 0, &mut of_door).await?)
            } else {
                let through = through_door(&mut pod, pair > 0, &mut of_door).await?;
                (directly(&mut pod).await?, through)
            };
            // The first pair warms opencode.
            if pair > 0 {
                walls.push(direct.whole, through.whole);
            }
        }
        let supervisor = memory(pod.supervisor())?.resident;
        pod.stop().await?;
        Ok(figures(&walls, &of_door, supervisor))
    })
}

async fn directly(pod: &mut Pod) -> anyhow::Result<Turn> {
    pod.close_door().await?;
    turn(&pod.direct).await
}

async fn through_door(pod: &mut Pod, counts: bool, seen: &mut OfDoor) -> anyhow::Result<Turn> {
    pod.close_door().await?;
    pod.open_door().await?;
    let (sidecar, opencode) = (pod.sidecar()?, pod.opencode());
    let fresh = memory(sidecar)?.resident;
    let before = (cpu(sidecar)?, cpu(opencode)?);
    let turn = turn(&pod.door).await?;
    if counts {
        seen.used.0 += cpu(sidecar)? - before.0;
        seen.used.1 += cpu(opencode)? - before.1;
        seen.fresh.push(fresh);
        seen.after.push(memory(sidecar)?.resident);
    }
    Ok(turn)
}

/// One turn in a session of its own, seen by one subscriber.
async fn turn(way: &Way) -> anyhow::Result<Turn> {
    let session = way.session().await?;
    let mut events = way.subscribe().await?;
    let turn = way.turn(&mut events, &session, &format!("@stub text:n={DELTAS}")).await?;
    ensure!(turn.deltas == DELTAS, "the turn had {} deltas", turn.deltas);
    sleep(REST).await;
    Ok(turn)
}

fn figures(walls: &Pairs, of_door: &OfDoor, supervisor: f64) -> Vec<Figure> {
    let (door, opencode) = of_door.used;
    #[expect(clippy::cast_precision_loss, reason = "a handful")]
    let each = 1e3 / PAIRS as f64;
    vec![
        Figure::compared("turn-wall", "ms", walls.medians(), (Relation::Ratio, walls.ratio())).at_most(1.05),
        Figure::compared(
            "turn-cpu",
            "ms",
            (opencode * each, door * each),
            (Relation::Ratio, door / opencode),
        )
        .at_most(0.10),
        Figure::plain("sidecar-memory-fresh", "MiB", largest(&of_door.fresh)).at_most(30.0),
        Figure::plain("sidecar-memory-after-turn", "MiB", largest(&of_door.after)).at_most(30.0),
        Figure::plain("supervisor-memory", "MiB", supervisor).at_most(10.0),
    ]
}
