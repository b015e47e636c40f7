//! A conversation at a terminal: carries out what [`Chat`] wants, tells it what happens, and draws it. Does IO.

use std::{collections::VecDeque, io, time::Duration};

use berth_client::{BerthClient, ClientError};
use berth_wire::api::{PostMessage, SessionFilter};
use crossterm::event::{Event, EventStream};
use futures_util::{
    FutureExt, StreamExt,
    future::{BoxFuture, OptionFuture},
    stream::FuturesUnordered,
};
use jiff::Timestamp;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    task::JoinHandle,
    time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout},
};
use uuid::Uuid;

use super::{
    effect::{Done, Effect, Opened},
    following::Following,
    history::History,
    opening,
    screen::Screen,
    state::{Chat, Manner},
    terminal::{Terminal, write},
};
use crate::{
    ask::Reply,
    config::ChatConfig,
    connect,
    error::{CliError, Exit},
    interrupts::Interrupts,
};

/// Shortest time between two frames that nobody waits for.
const FRAME: Duration = Duration::from_millis(33);
/// For so long a terminal must keep its size before it is drawn anew.
const SETTLED: Duration = Duration::from_millis(60);
/// How often what moves by itself is drawn, and the connection is looked after.
const TICK: Duration = Duration::from_millis(250);
/// A connection that is away for so long is spoken of.
const AWAY: Duration = Duration::from_secs(1);
/// Events that are taken while the terminal does not take what was drawn before.
const AHEAD: usize = 5_000;
/// Events that are taken at once.
const AT_ONCE: usize = 500;
/// How long a prompt is handed in again while the server is away; then it is given back.
const HAND_IN: Duration = Duration::from_mins(10);
/// Wait before it is handed in again, behind those of the client.
const PAUSE: Duration = Duration::from_millis(500);
/// Sessions that can be chosen from: those that changed last.
const SESSIONS: u16 = 200;
/// How long leaving waits for prompts that are on their way.
const LAST_POSTS: Duration = Duration::from_secs(5);
/// How long leaving waits for the terminal.
const LAST_FRAME: Duration = Duration::from_secs(2);

/// A prompt that is to be handed in.
#[derive(Debug)]
enum Post {
    Message { session: Uuid, key: Uuid, message: PostMessage },
    Retry { key: Uuid, turn: Uuid },
}

struct Drive {
    chat: Chat,
    screen: Screen,
    terminal: Terminal,
    following: Following,
    calls: FuturesUnordered<BoxFuture<'static, Done>>,
    posts: VecDeque<Post>,
    posting: Option<BoxFuture<'static, Done>>,
    writing: Option<JoinHandle<io::Result<()>>>,
    /// What is to be written before the next frame.
    before: String,
    /// Columns and rows that frames are made for.
    size: (usize, usize),
    /// When the next frame is due; `None` while nothing changed.
    due: Option<Instant>,
    /// The size changed; when it is taken to be settled.
    resized: Option<Instant>,
    /// Events since the last frame.
    ahead: usize,
    /// Since when there is no connection.
    away: Option<Instant>,
    leaving: bool,
}

/// What happened next.
enum Happening {
    Key(Option<io::Result<Event>>),
    Event(Box<Result<berth_wire::event::SessionEvent, ClientError>>),
    Done(Box<Done>),
    Posted(Box<Done>),
    Written(io::Result<()>),
    Due,
    Settled,
    Tick,
    Stop,
}

/// Talks until the person leaves.
pub(super) async fn talk(config: ChatConfig) -> Result<Exit, CliError> {
    let client = connect::client(&config.server)?;
    let mut interrupts = Interrupts::of_process().map_err(CliError::Signals)?;
    let opened = tokio::select! {
        opened = opening::target(&client, &config.target) => opened?,
        () = interrupts.next() => return Ok(Exit::Cancelled),
    };
    let mut stops = Stops::listen(interrupts).map_err(CliError::Signals)?;
    let mut drive = Drive::start(&config, client, opened)?;
    let result = drive.run(&mut stops).await;
    let left = drive.end(result.is_ok()).await;
    result.and(left).map(|()| Exit::Succeeded)
}

