//! Replays a recorded event stream: finds its root sessions and the prompts in them, and translates it as a turn runner
//! would have done while it was recorded. Pure.
//!
//! A recording has no calls, only events, so a prompt is taken for ours when it is first told of while no turn of ours
//! runs; one that is told of in mid-turn was folded into that turn by opencode. A session without any user message
//! may still be of a prompt that opencode refused: it is replayed with a prompt of an id that is never shown, and
//! dropped when that did not end.
//!
//! [`manifest`] says what recordings are expected to show.

use std::collections::{BTreeMap, BTreeSet};

use berth_wire::{
    event::{EventPayload, TurnStarted, Voice},
    sse::{SseError, SseReader},
};
use bytes::Bytes;
use futures_util::FutureExt;

use crate::{
    event::{Event, EventError, GlobalEvent},
    model::{Part, PartKind, Role},
    translate::{SessionTranslator, Translation, TurnPhase},
};

pub mod manifest;
mod state;

use manifest::{TurnEnd, Verdict};

/// Message id of a prompt that is assumed, since none is shown.
const ASSUMED_PROMPT: &str = "msg_that_was_never_shown";

/// A recorded stream of `GET /event` or `GET /global/event`, of opencode or of a door.
#[derive(Debug, Default)]
pub struct Recording {
    /// Its events, in order.
    pub events: Vec<GlobalEvent>,
    /// Frames that are no events, and how the stream broke, if it did.
    pub unreadable: Vec<Unreadable>,
}

/// A place of a recording that cannot be read.
#[derive(Debug)]
pub struct Unreadable {
    /// Number of the frame with data, from 1.
    pub frame: usize,
    /// Why.
    pub why: UnreadableReason,
}

/// Why a frame cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum UnreadableReason {
    /// It is no event.
    #[error("not an event")]
    Event(#[source] EventError),
    /// Nothing can be read from here on.
    #[error("not an event stream")]
    Stream(#[source] SseError),
}

impl Recording {
    /// Reads a whole recording. Comments and ids are allowed.
    pub fn read(bytes: impl Into<Bytes>) -> Self {
        Self::read_chunks([bytes.into()])
    }

    /// Reads a recording that comes in pieces, as a connection delivers it.
    pub fn read_chunks<I>(chunks: I) -> Self
    where
        I: IntoIterator<Item = Bytes>,
        I::IntoIter: Send + 'static,
    {
        let chunks = chunks.into_iter().map(Ok::<_, std::convert::Infallible>);
        let mut reader = SseReader::new(futures_util::stream::iter(chunks));
        let mut recording = Self::default();
        // Chunks that are all there never make the reader wait.
        for frame in 1.. {
            match reader.next().now_or_never().flatten() {
                Some(Ok(sse)) => match GlobalEvent::parse(&sse.data) {
                    Ok(event) => recording.events.push(event),
                    Err(error) => {
                        recording.unreadable.push(Unreadable { frame, why: UnreadableReason::Event(error) });
                    }
                },
                Some(Err(error)) => {
                    recording.unreadable.push(Unreadable { frame, why: UnreadableReason::Stream(error) });
                    break;
                }
                None => break,
            }
        }
        recording
    }

    /// The sessions that are no subagents, in order of first sight.
    pub fn roots(&self) -> Vec<Root> {
        let children = self.children();
        let mut ids: Vec<&str> = Vec::new();
        for session in self.events.iter().filter_map(|event| event.event.session_id()) {
            if !children.contains(session) && !ids.contains(&session) {
                ids.push(session);
            }
        }
        ids.into_iter().map(|id| Root::new(id, &self.events)).collect()
    }

    /// Sessions that work for another one.
    fn children(&self) -> BTreeSet<&str> {
        let mut children = BTreeSet::new();
        for GlobalEvent { event, .. } in &self.events {
            if event.parent_id().is_some() {
                children.extend(event.session_id());
            }
            if let Event::PartUpdated(part) = event
                && let PartKind::Tool(tool) = &part.kind
                && tool.tool == "task"
            {
                children.extend(tool.state.metadata["sessionId"].as_str());
            }
        }
        children
    }
}

/// A session that is no subagent, as the recording shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Root {
    /// opencode's id.
    pub id: String,
    /// Its prompts, in order of first sight.
    pub prompts: Vec<Prompt>,
    /// What opencode said its text and reasoning parts are in the end, by part id: what the log must fold to. Only
    /// parts of messages that the recording shows from their beginning.
    pub final_texts: BTreeMap<String, (Voice, String)>,
    /// How many parts were shown without their message: what announced it is missing.
    pub unannounced: usize,
}

