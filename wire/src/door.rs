//! The door's cursor and its own events, which it mixes into opencode's stream.
//!
//! The journal gives each event of `/global/event` an id `<epoch>-<seq>`: `seq` is dense from 1, `epoch` is new
//! whenever continuity cannot be proved. Own events have the shape of opencode's server-level ones:
//! `{"payload":{"type":"berth.resync","properties":{...}}}`.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::admission::{FenceState, GatePhase, GateState};

/// Position in a door's journal, written `<epoch>-<seq>`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Cursor {
    /// Names one unbroken run of the journal: 1 to 64 characters of `[A-Za-z0-9]`.
    pub epoch: String,
    /// Number of the event in its epoch, from 1; 0 is the position before the first.
    pub seq: u64,
}

/// A string that is not a cursor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a journal cursor: expected <epoch>-<seq>, such as 0198f2-17")]
pub struct CursorError;

impl FromStr for Cursor {
    type Err = CursorError;

    fn from_str(text: &str) -> Result<Self, CursorError> {
        let (epoch, seq) = text.split_once('-').ok_or(CursorError)?;
        let epoch_ok = (1..=64).contains(&epoch.len()) && epoch.bytes().all(|b| b.is_ascii_alphanumeric());
        let seq_ok = !seq.is_empty() && seq.bytes().all(|b| b.is_ascii_digit());
        if !epoch_ok || !seq_ok {
            return Err(CursorError);
        }
        Ok(Self { epoch: epoch.to_owned(), seq: seq.parse().map_err(|_| CursorError)? })
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.epoch, self.seq)
    }
}

/// Why a subscriber cannot be given what it asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResyncReason {
    /// The cursor is of another epoch.
    EpochChanged,
    /// The events after the cursor have left the ring.
    Expired,
    /// The cursor is ahead of the journal, or not a cursor.
    InvalidCursor,
    /// The upstream stream broke while opencode lived: events may be missing.
    UpstreamGap,
}

/// What ended an opencode process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitCause {
    /// It ended by itself.
    Exited,
    /// A signal that we did not send ended it.
    Killed,
    /// The supervisor was asked to stop it.
    Stopped,
    /// It did not answer and was ended for it.
    Wedged,
    /// It was idle, held too much memory, and was started anew.
    Recycled,
    /// It took a prompt, never began with it, and was started anew.
    NeverStarted,
    /// It was idle, and was started anew since a configuration file was changed that it could not use before.
    Reconfigured,
    /// It could not be started, or never said that it listens.
    StartFailed,
    /// The kernel killed it, since its container used more memory than it may.
    OutOfMemory,
    /// Its supervisor died and took it along, so nobody saw how it ended.
    SupervisorLost,
}

/// Events that the door adds to opencode's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", content = "properties")]
pub enum DoorEvent {
    /// What the subscriber knows may be incomplete: read state again. Sent without a hole before it only when
    /// `reason` is `upstream_gap`.
    #[serde(rename = "berth.resync")]
    Resync {
        /// Why.
        reason: ResyncReason,
        /// Id of the oldest event still held, if any.
        oldest: Option<String>,
    },
    /// opencode answers.
    #[serde(rename = "berth.serve.started")]
    ServeStarted {
        /// How many times it has been started since the supervisor started, from 1.
        boot: u64,
        /// Names this run of opencode; never used twice.
        boot_id: String,
        /// Its version.
        version: String,
    },
    /// opencode ended; every event that it had sent stands before this one.
    #[serde(rename = "berth.serve.exited")]
    ServeExited {
        /// The boot that ended.
        boot: u64,
        /// Names the run that ended.
        boot_id: String,
        /// Exit code, if it exited.
        exit: Option<i32>,
        /// Signal number, if a signal ended it.
        signal: Option<i32>,
        /// What ended it.
        cause: ExitCause,
    },
    /// The kernel killed processes beside opencode, tools for instance, since the container used more memory than it
    /// may. opencode lives on.
    #[serde(rename = "berth.tool.out_of_memory")]
    ToolOutOfMemory {
        /// Names the run of opencode.
        boot_id: String,
        /// How many were killed since the event of this kind before.
        count: u64,
    },
    /// A turn went on to its next phase. Stands right after the event of opencode's that shows it.
    #[serde(rename = "berth.turn")]
    Turn(TurnEvent),
    /// The gate lets more or less through than before.
    #[serde(rename = "berth.gate")]
    Gate {
        /// How much it lets through now.
        phase: GatePhase,
        /// The lease that is meant.
        generation: u64,
        /// Who holds it, or held it.
        owner: String,
        /// Why.
        reason: String,
    },
}

impl DoorEvent {
    /// The event as JSON in the envelope of `/global/event`.
    pub fn to_global_json(&self) -> serde_json::Value {
        serde_json::json!({ "payload": self })
    }
}

/// Where a turn stands, as the door saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TurnPhase {
    /// Its prompt was passed to opencode, and nothing shows yet that it runs.
    Admitted,
    /// It runs.
    Started,
    /// It is over: the agent does nothing for it any more.
    Ended,
}

/// Who asked for a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TurnOrigin {
    /// Berth's server, which fences its calls.
    Berth,
    /// Anybody else, or nobody knows.
    External,
}

