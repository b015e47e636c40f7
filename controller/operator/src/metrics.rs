//! What the operator counts, for Prometheus. Every label has a handful of values. Pure: atomics only.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use berth_api::{ConditionType, Reason, Sandbox, condition::find};
use kube::{core::DeserializeGuard, runtime::reflector::Store};
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder, text},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

/// Upper bounds of the times that a pass takes, in seconds.
const TIMES: [f64; 10] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

/// All sandboxes, as the watch knows them.
type Sandboxes = Store<DeserializeGuard<Sandbox>>;

/// The operator's counters; clones count together.
#[derive(Clone)]
pub struct Metrics {
    passes: Family<Passed, Counter>,
    pass_times: Histogram,
    /// Passes that go on now.
    pub(crate) passing: Gauge,
    transitions: Family<Standing, Counter>,
    removed: Family<Removed, Counter>,
    pub(crate) passwords_exchanged: Counter,
    /// 1 while this one works, 0 while it waits for another one.
    pub(crate) leading: Gauge,
    sandboxes: Family<Standing, Gauge>,
    known: Arc<Mutex<Option<Sandboxes>>>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// Label of a pass over a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Passed {
    result: &'static str,
}

/// Label of something that was shared by a namespace's sandboxes, and that nobody used any more.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Removed {
    kind: &'static str,
}

/// How a sandbox stands: status and reason of its condition `Ready`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Standing {
    ready: &'static str,
    reason: ReasonLabel,
}

/// `None` before the first pass, and where the reason is another version's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct ReasonLabel(Option<Reason>);

impl EncodeLabelValue for ReasonLabel {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        self.0.map_or("none", Reason::as_str).encode(encoder)
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            passes: Family::default(),
            pass_times: Histogram::new(TIMES),
            passing: Gauge::default(),
            transitions: Family::default(),
            removed: Family::default(),
            passwords_exchanged: Counter::default(),
            leading: Gauge::default(),
            sandboxes: Family::default(),
            known: Arc::default(),
        }
    }
}

impl Metrics {
    fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("berth_operator");
        registry.register("reconciles", "Passes over sandboxes that ended", self.passes.clone());
        registry.register("reconcile_seconds", "How long passes took", self.pass_times.clone());
        registry.register("reconciling", "Passes that go on now", self.passing.clone());
        registry.register(
            "transitions",
            "Sandboxes whose Ready turned, or got another reason",
            self.transitions.clone(),
        );
        registry.register(
            "unused_removed",
            "Network policies and Services that nobody used any more and that were removed",
            self.removed.clone(),
        );
        registry.register(
            "passwords_exchanged",
            "Doors that got another password",
            self.passwords_exchanged.clone(),
        );
        registry.register(
            "leading",
            "1 while this operator works, 0 while another one does",
            self.leading.clone(),
        );
        registry.register("sandboxes", "Sandboxes by their condition Ready", self.sandboxes.clone());
    }

    /// A pass ended.
    pub(crate) fn passed(&self, is_ok: bool, seconds: f64) {
        self.passes.get_or_create(&Passed { result: if is_ok { "success" } else { "error" } }).inc();
        self.pass_times.observe(seconds);
    }

    /// `Ready` turned, or got another reason.
    pub(crate) fn turned(&self, ready: &'static str, reason: Reason) {
        self.transitions.get_or_create(&Standing { ready, reason: ReasonLabel(Some(reason)) }).inc();
    }

    /// Something was removed that nobody used any more.
    pub(crate) fn swept(&self, kind: &'static str) {
        self.removed.get_or_create(&Removed { kind }).inc();
    }

    /// Where sandboxes are counted from then on.
    pub(crate) fn know(&self, sandboxes: Sandboxes) {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(sandboxes);
    }

    fn count_sandboxes(&self) {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.sandboxes.clear();
        for sandbox in known.iter().flat_map(Store::state) {
            self.sandboxes.get_or_create(&standing(&sandbox)).inc();
        }
    }

    /// Everything as text, in the format of `OpenMetrics`.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        self.count_sandboxes();
        let (mut registry, mut shown) = (Registry::default(), String::new());
        self.register(&mut registry);
        text::encode(&mut shown, &registry)?;
        Ok(shown)
    }
}

fn standing(sandbox: &DeserializeGuard<Sandbox>) -> Standing {
    let status = sandbox.0.as_ref().ok().and_then(|sandbox| sandbox.status.as_ref());
    let told = status.and_then(|status| find(&status.conditions, ConditionType::Ready));
    let reason = told.and_then(|told| Reason::ALL.iter().find(|reason| reason.as_str() == told.reason));
    let ready = match told.map(|told| told.status.as_str()) {
        Some("True") => "True",
        Some("False") => "False",
        _ => "Unknown",
    };
    Standing { ready, reason: ReasonLabel(reason.copied()) }
}

#[cfg(test)]
mod tests {
    use kube::runtime::{reflector, watcher};
    use serde_json::json;

    use super::*;
    use crate::build::sample;

    #[test]
    fn what_was_counted_is_shown() {
        let metrics = Metrics::default();
        metrics.passed(true, 0.02);
        metrics.passed(false, 0.02);
        metrics.turned("False", Reason::ImagePullBackOff);
        metrics.leading.set(1);
        let (known, mut writer) = reflector::store();
        metrics.know(known);
        let mut ready = sample::sandbox(json!({}));
        ready.status = serde_json::from_value(json!({ "conditions": [{
            "type": "Ready", "status": "True", "reason": "Available", "message": "", "lastTransitionTime": "2026-11-30T12:00:00Z",
        }] }))
        .unwrap();
        let mut new = sample::sandbox(json!({}));
        new.metadata.name = Some("two".to_owned());
        for sandbox in [ready, new] {
            writer.apply_watcher_event(&watcher::Event::Apply(DeserializeGuard(Ok(sandbox))));
        }
        let text = metrics.encode().unwrap();
        for line in [
            "berth_operator_reconciles_total{result=\"success\"} 1",
            "berth_operator_reconciles_total{result=\"error\"} 1",
            "berth_operator_reconcile_seconds_bucket{le=\"0.025\"} 2",
            "berth_operator_transitions_total{ready=\"False\",reason=\"ImagePullBackOff\"} 1",
            "berth_operator_leading 1",
            "berth_operator_sandboxes{ready=\"True\",reason=\"Available\"} 1",
            "berth_operator_sandboxes{ready=\"Unknown\",reason=\"none\"} 1",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line}\n{text}");
        }
        assert!(!text.contains("team"), "names are no labels");
    }
}