/// Signals that mean that it is over. In this mode of the terminal Ctrl-C is a key, and no signal.
struct Stops {
    interrupts: Interrupts,
    terminate: Signal,
    hangup: Signal,
}

impl Stops {
    fn listen(interrupts: Interrupts) -> io::Result<Self> {
        Ok(Self {
            interrupts,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            () = self.interrupts.next() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}

impl Drive {
    fn start(config: &ChatConfig, client: BerthClient, opened: Opened) -> Result<Self, CliError> {
        let (session, last) = (opened.session.id, opened.session.last_seq);
        let history = History::open(config.server.state.chat_history());
        let terminal = Terminal::take().map_err(CliError::Output)?;
        let (width, height) = Terminal::size();
        let manner = Manner { color: config.shape.color, answers: config.answers };
        Ok(Self {
            chat: Chat::new(manner, opened, history, width, height),
            screen: Screen::new(config.shape.color, width, height),
            terminal,
            following: Following::new(client, session, last),
            calls: FuturesUnordered::new(),
            posts: VecDeque::new(),
            posting: None,
            writing: None,
            before: String::new(),
            size: (width, height),
            due: Some(Instant::now()),
            resized: None,
            ahead: 0,
            away: None,
            leaving: false,
        })
    }

    async fn run(&mut self, stops: &mut Stops) -> Result<(), CliError> {
        let mut keys = EventStream::new();
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !self.leaving {
            self.draw_if_due();
            let happening = self.next(&mut keys, &mut tick, stops).await;
            self.happened(happening)?;
            self.carry_out();
        }
        Ok(())
    }

    async fn next(
        &mut self,
        keys: &mut EventStream,
        tick: &mut tokio::time::Interval,
        stops: &mut Stops,
    ) -> Happening {
        let quiet = self.writing.is_none() && self.resized.is_none();
        let due: OptionFuture<_> = self.due.filter(|_| quiet).map(sleep_until).into();
        let settled: OptionFuture<_> = self.resized.map(sleep_until).into();
        let listen = self.ahead < AHEAD;
        tokio::select! {
            biased;
            () = stops.next() => Happening::Stop,
            key = keys.next() => Happening::Key(key),
            Some(written) = OptionFuture::from(self.writing.as_mut()) => {
                Happening::Written(written.unwrap_or_else(|error| Err(io::Error::other(error))))
            }
            Some(()) = due => Happening::Due,
            Some(()) = settled => Happening::Settled,
            Some(done) = OptionFuture::from(self.posting.as_mut()) => Happening::Posted(Box::new(done)),
            Some(done) = self.calls.next() => Happening::Done(Box::new(done)),
            event = self.following.next(), if listen => Happening::Event(Box::new(event)),
            _ = tick.tick() => Happening::Tick,
        }
    }

    fn happened(&mut self, happening: Happening) -> Result<(), CliError> {
        match happening {
            Happening::Stop | Happening::Key(None) => self.leaving = true,
            Happening::Key(Some(key)) => self.key(key.map_err(CliError::Input)?),
            Happening::Event(event) => self.events((*event)?)?,
            Happening::Done(done) => self.done(*done),
            Happening::Posted(done) => {
                self.posting = None;
                self.done(*done);
            }
            Happening::Written(result) => {
                self.writing = None;
                result.map_err(CliError::Output)?;
            }
            Happening::Due => {}
            Happening::Settled => self.resize(),
            Happening::Tick => self.look(),
        }
        Ok(())
    }

    fn key(&mut self, event: Event) {
        match event {
            Event::Key(key) => self.chat.key(key, Timestamp::now()),
            Event::Paste(text) => self.chat.paste(&text),
            Event::Resize(..) => self.resized = Some(Instant::now() + SETTLED),
            Event::FocusGained | Event::FocusLost | Event::Mouse(_) => return,
        }
        // Somebody waits for what comes of a key.
        self.due = Some(Instant::now());
    }

    /// An event, and those that are there already behind it.
    fn events(&mut self, first: berth_wire::event::SessionEvent) -> Result<(), CliError> {
        let mut next = Some(first);
        let mut count = 0;
        while let Some(event) = next.take() {
            self.chat.event(&event);
            count += 1;
            if count < AT_ONCE {
                next = self.following.next().now_or_never().transpose()?;
            }
        }
        self.ahead += count;
        self.changed();
        Ok(())
    }

    fn done(&mut self, done: Done) {
        if let Done::Opened(Ok(opened)) = &done {
            self.following.turn_to(opened.session.id, opened.session.last_seq);
            self.away = None;
        }
        self.chat.done(done);
        self.changed();
    }

    /// Something is to be drawn soon.
    fn changed(&mut self) {
        self.due.get_or_insert_with(|| Instant::now() + FRAME);
    }

    fn look(&mut self) {
        if self.following.is_connected() {
            self.away = None;
            self.chat.reachable(true);
        } else if self.away.get_or_insert_with(Instant::now).elapsed() >= AWAY {
            self.chat.reachable(false);
        }
        // A frame that changes nothing writes nothing.
        self.changed();
    }

    fn resize(&mut self) {
        self.resized = None;
        let (width, height) = Terminal::size();
        self.size = (width, height);
        let wipe = self.screen.resize(width, height);
        self.before.push_str(&wipe);
        self.chat.resize(width, height);
        self.due = Some(Instant::now());
    }

    fn draw_if_due(&mut self) {
        let now = Instant::now();
        if Terminal::size() != self.size && self.resized.is_none() {
            // The terminal has changed before it was told.
            self.resized = Some(now + SETTLED);
        }
        if self.writing.is_some() || self.resized.is_some() || self.due.is_none_or(|due| due > now) {
            return;
        }
        self.due = None;
        self.ahead = 0;
        let (finished, frame) = self.chat.frame(Timestamp::now());
        let mut bytes = std::mem::take(&mut self.before);
        bytes.push_str(&self.screen.draw(&finished, &frame));
        if !bytes.is_empty() {
            self.writing = Some(tokio::task::spawn_blocking(move || write(bytes.as_bytes())));
        }
        // Drawing may have asked for something: a file's name that is being completed.
        self.carry_out();
    }

    fn carry_out(&mut self) {
        for effect in self.chat.effects() {
            self.carry_out_one(effect);
            self.changed();
        }
        if self.posting.is_none()
            && let Some(post) = self.posts.pop_front()
        {
            self.posting = Some(hand_in(self.following.client().clone(), post));
        }
    }

    fn carry_out_one(&mut self, effect: Effect) {
        let client = self.following.client().clone();
        let session = self.chat.session().id;
        let (namespace, name) = (self.chat.session().namespace.clone(), self.chat.session().sandbox.clone());
        let call: BoxFuture<'static, Done> = match effect {
            Effect::Post { key, message } => {
                return self.posts.push_back(Post::Message { session, key, message });
            }
            Effect::Retry { key, turn } => return self.posts.push_back(Post::Retry { key, turn }),
            Effect::Quit => return self.leaving = true,
            Effect::Clear => {
                let clear = self.screen.clear_all();
                return self.before.push_str(&clear);
            }
            Effect::Suspend => return self.suspend(),
            Effect::Cancel(request) => {
                async move { Done::Cancelled(client.cancel(session, request).await) }.boxed()
            }
            Effect::Answer { id, reply } => async move {
                let result = match &reply {
                    Reply::Permission(answer) => client.answer_permission(session, &id, answer).await,
                    Reply::Question(answer) => client.answer_question(session, &id, answer).await,
                };
                Done::Answered { id, result }
            }
            .boxed(),
            Effect::ListSessions => async move {
                let filter = SessionFilter { limit: Some(SESSIONS), ..SessionFilter::default() };
                let page = client.session_page(&namespace, &name, &filter).await;
                Done::Sessions(page.map(|page| page.items))
            }
            .boxed(),
            Effect::ListModels => {
                async move { Done::Models(client.list_models(&namespace, &name).await) }.boxed()
            }
            Effect::ListAgents => {
                async move { Done::Agents(client.list_agents(&namespace, &name).await) }.boxed()
            }
            Effect::ListFiles(directory) => async move {
                let result = client.list_files(session, directory.trim_end_matches('/')).await;
                Done::Files { directory, result }
            }
            .boxed(),
            Effect::Open(None) => {
                async move { Done::Opened(opening::create(&client, &namespace, &name).await.map(Box::new)) }
                    .boxed()
            }
            Effect::Open(Some(id)) => {
                async move { Done::Opened(opening::resume(&client, id).await.map(Box::new)) }.boxed()
            }
            Effect::Rename(title) => {
                async move { Done::Renamed(client.rename_session(session, &title).await) }.boxed()
            }
            Effect::Diff(turn) => async move { Done::Changes(client.diff(session, turn).await) }.boxed(),
        };
        self.calls.push(call);
    }

    fn suspend(&mut self) {
        let wipe = self.screen.clear();
        // That it cannot be written shows at the next frame.
        let _ = write(wipe.as_bytes());
        if let Err(error) = self.terminal.suspend() {
            tracing::warn!(%error, "cannot suspend");
        }
        self.resize();
    }

    /// Hands in what is on its way, and leaves the terminal as it was, with the conversation above the shell's prompt.
    async fn end(&mut self, well: bool) -> Result<(), CliError> {
        if well {
            let posts = async {
                while let Some(posting) = self.posting.take() {
                    let done = posting.await;
                    self.chat.done(done);
                    self.carry_out();
                }
            };
            // A prompt that does not arrive in time is said to be on its way, below.
            let _ = timeout(LAST_POSTS, posts).await;
        }
        let last = async {
            if let Some(writing) = self.writing.take() {
                drop(writing.await);
            }
            let finished = self.chat.farewell(Timestamp::now());
            let mut bytes = std::mem::take(&mut self.before);
            bytes.push_str(&self.screen.draw(&finished, &super::screen::Frame::default()));
            bytes.push_str(Terminal::FAREWELL);
            let written = tokio::task::spawn_blocking(move || write(bytes.as_bytes())).await;
            written.unwrap_or_else(|error| Err(io::Error::other(error)))
        };
        let written = timeout(LAST_FRAME, last).await.unwrap_or(Ok(()));
        self.terminal.leave().and(written).map_err(CliError::Output)
    }
}

/// Hands a prompt in, also where the server is away at first: the key makes sure that it is taken once.
fn hand_in(client: BerthClient, post: Post) -> BoxFuture<'static, Done> {
    async move {
        let deadline = Instant::now() + HAND_IN;
        loop {
            let result = match &post {
                Post::Message { session, key, message } => {
                    client.post_message(*session, message, &key.to_string()).await
                }
                Post::Retry { key, turn } => client.retry_turn(*turn, &key.to_string()).await,
            };
            if result.as_ref().is_err_and(ClientError::is_unreachable) && Instant::now() < deadline {
                sleep(PAUSE).await;
                continue;
            }
            return match post {
                Post::Message { key, message, .. } => {
                    Done::Posted { key, message: Some(message), result: Box::new(result) }
                }
                Post::Retry { key, .. } => Done::Posted { key, message: None, result: Box::new(result) },
            };
        }
    }
    .boxed()
}
