//! A session between tables: stages as they are reached in life, and what a step decided, in words.

use std::{sync::Arc, time::Duration};

use berth_opencode::{ClientError, Ensured, EnsuredHow, GlobalEvent, model::SessionInfo};
use berth_wire::{
    api::PromptPart,
    door::TurnEnding,
    event::EventPayload,
    problem::{Problem, ProblemType},
};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;
use uuid::Uuid;

use super::super::{Input, Moment, Output, Session, Stage};
use crate::{
    config::Limits,
    directory::Unready,
    runner::{
        calls::{CallResult, Look, PrepareError, Request},
        readiness::Waited,
    },
    store::{Change, OpenTurn, SessionWork, TurnOptions},
};

pub(super) const SESSION: Uuid = Uuid::from_u128(1);
pub(super) const FIRST: Uuid = Uuid::from_u128(11);
pub(super) const SECOND: Uuid = Uuid::from_u128(12);

/// A session, the clock of its test, and what its last step decided, in words.
pub(super) struct Bench {
    pub(super) session: Session,
    pub(super) work: SessionWork,
    pub(super) at: Moment,
    pub(super) did: Vec<String>,
}

pub(super) fn turn(id: Uuid) -> OpenTurn {
    OpenTurn {
        id,
        prompt: vec![PromptPart::text("go")],
        message_id: None,
        cancel_requested: false,
        queued_at: Timestamp::UNIX_EPOCH,
        started_at: None,
        options: TurnOptions::default(),
        active: Duration::ZERO,
    }
}

pub(super) fn work() -> SessionWork {
    SessionWork {
        id: SESSION,
        directory: "/work".to_owned(),
        title: None,
        opencode_session_id: None,
        translator: None,
        deleted: false,
        prompted: false,
        running: None,
        queued: None,
        asks: Vec::new(),
        rules: Vec::new(),
        unreadable: Vec::new(),
    }
}

pub(super) fn message_id() -> String {
    "msg_1".to_owned()
}

pub(super) fn event(kind: &str, mut properties: Value) -> GlobalEvent {
    properties["sessionID"] = json!("ses_1");
    let payload = json!({ "type": kind, "properties": properties });
    GlobalEvent::from_value(json!({ "directory": "/work", "payload": payload })).expect("an event")
}

pub(super) fn status(kind: &str) -> GlobalEvent {
    event("session.status", json!({ "status": { "type": kind } }))
}

pub(super) fn prompt_stored() -> GlobalEvent {
    let info = json!({ "id": "msg_1", "sessionID": "ses_1", "role": "user", "time": { "created": 1 } });
    event("message.updated", json!({ "info": info }))
}

pub(super) fn answer(time: Value, more: &Value) -> GlobalEvent {
    let mut info = json!({ "id": "msg_2", "sessionID": "ses_1", "role": "assistant", "parentID": "msg_1" });
    info["time"] = time;
    for (name, value) in more.as_object().into_iter().flatten() {
        info[name.as_str()] = value.clone();
    }
    event("message.updated", json!({ "info": info }))
}

/// The model has said all of its answer.
pub(super) fn step_finish() -> GlobalEvent {
    let part = json!({ "id": "prt_9", "sessionID": "ses_1", "messageID": "msg_2", "type": "step-finish" });
    event("message.part.updated", json!({ "part": part }))
}

/// The answer ends as aborted.
pub(super) fn abort() -> GlobalEvent {
    let error = json!({ "error": { "name": "MessageAbortedError", "data": {} } });
    answer(json!({ "created": 2, "completed": 3 }), &error)
}

pub(super) fn asked() -> GlobalEvent {
    let tool = json!({ "messageID": "msg_2", "callID": "call_1" });
    event(
        "permission.asked",
        json!({ "id": "per_1", "permission": "bash", "patterns": ["ls"], "metadata": {}, "always": [], "tool": tool }),
    )
}

pub(super) fn prepared(id: &str, how: EnsuredHow) -> CallResult {
    let session: SessionInfo =
        serde_json::from_value(json!({ "id": id, "directory": "/work" })).expect("a session");
    CallResult::Prepared(Ok(Ensured { session, how }))
}

