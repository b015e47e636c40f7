//! What the server counts, for Prometheus. Every label has a handful of values. Pure: atomics only.

use std::fmt::{self, Write as _};

use berth_wire::turn::{TurnErrorReason, TurnOutcome, TurnState};
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use serde::Serialize;

/// Upper bounds of the times until answers begin, in seconds. The longest is [`crate::Limits::request`].
const TIMES: [f64; 10] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0];

/// The server's counters; clones count together. The default is registered nowhere.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Requests that were answered.
    pub(crate) requests: Family<Answered, Counter>,
    /// How long answers took to begin.
    pub(crate) times: Family<RouteLabel, Histogram>,
    /// Event streams that are open now.
    pub(crate) streams: Gauge,
    /// Events that were sent on event streams.
    pub(crate) events_sent: Counter,
    /// Turns that came to their end.
    pub(crate) turns_ended: Family<Ended, Counter>,
    /// Turns that wait or run, as of the last scrape.
    pub(crate) open_turns: Family<OpenLabel, Gauge>,
    /// Calls of runners to doors that came to their end.
    pub(crate) calls: Family<Called, Counter>,
    /// Owners of sandboxes that broke off by a defect.
    pub(crate) owner_defects: Counter,
}

/// Labels of an answered request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Answered {
    /// The route as it is declared, or `none`.
    pub(crate) route: String,
    pub(crate) method: &'static str,
    pub(crate) status: u16,
}

/// Label of a route.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RouteLabel {
    pub(crate) route: String,
}

/// Labels of a turn's end.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Ended {
    outcome: Name<TurnState>,
    /// Why it failed; `none` where it did not.
    reason: ReasonLabel,
}

/// Label of open turns.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct OpenLabel {
    pub(crate) state: Name<TurnState>,
}

/// Labels of a runner's call.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Called {
    pub(crate) call: &'static str,
    pub(crate) result: &'static str,
}

/// A value by its name in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Name<T>(pub(crate) T);

impl<T: Serialize> EncodeLabelValue for Name<T> {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        let name = serde_json::to_string(&self.0).map_err(|_| fmt::Error)?;
        encoder.write_str(name.trim_matches('"'))
    }
}

/// Why a turn failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ReasonLabel(Option<TurnErrorReason>);

impl EncodeLabelValue for ReasonLabel {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        match self.0 {
            Some(reason) => Name(reason).encode(encoder),
            None => encoder.write_str("none"),
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            requests: Family::default(),
            times: Family::new_with_constructor(|| Histogram::new(TIMES)),
            streams: Gauge::default(),
            events_sent: Counter::default(),
            turns_ended: Family::default(),
            open_turns: Family::default(),
            calls: Family::default(),
            owner_defects: Counter::default(),
        }
    }
}

impl Metrics {
    /// Shows these counters in a registry, as `berth_server_*`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("berth_server");
        registry.register("requests", "Requests that were answered", self.requests.clone());
        registry.register("request_seconds", "Time until answers began", self.times.clone());
        registry.register("event_streams", "Event streams that are open now", self.streams.clone());
        registry.register("events_sent", "Events that were sent on event streams", self.events_sent.clone());
        registry.register("turns_ended", "Turns that came to their end", self.turns_ended.clone());
        registry.register("open_turns", "Turns that wait or run", self.open_turns.clone());
        registry.register("runner_calls", "Calls of runners to doors that ended", self.calls.clone());
        let defects = self.owner_defects.clone();
        registry.register("owner_defects", "Owners of sandboxes that broke off by a defect", defects);
    }

    /// A request was answered.
    pub(crate) fn answered(&self, answered: &Answered, seconds: f64) {
        let label = RouteLabel { route: answered.route.clone() };
        self.times.get_or_create(&label).observe(seconds);
        self.requests.get_or_create(answered).inc();
    }

    /// A turn ended.
    pub(crate) fn turn_ended(&self, outcome: &TurnOutcome) {
        let reason = ReasonLabel(outcome.error.as_ref().map(|error| error.reason));
        self.turns_ended.get_or_create(&Ended { outcome: Name(outcome.state), reason }).inc();
    }

    /// How many turns wait, and how many run.
    pub(crate) fn set_open_turns(&self, queued: i64, running: i64) {
        for (state, count) in [(TurnState::Queued, queued), (TurnState::Running, running)] {
            self.open_turns.get_or_create(&OpenLabel { state: Name(state) }).set(count);
        }
    }

    /// A call of a runner ended.
    pub(crate) fn called(&self, call: &'static str, is_ok: bool) {
        let result = if is_ok { "ok" } else { "error" };
        self.calls.get_or_create(&Called { call, result }).inc();
    }

    /// Everything as text.
    pub(crate) fn encode(&self) -> Result<String, fmt::Error> {
        let (mut registry, mut text) = (Registry::default(), String::new());
        self.register(&mut registry);
        prometheus_client::encoding::text::encode(&mut text, &registry)?;
        Ok(text)
    }
}

/// Counts an event stream while it is open.
#[derive(Debug)]
pub(crate) struct OpenStream(Gauge);

impl OpenStream {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        metrics.streams.inc();
        Self(metrics.streams.clone())
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_is_shown() {
        let metrics = Metrics::default();
        let route = "/v1/turns/{id}".to_owned();
        metrics.answered(&Answered { route, method: "GET", status: 404 }, 0.002);
        metrics.turn_ended(&TurnOutcome::failed(TurnErrorReason::RateLimited, "x"));
        metrics.turn_ended(&TurnOutcome::cancelled());
        metrics.set_open_turns(3, 1);
        metrics.called("post", false);
        let stream = OpenStream::new(&metrics);
        let text = metrics.encode().unwrap();
        for line in [
            "berth_server_requests_total{route=\"/v1/turns/{id}\",method=\"GET\",status=\"404\"} 1",
            "berth_server_request_seconds_bucket{le=\"0.005\",route=\"/v1/turns/{id}\"} 1",
            "berth_server_turns_ended_total{outcome=\"failed\",reason=\"RateLimited\"} 1",
            "berth_server_turns_ended_total{outcome=\"cancelled\",reason=\"none\"} 1",
            "berth_server_open_turns{state=\"queued\"} 3",
            "berth_server_runner_calls_total{call=\"post\",result=\"error\"} 1",
            "berth_server_event_streams 1",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line}\n{text}");
        }
        drop(stream);
        assert!(metrics.encode().unwrap().contains("berth_server_event_streams 0"));
    }
}
