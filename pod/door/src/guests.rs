//! Connections that have not given the password yet. They may not stay long, and when every place is taken the oldest of
//! them makes room, so that nobody is kept out by connections that never say who they are. Pure but for the clock.

use std::{
    collections::BTreeMap,
    future::pending,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// All guests of a door, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Guests(Mutex<Register>);

#[derive(Debug, Default)]
struct Register {
    next: u64,
    tokens: BTreeMap<u64, CancellationToken>,
}

impl Guests {
    /// A connection that has just come.
    pub(crate) fn enter(self: &Arc<Self>) -> Arc<Guest> {
        let mut register = self.lock();
        let (id, cut) = (register.next, CancellationToken::new());
        register.next += 1;
        register.tokens.insert(id, cut.clone());
        let stay = Mutex::new(Stay { known: false, busy: 0, idle_since: Instant::now() });
        Arc::new(Guest { id, guests: Arc::clone(self), cut, stay })
    }

    /// Cuts the oldest guest; false when there is none.
    pub(crate) fn cut_oldest(&self) -> bool {
        self.lock().tokens.pop_first().is_some_and(|(_, cut)| {
            cut.cancel();
            true
        })
    }

    fn lock(&self) -> MutexGuard<'_, Register> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One connection, a guest until [`Guest::is_known`].
#[derive(Debug)]
pub(crate) struct Guest {
    id: u64,
    guests: Arc<Guests>,
    cut: CancellationToken,
    stay: Mutex<Stay>,
}

#[derive(Debug)]
struct Stay {
    known: bool,
    /// Requests that are being answered.
    busy: usize,
    /// The connection's beginning, or the end of its newest answer.
    idle_since: Instant,
}

impl Guest {
    /// It gave the password: it may stay.
    pub(crate) fn is_known(&self) {
        let mut stay = self.lock();
        if !stay.known {
            stay.known = true;
            self.guests.lock().tokens.remove(&self.id);
        }
    }

    /// A request of it is being answered until the returned value is dropped.
    pub(crate) fn busy(self: &Arc<Self>) -> Busy {
        self.lock().busy += 1;
        Busy(Arc::clone(self))
    }

    /// Returns when it must go: it made room for another, or said nothing for `bound` and gave no password.
    pub(crate) async fn overstays(&self, bound: Duration) {
        tokio::select! {
            () = self.cut.cancelled() => {}
            () = self.idles(bound) => {}
        }
    }

    async fn idles(&self, bound: Duration) {
        while let Some(until) = self.idle_until(bound) {
            if until <= Instant::now() {
                return;
            }
            sleep_until(until).await;
        }
        pending::<()>().await;
    }

    /// When it is to be looked at again; `None` for one that is known.
    fn idle_until(&self, bound: Duration) -> Option<Instant> {
        let stay = self.lock();
        let since = if stay.busy == 0 { stay.idle_since } else { Instant::now() };
        (!stay.known).then(|| since + bound)
    }

    fn lock(&self) -> MutexGuard<'_, Stay> {
        self.stay.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.guests.lock().tokens.remove(&self.id);
    }
}

/// A request in work.
#[derive(Debug)]
pub(crate) struct Busy(Arc<Guest>);

impl Drop for Busy {
    fn drop(&mut self) {
        let mut stay = self.0.lock();
        stay.busy -= 1;
        stay.idle_since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn the_oldest_guest_makes_room_and_who_is_known_stays() {
        let guests = Arc::<Guests>::default();
        let [first, second, third] = [guests.enter(), guests.enter(), guests.enter()];
        first.is_known();
        drop(third);
        assert!(guests.cut_oldest());
        second.overstays(BOUND).await;
        assert!(!first.cut.is_cancelled());
        assert!(!guests.cut_oldest());
    }

    #[tokio::test]
    async fn a_guest_is_looked_at_again_when_its_bound_is_over() {
        let guest = Arc::<Guests>::default().enter();
        let begun = guest.idle_until(BOUND).unwrap();
        let busy = guest.busy();
        assert!(guest.idle_until(BOUND).unwrap() >= begun);
        guest.overstays(Duration::ZERO).await;
        drop(busy);
        guest.overstays(Duration::ZERO).await;
        guest.is_known();
        assert_eq!(guest.idle_until(BOUND), None);
    }
}
