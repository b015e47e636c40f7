//! What a door counts, for Prometheus. Every label has a handful of values. Pure: atomics only.

use std::fmt::{self, Write as _};

use berth_wire::problem::ProblemType;
use http::StatusCode;
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

mod journal;
mod turns;

pub(crate) use journal::{CutReason, JournalMetrics};
pub(crate) use turns::TurnMetrics;

/// Upper bounds of the waits for a start, in seconds. The longest wait is [`crate::DoorConfig::start_wait`].
const WAITS: [f64; 9] = [0.01, 0.05, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0];

/// A door's counters; clones count together. The default is registered nowhere.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Requests that were answered.
    pub(crate) requests: Family<Answered, Counter>,
    /// Requests that the door itself refused.
    pub(crate) refusals: Family<Refused, Counter>,
    /// Requests without credentials or with wrong ones, but for the probe.
    pub(crate) authentication_failures: Counter,
    /// Bytes of request bodies that were passed on.
    pub(crate) received_bytes: Counter,
    /// Bytes of the bodies of fenced calls that are held now.
    pub(crate) fenced_bytes: Gauge,
    /// Bytes of answers' bodies, event streams included.
    pub(crate) sent_bytes: Counter,
    /// Connections that are open now, tunnels among them.
    pub(crate) connections: Gauge,
    /// Connections that were closed at once because there were too many.
    pub(crate) refused_connections: Counter,
    /// Connections to opencode that could not be made.
    pub(crate) upstream_connect_failures: Counter,
    /// Files of the door's secret that could not be used, each time they were read.
    pub(crate) unusable_secrets: Counter,
    /// Runs of opencode whose own directory was warmed.
    pub(crate) prewarmed: Counter,
    /// Directories that were disposed of.
    pub(crate) disposed_directories: Counter,
    /// Directories whose instance was renewed because an abort may have spoilt it.
    pub(crate) renewed_directories: Counter,
    /// Prompts that came while a directory could not be renewed that an abort may have spoilt.
    pub(crate) renewals_put_off: Counter,
    /// Starts of opencode for its memory.
    pub(crate) recycled: Counter,
    /// Starts of opencode for a configuration that was changed.
    pub(crate) reconfigured: Counter,
    /// Requests for a directory whose configuration was changed that did not wait for such a start.
    pub(crate) mendings_put_off: Counter,
    /// How long requests waited for opencode that came while it did not answer.
    pub(crate) start_waits: Histogram,
    /// The journal and its subscribers.
    pub(crate) journal: JournalMetrics,
    /// The turn table's.
    pub(crate) turns: TurnMetrics,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            requests: Family::default(),
            refusals: Family::default(),
            authentication_failures: Counter::default(),
            received_bytes: Counter::default(),
            fenced_bytes: Gauge::default(),
            sent_bytes: Counter::default(),
            connections: Gauge::default(),
            refused_connections: Counter::default(),
            upstream_connect_failures: Counter::default(),
            unusable_secrets: Counter::default(),
            prewarmed: Counter::default(),
            disposed_directories: Counter::default(),
            renewed_directories: Counter::default(),
            renewals_put_off: Counter::default(),
            recycled: Counter::default(),
            reconfigured: Counter::default(),
            mendings_put_off: Counter::default(),
            start_waits: Histogram::new(WAITS),
            journal: JournalMetrics::default(),
            turns: TurnMetrics::default(),
        }
    }
}

