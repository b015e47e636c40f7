//! What recordings are expected to show: the manifest beside the fixtures, which tests and `berth debug replay` hold
//! replays against. Pure.

use std::{collections::BTreeMap, fmt};

use berth_wire::turn::{TurnError, TurnOutcome, TurnState};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Replay;
use crate::translate::TurnPhase;

/// What a recording is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Every turn in it came to its end, and its translation breaks no rule.
    Complete,
    /// A turn in it does not come to its end, or events are missing.
    Incomplete,
    /// It cannot be read, or its translation breaks a rule.
    Faulty,
    /// It can be read, and no turn is in it.
    NotATurnStream,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&name_of(self))
    }
}

/// Where a turn stands at the end of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// The agent came to an end of its own.
    Succeeded,
    /// It failed.
    Failed,
    /// Somebody cancelled it.
    Cancelled,
    /// Its outcome cannot be proved.
    Unknown,
    /// The prompt was shown, and nothing more.
    NotStarted,
    /// It had started.
    NotEnded,
}

impl End {
    /// It ended.
    pub fn is_end(self) -> bool {
        !matches!(self, Self::NotStarted | Self::NotEnded)
    }
}

/// How a turn ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TurnEnd {
    /// Where it stands.
    pub end: End,
    /// Stop reason, reason of the failure, or the reason for which a turn that did not end was to be aborted; as in
    /// the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl TurnEnd {
    /// Of a turn that ended.
    pub fn of(outcome: &TurnOutcome) -> Self {
        let end = match outcome.state {
            TurnState::Succeeded => End::Succeeded,
            TurnState::Failed => End::Failed,
            TurnState::Cancelled => End::Cancelled,
            TurnState::Unknown => End::Unknown,
            TurnState::Queued => End::NotStarted,
            TurnState::Running => End::NotEnded,
        };
        let stopped = outcome.stop_reason.as_ref().map(name_of);
        Self { end, reason: stopped.or_else(|| outcome.error.as_ref().map(|error| name_of(&error.reason))) }
    }

    /// Of a turn that did not end, and that was to be aborted for this error.
    pub fn open(phase: TurnPhase, aborted: Option<&TurnError>) -> Self {
        let end = if phase == TurnPhase::Started { End::NotEnded } else { End::NotStarted };
        Self { end, reason: aborted.map(|error| name_of(&error.reason)) }
    }
}

impl fmt::Display for TurnEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&name_of(&self.end))?;
        self.reason.iter().try_for_each(|reason| write!(f, " {reason}"))
    }
}

/// The name that a plain enum has in JSON.
fn name_of<T: Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(name)) => name,
        other => format!("{other:?}"),
    }
}

/// What a replay came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// What the recording is.
    pub verdict: Verdict,
    /// How each turn ended, session by session in order of first sight.
    pub turns: Vec<TurnEnd>,
}

impl Seen {
    /// Of a replay whose translation broke so many rules.
    pub fn of(replay: &Replay, violations: usize) -> Self {
        Self { verdict: replay.verdict(violations), turns: replay.turns() }
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let turns: Vec<String> = self.turns.iter().map(ToString::to_string).collect();
        match turns.as_slice() {
            [] => write!(f, "{}", self.verdict),
            turns => write!(f, "{}: {}", self.verdict, turns.join(", ")),
        }
    }
}

/// What is known of one recording.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Version of opencode that sent it.
    pub version: String,
    /// What was done while it was recorded, in words.
    pub shows: String,
    /// What its replay must come to.
    #[serde(flatten)]
    pub expected: Seen,
}

/// The manifest: an entry for each recording, by file name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Manifest {
    /// The entries.
    pub entries: BTreeMap<String, Entry>,
}

/// Why a replay is not as expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// It came to something else.
    #[error("expected {expected}; seen {seen}")]
    Differs {
        /// What the manifest says.
        expected: Seen,
        /// What the replay came to.
        seen: Seen,
    },
    /// The manifest does not know the file.
    #[error("not in the manifest; seen {0}")]
    NotListed(Seen),
}

impl Manifest {
    /// Reads a manifest.
    pub fn read(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// Holds what a replay of the file came to against its entry.
    pub fn compare(&self, file: &str, seen: &Seen) -> Result<(), Mismatch> {
        match self.entries.get(file) {
            Some(entry) if entry.expected == *seen => Ok(()),
            Some(entry) => Err(Mismatch::Differs { expected: entry.expected.clone(), seen: seen.clone() }),
            None => Err(Mismatch::NotListed(seen.clone())),
        }
    }
}
