//! The data directory of local mode: which files there are, and the notes that one `berth` leaves for another. IO.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Read},
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};

use crate::error::CliError;

/// Longest token file that is read, in bytes.
const TOKEN_LIMIT: u64 = 4096;
/// Longest note that is read, in bytes.
const NOTE_LIMIT: u64 = 16 * 1024;

/// The data directory. Making it is the business of `berth up`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateDir {
    root: PathBuf,
}

/// What a running `berth up` says of itself, in `server.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerNote {
    /// Base address of its server.
    pub url: String,
    /// Its process id.
    pub pid: u32,
    /// When the kernel started that process: see [`crate::process::started`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_start: Option<String>,
    /// When it took the data directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Where it logs to, when it runs in the background.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<PathBuf>,
}

impl ServerNote {
    /// Of this process, which has no address yet.
    pub fn of_process(log: Option<PathBuf>) -> Self {
        let process_start = crate::process::own_start().ok();
        let pid = std::process::id();
        Self { url: String::new(), pid, process_start, since: Some(Timestamp::now()), log }
    }

    /// The process that wrote it is there.
    pub fn is_of_living_process(&self) -> bool {
        let start = self.process_start.as_deref();
        start.is_some_and(|start| crate::process::started(self.pid).is_ok_and(|found| found == start))
    }

    /// It says where the server is.
    pub fn is_published(&self) -> bool {
        !self.url.is_empty()
    }
}

/// Whether a `berth up` runs on a data directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// None does.
    Nobody,
    /// One does, and says this of itself.
    Known(ServerNote),
    /// One does that does not say who it is.
    Unknown,
}

impl StateDir {
    /// The data directory at `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The directory itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The server's database.
    pub fn database(&self) -> PathBuf {
        self.root.join("berth.db")
    }

    /// The bearer token, readable by its owner only.
    pub fn token(&self) -> PathBuf {
        self.root.join("token")
    }

    /// The note of a running server.
    pub fn server_note(&self) -> PathBuf {
        self.root.join("server.json")
    }

    /// Held by the running `berth up`.
    pub fn lock(&self) -> PathBuf {
        self.root.join("lock")
    }

    /// What a `berth up` in the background says.
    pub fn log(&self) -> PathBuf {
        self.root.join("berth.log")
    }

    /// How opencode ended, one JSON object a line, the last ones.
    pub fn exits(&self) -> PathBuf {
        self.root.join("exits.jsonl")
    }

    /// Held by a `berth up --detach` while it starts one in the background.
    pub fn start_lock(&self) -> PathBuf {
        self.root.join("start.lock")
    }

    /// Lines typed into `berth chat`.
    pub fn chat_history(&self) -> PathBuf {
        self.root.join("chat_history")
    }

    /// Who runs on this directory, by what the lock's file says and whether that process is still there. The lock
    /// itself is not tried: whoever starts at this moment would take that for a holder.
    pub fn holder(&self) -> io::Result<Holder> {
        let mut file = match File::open(self.lock()) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Holder::Nobody),
            Err(error) => return Err(error),
        };
        Ok(match read_holder(&mut file) {
            Holder::Known(note) if note.is_of_living_process() => Holder::Known(note),
            Holder::Unknown if is_locked(&file)? => Holder::Unknown,
            Holder::Known(_) | Holder::Unknown | Holder::Nobody => Holder::Nobody,
        })
    }

    /// What belongs to one sandbox.
    pub fn sandbox(&self, name: &str) -> PathBuf {
        self.root.join("sandboxes").join(name)
    }

    /// What the running server says of itself; `None` when there is none.
    pub fn read_note(&self) -> Result<Option<ServerNote>, CliError> {
        let path = self.server_note();
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(CliError::Read { path, source }),
        };
        let note = serde_json::from_slice(&text).map_err(|error| CliError::BadFile {
            path,
            reason: format!("not the note of a server ({error}); remove it, or run `berth up` again"),
        })?;
        Ok(Some(note))
    }
}

/// What the holder of a lock wrote into it.
pub fn read_holder(lock: &mut File) -> Holder {
    let mut text = String::new();
    let note = lock.take(NOTE_LIMIT).read_to_string(&mut text).ok();
    note.and_then(|_| serde_json::from_str(&text).ok()).map_or(Holder::Unknown, Holder::Known)
}

fn is_locked(file: &File) -> io::Result<bool> {
    match file.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Reads a token from its file: one line, not empty.
pub fn read_token(path: &Path) -> Result<SecretString, CliError> {
    let read = || {
        let length = fs::metadata(path)?.len();
        if length > TOKEN_LIMIT {
            return Err(io::Error::other(format!("larger than {TOKEN_LIMIT} bytes, so not a token")));
        }
        fs::read_to_string(path)
    };
    let text = read().map_err(|source| CliError::Read { path: path.to_owned(), source })?;
    let token = text.trim();
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        let reason = "does not hold a token: one line of printable characters is expected".to_owned();
        return Err(CliError::BadFile { path: path.to_owned(), reason });
    }
    Ok(SecretString::from(token))
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    #[test]
    fn a_missing_note_is_no_error_and_a_broken_one_is() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::new(directory.path());
        assert_eq!(state.read_note().unwrap(), None);
        fs::write(state.server_note(), r#"{"url":"http://127.0.0.1:1","pid":7}"#).unwrap();
        let note = state.read_note().unwrap().unwrap();
        assert_eq!((note.url.as_str(), note.pid, note.process_start), ("http://127.0.0.1:1", 7, None));
        fs::write(state.server_note(), "{").unwrap();
        assert!(state.read_note().unwrap_err().to_string().contains("server.json"));
    }

    #[test]
    fn tokens_are_one_clean_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        fs::write(&path, "abc\n").unwrap();
        assert_eq!(read_token(&path).unwrap().expose_secret(), "abc");
        for bad in ["", "\n", "a\nb", "ä"] {
            fs::write(&path, bad).unwrap();
            let error = read_token(&path).unwrap_err();
            assert!(matches!(error, CliError::BadFile { .. }), "{bad:?}: {error}");
        }
    }
}
