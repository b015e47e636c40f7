//! What stands around events in the frames of `/global/event`. It is the same for all events of a directory, so it is
//! kept once and not with each. Pure.

use std::{borrow::Cow, collections::VecDeque, sync::Arc};

use serde::Deserialize;

/// Directory name that opencode gives to events of the whole server.
pub(super) const SERVER_LEVEL: &str = "global";

/// Origins that are remembered. More directories at a time cost memory and are right all the same.
const REMEMBERED: usize = 64;

/// What an origin takes beyond its bytes.
const COST: usize = 128;

/// Where an event comes from.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The directory; `None` for the whole server.
    pub(crate) directory: Option<Box<str>>,
    /// What stands before the payload in its envelope.
    pub(crate) before: Box<str>,
    /// What stands after it.
    pub(crate) after: Box<str>,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default)]
    directory: Option<Cow<'a, str>>,
}

impl Origin {
    fn new(before: &str, after: &str) -> Self {
        let envelope = format!("{before}null{after}");
        // A directory that is no string is none.
        let directory = serde_json::from_str(&envelope).ok().and_then(|Envelope { directory }| directory);
        let directory = directory.filter(|directory| directory != SERVER_LEVEL).map(Into::into);
        Self { directory, before: before.into(), after: after.into() }
    }

    /// Bytes of memory that it takes, about.
    pub(super) fn cost(&self) -> usize {
        let directory = self.directory.as_ref().map_or(0, |directory| directory.len());
        directory + self.before.len() + self.after.len() + COST
    }
}

/// The origins of late.
#[derive(Debug, Default)]
pub(super) struct Origins {
    recent: VecDeque<Arc<Origin>>,
}

impl Origins {
    /// The origin with these surroundings, and whether it is a new one.
    pub(super) fn of(&mut self, before: &str, after: &str) -> (Arc<Origin>, bool) {
        let same = |origin: &&Arc<Origin>| *origin.before == *before && *origin.after == *after;
        if let Some(origin) = self.recent.iter().find(same) {
            return (Arc::clone(origin), false);
        }
        let origin = Arc::new(Origin::new(before, after));
        self.recent.push_front(Arc::clone(&origin));
        self.recent.truncate(REMEMBERED);
        (origin, true)
    }
}
