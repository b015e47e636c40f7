//! Small requests in a second, through the door and directly. IO.

use std::time::Instant;

use anyhow::ensure;
use futures_util::future::try_join_all;

use super::{Figure, Programs, client::Way, figure::Relation, rig::Pod, runtime, statistics::Pairs};

/// What is asked for: the least that opencode does for a request.
const PATH: &str = "/global/health";

/// Counted pairs.
const PAIRS: usize = 15;

/// Requests of one pass.
const REQUESTS: usize = 1_200;

/// Connections at a time.
const CONNECTIONS: usize = 16;

/// Runs it.
pub(super) fn run(programs: &Programs) -> anyhow::Result<Vec<Figure>> {
    runtime()?.block_on(async {
        let pod = Pod::start(programs).await?;
        let (mut one, mut many) = (Pairs::default(), Pairs::default());
        for pair in 0..=PAIRS {
            for (pairs, connections) in [(&mut one, 1), (&mut many, CONNECTIONS)] {
                let direct = per_second(&pod.direct, connections).await?;
                let through = per_second(&pod.door, connections).await?;
                if pair > 0 {
                    pairs.push(direct, through);
                }
            }
        }
        pod.stop().await?;
        Ok(vec![
            Figure::compared("requests-1", "requests/s", one.medians(), (Relation::Ratio, one.ratio())),
            Figure::compared("requests-16", "requests/s", many.medians(), (Relation::Ratio, many.ratio())),
        ])
    })
}

async fn per_second(way: &Way, connections: usize) -> anyhow::Result<f64> {
    let each = REQUESTS / connections;
    let begun = Instant::now();
    try_join_all((0..connections).map(|_| ask(way, each))).await?;
    #[expect(clippy::cast_precision_loss, reason = "some hundreds")]
    let requests = (each * connections) as f64;
    Ok(requests / begun.elapsed().as_secs_f64())
}

async fn ask(way: &Way, times: usize) -> anyhow::Result<()> {
    for _ in 0..times {
        let answer = way.get(PATH).send().await?;
        ensure!(answer.status() == 200, "{PATH} is answered with {}", answer.status());
        answer.bytes().await?;
    }
    Ok(())
}
