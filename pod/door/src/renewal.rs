//! Renews directories that an abort spoilt, before prompts go there: see [`crate::turns::spoilt`]. IO.
//!
//! A terminal lives in its directory's instance and ends with it. While nothing but a suspicion speaks against the
//! instance, any terminal keeps it, and prompts pass. Once a run was swallowed, every prompt would be: then terminals
//! that nobody is connected to end, and one that somebody is connected to has prompts refused.

use std::{sync::Arc, time::Duration};

use berth_wire::{admission::GatePhase, problem::ProblemType};
use http::Response;
use tokio::time::{sleep, timeout};

use crate::{
    Door,
    directories::{self, Disposal, Terminals},
    events,
    refusal::{DoorBody, refuse},
    turns::Spoil,
};

/// How long a prompt may wait for its directory to be renewed: what an abort ends there ends within seconds.
const BOUND: Duration = Duration::from_secs(15);

/// Pause between two tries.
const PAUSE: Duration = Duration::from_millis(20);

/// What a prompt is told that would be swallowed.
const SPOILT: &str = "An abort left this directory in a state in which every prompt ends at once, and a terminal that \
    somebody is connected to keeps it from being renewed: close the terminal.";

/// What keeps a directory from being renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Obstacle {
    /// A terminal that somebody is connected to.
    Connected,
    /// A terminal.
    Terminal,
}

/// Closes the instance of a spoilt directory. Returns when the directory is sound, or is to be taken as it is; the error
/// is the answer to a prompt that would be swallowed.
pub(crate) async fn renew(door: &Arc<Door>, directory: &str) -> Result<(), Response<DoorBody>> {
    let Some(spoil) = door.turns.spoil(directory) else { return Ok(()) };
    let obstacle = match timeout(BOUND, renewed(door, directory)).await {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(obstacle)) => Some(obstacle),
        Err(_) => None,
    };
    door.config.metrics.renewals_put_off.inc();
    if (spoil, obstacle) == (Spoil::Seen, Some(Obstacle::Connected)) {
        // Its sender is told, and may ask again many times.
        tracing::debug!(directory, "a prompt that would be swallowed is refused");
        return Err(refuse(ProblemType::Busy, SPOILT));
    }
    tracing::warn!(
        directory,
        ?spoil,
        ?obstacle,
        "a directory that an abort may have spoilt cannot be renewed"
    );
    door.turns.forgive(directory);
    Ok(())
}

async fn renewed(door: &Arc<Door>, directory: &str) -> Result<(), Obstacle> {
    let own = events::real(directories::own(door)).await;
    // A gate that is held refuses the prompt.
    while let Some(spoil) =
        door.turns.spoil(directory).filter(|_| door.admission.gate().phase == GatePhase::Open)
    {
        if door.admission.has_tunnel(directory) {
            return Err(Obstacle::Connected);
        }
        let terminals = if spoil == Spoil::Seen { Terminals::End } else { Terminals::Stay };
        match directories::dispose(door, directory, &own, terminals).await {
            Disposal::Done => {
                door.config.metrics.renewed_directories.inc();
            }
            Disposal::NotNow => sleep(PAUSE).await,
            Disposal::Never => return Err(Obstacle::Terminal),
        }
    }
    Ok(())
}
