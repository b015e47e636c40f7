//! What a pod costs in which nothing happens, with one subscriber at the door. IO.

use std::time::{Duration, Instant};

use tokio::time::{sleep, sleep_until};

use super::{
    Figure, Programs,
    figure::Relation,
    process::{cpu, memory},
    rig::Pod,
    runtime,
};

/// After the start, until opencode has done what it does then.
const SETTLE: Duration = Duration::from_secs(20);

/// How long is looked.
const WATCHED: Duration = Duration::from_mins(1);

/// Runs it.
pub(super) fn run(programs: &Programs) -> anyhow::Result<Vec<Figure>> {
    runtime()?.block_on(async {
        let pod = Pod::start(programs).await?;
        let session = pod.door.session().await?;
        let mut events = pod.door.subscribe().await?;
        pod.door.turn(&mut events, &session, "@stub say:Yes.").await?;
        let pids = [pod.sidecar()?, pod.supervisor(), pod.opencode()];
        let used = async {
            sleep(SETTLE).await;
            let begun = Instant::now();
            let before = pids.map(cpu);
            sleep_until((begun + WATCHED).into()).await;
            let elapsed = begun.elapsed().as_secs_f64();
            anyhow::Ok((before, pids.map(cpu), elapsed))
        };
        let (before, after, elapsed) = tokio::select! {
            used = used => used?,
            () = async { while events.next().await.is_some_and(|event| event.is_ok()) {} } =>
                anyhow::bail!("the event stream ended"),
        };
        let mut shares = [0.0; 3];
        for ((share, before), after) in shares.iter_mut().zip(before).zip(after) {
            *share = (after? - before?) / elapsed * 100.0;
        }
        let [sidecar, supervisor, opencode] = shares;
        let resident = memory(pod.sidecar()?)?.resident;
        drop(events);
        pod.stop().await?;
        let both = sidecar + supervisor;
        Ok(vec![
            Figure::plain("idle-cpu", "% of a core", both).at_most(0.2),
            Figure::compared(
                "idle-cpu-sidecar",
                "% of a core",
                (opencode, sidecar),
                (Relation::Ratio, sidecar / opencode),
            ),
            Figure::compared(
                "idle-cpu-supervisor",
                "% of a core",
                (opencode, supervisor),
                (Relation::Ratio, supervisor / opencode),
            ),
            Figure::plain("sidecar-memory-idle", "MiB", resident).at_most(30.0),
        ])
    })
}