/// A user message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// Index of the first event that tells of it.
    pub at: usize,
    /// Its id.
    pub id: String,
    /// It is shown itself, and not only an answer to it.
    pub shown: bool,
}

/// What is known of a session's messages while its recording is read.
#[derive(Default)]
struct Reading<'a> {
    announced: BTreeSet<&'a str>,
    /// Messages of the agent that the log must show.
    shown: BTreeSet<&'a str>,
    unannounced: BTreeSet<&'a str>,
    /// Message, voice and text by part.
    texts: BTreeMap<&'a str, (&'a str, Voice, &'a str)>,
}

impl Root {
    fn new(id: &str, events: &[GlobalEvent]) -> Self {
        let mut root = Self { id: id.to_owned(), ..Self::default() };
        let mut reading = Reading::default();
        for (at, event) in events.iter().enumerate() {
            if event.event.session_id() == Some(id) {
                root.see_prompt(at, &event.event);
                reading.see(&event.event, !root.prompts.is_empty());
            }
        }
        root.unannounced = reading.unannounced.len();
        let texts = reading.texts.into_iter().filter(|(_, (_, _, text))| !text.is_empty());
        root.final_texts =
            texts.map(|(part, (_, voice, text))| (part.to_owned(), (voice, text.to_owned()))).collect();
        root
    }

    /// A prompt is shown by its own message, and by those that answer it: opencode 1.15.4 loses events that it sends
    /// right after the subscription.
    fn see_prompt(&mut self, at: usize, event: &Event) {
        let Event::MessageUpdated(info) = event else { return };
        let shown = info.role == Role::User;
        let Some(id) = (if shown { Some(&info.id) } else { info.parent_id.as_ref() }) else { return };
        match self.prompts.iter_mut().find(|prompt| prompt.id == *id) {
            Some(prompt) => prompt.shown |= shown,
            None => self.prompts.push(Prompt { at, id: id.clone(), shown }),
        }
    }
}

impl<'a> Reading<'a> {
    fn see(&mut self, event: &'a Event, prompted: bool) {
        match event {
            Event::MessageUpdated(info) => {
                // A message that was there before the first prompt answers none of ours.
                let fresh = self.announced.insert(&info.id);
                if fresh && prompted && info.role == Role::Assistant && !info.is_summary() {
                    self.shown.insert(&info.id);
                }
            }
            Event::MessageRemoved { message_id, .. } => self.texts.retain(|_, text| text.0 != message_id),
            Event::PartRemoved { part_id, .. } => {
                self.texts.remove(part_id.as_str());
            }
            Event::PartUpdated(part) => self.see_part(part),
            _ => {}
        }
    }

    fn see_part(&mut self, part: &'a Part) {
        if !self.announced.contains(part.message_id.as_str()) {
            self.unannounced.insert(&part.id);
        }
        let (voice, text) = match &part.kind {
            PartKind::Text(text) => (Voice::Message, text),
            PartKind::Reasoning(text) => (Voice::Thought, text),
            _ => return,
        };
        if text.time.end.is_some() && self.shown.contains(part.message_id.as_str()) {
            self.texts.insert(&part.id, (&part.message_id, voice, &text.text));
        }
    }
}

/// Something that came out of the translator.
#[derive(Debug, Clone, PartialEq)]
pub struct Told {
    /// Index of the event that brought it about.
    pub at: usize,
    /// Number of the turn that it belongs to, from 1.
    pub turn: Option<usize>,
    /// What.
    pub item: Translation,
}

/// The translator of one session, and what came out of it.
#[derive(Debug, Clone)]
pub struct SessionReplay {
    /// The session.
    pub root: Root,
    /// The translator.
    pub translator: SessionTranslator,
    /// What came out so far.
    pub told: Vec<Told>,
    turns: usize,
}

impl SessionReplay {
    /// Before the first event.
    pub fn new(root: &Root) -> Self {
        let translator = SessionTranslator::new(&root.id);
        let mut replay = Self { root: root.clone(), translator, told: Vec::new(), turns: 0 };
        if root.prompts.is_empty() {
            replay.begin(ASSUMED_PROMPT);
        }
        replay
    }

    /// Replays all events.
    pub fn whole(root: &Root, events: &[GlobalEvent]) -> Self {
        let mut replay = Self::new(root);
        events.iter().enumerate().for_each(|(at, event)| replay.apply(at, event));
        replay
    }

    fn begin(&mut self, prompt: &str) {
        self.translator.begin_turn(prompt);
        self.turns += 1;
    }

