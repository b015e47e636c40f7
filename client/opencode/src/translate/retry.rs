//! Calls of the provider that opencode tries again: told once each, and watched until they were tried. Pure.

use serde::{Deserialize, Serialize};

use super::outcome;
use crate::model::SessionStatus;

/// A provider's call that is tried again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Retry {
    pub(super) attempt: u64,
    /// The provider's words.
    pub(super) message: String,
    /// When it is due, in Unix milliseconds; 0 when that was not told.
    pub(super) next: i64,
    /// It was not tried yet.
    pub(super) waits: bool,
}

impl Retry {
    /// Takes a session's status; the retry, when it was not told before.
    pub(super) fn note(known: &mut Option<Self>, status: &SessionStatus) -> Option<Self> {
        let SessionStatus::Retry { attempt, message, next } = status else {
            if let Some(known) = known {
                known.waits = false;
            }
            return None;
        };
        let told = known.as_ref().is_some_and(|known| (known.attempt, known.next) == (*attempt, *next));
        let retry = Self { attempt: *attempt, message: outcome::words(message), next: *next, waits: true };
        *known = Some(retry.clone());
        (!told).then_some(retry)
    }
}
