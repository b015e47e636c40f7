//! Directories whose configuration opencode could not use, and whether that file was changed since. Pure.
//!
//! opencode keeps such a failure until it ends, whatever becomes of the file and of the directory's instance (measured
//! on opencode 1.15.4 and 1.18.33).

use std::{
    fs::Metadata,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::Timestamp;
use serde::Deserialize;
use tokio::time::Instant;

/// Failures that are remembered. Those beyond that are mended by opencode's next start only.
const FAILURES: usize = 256;

/// Bytes of a path.
const PATH: usize = 4096;

/// Shortest time between two starts.
pub(crate) const REST: Duration = Duration::from_secs(10);

/// How far the times that the kernel gives files may be behind its clock.
const COARSE_NS: i128 = 20_000_000;

/// The file that opencode cannot use, as its answer names it.
///
/// Names that were seen are `ConfigJsonError` and `ConfigInvalidError`, also for definitions of agents and for links to
/// files that are missing (measured on opencode 1.15.4 and 1.18.33).
pub(crate) fn named(body: &[u8]) -> Option<PathBuf> {
    #[derive(Deserialize)]
    struct Failure {
        name: String,
        data: Data,
    }
    #[derive(Deserialize)]
    struct Data {
        path: PathBuf,
    }
    let Failure { name, data: Data { path } } = serde_json::from_slice(body).ok()?;
    let is_configuration = name.starts_with("Config") && name.ends_with("Error");
    (is_configuration && path.is_absolute() && path.as_os_str().len() <= PATH).then_some(path)
}

/// What a file looks like from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    inode: u64,
    length: u64,
    /// In nanoseconds since the epoch.
    modified: i128,
    /// The same, of the last change of its content or its attributes.
    changed: i128,
}

impl Stamp {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        let nanoseconds = |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
        Self {
            inode: metadata.ino(),
            length: metadata.len(),
            modified: nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
            changed: nanoseconds(metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// A file that cannot be used, and for which directory.
#[derive(Debug)]
struct Failure {
    directory: String,
    file: PathBuf,
    /// The file as it was when opencode had read it; nothing when it cannot be seen from here.
    stamp: Option<Stamp>,
    /// It was changed after opencode may have read it, so its stamp may be that of a mended one.
    unsure: bool,
}

/// The failures of one run of opencode.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    boot_id: String,
    /// When what the door has not heard may have happened in it; nothing when it heard all.
    unheard_since: Option<Timestamp>,
    known: Vec<Failure>,
    /// One of the files was changed, so opencode is to be started anew.
    due: bool,
    started: Option<Instant>,
}

impl Failures {
    /// This run of opencode is heard; `unheard_since` when it is not from its beginning.
    pub(crate) fn hears(&mut self, boot_id: &str, unheard_since: Option<Timestamp>) {
        if self.boot_id != boot_id {
            *self =
                Self { boot_id: boot_id.to_owned(), unheard_since, started: self.started, ..Self::default() };
        }
    }

    /// A question about the directory, asked at that time, failed for this file, which looks so now. False when there
    /// are too many. Only the first failure tells anything: opencode does not look again.
    ///
    /// A directory may have several: a request that names a session and no directory is for the session's (measured on
    /// opencode 1.18.33, and not so on 1.15.4), and known here by opencode's own.
    pub(crate) fn note(&mut self, question: &Question, file: PathBuf, stamp: Option<Stamp>) -> bool {
        let Question { boot_id, directory, asked } = question;
        let known = self.of(boot_id, directory).any(|failure| failure.file == file);
        if self.boot_id != *boot_id || known {
            return true;
        }
        if self.known.len() >= FAILURES {
            return false;
        }
        let read = self.unheard_since.unwrap_or(*asked).as_nanosecond() - COARSE_NS;
        let unsure = stamp.is_some_and(|stamp| stamp.changed >= read);
        self.known.push(Failure { directory: directory.clone(), file, stamp, unsure });
        true
    }

    fn of(&self, boot_id: &str, directory: &str) -> impl Iterator<Item = &Failure> {
        let current = self.boot_id == boot_id;
        self.known.iter().filter(move |failure| current && failure.directory == directory)
    }

    /// The files for which the directory failed in this run.
    pub(crate) fn files(&self, boot_id: &str, directory: &str) -> Vec<PathBuf> {
        self.of(boot_id, directory).map(|failure| failure.file.clone()).collect()
    }

    /// A file of the directory looks so now. Whether opencode is to be started anew for it.
    pub(crate) fn looked(
        &mut self,
        boot_id: &str,
        directory: &str,
        file: &Path,
        stamp: Option<Stamp>,
    ) -> bool {
        let mut failures = self.of(boot_id, directory);
        let changed =
            failures.any(|failure| failure.file == file && (failure.unsure || failure.stamp != stamp));
        drop(failures);
        self.due |= changed;
        changed
    }

    /// The run that is to be ended for a changed file.
    pub(crate) fn due(&self) -> Option<&str> {
        self.due.then_some(self.boot_id.as_str())
    }

    /// How long no start may follow the one before.
    pub(crate) fn rest(&self, now: Instant) -> Duration {
        self.started.map_or(Duration::ZERO, |at| REST.saturating_sub(now.saturating_duration_since(at)))
    }

    /// A start was asked for. When nothing came of it, the next request for the directory makes it due again.
    pub(crate) fn started(&mut self, now: Instant) {
        (self.due, self.started) = (false, Some(now));
    }
}

/// A question to opencode about a directory.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    /// The run that is asked.
    pub(crate) boot_id: String,
    pub(crate) directory: String,
    /// Just before it was sent.
    pub(crate) asked: Timestamp,
}

#[cfg(test)]
mod tests;
