//! Admits requests to opencode: under one lock it compares fence and gate with a request and counts it in flight, so
//! whatever is refused was not sent, and whatever is sent is known. Pure but for its lock, the clock and the journal.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use berth_wire::{
    admission::{FenceState, GatePhase, GateState},
    door::DoorEvent,
};
use serde::Serialize;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout_at},
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
    turns::{Idleness, Turns},
};

/// Calls in flight at most. Callers who left do not count as connections, and their calls go on.
const CALLS: usize = 16 * 1024;

/// Calls that are named at most to one who waits for them.
const NAMED: usize = 16;

/// How long a read may go on that opencode is not started anew under.
const READ: Duration = Duration::from_mins(1);

/// How long tunnels may take to end after they were cut.
const TUNNELS_END: Duration = Duration::from_secs(5);

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
    /// Ends the tunnels that are open.
    tunnels: CancellationToken,
    /// What the door itself changes, and since when: see [`Admission::reserve`].
    reserved: Option<(Housework, Instant)>,
}

impl State {
    /// A call under a fence that is not the current one does not count, unless it was admitted before: it will not be.
    fn is_kept(&self, key: &Key) -> bool {
        let current = self.fence.state().fence;
        self.keys
            .get(key)
            .is_some_and(|keeper| keeper.admitted || keeper.fence.is_none_or(|fence| fence == current))
    }
}

/// A call that keeps a key.
#[derive(Debug)]
struct Keeper {
    number: u64,
    fence: Option<u64>,
    admitted: bool,
}

/// What the door itself changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Housework {
    /// It starts opencode anew.
    Opencode,
    /// It closes the instance of a directory.
    Directory {
        /// The directory.
        directory: String,
        /// opencode's own.
        own: String,
    },
}

impl Housework {
    /// Whether a request of this class, which names this directory or opencode's own, and this cannot go on at once.
    fn disturbs(&self, class: &Class, named: &str) -> bool {
        match self {
            Self::Opencode => true,
            // A call that names a session and no directory may be for any.
            Self::Directory { directory, own } => {
                *class != Class::Read && (named == directory || (named == own && class.session().is_some()))
            }
        }
    }
}

#[derive(Debug, Clone)]
struct InFlight {
    class: Class,
    /// The directory that it names, or opencode's own.
    directory: String,
    fence: Option<u64>,
    since: Instant,
}

/// A call in flight, for one who waits for its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Pending {
    class: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fence: Option<u64>,
    /// How long it has been in flight.
    for_ms: u64,
}

impl Pending {
    /// What the door itself does.
    fn housework(since: Instant, now: Instant) -> Self {
        Self { class: "housework", session: None, fence: None, for_ms: milliseconds(since, now) }
    }
}

fn milliseconds(since: Instant, now: Instant) -> u64 {
    u64::try_from(now.saturating_duration_since(since).as_millis()).unwrap_or(u64::MAX)
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
}

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
    pub(crate) fn keeping(mut self, kept: Option<Kept>) -> Self {
        if let Some(kept) = &kept
            && let Some(keeper) = self.admission.state().keys.get_mut(&kept.key)
            && keeper.number == kept.number
        {
            keeper.admitted = true;
        }
        self.kept = kept;
        self
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
    /// With an open gate and a fence that nobody raised.
    pub(crate) fn new(journal: Arc<Journal>) -> Self {
        let state = State {
            fence: Fence::new(Uuid::new_v4().simple().to_string()),
            gate: Gate::default(),
            calls: BTreeMap::new(),
            next: 0,
            keys: BTreeMap::new(),
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

    /// Keeps the key of a call that came and is to change something, until what this gives is dropped: also before it is
    /// admitted, since a caller who goes away is not always noticed. No second one is kept meanwhile.
    pub(crate) fn keep(self: &Arc<Self>, key: Key, stamp: Option<&Stamp>) -> Result<Kept, Refusal> {
        let mut state = self.state();
        if let Some(stamp) = stamp {
            state.fence.check(stamp).map_err(|stale| Refusal::Stale(stale, state.fence.state()))?;
        }
        if state.is_kept(&key) {
            return Err(Refusal::Repeated);
        }
        let number = state.next;
        state.next += 1;
        let keeper = Keeper { number, fence: stamp.map(|stamp| stamp.fence), admitted: false };
        state.keys.insert(key.clone(), keeper);
        Ok(Kept { admission: Arc::clone(self), key, number })
    }

    /// Whether a call with this key goes on, so that what it makes is not there to be seen yet.
    pub(crate) fn is_kept(&self, key: &Key) -> bool {
        self.state().is_kept(key)
    }

    /// Keeps everything out that `work` disturbs, until what this gives is dropped; nothing while the gate is held, or
    /// while such a request is in flight. A read that goes on for longer than [`READ`] does not count: it is a stream,
    /// which every end of opencode cuts.
    pub(crate) fn reserve(self: &Arc<Self>, work: Housework) -> Option<Reserved> {
        self.with(|state, now| {
            let counts = |call: &InFlight| {
                call.class != Class::Read || now.saturating_duration_since(call.since) <= READ
            };
            let in_flight =
                state.calls.values().any(|call| counts(call) && work.disturbs(&call.class, &call.directory));
            if state.reserved.is_some() || in_flight || !state.gate.is_open() {
                return None;
            }
            state.reserved = Some((work, now));
            Some(Reserved(Arc::clone(self)))
        })
    }

    /// Whether a request is in flight that names this directory.
    pub(crate) fn is_named(&self, directory: &str) -> bool {
        self.state().calls.values().any(|call| call.directory == directory)
    }

    /// Waits until nothing is reserved.
    pub(crate) async fn released(&self) {
        let mut changed = self.changed.subscribe();
        while self.with(|state, _| state.reserved.is_some()) {
            // The sender lives as long as this.
            let _ = changed.changed().await;
        }
    }

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

    /// Takes, keeps or moves on the gate; gives the generation.
    pub(crate) fn hold(&self, hold: &Hold) -> Result<u64, GateError> {
        self.with(|state, now| state.gate.hold(now, hold))
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
        let before = state.gate.state(now);
        let result = change(state);
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

/// The oldest of the calls that are meant.
fn pending(calls: &BTreeMap<u64, InFlight>, now: Instant, meant: impl Fn(&InFlight) -> bool) -> Vec<Pending> {
    let meant = calls.values().filter(|call| meant(call)).take(NAMED);
    meant
        .map(|call| Pending {
            class: call.class.name(),
            session: call.class.session().map(str::to_owned),
            fence: call.fence,
            for_ms: milliseconds(call.since, now),
        })
        .collect()
}

/// What the door's own work disturbs is not admitted until this is dropped.
#[derive(Debug)]
pub(crate) struct Reserved(Arc<Admission>);

impl Drop for Reserved {
    fn drop(&mut self) {
        self.0.state().reserved = None;
        self.0.changed.send_replace(());
    }
}

/// The key of a call that goes on.
#[derive(Debug)]
pub(crate) struct Kept {
    admission: Arc<Admission>,
    key: Key,
    number: u64,
}

impl Drop for Kept {
    fn drop(&mut self) {
        let mut state = self.admission.state();
        if state.keys.get(&self.key).is_some_and(|keeper| keeper.number == self.number) {
            state.keys.remove(&self.key);
        }
    }
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

#[cfg(test)]
mod tests;