pub(super) fn unprepared(error: impl Into<PrepareError>) -> CallResult {
    CallResult::Prepared(Err(error.into()))
}

pub(super) fn late() -> ClientError {
    ClientError::Timeout { limit: Duration::from_secs(1) }
}

pub(super) fn refused(status: u16, name: &str) -> ClientError {
    ClientError::Status { status, name: name.to_owned(), message: String::new() }
}

pub(super) fn gated() -> ClientError {
    ClientError::Gated(Box::new(Problem::new(ProblemType::Gated, "a snapshot")))
}

/// What is done, in a word or three.
pub(super) fn words(output: &Output) -> String {
    match output {
        Output::Call(_, request) => match request {
            Request::Prepare(_) => "prepare".to_owned(),
            Request::Post(_) => "post".to_owned(),
            Request::Look { .. } => "look".to_owned(),
            Request::Abort => "abort".to_owned(),
            Request::Reply(id, reply) => format!("reply {id} {reply:?}"),
            Request::Delete(_) => "delete".to_owned(),
        },
        Output::Begin(beginning) => format!("begin {}", beginning.turn.id.as_u128()),
        Output::Reread => "reread".to_owned(),
        Output::Remove => "remove".to_owned(),
        Output::Change(change) => match change {
            Change::OpencodeSession { id } => format!("session {id}"),
            Change::TurnActive { active, .. } => format!("active {}", active.as_secs()),
            Change::AskOpened { id, .. } => format!("ask {id}"),
            Change::AskResolved { id } => format!("asked {id}"),
            // Its end is in the log too.
            _ => String::new(),
        },
        Output::Log(event) => match &event.payload {
            EventPayload::TurnEnded(outcome) => match &outcome.error {
                Some(error) => format!("{:?} {:?}", outcome.state, error.reason),
                None => format!("{:?}", outcome.state),
            },
            EventPayload::SessionReset(_) => "reset".to_owned(),
            _ => String::new(),
        },
    }
}

impl Bench {
    pub(super) fn new(work: SessionWork) -> Self {
        let at = Moment { now: Instant::now(), clock: Timestamp::UNIX_EPOCH, open: true };
        let limits = Arc::new(Limits::default());
        let session = Session::new(work.clone(), &limits, message_id, at.now);
        Self { session, work, at, did: Vec::new() }
    }

    pub(super) fn step(mut self, input: Input<'_>) -> Self {
        let outputs = self.session.step(input, &self.at);
        self.did = outputs.iter().map(words).filter(|words| !words.is_empty()).collect();
        self
    }

    pub(super) fn rows(mut self, change: impl FnOnce(&mut SessionWork)) -> Self {
        change(&mut self.work);
        let rows = Box::new(self.work.clone());
        self.step(Input::Rows(Some(rows)))
    }

    pub(super) fn hear(self, event: &GlobalEvent) -> Self {
        self.step(Input::Event(event))
    }

    /// The door's word on the end of the running turn.
    pub(super) fn word(self, ending: TurnEnding) -> Self {
        self.step(Input::EndedAtDoor(Some("msg_1"), ending))
    }

    pub(super) fn done(self, result: CallResult) -> Self {
        let turn = self.session.turn_id();
        self.step(Input::Done(turn, result))
    }

    pub(super) fn wait(mut self, time: Duration) -> Self {
        self.at.now += time;
        self.at.clock += time;
        self
    }

    pub(super) fn tick_after(self, time: Duration) -> Self {
        self.wait(time).step(Input::Tick)
    }

    /// The sandbox is not ready; its programs run, or it has no place from now on.
    pub(super) fn unready(mut self, runs: bool) -> Self {
        let (reason, message) = ("Unschedulable".to_owned(), "no node".to_owned());
        let why = Arc::new(Unready { reason, message, runs });
        let unplaced_since = (!runs).then_some(self.at.now);
        self.session.note_unready(Some(Waited { why, unplaced_since }));
        self
    }

