//! One turn from prompt to end: shows its events, answers its requests, and cancels it on Ctrl-C. Does IO.

use std::{collections::VecDeque, io, time::Duration};

use berth_client::{BerthClient, ClientError, RetryPolicy};
use berth_wire::{
    api::{CancelRequest, CancelResponse, CreateSession, PostMessage, Session, Turn},
    event::{EventPayload, SessionEvent},
    problem::{Problem, ProblemType},
    turn::TurnOutcome,
};
use futures_util::{
    StreamExt,
    future::{BoxFuture, OptionFuture},
    stream::FuturesUnordered,
};
use tokio::time::{Instant, interval, sleep, sleep_until};
use uuid::Uuid;

use crate::{
    ask::{Ask, Reply, Step},
    config::{AnswerPolicy, Target},
    error::CliError,
    input::{Input, Line},
    interrupts::Interrupts,
    output::{Output, pace},
    render::{Piece, Renderer, Tone, request_lines},
    sessions,
    text::duration,
};

/// How long a cancelled turn may take to end; opencode takes well under a second.
const CANCEL_LIMIT: Duration = Duration::from_secs(30);
/// How often it is looked whether the server is away.
const AWAY_CHECK: Duration = Duration::from_secs(1);
/// Failed attempts after which it is said that the server is away: the first ones fail within a second.
const AWAY_AFTER: usize = 3;
/// How long a server that went away is waited for, where nobody says otherwise.
pub const PATIENCE: Duration = Duration::from_mins(10);
/// A prompt that has not been taken for so long is spoken of.
const SLOW_POST: Duration = Duration::from_secs(3);
/// Events that wait while somebody is asked; beyond that they are shown, whatever is being typed.
const BACKLOG_LIMIT: usize = 10_000;

/// How following a turn came to its end.
#[derive(Debug, Clone, PartialEq)]
pub enum End {
    /// The turn ended.
    Ended(TurnOutcome),
    /// The person did not want to wait for that.
    Left,
}

/// How a turn's events are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// For a person.
    Text,
    /// As JSON lines.
    Json,
}

/// What turns of one session need.
#[derive(Debug)]
pub struct Conversation {
    /// The server.
    pub client: BerthClient,
    /// The session, as it was when the conversation began.
    pub session: Session,
    /// What the agent's requests are answered with.
    pub answers: AnswerPolicy,
    /// How turns are shown.
    pub view: View,
    /// Where.
    pub output: Output,
    /// What a person types.
    pub input: Input,
    /// Ctrl-C.
    pub interrupts: Interrupts,
    /// Number of the last event that was seen.
    pub last_seq: i64,
    /// How long the server is waited for when it goes away; the client has to be [`patient`] so long.
    pub patience: Duration,
}

/// A client that waits so long for a server that went away.
pub fn patient(client: BerthClient, patience: Duration) -> BerthClient {
    client.with_retry(RetryPolicy::lasting(patience))
}

/// The session that is meant: a new one, or one that exists.
pub async fn open_session(client: &BerthClient, target: &Target) -> Result<Session, CliError> {
    match target {
        Target::New { namespace, name } => {
            match client.create_session(namespace, name, &CreateSession::default()).await {
                Ok(session) => Ok(session),
                Err(error) => Err(no_sandbox(client, namespace, name, error).await),
            }
        }
        Target::Resume(choice) => sessions::find(client, choice).await,
    }
}

/// Says which sandboxes there are, where that is what went wrong.
async fn no_sandbox(client: &BerthClient, namespace: &str, name: &str, error: ClientError) -> CliError {
    if error.problem().and_then(Problem::problem_type) != Some(ProblemType::NotFound) {
        return error.into();
    }
    match client.list_sandboxes().await {
        Ok(sandboxes) => {
            let known = sandboxes.iter().map(|sandbox| format!("{}/{}", sandbox.namespace, sandbox.name));
            let known = known.collect::<Vec<_>>().join(", ");
            CliError::NoSandbox { sandbox: format!("{namespace}/{name}"), known }
        }
        Err(_) => error.into(),
    }
}