    /// Events from `from` up to `to` go by, seen or missed: the first prompt that is shown in them is ours, unless a
    /// turn runs.
    pub fn pass(&mut self, from: usize, to: usize) {
        if self.translator.phase() != TurnPhase::Idle {
            return;
        }
        let shown = self.root.prompts.iter().find(|prompt| (from..to).contains(&prompt.at));
        if let Some(id) = shown.map(|prompt| prompt.id.clone()) {
            self.begin(&id);
        }
    }

    /// Takes event number `at`.
    pub fn apply(&mut self, at: usize, event: &GlobalEvent) {
        self.pass(at, at + 1);
        let out = self.translator.apply(event);
        self.take(at, out);
    }

    /// Takes what came out of the translator at event number `at`. An abort that is due is answered at once.
    pub fn take(&mut self, at: usize, out: Vec<Translation>) {
        // A turn that ends within `out` is over for what follows the end.
        let mut turn = Some(self.turns).filter(|_| self.in_turn(&out));
        for item in out {
            let ends = matches!(item, Translation::Ended(_));
            self.told.push(Told { at, turn, item });
            turn = turn.filter(|_| !ends);
        }
        if self.translator.abort_due() {
            self.translator.abort_sent();
            let out = self.translator.abort_returned();
            self.take(at, out);
        }
    }

    fn in_turn(&self, out: &[Translation]) -> bool {
        self.translator.phase() != TurnPhase::Idle
            || out.iter().any(|item| matches!(item, Translation::Ended(_)))
    }

    /// The log as the server would keep it: number of the event, number of the turn, payload.
    pub fn log(&self) -> impl Iterator<Item = (usize, Option<usize>, EventPayload)> {
        self.told.iter().filter_map(|told| {
            let payload = match &told.item {
                Translation::Update(payload) => payload.clone(),
                Translation::Started => EventPayload::TurnStarted(TurnStarted { prompt: Vec::new() }),
                Translation::Ended(outcome) => EventPayload::TurnEnded(outcome.clone()),
                Translation::Abort(_) | Translation::Swallowed => return None,
            };
            Some((told.at, told.turn, payload))
        })
    }

    /// How each turn ended, in order; the last one may not have.
    pub fn turns(&self) -> Vec<TurnEnd> {
        let mut ends: Vec<TurnEnd> = Vec::new();
        let mut aborted = None;
        for told in &self.told {
            match &told.item {
                Translation::Abort(error) => aborted = Some(error),
                Translation::Ended(outcome) => {
                    ends.push(TurnEnd::of(outcome));
                    aborted = None;
                }
                Translation::Started | Translation::Swallowed | Translation::Update(_) => {}
            }
        }
        if self.translator.phase() != TurnPhase::Idle && !self.is_of_no_turn() {
            ends.push(TurnEnd::open(self.translator.phase(), aborted));
        }
        ends
    }

    /// Nothing shows that there was a prompt.
    fn is_of_no_turn(&self) -> bool {
        self.root.prompts.is_empty() && self.translator.phase() == TurnPhase::Admitted
    }
}

/// A whole recording, replayed.
#[derive(Debug)]
pub struct Replay {
    /// Its sessions that had a turn, in order of first sight.
    pub sessions: Vec<SessionReplay>,
    /// Places that cannot be read.
    pub unreadable: Vec<Unreadable>,
}

impl Replay {
    /// Replays each of the recording's sessions.
    pub fn of(recording: Recording) -> Self {
        let replays = recording.roots().into_iter();
        let replays = replays.map(|root| SessionReplay::whole(&root, &recording.events));
        let sessions = replays.filter(|replay| !replay.turns().is_empty()).collect();
        Self { sessions, unreadable: recording.unreadable }
    }

    /// How each turn ended, session by session.
    pub fn turns(&self) -> Vec<TurnEnd> {
        self.sessions.iter().flat_map(SessionReplay::turns).collect()
    }

    /// What the recording is, when its translation broke so many rules.
    pub fn verdict(&self, violations: usize) -> Verdict {
        if violations > 0 || !self.unreadable.is_empty() {
            Verdict::Faulty
        } else if self.sessions.is_empty() {
            Verdict::NotATurnStream
        } else if self.lacks_events() || self.turns().iter().any(|turn| !turn.end.is_end()) {
            Verdict::Incomplete
        } else {
            Verdict::Complete
        }
    }

    /// Parts are shown whose message is not, or answers whose prompt is not.
    fn lacks_events(&self) -> bool {
        let lacks = |root: &Root| root.unannounced > 0 || root.prompts.iter().any(|prompt| !prompt.shown);
        self.sessions.iter().any(|session| lacks(&session.root))
    }
}
