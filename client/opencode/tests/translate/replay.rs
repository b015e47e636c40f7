//! The captures, and what a test looks at in their replays.

use std::{fmt::Write as _, fs, path::PathBuf};

use berth_opencode::{
    GlobalEvent, Translation,
    replay::{Recording, Root, SessionReplay, manifest::Manifest},
};
use berth_testkit::validate::{Extent, Violation, check_replay};
use berth_wire::{
    event::{EventPayload, Fold},
    turn::TurnOutcome,
};
use serde_json::Value;

/// A session of a captured stream.
pub(crate) struct Capture {
    pub(crate) name: String,
    pub(crate) events: Vec<GlobalEvent>,
    pub(crate) root: Root,
}

pub(crate) fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/captures")
}

pub(crate) fn manifest() -> Manifest {
    Manifest::read(&fs::read_to_string(folder().join("manifest.json")).unwrap()).unwrap()
}

/// Names of the files with captures, in order.
pub(crate) fn files() -> Vec<String> {
    let entries = fs::read_dir(folder()).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.strip_suffix(".sse").is_some()).collect();
    names.sort();
    names
}

pub(crate) fn bytes(file: &str) -> Vec<u8> {
    fs::read(folder().join(file)).unwrap()
}

/// Every session with a turn of every capture; a capture's second session is `name#2`.
pub(crate) fn all() -> Vec<Capture> {
    files().iter().flat_map(|file| Capture::sessions(file.strip_suffix(".sse").unwrap())).collect()
}

impl Capture {
    /// The capture's first session.
    pub(crate) fn load(name: &str) -> Self {
        Self::sessions(name).remove(0)
    }

    fn sessions(name: &str) -> Vec<Self> {
        let recording = Recording::read(bytes(&format!("{name}.sse")));
        assert!(recording.unreadable.is_empty(), "{name}: {:?}", recording.unreadable);
        let turns = |root: &Root| SessionReplay::whole(root, &recording.events).turns().len();
        let roots = recording.roots().into_iter().filter(|root| turns(root) > 0).enumerate();
        roots
            .map(|(index, root)| {
                let name = if index == 0 { name.to_owned() } else { format!("{name}#{}", index + 1) };
                Self { name, events: recording.events.clone(), root }
            })
            .collect()
    }

    pub(crate) fn whole(&self) -> SessionReplay {
        SessionReplay::whole(&self.root, &self.events)
    }

    pub(crate) fn apply(&self, run: &mut SessionReplay, index: usize) {
        run.apply(index, &self.events[index]);
    }
}

/// What tests look at in a replay.
pub(crate) trait Look {
    fn updates(&self) -> impl Iterator<Item = &EventPayload>;
    fn outcomes(&self) -> Vec<&TurnOutcome>;
    /// What each turn came to, in words.
    fn ends(&self) -> Vec<String>;
    fn fold(&self) -> Fold;
    /// Broken rules.
    fn violations(&self) -> Vec<Violation>;
    /// One line for each translation.
    fn to_text(&self) -> String;
}

impl Look for SessionReplay {
    fn updates(&self) -> impl Iterator<Item = &EventPayload> {
        self.told.iter().filter_map(|told| match &told.item {
            Translation::Update(payload) => Some(payload),
            _ => None,
        })
    }

    fn outcomes(&self) -> Vec<&TurnOutcome> {
        let ends = self.told.iter().filter_map(|told| match &told.item {
            Translation::Ended(outcome) => Some(outcome),
            _ => None,
        });
        ends.collect()
    }

    fn ends(&self) -> Vec<String> {
        self.outcomes().into_iter().map(in_words).collect()
    }

    fn fold(&self) -> Fold {
        let mut fold = Fold::default();
        self.updates().for_each(|payload| fold.apply(payload).unwrap());
        fold
    }

    fn violations(&self) -> Vec<Violation> {
        let extent =
            if self.turns().iter().all(|turn| turn.end.is_end()) { Extent::Whole } else { Extent::SoFar };
        check_replay(&self.log().collect::<Vec<_>>(), &self.root.final_texts, extent)
    }

    fn to_text(&self) -> String {
        let mut text = String::new();
        for told in &self.told {
            let (kind, value) = match &told.item {
                Translation::Update(payload) => payload.to_parts(),
                Translation::Started => ("STARTED".to_owned(), Value::Null),
                Translation::Abort(error) => ("ABORT".to_owned(), serde_json::to_value(error).unwrap()),
                Translation::Swallowed => ("SWALLOWED".to_owned(), serde_json::Value::Null),
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