impl Metrics {
    /// Counters that this registry shows, as `berth_door_*`.
    pub fn register(registry: &mut Registry) -> Self {
        let registry = registry.sub_registry_with_prefix("berth_door");
        let (journal, turns) = (JournalMetrics::register(registry), TurnMetrics::register(registry));
        let metrics = Self { journal, turns, ..Self::default() };
        let mut counter = |name: &str, help: &str, counter: &Counter| {
            registry.register(name, help, counter.clone());
        };
        counter("prewarmed", "Runs of opencode whose own directory was warmed", &metrics.prewarmed);
        counter(
            "disposed_directories",
            "Idle directories over the cap that were disposed of",
            &metrics.disposed_directories,
        );
        counter(
            "renewed_directories",
            "Directories whose instance was renewed because an abort may have spoilt it",
            &metrics.renewed_directories,
        );
        counter(
            "renewals_put_off",
            "Prompts for a directory that an abort may have spoilt and that could not be renewed",
            &metrics.renewals_put_off,
        );
        counter("recycled", "Starts of an idle opencode for its memory", &metrics.recycled);
        counter(
            "reconfigured",
            "Starts of an idle opencode for a configuration that was changed",
            &metrics.reconfigured,
        );
        counter(
            "mendings_put_off",
            "Requests for a directory with a changed configuration that a start could not precede",
            &metrics.mendings_put_off,
        );
        counter(
            "authentication_failures",
            "Requests without credentials or with wrong ones",
            &metrics.authentication_failures,
        );
        counter("received_bytes", "Bytes of request bodies that were passed on", &metrics.received_bytes);
        counter("sent_bytes", "Bytes of bodies of answers", &metrics.sent_bytes);
        counter(
            "refused_connections",
            "Connections over the limit that were closed at once",
            &metrics.refused_connections,
        );
        counter(
            "upstream_connect_failures",
            "Connections to opencode that could not be made",
            &metrics.upstream_connect_failures,
        );
        counter(
            "unusable_secrets",
            "Files of the door's secret that could not be used",
            &metrics.unusable_secrets,
        );
        registry.register("requests", "Requests that were answered", metrics.requests.clone());
        registry.register("refusals", "Requests that the door itself refused", metrics.refusals.clone());
        registry.register(
            "fenced_bytes",
            "Bytes of the bodies of fenced calls that are held now",
            metrics.fenced_bytes.clone(),
        );
        registry.register("connections", "Connections that are open now", metrics.connections.clone());
        registry.register(
            "start_wait_seconds",
            "How long requests waited for opencode to answer",
            metrics.start_waits.clone(),
        );
        metrics
    }

    /// Counts an answer.
    pub(crate) fn answered(&self, route: Route, status: StatusCode, refused: Option<ProblemType>) {
        self.requests.get_or_create(&Answered { route, status: StatusClass::of(status) }).inc();
        if let Some(problem) = refused {
            self.refusals.get_or_create(&Refused { problem: Slug(problem) }).inc();
        }
    }
}

/// Labels of an answered request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Answered {
    route: Route,
    status: StatusClass,
}

/// What kind of route a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Route {
    /// `/doc`.
    Document,
    /// An event stream.
    Events,
    /// Something of the door's own.
    Door,
    /// What a browser asks before it sends a request.
    Preflight,
    /// Everything else of opencode's.
    Opencode,
}

impl EncodeLabelValue for Route {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), fmt::Error> {
        encoder.write_str(match self {
            Self::Document => "document",
            Self::Events => "events",
            Self::Door => "door",
            Self::Preflight => "preflight",
            Self::Opencode => "opencode",
        })
    }
}

/// The first digit of a status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct StatusClass(u16);

impl StatusClass {
    fn of(status: StatusCode) -> Self {
        Self(status.as_u16() / 100)
    }
}

impl EncodeLabelValue for StatusClass {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), fmt::Error> {
        write!(encoder, "{}xx", self.0)
    }
}

/// Labels of a refusal.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Refused {
    problem: Slug,
}

/// A problem type as a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Slug(ProblemType);

impl EncodeLabelValue for Slug {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), fmt::Error> {
        encoder.write_str(self.0.slug())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_shown_by_name() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        metrics.answered(Route::Opencode, StatusCode::OK, None);
        metrics.answered(Route::Opencode, StatusCode::NO_CONTENT, None);
        metrics.answered(Route::Events, StatusCode::UNAUTHORIZED, Some(ProblemType::Unauthorized));
        metrics.clone().sent_bytes.inc_by(7);
        metrics.connections.inc();
        metrics.start_waits.observe(0.3);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "berth_door_requests_total{route=\"opencode\",status=\"2xx\"} 2",
            "berth_door_requests_total{route=\"events\",status=\"4xx\"} 1",
            "berth_door_refusals_total{problem=\"unauthorized\"} 1",
            "berth_door_sent_bytes_total 7",
            "berth_door_connections 1",
            "berth_door_turn_restarts_total 0",
            "berth_door_start_wait_seconds_bucket{le=\"0.5\"} 1",
            "berth_door_dropped_frames_total 0",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} in {text}");
        }
    }
}
