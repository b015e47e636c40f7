//! Starts opencode anew when it is idle and holds too much memory: what it took for a directory or a long session it does
//! not give back. IO.

use std::sync::Arc;

use berth_serve::RestartCause;
use tokio::time::{Instant, timeout};

use crate::{
    Door,
    passage::Passage,
    restart::{Restarted, is_idle, restart},
    turns::Idleness,
};

/// Looks each time when opencode has become idle and stays so, until shutdown.
pub(crate) async fn run(door: Arc<Door>) {
    let work = async {
        let mut restarted: Option<Instant> = None;
        loop {
            idle(&door).await;
            let rested = restarted.is_none_or(|at: Instant| at.elapsed() >= door.config.recycle_rest);
            match if rested { recycle(&door).await } else { Recycled::NotNeeded } {
                Recycled::Begun => restarted = Some(Instant::now()),
                Recycled::NotNeeded => {}
                Recycled::Later => continue,
            }
            busy(&door).await;
        }
    };
    door.shutdown.run_until_cancelled(work).await;
}

/// Waits until nothing has run for a while.
async fn idle(door: &Door) {
    let mut turned = door.turns.watch();
    let mut passage = door.passage.clone();
    loop {
        let changed = async {
            tokio::select! {
                changed = turned.changed() => changed.is_ok(),
                changed = passage.changed() => changed.is_ok(),
            }
        };
        if is_idle(door) {
            if timeout(door.config.recycle_idle, changed).await.is_err() {
                return;
            }
        } else if !changed.await {
            std::future::pending::<()>().await;
        }
    }
}

/// Waits until something runs.
async fn busy(door: &Door) {
    let mut turned = door.turns.watch();
    // The sender lives as long as the door.
    let _ = turned.wait_for(|_| matches!(door.turns.idleness(), Idleness::Busy(_))).await;
}

/// What came of a look at opencode's memory.
enum Recycled {
    /// It was started anew.
    Begun,
    /// It holds no more than it may, or cannot be told.
    NotNeeded,
    /// Something began meanwhile.
    Later,
}

/// Tells opencode to start anew when it holds too much.
async fn recycle(door: &Arc<Door>) -> Recycled {
    let held = match door.link.memory().await {
        Ok(memory) => memory.opencode,
        Err(error) => {
            tracing::debug!(%error, "opencode's memory cannot be read");
            return Recycled::NotNeeded;
        }
    };
    let Passage::Open { boot_id, .. } = door.passage.borrow().clone() else { return Recycled::Later };
    if held <= door.config.memory_watermark {
        return Recycled::NotNeeded;
    }
    match restart(door, &boot_id, RestartCause::Memory).await {
        Restarted::Begun => {}
        Restarted::Refused => return Recycled::NotNeeded,
        Restarted::Busy => return Recycled::Later,
    }
    door.config.metrics.recycled.inc();
    tracing::info!(
        held,
        watermark = door.config.memory_watermark,
        "opencode was started anew for its memory"
    );
    Recycled::Begun
}
