//! What a turn waits for, as [`crate::watchdog`] must know it. Pure.

use super::{SessionTranslator, turn::Turn};

/// What a watchdog must know of a turn that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    /// opencode has begun it.
    pub started: bool,
    /// An abort is wanted already.
    pub aborting: bool,
    /// Calls of the model so far.
    pub steps: u64,
    /// What is waited for.
    pub awaits: Awaits,
    /// The provider's call that is tried again last, of those that are waited for.
    pub retry: Option<DueRetry>,
}

/// What a turn waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaits {
    /// A person, who gives a permission or an answer. Tools may run meanwhile.
    Person,
    /// A tool, in the session or in a subagent.
    Tool,
    /// The model, or opencode itself.
    Model,
}

/// A call of the provider that is to be tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueRetry {
    /// The provider's words.
    pub message: String,
    /// When, in Unix milliseconds of opencode's clock.
    pub at_ms: i64,
}

impl SessionTranslator {
    /// What a watchdog must know of the turn; none without a turn.
    pub fn observe(&self) -> Option<Observation> {
        let turn = self.turn.as_ref()?;
        let last = turn.retries().max_by_key(|retry| retry.next);
        Some(Observation {
            started: turn.is_started(),
            aborting: turn.abort_wanted(),
            steps: turn.step_count(),
            awaits: self.awaits(turn),
            retry: last.map(|retry| DueRetry { message: retry.message.clone(), at_ms: retry.next }),
        })
    }

    fn awaits(&self, turn: &Turn) -> Awaits {
        if self.asks.any_open() {
            Awaits::Person
        } else if turn.tools.any_runs() || turn.family.any_runs() {
            Awaits::Tool
        } else {
            Awaits::Model
        }
    }
}
