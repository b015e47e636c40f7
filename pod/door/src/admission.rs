//! Admits requests to opencode: under one lock it compares fence and gate with a request and counts it in flight, so
//! whatever is refused was not sent, and whatever is sent is known. Pure but for its lock, the clock and the journal.
//!
//! `in_flight` knows the calls, `keys` the names that they keep, `housework` what the door itself changes, and `waiting`
//! waits for the end of calls and turns.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use berth_wire::{
    admission::{FenceState, GatePhase, GateState},
    door::DoorEvent,
};
use jiff::Timestamp;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    body::Hook,
    class::Class,
    fence::{Fence, Stale, Stamp},
    gate::{Gate, GateError, Hold},
    journal::{Frame, Journal},
    key::Key,
};

mod housework;
mod in_flight;
mod keys;
mod waiting;

pub(crate) use self::{
    housework::Housework,
    in_flight::Pending,
    keys::Kept,
    waiting::{CloseError, RaiseError},
};
use self::{in_flight::InFlight, keys::Keeper};

/// Calls in flight at most. Callers who left do not count as connections, and their calls go on.
const CALLS: usize = 16 * 1024;

/// Decides what may pass, and knows what is in flight.
#[derive(Debug)]
pub(crate) struct Admission {
    state: Mutex<State>,
    /// Tells those who wait that a call ended, or that the gate or the fence moved.
    changed: watch::Sender<()>,
    journal: Arc<Journal>,
}

#[derive(Debug)]
struct State {
    fence: Fence,
    gate: Gate,
    /// What was admitted and has not ended yet, by number.
    calls: BTreeMap<u64, InFlight>,
    next: u64,
    /// Keys of calls that came and have not ended yet: see [`Admission::keep`].
    keys: BTreeMap<Key, Keeper>,
    /// Until then opencode may carry calls of the door before, with whatever keys: see [`Admission::unsettled`].
    unsettled: Option<Instant>,
    /// Ends the tunnels that are open.
    tunnels: CancellationToken,
    /// What the door itself changes, and since when: see [`Admission::reserve`].
    reserved: Option<(Housework, Instant)>,
}

/// Why a request is not sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Its sender is not the owner of the sandbox any more.
    Stale(Stale, FenceState),
    /// The gate keeps it out.
    Gated(GateState),
    /// Too many calls are in flight.
    Full,
    /// The door itself changes something: it may ask again after [`Admission::released`].
    Reserved,
    /// A call with the same key goes on.
    Repeated,
    /// A call of the door before with the same key may go on.
    Unsettled,
}

/// A request that was admitted; it counts as in flight until this is dropped.
#[derive(Debug)]
pub(crate) struct Call {
    admission: Arc<Admission>,
    number: u64,
    /// Cancelled when a tunnel has to end.
    pub(crate) cut: CancellationToken,
    kept: Option<Kept>,
}

impl Call {
    /// Its number, for logs.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Its key is kept as long as it is in flight.
    pub(crate) fn keeping(mut self, kept: Option<Kept>) -> Result<Self, Refusal> {
        kept.as_ref().map_or(Ok(()), Kept::admit)?;
        self.kept = kept;
        Ok(self)
    }
}

/// A read is in flight until its answer has passed, or is given up.
impl Hook for Call {}

impl Drop for Call {
    fn drop(&mut self) {
        // Whoever waited for its end may look at once.
        drop(self.kept.take());
        self.admission.state().calls.remove(&self.number);
        self.admission.changed.send_replace(());
    }
}

impl Admission {
    /// With an open gate and a fence that nobody raised. No lease of the gate has the generation of one of the door
    /// before: its holder may not know yet that it is over, and would take another's for its own.
    pub(crate) fn new(journal: Arc<Journal>) -> Self {
        let state = State {
            fence: Fence::new(Uuid::new_v4().simple().to_string()),
            gate: Gate::after(u64::try_from(Timestamp::now().as_microsecond()).unwrap_or_default()),
            calls: BTreeMap::new(),
            next: 0,
            keys: BTreeMap::new(),
            unsettled: None,
            tunnels: CancellationToken::new(),
            reserved: None,
        };
        Self { state: Mutex::new(state), changed: watch::Sender::new(()), journal }
    }

