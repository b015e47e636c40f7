//! Keeps the number of directories bounded that have an instance in opencode: each costs about 41 MB (measured on
//! opencode 1.18.33). Beyond the cap the one unused for longest is disposed of in which nothing runs. IO, but for the
//! choice.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use http::Method;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};

use crate::{Door, admission::Housework, errands, events, turns::LiveDirectory};

/// Bound on one question to opencode.
const ANSWER: Duration = Duration::from_secs(10);

/// Bound on the event of a disposal, which comes with the answer.
const HEARD: Duration = Duration::from_secs(2);

/// Pause between two looks.
const PAUSE: Duration = Duration::from_secs(1);

/// Directories that are remembered; an instance beyond that is not disposed of before opencode's end.
const REMEMBERED: usize = 4096;

/// The directories that requests named in this run of opencode.
#[derive(Debug, Default)]
pub(crate) struct Directories {
    uses: Mutex<Uses>,
    more: Notify,
}

#[derive(Debug, Default)]
struct Uses {
    /// The run of opencode that the instances are of.
    boot_id: String,
    last: HashMap<String, Instant>,
}

impl Directories {
    /// A request to this run of opencode names this directory.
    pub(crate) fn touch(&self, boot_id: &str, directory: &str) {
        let mut uses = self.uses.lock().unwrap_or_else(PoisonError::into_inner);
        if uses.boot_id != boot_id {
            boot_id.clone_into(&mut uses.boot_id);
            uses.last.clear();
        }
        let now = Instant::now();
        if let Some(last) = uses.last.get_mut(directory) {
            *last = now;
        } else if uses.last.len() < REMEMBERED {
            uses.last.insert(directory.to_owned(), now);
            self.more.notify_one();
        }
    }

    fn forget(&self, directory: &str) {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner).last.remove(directory);
    }

    /// For how long each directory was not used, by requests and events.
    fn unused(&self, live: Vec<LiveDirectory>, elapsed: Duration, now: Instant) -> Vec<Unused> {
        let uses = self.uses.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known: HashMap<String, Unused> = uses
            .last
            .iter()
            .map(|(directory, last)| {
                let unused = Unused {
                    directory: directory.clone(),
                    idle_for: now.saturating_duration_since(*last),
                    running: false,
                };
                (directory.clone(), unused)
            })
            .collect();
        drop(uses);
        for live in live {
            let heard = elapsed.saturating_sub(live.last_used);
            let entry = known.entry(live.directory.clone()).or_insert(Unused {
                directory: live.directory,
                idle_for: heard,
                running: false,
            });
            entry.idle_for = entry.idle_for.min(heard);
            entry.running = live.running > 0;
        }
        known.into_values().collect()
    }
}

/// A directory with an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Unused {
    directory: String,
    /// Since the last request or event.
    idle_for: Duration,
    /// Something runs or is admitted.
    running: bool,
}

/// Those that may be disposed of while there are more than `cap`, the one unused for longest first.
fn candidates(mut known: Vec<Unused>, cap: usize, own: &str) -> Vec<String> {
    if known.len() <= cap {
        return Vec::new();
    }
    known.retain(|directory| !directory.running && directory.directory != own);
    known.sort_by_key(|directory| std::cmp::Reverse(directory.idle_for));
    known.into_iter().map(|directory| directory.directory).collect()
}

/// Disposes of what is too much, until shutdown.
pub(crate) async fn run(door: Arc<Door>) {
    let work = async {
        let mut turned = door.turns.watch();
        loop {
            tokio::select! {
                () = door.directories.more.notified() => {}
                _ = turned.changed() => {}
            }
            tidy(&door).await;
            // Events come by the hundred.
            sleep(PAUSE).await;
        }
    };
    door.shutdown.run_until_cancelled(work).await;
}

/// The instance of a directory was closed, by whomever. A request in flight there may have booted the next one already.
pub(crate) fn closed(door: &Door, directory: &str) {
    if !door.admission.is_named(directory) {
        door.directories.forget(directory);
    }
}

/// opencode's own directory, as its supervisor names it.
pub(crate) fn own(door: &Door) -> String {
    door.serve.borrow().directory.to_string_lossy().into_owned()
}

