//! What must hold of every session log, whatever made it: rules over its payloads, which report where they are broken.
//! Pure.
//!
//! ```
//! use berth_testkit::validate::{Entry, Extent, check};
//! use berth_wire::{
//!     event::{EventPayload, TurnStarted, Voice},
//!     turn::{TurnOutcome, TurnStopReason},
//! };
//!
//! let log = [
//!     EventPayload::TurnStarted(TurnStarted { prompt: Vec::new() }),
//!     EventPayload::chunk(Voice::Message, "prt_1", 3, "lo"),
//!     EventPayload::TurnEnded(TurnOutcome::succeeded(TurnStopReason::EndTurn)),
//! ];
//! let entries: Vec<Entry<'_>> = log.iter().map(|payload| Entry { turn: Some(1), payload }).collect();
//! let broken: Vec<String> = check(&entries, Extent::Whole).iter().map(ToString::to_string).collect();
//! assert_eq!(broken, [
//!     "entry 1: part prt_1 has a chunk at byte 3, but no beginning",
//!     "entry 2: the turn succeeded without usage",
//! ]);
//! ```

use std::{collections::BTreeMap, fmt};

use berth_wire::{
    event::{EventPayload, Resolution, Voice, acp},
    turn::{TurnState, TurnStopReason},
};

mod asks;
mod order;
mod outcome;
mod parts;
mod tools;

/// One entry of a log. `T` names turns: an id, or a number.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a, T = usize> {
    /// The turn it belongs to, if any.
    pub turn: Option<T>,
    /// What it says.
    pub payload: &'a EventPayload,
}

/// How much of a log is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// All of it: every turn that it shows must have ended.
    Whole,
    /// Its beginning: a turn may still run or wait.
    SoFar,
}

/// A rule that is broken, and where.
#[derive(Debug, Clone, PartialEq)]
pub struct Violation {
    /// Index of the entry in what was given; the number of entries when something is missing at the end.
    pub at: usize,
    /// What is wrong.
    pub what: Fault,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "entry {}: {}", self.at, self.what)
    }
}

