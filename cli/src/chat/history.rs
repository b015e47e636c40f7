//! Prompts that were typed before, in this session and earlier ones. Does IO: a file that only its owner can read.

use std::{
    fs::{self, OpenOptions, Permissions},
    io,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::PathBuf,
};

use rustyline::{
    Config,
    history::{FileHistory, History as _, SearchDirection},
};

/// Prompts that are remembered.
const LENGTH: usize = 1000;
/// Longest prompt that is remembered, in bytes.
const ENTRY_LIMIT: usize = 64 * 1024;

/// The prompts, and which of them is being looked at.
pub(super) struct History {
    entries: FileHistory,
    path: PathBuf,
    /// Where it is looked at, and what was being typed before.
    at: Option<(usize, String)>,
}

impl std::fmt::Debug for History {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("History").field("path", &self.path).finish_non_exhaustive()
    }
}

impl History {
    /// Reads the file, where there is one. That it cannot be read is logged, and no reason not to go on.
    pub(super) fn open(path: PathBuf) -> Self {
        let config =
            Config::builder().max_history_size(LENGTH).and_then(|config| config.history_ignore_dups(true));
        let config = config.map_or_else(|_| Config::default(), rustyline::config::Builder::build);
        let mut entries = FileHistory::with_config(&config);
        if let Err(error) = private(&path).and_then(|()| entries.load(&path).map_err(io::Error::other)) {
            tracing::warn!(%error, path = %path.display(), "chat history cannot be read");
        }
        Self { entries, path, at: None }
    }

    /// Remembers a prompt.
    pub(super) fn add(&mut self, text: &str) {
        self.at = None;
        if text.trim().is_empty() || text.len() > ENTRY_LIMIT {
            return;
        }
        let added = self.entries.add(text);
        let kept = added.and_then(|added| if added { self.entries.append(&self.path) } else { Ok(()) });
        if let Err(error) = kept {
            tracing::warn!(%error, path = %self.path.display(), "chat history cannot be kept");
        }
    }

    /// The prompt before, or after, the one that is looked at; `typed` is what is being typed now.
    pub(super) fn step(&mut self, back: bool, typed: &str) -> Option<String> {
        let length = self.entries.len();
        let (next, draft) = match (&self.at, back) {
            (None, true) => (length.checked_sub(1)?, typed.to_owned()),
            (None, false) => return None,
            (Some((at, draft)), true) => (at.checked_sub(1)?, draft.clone()),
            (Some((at, draft)), false) => (at + 1, draft.clone()),
        };
        if next >= length {
            self.at = None;
            return Some(draft);
        }
        let found = self.entries.get(next, SearchDirection::Forward).ok().flatten();
        self.at = Some((next, draft));
        found.map(|found| found.entry.into_owned())
    }

    /// What is typed is no longer a prompt of before.
    pub(super) fn forget_place(&mut self) {
        self.at = None;
    }
}

/// Makes the file, for its owner only, where it is missing; takes it from others where they could read it.
fn private(path: &std::path::Path) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    if file.metadata()?.permissions().mode() & 0o077 != 0 {
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_come_back_and_what_was_being_typed_does_too() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state/history");
        let mut history = History::open(path.clone());
        assert_eq!(history.step(true, "x"), None);
        for prompt in ["one", "two\nlines", "two\nlines", "  "] {
            history.add(prompt);
        }
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let mut history = History::open(path);
        assert_eq!(history.step(true, "draft").as_deref(), Some("two\nlines"));
        assert_eq!(history.step(true, "").as_deref(), Some("one"));
        assert_eq!(history.step(true, ""), None);
        assert_eq!(history.step(false, "").as_deref(), Some("two\nlines"));
        assert_eq!(history.step(false, "").as_deref(), Some("draft"));
        assert_eq!(history.step(false, ""), None);
    }

    #[test]
    fn a_file_that_others_can_read_is_taken_from_them() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        History::open(path.clone());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
