//! The data directory of local mode: which files there are, and the notes that one `berth` leaves for another. IO.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use secrecy::SecretString;
use serde::{Deserialize, Serialize};

use crate::error::CliError;

/// Longest token file that is read, in bytes.
const TOKEN_LIMIT: u64 = 4096;

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

    /// Lines typed into `berth chat`.
    pub fn chat_history(&self) -> PathBuf {
        self.root.join("chat_history")
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
        let note = ServerNote { url: "http://127.0.0.1:1".to_owned(), pid: 7 };
        assert_eq!(state.read_note().unwrap(), Some(note));
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
