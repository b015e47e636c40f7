//! The door's one subscription to opencode, which writes the journal and opens the passage to it. IO.
//!
//! Each run of opencode is subscribed to before any request passes to it, and the subscription is known to hear
//! ([`open`]), so everything that requests cause is heard.

mod open;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use berth_serve::{Exit, ServePhase, ServeState};
use berth_wire::{door::DoorEvent, sse::SseReader};
use jiff::Timestamp;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};

pub(crate) use self::open::ECHO_DIRECTORY;
use self::open::SubscribeError;
use crate::{Door, directories, journal::Frame, passage::Passage, upstream};

/// Longest silence: opencode sends a heartbeat each 10 s.
const SILENCE: Duration = Duration::from_secs(35);

/// How long the stream of an opencode that has ended may go on.
const DRAIN: Duration = Duration::from_secs(2);

/// Bound on the answer to the question whether opencode lives.
const LIVES_BOUND: Duration = Duration::from_secs(1);

/// Pause before subscribing again; doubles with each failure in a row.
const PAUSE: Duration = Duration::from_millis(250);

/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Follows one opencode after the other until shutdown.
pub(crate) async fn run(door: Arc<Door>, passage: watch::Sender<Passage>) {
    let serve = door.serve.clone();
    // An exit from before the door's start belongs to no epoch of its journal.
    let reported = Reported::of(&serve.borrow());
    let found = answering(&serve.borrow());
    let subscription = Subscription {
        door: &door,
        passage,
        serve,
        found,
        followed: None,
        missed: false,
        reported,
        pause: PAUSE,
        settled: Instant::now() + door.config.settle,
    };
    tokio::select! {
        () = subscription.run() => {}
        () = door.shutdown.cancelled() => {}
    }
}

/// The run that answers.
fn answering(state: &ServeState) -> Option<String> {
    (state.phase == ServePhase::Ready).then(|| state.boot_id.clone())
}

struct Subscription<'a> {
    door: &'a Door,
    passage: watch::Sender<Passage>,
    serve: watch::Receiver<ServeState>,
    /// The run that already answered when the door, or its first word from the supervisor, came: prompts may have been
    /// sent to it before.
    found: Option<String>,
    /// The run that was subscribed to last.
    followed: Option<String>,
    /// The stream of the followed run ended before the run did, and that was not journaled yet.
    missed: bool,
    /// What of the supervisor's state was journaled.
    reported: Reported,
    /// Pause before the next subscription to the same run.
    pause: Duration,
    /// From then on nothing of the door before goes on.
    settled: Instant,
}