    /// Admits a request that changes something, or does not. `directory` is the one that it names, or opencode's own.
    pub(crate) fn admit(
        self: &Arc<Self>,
        class: &Class,
        stamp: Option<&Stamp>,
        directory: &str,
    ) -> Result<Call, Refusal> {
        self.with(|state, now| {
            if let Some(stamp) = stamp {
                state.fence.check(stamp).map_err(|stale| Refusal::Stale(stale, state.fence.state()))?;
            }
            if !state.gate.admits(class) {
                return Err(Refusal::Gated(state.gate.state(now)));
            }
            if state.reserved.as_ref().is_some_and(|(work, _)| work.disturbs(class, directory)) {
                return Err(Refusal::Reserved);
            }
            if state.calls.len() >= CALLS {
                return Err(Refusal::Full);
            }
            let number = state.next;
            state.next += 1;
            let (class, directory) = (class.clone(), directory.to_owned());
            let fence = stamp.map(|stamp| stamp.fence);
            state.calls.insert(number, InFlight { class, directory, fence, since: now });
            Ok(Call { admission: Arc::clone(self), number, cut: state.tunnels.clone(), kept: None })
        })
    }

    /// Takes, keeps or moves on the gate; gives the generation.
    pub(crate) fn hold(&self, hold: &Hold) -> Result<u64, GateError> {
        self.with(|state, now| state.gate.hold(now, hold))
    }

    /// Opens the gate.
    pub(crate) fn open(&self, generation: u64) -> Result<(), GateError> {
        self.with(|state, _| state.gate.open(generation))
    }

    /// Makes a closed gate final.
    pub(crate) fn seal(&self, generation: u64) -> Result<(), GateError> {
        self.with(|state, _| state.gate.seal(generation))
    }

    /// Where the gate stands.
    pub(crate) fn gate(&self) -> GateState {
        self.with(|state, now| state.gate.state(now))
    }

    /// Where the fence stands.
    pub(crate) fn fence(&self) -> FenceState {
        self.with(|state, _| state.fence.state())
    }

    /// Opens the gate at its deadline, also when nothing else happens; never returns.
    pub(crate) async fn keep_time(&self) {
        let mut changed = self.changed.subscribe();
        loop {
            let deadline = self.with(|state, _| state.gate.deadline());
            tokio::select! {
                _ = changed.changed() => {}
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {}
            }
        }
    }

    /// Looks at the state as it is now, after a gate past its deadline has opened; journals what the gate does.
    fn with<T>(&self, look: impl FnOnce(&mut State, Instant) -> T) -> T {
        let mut state = self.state();
        let now = Instant::now();
        self.journaled(&mut state, now, |state| state.gate.expire(now));
        self.journaled(&mut state, now, |state| look(state, now))
    }

    fn journaled<T>(&self, state: &mut State, now: Instant, change: impl FnOnce(&mut State) -> T) -> T {
        let (before, deadline) = (state.gate.state(now), state.gate.deadline());
        let result = change(state);
        if state.gate.deadline() != deadline {
            self.changed.send_replace(());
        }
        let after = state.gate.state(now);
        if (before.phase, before.generation) != (after.phase, after.generation) {
            if matches!(after.phase, GatePhase::Closed | GatePhase::Sealed) {
                std::mem::take(&mut state.tunnels).cancel();
            }
            let holder = if after.owner.is_some() { &after } else { &before };
            self.journal.append(Frame::own(&DoorEvent::Gate {
                phase: after.phase,
                generation: after.generation,
                owner: holder.owner.clone().unwrap_or_default(),
                reason: holder.reason.clone().unwrap_or_default(),
            }));
            self.changed.send_replace(());
        }
        result
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