impl Conversation {
    /// Hands in a prompt of text and follows its turn to the end.
    pub async fn turn(&mut self, prompt: &str) -> Result<End, CliError> {
        self.message(&PostMessage::text(prompt)).await
    }

    /// Hands in a prompt and follows its turn to the end.
    pub async fn message(&mut self, message: &PostMessage) -> Result<End, CliError> {
        self.interrupts.forget();
        let Some(turn) = self.post(message).await? else { return Ok(End::Left) };
        let end = Follower::new(self, &turn).follow().await;
        // Whatever is said next, in the program's own words, begins on a line of its own.
        self.output.show(&[Piece::Break]).map_err(CliError::Output)?;
        end
    }

    /// Hands in a prompt; nothing when the person did not want to wait for that.
    async fn post(&mut self, message: &PostMessage) -> Result<Option<Turn>, CliError> {
        let key = Uuid::now_v7().to_string();
        let mut posting = std::pin::pin!(self.client.post_message(self.session.id, message, &key));
        let mut slow = std::pin::pin!(sleep(SLOW_POST));
        loop {
            tokio::select! {
                turn = &mut posting => return Ok(Some(turn?)),
                () = self.interrupts.next() => return Ok(None),
                () = &mut slow, if !slow.is_elapsed() => {
                    let note = format!("the server does not answer; {}", waiting(self.patience));
                    self.output.note(Tone::Note, &note).map_err(CliError::Output)?;
                }
            }
        }
    }
}

fn waiting(patience: Duration) -> String {
    let patience = duration(i64::try_from(patience.as_millis()).unwrap_or(i64::MAX));
    format!("waiting up to {patience} for it to come back")
}

/// A call to the server that runs beside the event stream.
enum Call {
    Answered(Result<(), ClientError>),
    Cancelled(Result<CancelResponse, ClientError>),
}

/// What happened next.
enum Happening {
    Event(Box<Result<SessionEvent, ClientError>>),
    Line(io::Result<Line>),
    Call(Call),
    Interrupt,
    CancelTimeout,
    /// This many attempts to reach the server have failed in a row.
    Looked(usize),
}

struct Follower<'a> {
    client: &'a BerthClient,
    session: Uuid,
    turn: Uuid,
    answers: AnswerPolicy,
    output: &'a mut Output,
    input: &'a Input,
    interrupts: &'a mut Interrupts,
    last_seq: &'a mut i64,
    patience: Duration,
    /// `None`: JSON lines.
    renderer: Option<Renderer>,
    /// It was said that the server cannot be reached.
    away: bool,
    /// When the wait for a cancelled turn is over; set once it was cancelled.
    cancel_deadline: Option<Instant>,
    /// What somebody is being asked, and the line that is being typed.
    asking: Option<(Ask, BoxFuture<'a, io::Result<Line>>)>,
    backlog: VecDeque<SessionEvent>,
    calls: FuturesUnordered<BoxFuture<'a, Call>>,
}

impl<'a> Follower<'a> {
    fn new(conversation: &'a mut Conversation, turn: &Turn) -> Self {
        let pace = pace(conversation.output.shape());
        Self {
            client: &conversation.client,
            session: conversation.session.id,
            turn: turn.id,
            answers: conversation.answers,
            output: &mut conversation.output,
            input: &conversation.input,
            interrupts: &mut conversation.interrupts,
            last_seq: &mut conversation.last_seq,
            patience: conversation.patience,
            renderer: (conversation.view == View::Text).then(|| Renderer::new(pace)),
            away: false,
            cancel_deadline: None,
            asking: None,
            backlog: VecDeque::new(),
            calls: FuturesUnordered::new(),
        }
    }

