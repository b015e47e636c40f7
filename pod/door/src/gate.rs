//! The gate: a lease that keeps work out of opencode for a while, so that its holder can count on nothing changing.
//! Pure: the clock is given.
//!
//! A lease has an owner, a deadline and a generation, and goes from draining to closed. It opens by itself at its
//! deadline, and then its generation is over for ever: what was done under it counts only if it was never broken. A
//! closed gate that is sealed stays closed.

use std::time::Duration;

use berth_wire::admission::{GatePhase, GateState, HeldPhase};
use tokio::time::Instant;

use crate::class::Class;

/// What an owner asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hold {
    /// Who asks.
    pub(crate) owner: String,
    /// Why.
    pub(crate) reason: String,
    /// Until it opens by itself.
    pub(crate) ttl: Duration,
    /// How far.
    pub(crate) phase: HeldPhase,
    /// Which lease is kept or moved on; `None` to take the gate.
    pub(crate) generation: Option<u64>,
}

/// Why the gate does not do what it is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GateError {
    /// It has a holder.
    Held,
    /// That lease is over.
    Broken,
    /// It is sealed.
    Sealed,
    /// A closed gate does not go back to draining.
    Backwards,
    /// Only a closed gate can be sealed.
    NotClosed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Draining,
    /// Nothing new begins any more, and what is in flight ends.
    Closing,
    Closed,
    Sealed,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Lease {
    owner: String,
    reason: String,
    phase: Phase,
    deadline: Instant,
}

/// The gate of one instance of the door. The default one is open, and its generations begin with 1.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// The last lease's.
    generation: u64,
    lease: Option<Lease>,
}

impl Gate {
    /// An open gate whose generations come after this one.
    pub(crate) fn after(generation: u64) -> Self {
        Self { generation, lease: None }
    }

    /// Opens it when its deadline has passed. Everything else here assumes that this was called with the time it is.
    pub(crate) fn expire(&mut self, now: Instant) {
        if self.deadline().is_some_and(|deadline| deadline <= now) {
            self.lease = None;
        }
    }

    /// When it opens by itself.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.lease.as_ref().filter(|lease| lease.phase != Phase::Sealed).map(|lease| lease.deadline)
    }

    /// Takes it, keeps it or moves it on, and gives the generation. Where `closed` is asked for it is only closing:
    /// see [`Gate::close`].
    pub(crate) fn hold(&mut self, now: Instant, hold: &Hold) -> Result<u64, GateError> {
        let phase = match (self.lease.as_ref(), hold.generation) {
            (Some(Lease { phase: Phase::Sealed, .. }), _) => return Err(GateError::Sealed),
            (Some(_), None) => return Err(GateError::Held),
            (Some(lease), Some(generation)) if generation == self.generation => {
                if lease.owner != hold.owner {
                    return Err(GateError::Held);
                }
                moved(lease.phase, hold.phase)?
            }
            (_, Some(_)) => return Err(GateError::Broken),
            (None, None) => {
                self.generation += 1;
                moved(Phase::Draining, hold.phase)?
            }
        };
        let (owner, reason) = (hold.owner.clone(), hold.reason.clone());
        self.lease = Some(Lease { owner, reason, phase, deadline: now + hold.ttl });
        Ok(self.generation)
    }

    /// Whether that lease still holds.
    pub(crate) fn held(&mut self, generation: u64) -> Result<(), GateError> {
        self.lease_of(generation).map(drop)
    }

    /// Closes it, now that nothing is in flight.
    pub(crate) fn close(&mut self, generation: u64) -> Result<(), GateError> {
        let lease = self.lease_of(generation)?;
        if lease.phase != Phase::Sealed {
            lease.phase = Phase::Closed;
        }
        Ok(())
    }

    /// Lets replies, aborts and changes in again, when it could not be closed.
    pub(crate) fn relent(&mut self, generation: u64) {
        if let Ok(lease) = self.lease_of(generation)
            && lease.phase == Phase::Closing
        {
            lease.phase = Phase::Draining;
        }
    }

    /// Opens it.
    pub(crate) fn open(&mut self, generation: u64) -> Result<(), GateError> {
        if self.lease_of(generation)?.phase == Phase::Sealed {
            return Err(GateError::Sealed);
        }
        self.lease = None;
        Ok(())
    }

    /// Makes it final.
    pub(crate) fn seal(&mut self, generation: u64) -> Result<(), GateError> {
        let lease = self.lease_of(generation)?;
        if !matches!(lease.phase, Phase::Closed | Phase::Sealed) {
            return Err(GateError::NotClosed);
        }
        lease.phase = Phase::Sealed;
        Ok(())
    }

    fn lease_of(&mut self, generation: u64) -> Result<&mut Lease, GateError> {
        let current = generation == self.generation;
        self.lease.as_mut().filter(|_| current).ok_or(GateError::Broken)
    }

    /// Whether a request of this class may pass.
    pub(crate) fn admits(&self, class: &Class) -> bool {
        let Some(lease) = &self.lease else { return true };
        match class {
            Class::Read => true,
            Class::Abort { .. } | Class::Reply => matches!(lease.phase, Phase::Draining | Phase::Closing),
            Class::Change { .. } => lease.phase == Phase::Draining,
            Class::Prompt { .. } | Class::Tunnel | Class::Forbidden => false,
        }
    }

    /// Whether nobody holds it.
    pub(crate) fn is_open(&self) -> bool {
        self.lease.is_none()
    }

    /// How much it lets through.
    pub(crate) fn phase(&self) -> GatePhase {
        match self.lease.as_ref().map(|lease| lease.phase) {
            None => GatePhase::Open,
            Some(Phase::Draining | Phase::Closing) => GatePhase::Draining,
            Some(Phase::Closed) => GatePhase::Closed,
            Some(Phase::Sealed) => GatePhase::Sealed,
        }
    }

    /// Where it stands.
    pub(crate) fn state(&self, now: Instant) -> GateState {
        let left = self.deadline().map(|deadline| deadline.saturating_duration_since(now));
        GateState {
            phase: self.phase(),
            generation: self.generation,
            owner: self.lease.as_ref().map(|lease| lease.owner.clone()),
            reason: self.lease.as_ref().map(|lease| lease.reason.clone()),
            expires_in_ms: left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
        }
    }
}

/// The phase after one in which another is asked for.
fn moved(from: Phase, to: HeldPhase) -> Result<Phase, GateError> {
    match (from, to) {
        (Phase::Draining, HeldPhase::Draining) => Ok(Phase::Draining),
        (Phase::Draining | Phase::Closing, HeldPhase::Closed) => Ok(Phase::Closing),
        (Phase::Closed, HeldPhase::Closed) => Ok(Phase::Closed),
        (Phase::Closing | Phase::Closed, HeldPhase::Draining) => Err(GateError::Backwards),
        (Phase::Sealed, _) => Err(GateError::Sealed),
    }
}

#[cfg(test)]
mod tests;
