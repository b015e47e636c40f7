//! What a supervisor counts, for Prometheus. Every label has a handful of values. Pure: atomics only.

use berth_wire::door::ExitCause;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};

use crate::{ServeMemory, ServePhase};

/// A supervisor's counters; clones count together. The default is registered nowhere.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    /// Starts of opencode, failed ones too.
    pub(crate) starts: Counter,
    /// Ends of opencode.
    pub(crate) exits: Family<Ended, Counter>,
    /// Health requests that were not answered well in time, once opencode answered.
    pub(crate) health_misses: Counter,
    /// Processes beside opencode that the kernel killed for memory.
    pub(crate) tool_oom_kills: Counter,
    /// Processes that opencode left behind and that were ended.
    pub(crate) swept: Counter,
    /// Orphans that were adopted and have ended by themselves.
    pub(crate) reaped: Counter,
    /// Connections to the control address that were closed at once because there were too many.
    pub(crate) refused_connections: Counter,
    phase: Family<InPhase, Gauge>,
    memory: Family<MemoryOf, Gauge>,
}

/// Labels of [`Metrics::exits`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Ended {
    cause: String,
}

impl From<ExitCause> for Ended {
    fn from(cause: ExitCause) -> Self {
        Self { cause: format!("{cause:?}") }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InPhase {
    phase: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MemoryOf {
    of: &'static str,
}

impl Metrics {
    /// Names them in a registry.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("berth_serve");
        registry.register("starts", "Starts of opencode, failed ones too", self.starts.clone());
        registry.register("exits", "Ends of opencode", self.exits.clone());
        registry.register("health_misses", "Health requests without an answer", self.health_misses.clone());
        let help = "Processes beside opencode that were killed for memory";
        registry.register("tool_out_of_memory_kills", help, self.tool_oom_kills.clone());
        let help = "Processes that opencode left behind and that were ended";
        registry.register("processes_swept", help, self.swept.clone());
        let help = "Adopted processes that ended by themselves";
        registry.register("processes_reaped", help, self.reaped.clone());
        let help = "Connections to the control address over the limit";
        registry.register("refused_connections", help, self.refused_connections.clone());
        registry.register("phase", "1 for the phase of opencode's life", self.phase.clone());
        let help = "Resident memory, read for this answer";
        registry.register_with_unit("memory", help, Unit::Bytes, self.memory.clone());
    }

    /// Takes what is only looked at when somebody asks.
    pub(crate) fn look(&self, phase: ServePhase, memory: ServeMemory) {
        for (name, of) in [
            ("starting", ServePhase::Starting),
            ("ready", ServePhase::Ready),
            ("wedged", ServePhase::Wedged),
            ("stopped", ServePhase::Stopped),
        ] {
            self.phase.get_or_create(&InPhase { phase: name }).set(i64::from(of == phase));
        }
        for (of, bytes) in [("opencode", memory.opencode), ("tools", memory.tools)] {
            self.memory.get_or_create(&MemoryOf { of }).set(i64::try_from(bytes).unwrap_or(i64::MAX));
        }
    }
}
