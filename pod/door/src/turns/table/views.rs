//! What the table tells: whether anything runs, what, and in which directories. Pure.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use berth_wire::door::{Activity, DoorTurns};

use super::{Session, Table};

/// Sessions that one view shows.
const SHOWN: usize = 1000;

/// Whether anything runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Idleness {
    /// Nothing runs, and nothing is admitted.
    Idle,
    /// In these sessions something runs or is admitted.
    Busy(Vec<String>),
    /// Not known yet.
    Unknown,
}

/// A directory that was used since opencode started, and not disposed of since.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LiveDirectory {
    pub(crate) directory: String,
    /// Sessions in which something runs or is admitted.
    pub(crate) running: usize,
    /// Last request or event, on the table's clock.
    pub(crate) last_used: Duration,
}

impl Table {
    pub(crate) fn idleness(&self) -> Idleness {
        if !self.known {
            Idleness::Unknown
        } else if self.active.is_empty() {
            Idleness::Idle
        } else {
            Idleness::Busy(self.active.iter().cloned().collect())
        }
    }

    pub(crate) fn view(&self) -> DoorTurns {
        let activity = match (self.known, self.active.is_empty()) {
            (false, _) => Activity::Unknown,
            (true, true) => Activity::Idle,
            (true, false) => Activity::Busy,
        };
        let sessions = self.active.iter().filter_map(|id| self.sessions.get(id));
        DoorTurns {
            activity,
            sessions: sessions.take(SHOWN).map(Session::view).collect(),
            omitted: self.active.len().saturating_sub(SHOWN),
        }
    }

    pub(crate) fn live_directories(&self) -> Vec<LiveDirectory> {
        let mut running: HashMap<&str, usize> = HashMap::new();
        for session in self.active.iter().filter_map(|id| self.sessions.get(id)) {
            *running.entry(&session.directory).or_default() += 1;
        }
        let live = self.directories.iter().map(|(directory, last_used)| LiveDirectory {
            directory: directory.clone(),
            running: running.get(directory.as_str()).copied().unwrap_or_default(),
            last_used: *last_used,
        });
        live.collect()
    }

    /// Directories in which something runs or is admitted.
    pub(crate) fn active_directories(&self) -> BTreeSet<String> {
        let sessions = self.active.iter().filter_map(|id| self.sessions.get(id));
        sessions.map(|session| session.directory.clone()).filter(|directory| !directory.is_empty()).collect()
    }
}