    async fn follow(mut self) -> Result<End, CliError> {
        let mut events = self.client.events(self.session, *self.last_seq);
        let mut look = interval(AWAY_CHECK);
        loop {
            let typed: OptionFuture<_> = self.asking.as_mut().map(|(_, line)| line).into();
            let timeout: OptionFuture<_> = self.cancel_deadline.map(sleep_until).into();
            let happening = tokio::select! {
                event = events.next() => Happening::Event(Box::new(event)),
                Some(line) = typed => Happening::Line(line),
                Some(call) = self.calls.next() => Happening::Call(call),
                () = self.interrupts.next() => Happening::Interrupt,
                Some(()) = timeout => Happening::CancelTimeout,
                _ = look.tick() => Happening::Looked(events.failures()),
            };
            if let Some(end) = self.happened(happening)? {
                return Ok(end);
            }
        }
    }

    fn happened(&mut self, happening: Happening) -> Result<Option<End>, CliError> {
        match happening {
            Happening::Event(event) => return self.arrived((*event)?),
            Happening::Line(line) => {
                self.typed(line.map_err(CliError::Input)?)?;
                return self.catch_up();
            }
            Happening::Call(Call::Answered(Err(error))) => self.answer_failed(error)?,
            Happening::Call(Call::Cancelled(result)) => drop(result?),
            Happening::Call(Call::Answered(Ok(()))) => {}
            Happening::Interrupt if self.cancel_deadline.is_some() => return Ok(Some(End::Left)),
            Happening::Interrupt => {
                self.cancel()?;
                return self.catch_up();
            }
            Happening::Looked(failures) => self.looked(failures)?,
            Happening::CancelTimeout => {
                let seconds = CANCEL_LIMIT.as_secs();
                return Err(CliError::CancelTimeout { seconds, turn: self.turn });
            }
        }
        Ok(None)
    }

    /// Says once that the server is away, and once that it is back.
    fn looked(&mut self, failures: usize) -> Result<(), CliError> {
        if !self.away && failures >= AWAY_AFTER {
            self.away = true;
            let note = format!("the server cannot be reached; {}", waiting(self.patience));
            self.note(Tone::Note, &note)?;
        } else if self.away && failures == 0 {
            self.away = false;
            self.note(Tone::Note, "the server is back")?;
        }
        Ok(())
    }

    /// An event came: it is shown now, or after what is being typed.
    fn arrived(&mut self, event: SessionEvent) -> Result<Option<End>, CliError> {
        *self.last_seq = event.seq;
        let about_session = matches!(event.payload, EventPayload::SessionReset(_));
        if event.turn_id != Some(self.turn) && !about_session {
            return Ok(None);
        }
        let Some((ask, _)) = &self.asking else { return self.process(&event) };
        let settles =
            ask.is_settled_by(&event.payload) || matches!(event.payload, EventPayload::TurnEnded(_));
        self.backlog.push_back(event);
        if settles || self.backlog.len() >= BACKLOG_LIMIT {
            self.asking = None;
            return self.catch_up();
        }
        Ok(None)
    }

    /// Processes what waited, up to the next request that somebody has to answer.
    fn catch_up(&mut self) -> Result<Option<End>, CliError> {
        while self.asking.is_none()
            && let Some(event) = self.backlog.pop_front()
        {
            if let Some(end) = self.process(&event)? {
                return Ok(Some(end));
            }
        }
        Ok(None)
    }

    fn process(&mut self, event: &SessionEvent) -> Result<Option<End>, CliError> {
        self.show(event)?;
        match &event.payload {
            EventPayload::TurnEnded(outcome) => return Ok(Some(End::Ended(outcome.clone()))),
            payload => {
                if let Some(ask) = Ask::of(payload) {
                    self.requested(ask, payload)?;
                }
            }
        }
        Ok(None)
    }

    fn show(&mut self, event: &SessionEvent) -> Result<(), CliError> {
        let shown = match &mut self.renderer {
            Some(renderer) => self.output.show(&renderer.take(event)),
            None if event.turn_id == Some(self.turn) => {
                let line = serde_json::to_string(event)
                    .map_err(|source| CliError::Client(ClientError::Malformed { what: "event", source }))?;
                self.output.raw_line(&line)
            }
            None => Ok(()),
        };
        shown.map_err(CliError::Output)
    }

