//! Reads a capture and drives a translator through it, as the server's turn runner does.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::PathBuf};

use berth_opencode::{
    Event, GlobalEvent, SessionTranslator, Translation,
    model::{PartKind, Role},
};
use berth_wire::{
    event::{EventPayload, Fold, Voice},
    turn::TurnOutcome,
};
use serde_json::Value;

/// A captured stream.
pub(crate) struct Capture {
    pub(crate) name: String,
    pub(crate) events: Vec<GlobalEvent>,
    /// The first session that is no subagent.
    pub(crate) root: String,
    /// Ids of its user messages, each with the index of the event that shows it first.
    prompts: Vec<(usize, String)>,
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/captures")
}

/// Every capture, by name.
pub(crate) fn all() -> Vec<Capture> {
    let entries =
        fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> =
        entries.filter_map(|name| name.strip_suffix(".sse").map(str::to_owned)).collect();
    names.sort();
    names.iter().map(|name| Capture::load(name)).collect()
}

fn session_of(event: &Event) -> Option<&str> {
    match event {
        Event::SessionCreated(info) | Event::SessionUpdated(info) if info.parent_id.is_none() => {
            Some(&info.id)
        }
        Event::SessionStatus { session_id, .. } => Some(session_id),
        _ => None,
    }
}

impl Capture {
    pub(crate) fn load(name: &str) -> Self {
        let text = fs::read_to_string(folder().join(format!("{name}.sse"))).unwrap();
        let frames = text.lines().filter_map(|line| line.strip_prefix("data:"));
        let events: Vec<_> = frames.map(|frame| GlobalEvent::parse(frame).unwrap()).collect();
        let root = events.iter().find_map(|event| session_of(&event.event)).unwrap_or_default().to_owned();
        let mut prompts: Vec<(usize, String)> = Vec::new();
        for (index, event) in events.iter().enumerate() {
            if let Event::MessageUpdated(info) = &event.event
                && info.role == Role::User
                && info.session_id == root
                && !prompts.iter().any(|(_, id)| *id == info.id)
            {
                prompts.push((index, info.id.clone()));
            }
        }
        Self { name: name.to_owned(), events, root, prompts }
    }

    /// The prompt that is ours next, at this event: the first one that was not shown before.
    pub(crate) fn prompt_from(&self, index: usize) -> Option<&str> {
        self.prompts.iter().find(|(shown, _)| *shown >= index).map(|(_, id)| id.as_str())
    }

    /// The final text of each of the root's text and reasoning parts that ended, by part id.
    pub(crate) fn final_texts(&self) -> BTreeMap<String, (Voice, String)> {
        let mut texts = BTreeMap::new();
        let prompts: Vec<&str> = self.prompts.iter().map(|(_, id)| id.as_str()).collect();
        for event in &self.events {
            let Event::PartUpdated(part) = &event.event else { continue };
            if part.session_id != self.root || prompts.contains(&part.message_id.as_str()) {
                continue;
            }
            let (voice, text) = match &part.kind {
                PartKind::Text(text) => (Voice::Message, text),
                PartKind::Reasoning(text) => (Voice::Thought, text),
                _ => continue,
            };
            if text.time.end.is_some() {
                texts.insert(part.id.clone(), (voice, text.text.clone()));
            }
        }
        texts
    }
}

/// A translator, and what came out of it.
pub(crate) struct Run {
    pub(crate) translator: SessionTranslator,
    pub(crate) log: Vec<Translation>,
}

impl Run {
    /// Begins the capture's first turn.
    pub(crate) fn new(capture: &Capture) -> Self {
        let mut translator = SessionTranslator::new(&capture.root);
        translator.begin_turn(capture.prompt_from(0).unwrap_or("msg_of_ours_that_was_never_stored"));
        Self { translator, log: Vec::new() }
    }

    /// Takes what came out before event `next`; after an end, the next prompt that is still to come is ours.
    pub(crate) fn take(&mut self, out: Vec<Translation>, capture: &Capture, next: usize) {
        let ended = out.iter().any(|item| matches!(item, Translation::Ended(_)));
        self.log.extend(out);
        if ended && let Some(prompt) = capture.prompt_from(next) {
            self.translator.begin_turn(prompt);
        }
        if self.translator.abort_due() {
            self.translator.abort_sent();
            let out = self.translator.abort_returned();
            self.take(out, capture, next);
        }
    }

    pub(crate) fn apply(&mut self, capture: &Capture, index: usize) {
        let out = self.translator.apply(&capture.events[index]);
        self.take(out, capture, index + 1);
    }

    pub(crate) fn whole(capture: &Capture) -> Self {
        let mut run = Self::new(capture);
        (0..capture.events.len()).for_each(|index| run.apply(capture, index));
        run
    }

    pub(crate) fn updates(&self) -> impl Iterator<Item = &EventPayload> {
        self.log.iter().filter_map(|item| match item {
            Translation::Update(payload) => Some(payload),
            _ => None,
        })
    }

    pub(crate) fn fold(&self) -> Fold {
        let mut fold = Fold::default();
        self.updates().for_each(|payload| fold.apply(payload).unwrap());
        fold
    }

    pub(crate) fn outcomes(&self) -> Vec<&TurnOutcome> {
        self.log
            .iter()
            .filter_map(|item| match item {
                Translation::Ended(outcome) => Some(outcome),
                _ => None,
            })
            .collect()
    }

    /// One line for each translation.
    pub(crate) fn to_text(&self) -> String {
        let mut text = String::new();
        for item in &self.log {
            let (kind, value) = match item {
                Translation::Update(payload) => payload.to_parts(),
                Translation::Started => ("STARTED".to_owned(), Value::Null),
                Translation::Abort(error) => ("ABORT".to_owned(), serde_json::to_value(error).unwrap()),
                Translation::Ended(outcome) => ("ENDED".to_owned(), serde_json::to_value(outcome).unwrap()),
            };
            writeln!(text, "{kind} {value}").unwrap();
        }
        text
    }
}

/// State, reason and error of an outcome in a few words.
pub(crate) fn in_words(outcome: &TurnOutcome) -> String {
    let reason = outcome.stop_reason.map(|reason| format!("{reason:?}"));
    let error = outcome.error.as_ref().map(|error| format!("{:?}", error.reason));
    format!("{:?} {}", outcome.state, reason.or(error).unwrap_or_default())
}
