//! What a door counts of turns. Pure: atomics only.

use prometheus_client::{metrics::counter::Counter, registry::Registry};

/// Counters of the turn table.
#[derive(Debug, Clone, Default)]
pub(crate) struct TurnMetrics {
    /// Sessions in which nothing ran and that were forgotten, because there were too many.
    pub(crate) forgotten_sessions: Counter,
    /// Aborts that waited for their turn to begin or to end.
    pub(crate) held_aborts: Counter,
    /// Aborts that the door sent itself: for a turn that began after its abort, or that went on after one.
    pub(crate) own_aborts: Counter,
    /// Restarts of opencode that were asked for because a prompt never began.
    pub(crate) restarts: Counter,
}

impl TurnMetrics {
    /// Counters that this registry shows.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let mut counter = |name: &str, help: &str, counter: &Counter| {
            registry.register(name, help, counter.clone());
        };
        counter("turn_forgotten_sessions", "Sessions that were forgotten", &metrics.forgotten_sessions);
        counter("turn_held_aborts", "Aborts that waited for their turn", &metrics.held_aborts);
        counter("turn_own_aborts", "Aborts that the door sent itself", &metrics.own_aborts);
        counter(
            "turn_restarts",
            "Restarts that were asked for because a prompt never began",
            &metrics.restarts,
        );
        metrics
    }
}
