//! Calls that were admitted and have not ended, and what one is told who waits for them. Pure.

use std::collections::BTreeMap;

use serde::Serialize;
use tokio::time::Instant;

use crate::class::Class;

/// Calls that are named at most to one who waits for them.
const NAMED: usize = 16;

/// A call that was admitted.
#[derive(Debug, Clone)]
pub(super) struct InFlight {
    pub(super) class: Class,
    /// The directory that it names, or opencode's own.
    pub(super) directory: String,
    pub(super) fence: Option<u64>,
    pub(super) since: Instant,
}

/// A call in flight, for one who waits for its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Pending {
    pub(super) class: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) session: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fence: Option<u64>,
    /// How long it has been in flight.
    pub(super) for_ms: u64,
}

impl Pending {
    /// What the door itself does.
    pub(super) fn housework(since: Instant, now: Instant) -> Self {
        Self { class: "housework", session: None, fence: None, for_ms: milliseconds(since, now) }
    }
}

fn milliseconds(since: Instant, now: Instant) -> u64 {
    u64::try_from(now.saturating_duration_since(since).as_millis()).unwrap_or(u64::MAX)
}

/// The oldest of the calls that are meant.
pub(super) fn pending(
    calls: &BTreeMap<u64, InFlight>,
    now: Instant,
    meant: impl Fn(&InFlight) -> bool,
) -> Vec<Pending> {
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
