//! The table against sequences of requests and events as opencode sends them.

use std::{collections::VecDeque, time::Duration};

use berth_wire::door::{TurnEnding, TurnOrigin, TurnPhase};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Seen,
    peek::Found,
    session::{Evidence, Listed, Plan},
    spoilt::Spoil,
    table::{Idleness, Table, Working},
    turn::{Action, Admission, Now, Out, Ticket},
};

mod captures;
mod sequences;

const BOUND: Duration = Duration::from_mins(1);

/// A table, its clock, and what came out of it.
struct Rig {
    table: Table,
    elapsed: Duration,
    told: VecDeque<String>,
    actions: VecDeque<Action>,
}

impl Rig {
    /// Of a run of opencode that is heard from its beginning.
    fn new() -> Self {
        let mut rig = Self {
            table: Table::new(BOUND),
            elapsed: Duration::from_secs(1),
            told: VecDeque::new(),
            actions: VecDeque::new(),
        };
        rig.change(|table, now, out| table.hears("boot", true, now, out));
        rig
    }

    fn now(&self) -> Now {
        Now {
            elapsed: self.elapsed,
            unix: Timestamp::from_millisecond(1_800_000_000_000).unwrap() + self.elapsed,
        }
    }

    fn change<T>(&mut self, change: impl FnOnce(&mut Table, Now, &mut Out) -> T) -> T {
        let mut out = Out::default();
        let now = self.now();
        let result = change(&mut self.table, now, &mut out);
        self.told.extend(out.events.into_iter().map(|event| {
            let message = event.message_id.as_deref().unwrap_or("-").to_owned();
            match (event.phase, event.outcome) {
                (TurnPhase::Ended, Some(ending)) => format!("{} {message} {ending:?}", event.session_id),
                (phase, None) => format!("{} {message} {phase:?}", event.session_id),
                odd => panic!("{odd:?}"),
            }
        }));
        self.actions.extend(out.actions);
        result
    }

    fn pass(&mut self, time: Duration) {
        self.elapsed += time;
        self.change(Table::tick);
    }

    /// A prompt passes whole.
    fn prompt(&mut self, session: &str, id: Option<&str>) -> Ticket {
        let admission = Admission {
            session: session.to_owned(),
            directory: "/w".to_owned(),
            origin: TurnOrigin::External,
        };
        let ticket = self.change(|table, now, out| table.admit("boot", &admission, now, out));
        let ticket = ticket.unwrap().unwrap();
        self.learned(&ticket, &Found { message_id: id.map(str::to_owned), ..Found::default() });
        ticket
    }

    fn learned(&mut self, ticket: &Ticket, found: &Found) {
        self.change(|table, now, out| table.learned(ticket, found, now, out));
    }

    fn accepted(&mut self, ticket: &Ticket) {
        self.change(|table, now, out| table.accepted(ticket, now, out));
    }

    fn event(&mut self, kind: &str, properties: &Value) {
        let payload = json!({"type": kind, "properties": properties}).to_string();
        let Some(seen) = Seen::read(kind, &payload) else { panic!("{payload} is not seen") };
        self.change(|table, now, out| table.observe(Some("/w"), &seen, now, out));
    }

    fn user(&mut self, session: &str, id: &str) {
        let info = json!({"id": id, "role": "user", "sessionID": session, "time": {}});
        self.event("message.updated", &json!({ "info": info }));
    }

    fn assistant(&mut self, session: &str, id: &str, parent: &str, completed: bool) {
        let time = if completed { json!({"created": 1, "completed": 2}) } else { json!({"created": 1}) };
        let info =
            json!({"id": id, "role": "assistant", "parentID": parent, "sessionID": session, "time": time});
        self.event("message.updated", &json!({"sessionID": session, "info": info}));
    }

    fn status(&mut self, session: &str, kind: &str) {
        self.event("session.status", &json!({"sessionID": session, "status": {"type": kind}}));
    }

    fn busy(&mut self, session: &str) {
        self.status(session, "busy");
    }

    /// Both of its events.
    fn idle(&mut self, session: &str) {
        self.status(session, "idle");
        self.event("session.idle", &json!({ "sessionID": session }));
    }

    fn error(&mut self, session: &str) {
        self.event("session.error", &json!({"sessionID": session, "error": {"name": "UnknownError"}}));
    }

    fn child(&mut self, session: &str, parent: &str) {
        let info = json!({"id": session, "parentID": parent});
        self.event("session.created", &json!({"sessionID": session, "info": info}));
    }

    fn abort(&mut self, session: &str) -> Plan {
        self.change(|table, now, out| table.abort(session, "/w", now, out))
    }

    fn abort_returned(&mut self, session: &str) {
        self.change(|table, now, out| table.abort_returned(session, now, out));
    }

    fn confirmed(&mut self, session: &str, evidence: &Evidence) {
        self.change(|table, now, out| table.confirmed(session, evidence, now, out));
    }

    /// What was told since the last time.
    fn told(&mut self) -> Vec<String> {
        self.told.drain(..).collect()
    }

    fn is_idle(&self) -> bool {
        self.table.idleness() == Idleness::Idle
    }

    #[track_caller]
    fn expect(&mut self, told: &[&str], idle: bool) {
        assert_eq!(self.told(), told);
        assert_eq!(self.is_idle(), idle, "{:?}", self.table.view());
    }
}

fn absent(messages: &[(&str, Option<&str>, bool)]) -> Evidence {
    let messages = messages.iter().map(|(id, parent, completed)| Listed {
        id: (*id).to_owned(),
        parent: parent.map(str::to_owned),
        completed: *completed,
    });
    Evidence::Answered { busy: false, messages: messages.collect() }
}

fn confirm(session: &str) -> Action {
    Action::Confirm { session: session.to_owned(), directory: "/w".to_owned() }
}

fn send_abort(session: &str) -> Action {
    Action::SendAbort { session: session.to_owned(), directory: "/w".to_owned() }
}
