//! What the journal and its subscribers count. Pure: atomics only.

use std::{
    fmt::{self, Write as _},
    sync::atomic::AtomicU64,
};

use berth_wire::door::ResyncReason;
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// The journal's counters; clones count together.
#[derive(Debug, Clone, Default)]
pub(crate) struct JournalMetrics {
    /// Events that were appended, the door's own included.
    appended: Counter,
    /// Events that later ones superseded.
    superseded: Counter,
    /// Frames of opencode's event stream that are no events.
    pub(crate) dropped_frames: Counter,
    /// Bytes held, with what they cost to hold.
    bytes: Gauge,
    /// How far back the events held reach, in seconds, when the newest came.
    held: Gauge<f64, AtomicU64>,
    /// Epochs that began.
    pub(crate) epochs: Counter,
    /// Times that a subscriber, or all of them, had to be told to read the state again.
    resyncs: Family<Resynced, Counter>,
    /// Subscribers now.
    pub(crate) subscribers: Gauge,
    /// Subscribers that the door cut.
    cut: Family<Cut, Counter>,
}

impl JournalMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register("journal_appended", "Events that were appended", metrics.appended.clone());
        registry.register(
            "journal_superseded",
            "Events that later ones made superfluous",
            metrics.superseded.clone(),
        );
        registry.register(
            "dropped_frames",
            "Frames of opencode's event stream that are no events",
            metrics.dropped_frames.clone(),
        );
        registry.register("journal_bytes", "Bytes that the journal holds", metrics.bytes.clone());
        registry.register(
            "journal_held_seconds",
            "How far back the journal reached when the newest event came",
            metrics.held.clone(),
        );
        registry.register("journal_epochs", "Epochs that began", metrics.epochs.clone());
        registry.register(
            "journal_resyncs",
            "Times that a subscriber, or all of them, were told to read the state again",
            metrics.resyncs.clone(),
        );
        registry.register("subscribers", "Event subscribers now", metrics.subscribers.clone());
        registry.register("subscribers_cut", "Event subscribers that were too slow", metrics.cut.clone());
        metrics
    }

    /// Counts an event, and tells what the journal holds with it.
    pub(crate) fn appended(&self, superseded: bool, bytes: usize, held: f64) {
        self.appended.inc();
        self.superseded.inc_by(u64::from(superseded));
        self.bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
        self.held.set(held);
    }

    pub(crate) fn resync(&self, reason: ResyncReason) {
        self.resyncs.get_or_create(&Resynced { reason: Reason(reason) }).inc();
    }

    pub(crate) fn cut(&self, reason: CutReason) {
        self.cut.get_or_create(&Cut { reason }).inc();
    }
}

/// Why a subscriber was cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum CutReason {
    /// What it was to get next has left the journal.
    Behind,
    /// Its connection took no bytes for too long.
    Stalled,
}

impl EncodeLabelValue for CutReason {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), fmt::Error> {
        encoder.write_str(match self {
            Self::Behind => "behind",
            Self::Stalled => "stalled",
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Cut {
    reason: CutReason,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Resynced {
    reason: Reason,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Reason(ResyncReason);

impl EncodeLabelValue for Reason {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), fmt::Error> {
        encoder.write_str(match self.0 {
            ResyncReason::EpochChanged => "epoch_changed",
            ResyncReason::Expired => "expired",
            ResyncReason::InvalidCursor => "invalid_cursor",
            ResyncReason::UpstreamGap => "upstream_gap",
        })
    }
}
