//! From a prompt to its first delta, through the door and directly, in a warm session. IO.

use std::time::Duration;

use tokio::time::sleep;

use super::{
    Figure, Programs,
    client::Way,
    figure::Relation,
    rig::Pod,
    runtime,
    statistics::{Pairs, median},
};

/// Rounds of both ways; the door is closed while the direct way is measured, so opencode always has one subscriber.
const ROUNDS: usize = 10;

/// Counted prompts of each way in a round, after one that warms connections.
const PROMPTS: usize = 12;

/// Between two prompts: opencode still works for a turn after its end.
const REST: Duration = Duration::from_millis(100);

/// Runs it.
pub(super) fn run(programs: &Programs) -> anyhow::Result<Vec<Figure>> {
    runtime()?.block_on(async {
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
        let added = (Relation::Added, pairs.added());
        Ok(vec![Figure::compared("first-delta", "ms", pairs.medians(), added).at_most(2.0)])
    })
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