/// What can be wrong with a log.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Fault {
    /// The payload does not have the shape of its kind.
    #[error("the payload of kind {0} does not have that kind's shape")]
    Malformed(String),
    /// A turn's content stands outside of any turn.
    #[error("{0} belongs to a turn, and is in none")]
    OutsideTurn(String),
    /// Content of a turn comes before its start.
    #[error("{0} comes before the turn has started")]
    BeforeStart(String),
    /// The turn was queued after it had begun.
    #[error("the turn is queued a second time, or after it has started")]
    QueuedLate,
    /// The turn started twice.
    #[error("the turn starts a second time")]
    StartedTwice,
    /// The turn started while another one ran.
    #[error("the turn starts while another one runs")]
    Overlap,
    /// The turn ended twice.
    #[error("the turn ends a second time")]
    EndedTwice,
    /// Something of the turn follows its end.
    #[error("{0} follows the turn's end")]
    AfterEnd(String),
    /// The turn never ended.
    #[error("the turn does not end")]
    NoEnd,
    /// The turn succeeded without having started.
    #[error("the turn succeeded, and has not started")]
    NeverStarted,

    /// A chunk does not say where it belongs.
    #[error("a chunk of text does not say which part it belongs to, and where in it")]
    NoPosition,
    /// An update of a part comes before its beginning.
    #[error("part {part} has a chunk at byte {offset}, but no beginning")]
    PartUnseen {
        /// The part.
        part: String,
        /// Where the chunk says that it starts.
        offset: u64,
    },
    /// A part is voided that was never there.
    #[error("part {0} is voided, but was never there")]
    VoidedUnseen(String),
    /// A chunk does not follow on the part's text: a hole or a double.
    #[error("part {part} has {length} bytes, and its next chunk starts at {offset}")]
    PartBroken {
        /// The part.
        part: String,
        /// Bytes so far.
        length: u64,
        /// Where the chunk says that it starts.
        offset: u64,
    },
    /// A part goes on after it was voided.
    #[error("part {0} goes on after it was voided")]
    AfterVoid(String),
    /// The part's id is one of another turn or of the other voice.
    #[error("the id of part {0} was used before, in another turn or voice")]
    PartReused(String),
    /// What the log folds to is not what the agent's backend said in the end.
    #[error("part {part} folds to {folded:?}, and is {wanted:?}")]
    TextDiffers {
        /// The part.
        part: String,
        /// What the log folds to; nothing when the part is not there.
        folded: Option<String>,
        /// What it must be; nothing when the part must not be there.
        wanted: Option<String>,
    },

    /// An update of a tool call comes before the call.
    #[error("tool call {0} is updated before it was told")]
    ToolUnseen(String),
    /// A tool call is told twice.
    #[error("tool call {0} is told a second time")]
    ToolReused(String),
    /// A tool runs, or has run, without complete input.
    #[error("tool call {0} runs before its input is complete")]
    ToolInputMissing(String),
    /// A tool's input is no complete JSON.
    #[error("the input of tool call {0} is not complete JSON")]
    ToolInputBroken(String),
    /// A tool call goes from running to pending.
    #[error("tool call {0} goes back to pending")]
    ToolWentBack(String),
    /// Something follows a tool call's final state.
    #[error("tool call {0} is updated after its final state")]
    ToolAfterFinal(String),
    /// A tool call has no final state when its turn ends.
    #[error("tool call {id} is left {status:?} when the turn ends")]
    ToolLeftOpen {
        /// The call.
        id: String,
        /// Its state.
        status: acp::ToolCallStatus,
    },

    /// A turn succeeded, and nothing says what it used.
    #[error("the turn succeeded without usage")]
    UsageMissing,
    /// The cost is no number that a cost can be.
    #[error("the turn's cost is {0}")]
    UsageNotNumeric(f64),
    /// A turn ended in a state that is not final.
    #[error("the turn ends in the state {0:?}")]
    NotFinal(TurnState),
    /// A turn stopped, and nothing says why.
    #[error("the turn is {0:?} without a stop reason")]
    StopReasonMissing(TurnState),
    /// The stop reason does not go with the state.
    #[error("the turn is {0:?} with the stop reason {1:?}")]
    StopReasonNotAllowed(TurnState, TurnStopReason),
    /// A turn failed, and nothing says why.
    #[error("the turn is {0:?} without an error")]
    ErrorMissing(TurnState),
    /// A turn came to an end of its own, and tells of an error.
    #[error("the turn is {0:?} with an error")]
    ErrorNotAllowed(TurnState),

    /// A request is asked twice.
    #[error("request {0} is asked a second time")]
    AskedTwice(String),
    /// A request is settled that nobody asked.
    #[error("request {0} is settled, but was not asked")]
    NeverAsked(String),
    /// A request is settled twice.
    #[error("request {0} is settled a second time")]
    SettledTwice(String),
    /// A request is settled in a way that it cannot be.
    #[error("request {id} is settled as {resolution:?}, which it cannot be")]
    ResolutionNotAllowed {
        /// The request.
        id: String,
        /// How.
        resolution: Resolution,
    },
    /// A request is open when its turn ends.
    #[error("request {0} is open when the turn ends")]
    AskLeftOpen(String),
}

/// Every rule over a session's log, from its beginning. In order of place.
pub fn check<T: Copy + Ord>(entries: &[Entry<'_, T>], extent: Extent) -> Vec<Violation> {
    let mut violations = order::check(entries, extent);
    violations.extend(parts::check(entries));
    violations.extend(tools::check(entries));
    violations.extend(outcome::check(entries));
    violations.extend(asks::check(entries));
    violations.sort_by_key(|violation| violation.at);
    violations
}

/// The log's text, part by part, against what the agent's backend said it is in the end. Parts that were voided do not
/// count; with [`Extent::SoFar`] a part may be missing from `finals`, since it is still open.
pub fn check_texts<T: Copy + Ord>(
    entries: &[Entry<'_, T>],
    finals: &BTreeMap<String, (Voice, String)>,
    extent: Extent,
) -> Vec<Violation> {
    parts::check_texts(entries, finals, extent)
}

/// Every rule over a log that was made by replaying a recording: each entry with the index of the event that brought
/// it about, which is what the violations name, and its turn. `finals` is as for [`check_texts`].
pub fn check_replay<T: Copy + Ord>(
    log: &[(usize, Option<T>, EventPayload)],
    finals: &BTreeMap<String, (Voice, String)>,
    extent: Extent,
) -> Vec<Violation> {
    let entries: Vec<Entry<'_, T>> =
        log.iter().map(|(_, turn, payload)| Entry { turn: *turn, payload }).collect();
    let mut violations = check(&entries, extent);
    violations.extend(check_texts(&entries, finals, extent));
    let last = log.last().map_or(0, |entry| entry.0);
    for violation in &mut violations {
        violation.at = log.get(violation.at).map_or(last, |entry| entry.0);
    }
    violations
}

/// Name of an entry's kind.
fn kind<T>(entry: &Entry<'_, T>) -> String {
    entry.payload.to_parts().0
}