    fn note(&mut self, tone: Tone, text: &str) -> Result<(), CliError> {
        self.output.note(tone, text).map_err(CliError::Output)
    }

    /// The agent asks for something, and nobody has settled it yet.
    fn requested(&mut self, ask: Ask, payload: &EventPayload) -> Result<(), CliError> {
        let settled = self.backlog.iter().any(|event| ask.is_settled_by(&event.payload));
        if settled || self.cancel_deadline.is_some() {
            return Ok(());
        }
        match (self.answers, ask.allowance()) {
            (AnswerPolicy::Allow { .. }, Some(allowance)) => self.answer(&ask, allowance),
            (AnswerPolicy::Ask, _) | (AnswerPolicy::Allow { person: true }, None) => {
                self.put_to_person(ask, payload)?;
            }
            (AnswerPolicy::Deny, _) => self.answer(&ask, ask.rejection()),
            (AnswerPolicy::Nobody, Some(_)) => {
                self.note(Tone::Note, "  rejected, since nobody is here to ask; --allow allows")?;
                self.answer(&ask, ask.rejection());
            }
            (AnswerPolicy::Nobody | AnswerPolicy::Allow { person: false }, None) => {
                self.note(Tone::Note, "  not answered: questions need a person at a terminal")?;
                self.answer(&ask, ask.rejection());
            }
        }
        Ok(())
    }

    fn put_to_person(&mut self, ask: Ask, payload: &EventPayload) -> Result<(), CliError> {
        if self.renderer.is_none() {
            for line in request_lines(payload) {
                self.note(Tone::Ask, &line)?;
            }
        }
        self.ask(ask)
    }

    fn ask(&mut self, ask: Ask) -> Result<(), CliError> {
        self.output.prompt(&ask.prompt()).map_err(CliError::Output)?;
        let input = self.input;
        self.asking = Some((ask, Box::pin(input.line())));
        Ok(())
    }

    fn typed(&mut self, line: Line) -> Result<(), CliError> {
        let Some((mut ask, _)) = self.asking.take() else { return Ok(()) };
        let step = match line {
            Line::Text(line) => ask.take(&line),
            Line::Closed => Step::Done(ask.rejection()),
        };
        match step {
            Step::Unclear(hint) => {
                self.note(Tone::Note, &hint)?;
                self.ask(ask)
            }
            Step::More => self.ask(ask),
            Step::Done(reply) => {
                self.answer(&ask, reply);
                Ok(())
            }
        }
    }

    fn answer(&mut self, ask: &Ask, reply: Reply) {
        let (client, session, id) = (self.client, self.session, ask.id().to_owned());
        self.calls.push(Box::pin(async move { Call::Answered(send(client, session, &id, &reply).await) }));
    }

    /// Somebody else may have answered first; the log says how it went.
    fn answer_failed(&mut self, error: ClientError) -> Result<(), CliError> {
        let settled = [Some(ProblemType::AlreadyResolved), Some(ProblemType::NotFound)];
        if error.problem().is_some_and(|problem| settled.contains(&problem.problem_type())) {
            return self.note(Tone::Note, "  it had been settled already");
        }
        Err(error.into())
    }

    fn cancel(&mut self) -> Result<(), CliError> {
        self.asking = None;
        self.cancel_deadline = Some(Instant::now() + CANCEL_LIMIT);
        self.note(Tone::Note, "cancelling; Ctrl-C again leaves at once")?;
        let (client, session) = (self.client, self.session);
        let request = CancelRequest::only(self.turn);
        self.calls.push(Box::pin(async move { Call::Cancelled(client.cancel(session, request).await) }));
        Ok(())
    }
}

async fn send(client: &BerthClient, session: Uuid, id: &str, reply: &Reply) -> Result<(), ClientError> {
    match reply {
        Reply::Permission(answer) => client.answer_permission(session, id, answer).await,
        Reply::Question(answer) => client.answer_question(session, id, answer).await,
    }
}
