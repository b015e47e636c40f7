//! Waits until calls and turns have ended, for a new holder of the fence and for one who closes the gate. Pure but for the
//! lock and the clock.

use std::time::Duration;

use berth_wire::admission::FenceState;
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

use super::{
    Admission, State,
    in_flight::{InFlight, Pending, pending},
};
use crate::{
    class::Class,
    fence::Stale,
    gate::GateError,
    turns::{Idleness, Turns},
};

/// How long tunnels may take to end after they were cut.
const TUNNELS_END: Duration = Duration::from_secs(5);

/// Why a fence is not raised, or not wholly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RaiseError {
    /// It is lower than the current one.
    Stale(Stale, FenceState),
    /// It is raised, and calls under a lower one still go on.
    Busy(Vec<Pending>),
}

/// Why the gate is not closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CloseError {
    /// The lease ended, or is not the caller's.
    Gate(GateError),
    /// Calls go on, or turns of these sessions.
    Busy(Vec<Pending>, Option<Idleness>),
}

impl Admission {
    /// Raises the fence, and returns when no call under a lower one is in flight.
    pub(crate) async fn raise(&self, fence: u64, bound: Duration) -> Result<FenceState, RaiseError> {
        let stale = |state: &State, stale| RaiseError::Stale(stale, state.fence.state());
        self.with(|state, _| state.fence.raise(fence).map_err(|error| stale(state, error)))?;
        let deadline = Instant::now() + bound;
        let lower = |call: &InFlight| call.fence.is_some_and(|lower| lower < fence);
        self.ended(deadline, lower).await.map_err(RaiseError::Busy)?;
        let state = self.fence();
        if state.fence == fence { Ok(state) } else { Err(RaiseError::Stale(Stale::Fence, state)) }
    }

    /// Closes a gate that is held, as soon as nothing that changes something is in flight and, where a turn table is
    /// given, as nothing runs; then cuts terminals. When that takes longer than `bound`, or nobody waits any more, the
    /// gate goes back to draining.
    pub(crate) async fn close(
        &self,
        generation: u64,
        bound: Duration,
        turns: Option<&Turns>,
    ) -> Result<(), CloseError> {
        let mut changed = self.changed.subscribe();
        let mut turned = turns.map(Turns::watch);
        let deadline = Instant::now() + bound;
        let _relent = Relent { admission: self, generation };
        let mut late = false;
        loop {
            changed.mark_unchanged();
            turned.iter_mut().for_each(watch::Receiver::mark_unchanged);
            let closed = self.with(|state, now| {
                state.gate.held(generation)?;
                let mut pending =
                    pending(&state.calls, now, |call| !matches!(call.class, Class::Read | Class::Tunnel));
                // The gate was open when the door's own work began.
                pending.extend(state.reserved.as_ref().map(|(_, since)| Pending::housework(*since, now)));
                // A prompt that is not in flight any more is in the table.
                let running = turns.map(Turns::idleness).filter(|running| *running != Idleness::Idle);
                let idle = pending.is_empty() && running.is_none();
                if idle { state.gate.close(generation).map(|()| None) } else { Ok(Some((pending, running))) }
            });
            let Some((pending, running)) = closed.map_err(CloseError::Gate)? else { break };
            if late {
                return Err(CloseError::Busy(pending, running));
            }
            late = timeout_at(deadline, either(&mut changed, turned.as_mut())).await.is_err();
        }
        let cut = Instant::now() + TUNNELS_END;
        let tunnels = self.ended(cut, |call| call.class == Class::Tunnel).await;
        tunnels.map_err(|calls| CloseError::Busy(calls, None))
    }

    /// Waits until no call that is meant is in flight.
    async fn ended(&self, deadline: Instant, meant: impl Fn(&InFlight) -> bool) -> Result<(), Vec<Pending>> {
        let mut changed = self.changed.subscribe();
        let mut late = false;
        loop {
            changed.mark_unchanged();
            let pending = self.with(|state, now| pending(&state.calls, now, &meant));
            if pending.is_empty() {
                return Ok(());
            }
            if late {
                return Err(pending);
            }
            late = timeout_at(deadline, changed.changed()).await.is_err();
        }
    }
}

/// Waits for a change of one or the other.
async fn either(changed: &mut watch::Receiver<()>, turned: Option<&mut watch::Receiver<u64>>) {
    // Both senders outlive those who wait.
    let _ = match turned {
        None => changed.changed().await,
        Some(turned) => tokio::select! {
            changed = changed.changed() => changed,
            changed = turned.changed() => changed,
        },
    };
}

/// Undoes a closing that did not come about.
struct Relent<'a> {
    admission: &'a Admission,
    generation: u64,
}

impl Drop for Relent<'_> {
    fn drop(&mut self) {
        self.admission.with(|state, _| state.gate.relent(self.generation));
    }
}
