//! Prompts and aborts on their way through the door: what the turn table learns of each. IO.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use berth_wire::{door::TurnOrigin, problem::ProblemType};
use http::{Response, StatusCode};
use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::time::timeout;

use super::{Admission, Plan, Ticket, TooMany, peek::Peek};
use crate::{
    Door, admission,
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

    /// The request's body, looked at as it passes.
    fn watcher(&self) -> Watcher {
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

impl Answer {
    fn end(self) {
        let door = &self.door;
        door.turns.change(&door.journal, |table, now, out| table.answered(&self.ticket, now, out));
    }
}

/// Looks at the body of a prompt.
#[derive(Debug)]
struct Watcher {
    door: Arc<Door>,
    ticket: Ticket,
    peek: Option<Peek>,
    sent: Arc<std::sync::atomic::AtomicBool>,
}

impl Watcher {
    fn see(&mut self, piece: &[u8]) {
        let Some(peek) = &mut self.peek else { return };
        peek.feed(piece);
        if peek.is_over() {
            self.learn();
        }
    }

    fn end(&mut self) {
        self.learn();
        self.sent.store(true, std::sync::atomic::Ordering::Relaxed);
    }

    fn learn(&mut self) {
        let Some(peek) = self.peek.take() else { return };
        let found = peek.found().clone();
        let door = &self.door;
        door.turns.change(&door.journal, |table, now, out| {
            table.learned(&self.ticket, &found, now, out);
        });
    }
}

/// A request's body on its way to opencode.
#[derive(Debug)]
pub(crate) struct Watched<B> {
    body: B,
    watcher: Option<Watcher>,
}

impl<B: Body<Data = Bytes> + Unpin> Watched<B> {
    /// Of a prompt, or of any other request.
    pub(crate) fn new(body: B, call: Option<&Call>) -> Self {
        let mut watched = Self { body, watcher: call.map(Call::watcher) };
        watched.end_if_over();
        watched
    }

    fn end_if_over(&mut self) {
        if self.body.is_end_stream() {
            self.watcher.take().iter_mut().for_each(Watcher::end);
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Watched<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        match &frame {
            Some(Ok(frame)) => {
                if let (Some(watcher), Some(data)) = (&mut self.watcher, frame.data_ref()) {
                    watcher.see(data);
                }
                self.end_if_over();
            }
            Some(Err(_)) => {}
            None => self.watcher.take().iter_mut().for_each(Watcher::end),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// An answer's body on its way to the caller.
#[derive(Debug)]
pub(crate) struct Answering<B> {
    body: B,
    answer: Option<Answer>,
}

impl<B: Body<Data = Bytes> + Unpin> Answering<B> {
    pub(crate) fn new(body: B, answer: Option<Answer>) -> Self {
        Self { body, answer }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Answering<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if frame.is_none() || (frame.as_ref().is_some_and(Result::is_ok) && self.body.is_end_stream()) {
            self.answer.take().into_iter().for_each(Answer::end);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
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