impl Subscription<'_> {
    async fn run(mut self) {
        loop {
            let state = self.serve.borrow_and_update().clone();
            self.report_exit(&state);
            let supervised = if let (ServePhase::Ready, Some(address)) = (state.phase, state.address) {
                self.follow(&state, address).await;
                self.pause(&state.boot_id).await
            } else {
                self.rests(&state);
                self.passage.send_replace(closed(&state));
                self.serve.changed().await.is_ok()
            };
            if !supervised {
                let state = self.serve.borrow().clone();
                self.report_exit(&state);
                self.passage.send_replace(Passage::Stopped);
                return;
            }
        }
    }

    /// After the stream of that run ended: waits for the news that the run is over, or a short while before it is
    /// subscribed to again. Gives whether there still is a supervisor.
    async fn pause(&mut self, boot_id: &str) -> bool {
        let over = self.serve.wait_for(|state| is_over(state, boot_id));
        if let Ok(over) = timeout(self.pause, over).await {
            self.pause = PAUSE;
            return over.is_ok();
        }
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        true
    }

    /// Journals the ends of runs and the kills of tools, each once.
    fn report_exit(&mut self, state: &ServeState) {
        self.report_tools(state);
        for event in self.reported.exits(state) {
            self.tell_gap();
            if let DoorEvent::ServeExited { boot_id, .. } = &event {
                self.door.turns.exited(&self.door.journal, boot_id);
            }
            self.door.journal.append(Frame::own(&event));
        }
    }

    /// Journals the kills of tools alone: a run's end comes after everything that it said.
    fn report_tools(&mut self, state: &ServeState) {
        if self.reported.settle(state) {
            self.found = answering(state);
        }
        if let Some(event) = self.reported.tools(state) {
            self.door.journal.append(Frame::own(&event));
        }
    }

    /// Tells the turn table that nothing runs, when no run was there to be heard since the supervisor's first word.
    fn rests(&self, state: &ServeState) {
        let none = self.found.is_none() && self.followed.is_none() && !state.instance.is_empty();
        if none && matches!(state.phase, ServePhase::Starting | ServePhase::Stopped) {
            self.door.turns.exited(&self.door.journal, "");
        }
    }

    /// Begins a new epoch if events were missed.
    fn tell_gap(&mut self) {
        if std::mem::take(&mut self.missed) {
            tracing::warn!("events of opencode may have been missed: a new epoch begins");
            self.door.journal.begin_epoch();
        }
    }

    /// Subscribes and journals until the stream ends, or the run does before it was heard.
    async fn follow(&mut self, state: &ServeState, address: SocketAddr) {
        let Some((mut events, first)) = self.open(state, address).await else { return };
        self.pause = PAUSE;
        self.announce(state);
        keep(self.door, first);
        let cut = self.listen(state, address, &mut events).await;
        self.missed = cut && self.lives(state, address).await;
    }

    /// Opens the stream of that run. While it is not known to hear, the supervisor's news that the run is over is no
    /// less news: requests wait for what follows from it.
    async fn open(&mut self, state: &ServeState, address: SocketAddr) -> Option<(SseReader, String)> {
        let over = async { drop(self.serve.wait_for(|now| is_over(now, &state.boot_id)).await) };
        let opened = tokio::select! {
            opened = open::subscribe(self.door, address) => opened,
            () = over => {
                tracing::debug!(boot = state.boot, "opencode is over before its events were heard");
                return None;
            }
        };
        let report = |error: &SubscribeError| {
            let error: &dyn std::error::Error = error;
            tracing::warn!(error, boot = state.boot, "the events of opencode cannot be subscribed to");
        };
        opened.inspect_err(report).ok()
    }

    /// Journals what is heard until the stream ends, and opens and closes the passage by the supervisor's news. Gives
    /// whether the stream ended although nothing says that the run did.
    async fn listen(&mut self, state: &ServeState, address: SocketAddr, events: &mut SseReader) -> bool {
        let mut drained: Option<Instant> = None;
        // The passage opens when the supervisor's newest word does not say that the run is over.
        self.serve.mark_changed();
        loop {
            tokio::select! {
                supervised = self.serve.changed(), if drained.is_none() => {
                    drained = self.heed(state, address, supervised.is_ok());
                }
                () = sleep_until(drained.unwrap_or_else(Instant::now)), if drained.is_some() => {
                    tracing::warn!(boot = state.boot, "the event stream of an ended opencode does not end");
                    break;
                }
                event = timeout(SILENCE, events.next()) => match event {
                    Ok(Some(Ok(event))) => keep(self.door, event.data),
                    Ok(None) => break,
                    Ok(Some(Err(error))) => {
                        tracing::debug!(%error, boot = state.boot, "the event stream of opencode broke");
                        break;
                    }
                    Err(_) => {
                        tracing::warn!(boot = state.boot, "the event stream of opencode fell silent");
                        break;
                    }
                },
            }
        }
        if matches!(*self.passage.borrow(), Passage::Open { .. }) {
            self.passage.send_replace(Passage::Starting);
        }
        match drained {
            Some(end) => end <= Instant::now(),
            None => !is_over(&self.serve.borrow(), &state.boot_id),
        }
    }

    /// Opens or closes the passage to that run by the supervisor's newest word: also opens it again where the
    /// supervisor was out of reach meanwhile, since nothing went by unheard. When the run has ended, gives how long its
    /// stream may go on: while it is being ended, it may still say something.
    fn heed(&mut self, state: &ServeState, address: SocketAddr, supervised: bool) -> Option<Instant> {
        let now = now(&mut self.serve, supervised);
        self.report_tools(&now);
        let passage = if is_over(&now, &state.boot_id) {
            closed(&now)
        } else {
            Passage::Open { address, boot_id: state.boot_id.clone() }
        };
        self.passage.send_if_modified(|current| {
            let changed = *current != passage;
            *current = passage;
            changed
        });
        (!supervised || has_ended(&now, &state.boot_id)).then(|| Instant::now() + DRAIN)
    }

    /// Whether that run goes on although its stream ended: then the stream was cut, and events go by unheard. A process
    /// that dies may still be connected to (seen for more than 50 ms on opencode 1.18.33, on a busy machine), but it
    /// answers nothing.
    async fn lives(&self, state: &ServeState, address: SocketAddr) -> bool {
        let request = upstream::get("/global/health", address, &self.door.upstream.get());
        match timeout(LIVES_BOUND, upstream::send(address, request, &self.door.tracker)).await {
            Ok(answer) => answer.is_ok(),
            Err(_) => !is_over(&self.serve.borrow(), &state.boot_id),
        }
    }

    /// Journals that a run began; when this run was followed before, that events may have been missed.
    fn announce(&mut self, state: &ServeState) {
        let same = self.followed.as_ref() == Some(&state.boot_id);
        self.missed |= same;
        self.tell_gap();
        if same {
            self.door.turns.hears(&self.door.journal, &state.boot_id, false);
            return;
        }
        self.followed = Some(state.boot_id.clone());
        self.door.journal.append(Frame::own(&DoorEvent::ServeStarted {
            boot: state.boot,
            boot_id: state.boot_id.clone(),
            version: state.version.clone().unwrap_or_default(),
        }));
        let whole = self.found.as_ref() != Some(&state.boot_id);
        self.door.admission.unsettled((!whole).then_some(self.settled));
        let before = || state.last_exit().map_or(Timestamp::UNIX_EPOCH, |exit| exit.at);
        self.door.mending.hears(&state.boot_id, (!whole).then(before));
        self.door.turns.hears(&self.door.journal, &state.boot_id, whole);
    }
}

