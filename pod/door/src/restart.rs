//! Starts opencode anew when nothing runs in it. IO.

use std::{sync::Arc, time::Duration};

use berth_serve::{RestartCause, ServeCommand};
use tokio::time::timeout;

use crate::{Door, admission::Housework, passage::Passage, turns::Idleness};

/// Bound on the end of a run that is to be started anew.
const ENDED: Duration = Duration::from_secs(30);

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Restarted {
    /// The run was ended.
    Begun,
    /// The supervisor does not do it.
    Refused,
    /// Something runs, or may run: a lease of the gate is held, or another start is under way.
    Busy,
}

/// Nothing runs, and requests pass.
pub(crate) fn is_idle(door: &Door) -> bool {
    door.turns.idleness() == Idleness::Idle && matches!(*door.passage.borrow(), Passage::Open { .. })
}

/// Ends this run of opencode, and returns when no request passes to it any more. Nothing is in flight and no terminal
/// is open then, and what comes waits as at any start.
pub(crate) async fn restart(door: &Arc<Door>, boot_id: &str, cause: RestartCause) -> Restarted {
    let is_open =
        |passage: &Passage| matches!(passage, Passage::Open { boot_id: open, .. } if open == boot_id);
    let Some(_reserved) = door.admission.reserve(Housework::Opencode) else { return Restarted::Busy };
    if !is_idle(door) || !is_open(&door.passage.borrow()) {
        return Restarted::Busy;
    }
    let command = ServeCommand::Restart { boot_id: boot_id.to_owned(), cause };
    if let Err(error) = door.link.command(command).await {
        tracing::warn!(%error, ?cause, "opencode is not started anew");
        return Restarted::Refused;
    }
    let mut passage = door.passage.clone();
    if timeout(ENDED, passage.wait_for(|passage| !is_open(passage))).await.is_err() {
        tracing::warn!(?cause, "opencode was told to start anew, and does not end");
    }
    Restarted::Begun
}