    pub(super) fn open(mut self, open: bool) -> Self {
        self.at.open = open;
        self
    }

    pub(super) fn wants_snapshot(&self) -> bool {
        self.session.wants_snapshot(self.at.now)
    }

    pub(super) fn snapshot(self) -> Self {
        self.step(Input::Snapshot(Ok(Box::default())))
    }

    pub(super) fn stage(&self) -> &'static str {
        match self.session.stage {
            Stage::Rest => "rest",
            Stage::Preparing => "preparing",
            Stage::Starting(_) => "starting",
            Stage::Running(_) => "running",
            Stage::Deleting => "deleting",
        }
    }

    // Stages, each reached as it is in life.

    pub(super) fn rest() -> Self {
        Self::new(work()).rows(|_| {})
    }

    pub(super) fn preparing() -> Self {
        Self::rest().rows(|work| work.queued = Some(turn(FIRST)))
    }

    pub(super) fn starting() -> Self {
        Self::preparing().done(prepared("ses_1", EnsuredHow::Created))
    }

    /// The prompt is on its way.
    pub(super) fn posting() -> Self {
        let mut bench = Self::starting().step(Input::Begun(true));
        bench.work.opencode_session_id = Some("ses_1".to_owned());
        bench.rows(|work| {
            let queued = work.queued.take();
            work.running = queued.map(|turn| OpenTurn { message_id: Some("msg_1".to_owned()), ..turn });
        })
    }

    pub(super) fn admitted() -> Self {
        Self::posting().done(CallResult::Posted(Ok(())))
    }

    /// It broke: nobody knows whether the prompt arrived.
    pub(super) fn doubtful() -> Self {
        Self::posting().done(CallResult::Posted(Err(late())))
    }

    pub(super) fn looking() -> Self {
        Self::doubtful().step(Input::Tick)
    }

    pub(super) fn started() -> Self {
        Self::admitted().hear(&prompt_stored()).hear(&status("busy"))
    }

    pub(super) fn answering() -> Self {
        Self::started().hear(&answer(json!({ "created": 2 }), &json!({})))
    }

    pub(super) fn asking() -> Self {
        Self::answering().hear(&asked())
    }

    pub(super) fn cancelled(self) -> Self {
        self.rows(|work| work.running.as_mut().expect("it runs").cancel_requested = true)
    }

    /// The prompt is handed over once a minute, for so many, while the gate is closed; what came of the last one is
    /// looked up.
    pub(super) fn gated(self, minutes: u32) -> Self {
        let minute = Duration::from_mins(1);
        let refused = || CallResult::Posted(Err(gated()));
        (1..minutes).fold(self.done(refused()).tick_after(minute), |bench, _| {
            if bench.did != ["look"] {
                return bench;
            }
            bench.done(CallResult::Looked(Ok(Look::Nothing))).done(refused()).tick_after(minute)
        })
    }

    /// opencode is looked at once a minute, for so many, while the gate is closed.
    pub(super) fn kept_out(self, minutes: u32) -> Self {
        let minute = Duration::from_mins(1);
        (0..minutes).fold(self, |bench, _| {
            if bench.did != ["prepare"] {
                return bench;
            }
            bench.done(unprepared(gated())).tick_after(minute)
        })
    }

    /// It is to end, but the first abort did not arrive.
    pub(super) fn unaborted() -> Self {
        Self::started().cancelled().done(CallResult::Aborted(Err(late())))
    }

    pub(super) fn finished() -> Self {
        let done = answer(json!({ "created": 2, "completed": 3 }), &json!({ "finish": "stop" }));
        Self::answering().hear(&step_finish()).hear(&done).hear(&status("idle"))
    }

    /// A turn ended badly; another one waits.
    pub(super) fn after_a_failure() -> Self {
        Self::answering().step(Input::BootEnded("killed")).rows(|work| {
            work.running = None;
            work.queued = Some(turn(SECOND));
        })
    }

    pub(super) fn deleting() -> Self {
        Self::rest().rows(|work| {
            work.opencode_session_id = Some("ses_1".to_owned());
            work.deleted = true;
        })
    }
}