/// What of a supervisor's state was journaled. States may be missed in between, so each tells more than what was new
/// in it.
#[derive(Debug, PartialEq, Eq)]
struct Reported {
    /// The newest run whose end was.
    exit: Option<String>,
    /// The supervisor, and its count of tools that were killed for memory.
    tools: (String, u64),
}

impl Reported {
    fn of(state: &ServeState) -> Self {
        let exit = state.last_exit().map(|exit| exit.boot_id.clone());
        Self { exit, tools: (state.instance.clone(), state.tool_oom_kills) }
    }

    /// Takes the first words of a supervisor for what was before; gives whether these are they.
    fn settle(&mut self, state: &ServeState) -> bool {
        let first = self.tools.0.is_empty() && !state.instance.is_empty();
        if first {
            *self = Self::of(state);
        }
        first
    }

    /// Tools that were killed since.
    fn tools(&mut self, state: &ServeState) -> Option<DoorEvent> {
        let known = if self.tools.0 == state.instance { self.tools.1 } else { 0 };
        self.tools = (state.instance.clone(), state.tool_oom_kills);
        let count = state.tool_oom_kills.checked_sub(known).filter(|count| *count > 0)?;
        Some(DoorEvent::ToolOutOfMemory { boot_id: state.boot_id.clone(), count })
    }

    /// Runs that ended since, oldest first.
    fn exits(&mut self, state: &ServeState) -> Vec<DoorEvent> {
        let told = |exit: &Exit| DoorEvent::ServeExited {
            boot: exit.boot,
            boot_id: exit.boot_id.clone(),
            exit: exit.exit,
            signal: exit.signal,
            cause: exit.cause,
        };
        let exits = state.exits_after(self.exit.as_deref()).map(told).collect();
        self.exit = state.last_exit().map(|exit| exit.boot_id.clone()).or_else(|| self.exit.take());
        exits
    }
}

/// The passage while opencode does not answer.
fn closed(state: &ServeState) -> Passage {
    let unsupported = state.last_exit().and_then(|exit| exit.unsupported.clone());
    match (state.phase, unsupported) {
        (ServePhase::Stopped, _) => Passage::Stopped,
        (ServePhase::Wedged, _) => Passage::Wedged,
        (ServePhase::Starting | ServePhase::Ready, Some(seen)) => Passage::Unsupported(seen),
        (ServePhase::Starting | ServePhase::Ready, None) => Passage::Starting,
    }
}

/// The state after a change, which may be that its supervisor is gone.
fn now(serve: &mut watch::Receiver<ServeState>, supervised: bool) -> ServeState {
    let state = serve.borrow_and_update().clone();
    if supervised { state } else { ServeState { phase: ServePhase::Stopped, ..state } }
}

fn is_over(state: &ServeState, boot_id: &str) -> bool {
    state.phase != ServePhase::Ready || state.boot_id != boot_id
}

fn has_ended(state: &ServeState, boot_id: &str) -> bool {
    state.boot_id != boot_id || state.last_exit().is_some_and(|exit| exit.boot_id == boot_id)
}

fn keep(door: &Door, data: String) {
    match Frame::parse(data) {
        Ok(Some(frame)) => {
            if let Some(directory) = frame.disposed() {
                directories::closed(door, directory);
            }
            door.turns.keep(&door.journal, frame);
        }
        Ok(None) => {}
        Err(error) => {
            door.config.metrics.journal.dropped_frames.inc();
            tracing::warn!(%error, "a frame of opencode's event stream is not an event and is dropped");
        }
    }
}