async fn tidy(door: &Arc<Door>) {
    let own = events::real(self::own(door)).await;
    let known = || {
        let live = door.turns.live_directories();
        door.directories.unused(live, door.turns.elapsed(), Instant::now())
    };
    for directory in candidates(known(), door.config.directories, &own) {
        if known().len() <= door.config.directories {
            return;
        }
        dispose(door, &directory, &own, Terminals::Stay).await;
    }
}

/// What becomes of terminals that live in a directory and that nobody is connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Terminals {
    /// They keep the instance.
    Stay,
    /// They end with it.
    End,
}

/// What became of a disposal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disposal {
    /// The instance is closed.
    Done,
    /// Something runs there, or opencode does not answer now.
    NotNow,
    /// A terminal is open there.
    Never,
}

/// Closes the directory's instance, if nothing runs in it now; what is to begin there waits for that.
pub(crate) async fn dispose(door: &Arc<Door>, directory: &str, own: &str, terminals: Terminals) -> Disposal {
    let work = Housework::Directory { directory: directory.to_owned(), own: own.to_owned() };
    let Some(_reserved) = door.admission.reserve(work) else { return Disposal::NotNow };
    let live = door.turns.live_directories();
    if live.iter().any(|live| live.directory == directory && live.running > 0) {
        return Disposal::NotNow;
    }
    let listed = errands::ask(door, Method::GET, "/pty", directory, ANSWER).await;
    if listed.is_some_and(|(status, body)| status.is_success() && body.trim_ascii() != b"[]") {
        match terminals {
            Terminals::Stay => return Disposal::Never,
            Terminals::End => tracing::warn!(directory, "terminals end with the instance of their directory"),
        }
    }
    match errands::ask(door, Method::POST, "/instance/dispose", directory, ANSWER).await {
        Some((status, _)) if status.is_success() => {
            heard(door, directory).await;
            closed(door, directory);
            door.config.metrics.disposed_directories.inc();
            tracing::debug!(directory, "an idle directory was disposed of");
            Disposal::Done
        }
        // There is no instance: the directory's configuration is broken, say.
        Some((status, _)) if status.is_client_error() => {
            door.directories.forget(directory);
            door.turns.disposed(&door.journal, directory);
            Disposal::Done
        }
        answer => {
            let status = answer.map(|(status, _)| status.as_u16());
            tracing::warn!(directory, status, "an idle directory cannot be disposed of");
            Disposal::NotNow
        }
    }
}

/// Waits until opencode's own event of the disposal has come: later, it would end a turn that began after it.
async fn heard(door: &Door, directory: &str) {
    let known = || door.turns.live_directories().iter().any(|live| live.directory == directory);
    let mut turned = door.turns.watch();
    if timeout(HEARD, turned.wait_for(|_| !known())).await.is_err() {
        door.turns.disposed(&door.journal, directory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unused(directory: &str, seconds: u64, running: bool) -> Unused {
        Unused { directory: directory.to_owned(), idle_for: Duration::from_secs(seconds), running }
    }

    #[test]
    fn the_longest_unused_goes_first_and_the_own_and_busy_ones_stay() {
        let known = vec![
            unused("/own", 90, false),
            unused("/a", 10, false),
            unused("/b", 80, true),
            unused("/c", 20, false),
        ];
        assert_eq!(candidates(known.clone(), 3, "/own"), ["/c", "/a"]);
        assert!(candidates(known, 4, "/own").is_empty());
    }

    #[test]
    fn requests_and_events_both_are_uses() {
        let directories = Directories::default();
        directories.touch("boot", "/a");
        directories.touch("boot", "/b");
        let later = Instant::now() + Duration::from_secs(100);
        let live = vec![LiveDirectory {
            directory: "/a".to_owned(),
            running: 1,
            last_used: Duration::from_secs(95),
        }];
        let mut known = directories.unused(live, Duration::from_secs(100), later);
        known.sort_by(|one, other| one.directory.cmp(&other.directory));
        assert_eq!(known[0], unused("/a", 5, true));
        assert!(!known[1].running && known[1].idle_for >= Duration::from_secs(99));
    }
}