/// How a turn ended, as the door saw it. What came of it is in opencode's own events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TurnEnding {
    /// Its session went idle.
    Idle,
    /// An abort ended it, or ended it before it began.
    Aborted,
    /// opencode ended it as if it had been aborted, and nobody had asked for that.
    Interrupted,
    /// opencode refused the prompt, or it never arrived there.
    Refused,
    /// opencode took the prompt, reported an error, and did not begin.
    Failed,
    /// opencode took the prompt and did not begin within the bound.
    NeverStarted,
    /// opencode closed the instance of its directory.
    Disposed,
    /// opencode itself ended.
    Exited,
    /// Its end was not seen; nothing runs any more.
    Unknown,
}

/// A step in the life of a turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnEvent {
    /// opencode's session.
    pub session_id: String,
    /// Directory in whose instance it runs, as far as it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// opencode's id of the prompt, once it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    /// Where it stands now.
    pub phase: TurnPhase,
    /// Who asked for it.
    pub origin: TurnOrigin,
    /// How it ended, when it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<TurnEnding>,
}

/// Whether anything runs in an opencode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    /// Nothing runs, and nothing is admitted.
    Idle,
    /// Something runs, or will.
    Busy,
    /// The door does not know yet: it found an opencode that already ran, or missed events of it.
    Unknown,
}

/// The door's turn table, as `GET /berth/turns` tells an authenticated caller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoorTurns {
    /// All of it in one word.
    pub activity: Activity,
    /// The sessions in which something runs or is admitted, at most 1,000.
    pub sessions: Vec<DoorSession>,
    /// How many more there are.
    pub omitted: usize,
}

/// A session in the door's turn table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoorSession {
    /// opencode's session.
    pub session_id: String,
    /// Directory in whose instance it runs, as far as it is known.
    pub directory: Option<String>,
    /// The session for which it works, when it is a subagent's.
    pub parent_id: Option<String>,
    /// opencode works in it: from its `busy` or `retry` to its `idle`.
    pub busy: bool,
    /// Its turns that have not ended, oldest first. Empty for a subagent's session.
    pub turns: Vec<DoorTurn>,
}

/// A turn in the door's turn table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoorTurn {
    /// opencode's id of the prompt, once it is known.
    pub message_id: Option<String>,
    /// Where it stands; never ended.
    pub phase: TurnPhase,
    /// Who asked for it.
    pub origin: TurnOrigin,
    /// When its prompt was passed on, or its run was first seen.
    pub since: jiff::Timestamp,
    /// An abort was asked for.
    pub aborting: bool,
}

/// State of opencode, as `GET /berth/state` at the door tells an authenticated caller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoorState {
    /// Where opencode stands.
    pub phase: crate::api::SandboxPhase,
    /// Current or last boot; 0 before the first.
    pub boot: u64,
    /// Names the current or last run of opencode; empty before the first.
    pub boot_id: String,
    /// Process id of opencode, while it runs.
    pub pid: Option<u32>,
    /// Its version, once it has answered.
    pub version: Option<String>,
    /// The journal's epoch.
    pub epoch: String,
    /// Number of the journal's newest event; 0 when empty.
    pub seq: u64,
    /// The fence.
    #[serde(default)]
    pub fence: FenceState,
    /// The gate.
    #[serde(default)]
    pub gate: GateState,
    /// Why the last start or run ended, in words, if it did.
    pub last_exit: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::{Cursor, DoorEvent, ResyncReason, TurnEnding, TurnEvent, TurnOrigin, TurnPhase};

    #[test]
    fn cursor_round_trips_and_refuses_the_rest() {
        let cursor: Cursor = "a1b2-17".parse().unwrap();
        assert_eq!((cursor.epoch.as_str(), cursor.seq), ("a1b2", 17));
        assert_eq!(cursor.to_string(), "a1b2-17");
        for bad in ["", "-", "a", "a-", "-1", "a--1", "a-+1", "a-1x", "a b-1", "a-99999999999999999999"] {
            assert!(bad.parse::<Cursor>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn own_events_have_the_shape_of_opencodes() {
        let event = DoorEvent::Resync { reason: ResyncReason::Expired, oldest: Some("e-3".to_owned()) };
        let json = event.to_global_json();
        assert_eq!(json["payload"]["type"], "berth.resync");
        assert_eq!(json["payload"]["properties"]["reason"], "expired");
        assert_eq!(serde_json::from_value::<DoorEvent>(json["payload"].clone()).unwrap(), event);
        let event = DoorEvent::Turn(TurnEvent {
            session_id: "ses_1".to_owned(),
            directory: Some("/w".to_owned()),
            message_id: None,
            phase: TurnPhase::Ended,
            origin: TurnOrigin::External,
            outcome: Some(TurnEnding::NeverStarted),
        });
        let json = event.to_global_json();
        assert_eq!(json["payload"]["type"], "berth.turn");
        assert_eq!(json["payload"]["properties"]["outcome"], "never_started");
        assert_eq!(serde_json::from_value::<DoorEvent>(json["payload"].clone()).unwrap(), event);
    }
}
