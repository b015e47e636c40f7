//! Prompts and aborts on their way through the door: what the turn table learns of each. IO.

use std::sync::Arc;

use berth_wire::{door::TurnOrigin, problem::ProblemType};
use http::{Response, StatusCode};
use tokio::time::timeout;

use super::{Admission, Plan, Ticket, TooMany, peek::Peek};
use crate::{
    Door, admission,
    body::Hook,
    class::Class,
    proxy::shutting_down,
    refusal::{DoorBody, full, refuse},
};

/// How much longer than a beginning a held abort may take.
const ABORT_MARGIN: std::time::Duration = std::time::Duration::from_secs(15);

/// The answer to a prompt that is one too many.
pub(crate) fn refuse_more(_: TooMany) -> Response<DoorBody> {
    refuse(ProblemType::QueueFull, "Too many turns of this session have not ended.")
}

/// A prompt that is being passed on. Dropped without an answer, it tells the table that nobody heard one.
#[derive(Debug)]
pub(crate) struct Call {
    door: Arc<Door>,
    ticket: Ticket,
    /// All of the request was sent, so opencode may run it whatever becomes of the connection.
    sent: Arc<std::sync::atomic::AtomicBool>,
    answered: bool,
}

impl Call {
    /// Admits a request of this class to this run of opencode, when it is a prompt whose turn shows in events.
    pub(crate) fn begin(
        door: &Arc<Door>,
        class: &Class,
        directory: &str,
        origin: TurnOrigin,
        boot_id: &str,
    ) -> Result<Option<Self>, TooMany> {
        let Class::Prompt { session: Some(session) } = class else { return Ok(None) };
        let admission = Admission { session: session.clone(), directory: directory.to_owned(), origin };
        let admitted =
            door.turns.change(&door.journal, |table, now, out| table.admit(boot_id, &admission, now, out));
        let ticket = match admitted {
            // The run is over: the connection will break.
            None => return Ok(None),
            Some(Ok(ticket)) => ticket,
            Some(Err(too_many)) => return Err(too_many),
        };
        Ok(Some(Self { door: Arc::clone(door), ticket, sent: Arc::default(), answered: false }))
    }

    /// What looks at the request's body as it passes to opencode.
    pub(crate) fn watcher(&self) -> Watcher {
        Watcher {
            door: Arc::clone(&self.door),
            ticket: self.ticket.clone(),
            peek: Some(Peek::new()),
            sent: Arc::clone(&self.sent),
        }
    }

    /// opencode answered. A body that comes with a turn's end is watched for its own.
    pub(crate) fn answer(mut self, status: StatusCode) -> Option<Answer> {
        self.answered = true;
        let (door, ticket) = (Arc::clone(&self.door), self.ticket.clone());
        let journal = &door.journal;
        if !status.is_success() {
            door.turns.change(journal, |table, now, out| table.refused(&ticket, now, out));
            return None;
        }
        door.turns.change(journal, |table, now, out| table.accepted(&ticket, now, out));
        (status != StatusCode::NO_CONTENT).then(|| Answer { door: Arc::clone(&self.door), ticket })
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        // A prompt that was sent whole runs though its connection is cut (measured on opencode 1.18.33).
        if !self.answered && !self.sent.load(std::sync::atomic::Ordering::Relaxed) {
            let door = &self.door;
            door.turns.change(&door.journal, |table, now, out| table.refused(&self.ticket, now, out));
        }
    }
}

/// The answer to a call that lasts as long as its turn.
#[derive(Debug)]
pub(crate) struct Answer {
    door: Arc<Door>,
    ticket: Ticket,
}

impl Hook for Answer {
    fn end(&mut self) {
        let door = &self.door;
        door.turns.change(&door.journal, |table, now, out| table.answered(&self.ticket, now, out));
    }
}

/// Looks at the body of a prompt.
#[derive(Debug)]
pub(crate) struct Watcher {
    door: Arc<Door>,
    ticket: Ticket,
    peek: Option<Peek>,
    sent: Arc<std::sync::atomic::AtomicBool>,
}

impl Hook for Watcher {
    fn data(&mut self, data: &[u8]) {
        let Some(peek) = &mut self.peek else { return };
        peek.feed(data);
        if peek.is_over() {
            self.learn();
        }
    }

    fn end(&mut self) {
        self.learn();
        self.sent.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

impl Watcher {
    fn learn(&mut self) {
        let Some(peek) = self.peek.take() else { return };
        let found = peek.found().clone();
        let door = &self.door;
        door.turns.change(&door.journal, |table, now, out| {
            table.learned(&self.ticket, &found, now, out);
        });
    }
}

/// An abort that is being passed on; when it is dropped it was answered or lost.
#[derive(Debug)]
pub(crate) struct AbortCall {
    door: Arc<Door>,
    session: String,
}

impl Drop for AbortCall {
    fn drop(&mut self) {
        self.door.turns.abort_returned(&self.door.journal, &self.session);
    }
}

/// Lets an abort pass, or holds it until what it is for has begun and was aborted: before that opencode answers an
/// abort, and runs the prompt all the same (measured on opencode 1.15.4 and 1.18.33). The error is the answer of a held
/// one. It stays armed when its caller leaves, so a held one is not in flight any more.
pub(crate) async fn abort(
    door: &Arc<Door>,
    class: &Class,
    directory: &str,
    admitted: admission::Call,
) -> Result<(admission::Call, Option<AbortCall>), Response<DoorBody>> {
    let Class::Abort { session: Some(session) } = class else { return Ok((admitted, None)) };
    let turns = &door.turns;
    let mut changes = turns.version.subscribe();
    let plan = turns.change(&door.journal, |table, now, out| table.abort(session, directory, now, out));
    let tickets = match plan {
        Plan::Pass => {
            return Ok((admitted, Some(AbortCall { door: Arc::clone(door), session: session.clone() })));
        }
        Plan::Hold(tickets) => tickets,
    };
    drop(admitted);
    turns.metrics.held_aborts.inc();
    let settled = changes.wait_for(|_| turns.lock().table.held(session, &tickets));
    let settled = timeout(door.config.start_bound + ABORT_MARGIN, settled);
    // A door that closes does not send it any more, and the next one does not know of it.
    let Some(settled) = door.shutdown.run_until_cancelled(settled).await else { return Err(shutting_down()) };
    match settled {
        Ok(_) => {
            let mut response = Response::new(full("true"));
            let json = http::HeaderValue::from_static("application/json");
            response.headers_mut().insert(http::header::CONTENT_TYPE, json);
            Err(response)
        }
        Err(_) => Err(refuse(
            ProblemType::Wedged,
            "The prompt has neither begun nor ended. It is aborted as soon as it begins.",
        )),
    }
}
