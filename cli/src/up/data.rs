//! The data directory of a running `berth up`: made, locked, and with a token and a note in it. Does IO.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Read, Seek, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::Path,
};

use secrecy::{ExposeSecret, SecretString};

use super::UpError;
use crate::state::{ServerNote, StateDir, read_token};

/// The data directory, held by this process until it is dropped.
#[derive(Debug)]
pub struct HeldData {
    state: StateDir,
    lock: File,
}

impl HeldData {
    /// Makes the directory when it is missing, and takes it for this process. What a killed predecessor said of its
    /// server is removed.
    pub fn take(state: &StateDir) -> Result<Self, UpError> {
        let data = |source| UpError::Data { path: state.root().to_owned(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(state.root()).map_err(data)?;
        let mut lock = open_private(&state.lock()).map_err(data)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(in_use(state, &mut lock)),
            Err(TryLockError::Error(source)) => return Err(data(source)),
        }
        let mut held = Self { state: state.clone(), lock };
        held.remove_note();
        let note = ServerNote { url: String::new(), pid: std::process::id() };
        held.write_lock(&note).map_err(data)?;
        Ok(held)
    }

    /// The bearer token: made at the first time, kept from then on, and never readable by others.
    pub fn token(&self) -> Result<SecretString, UpError> {
        let path = self.state.token();
        let data = |source| UpError::Data { path: path.clone(), source };
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            Ok(mut file) => {
                let token = random_secret();
                writeln!(file, "{}", token.expose_secret()).map_err(data)?;
                Ok(token)
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).map_err(data)?;
                read_token(&path).map_err(|source| UpError::Token(Box::new(source)))
            }
            Err(error) => Err(data(error)),
        }
    }

    /// Tells other programs where the server is.
    pub fn publish(&mut self, url: &str) -> Result<(), UpError> {
        let path = self.state.server_note();
        let data = |source| UpError::Data { path: path.clone(), source };
        let note = ServerNote { url: url.to_owned(), pid: std::process::id() };
        let text = serde_json::to_string(&note).map_err(|error| data(error.into()))?;
        // Whoever waits for the note reads all of it or nothing.
        let fresh = self.state.root().join("server.json.new");
        fs::write(&fresh, text + "\n").map_err(data)?;
        fs::rename(&fresh, &path).map_err(data)?;
        self.write_lock(&note).map_err(data)
    }

    fn write_lock(&mut self, note: &ServerNote) -> io::Result<()> {
        self.lock.set_len(0)?;
        self.lock.rewind()?;
        serde_json::to_writer(&mut self.lock, note)?;
        self.lock.flush()
    }

    fn remove_note(&self) {
        let path = self.state.server_note();
        match fs::remove_file(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(%error, path = %path.display(), "a server's note cannot be removed"),
        }
    }
}

impl Drop for HeldData {
    fn drop(&mut self) {
        self.remove_note();
    }
}

fn open_private(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

fn in_use(state: &StateDir, lock: &mut File) -> UpError {
    let mut text = String::new();
    let note = lock.take(4096).read_to_string(&mut text).ok().and_then(|_| serde_json::from_str(&text).ok());
    let holder = match note {
        Some(ServerNote { pid, url }) if url.is_empty() => format!("process {pid}, which is starting"),
        Some(ServerNote { pid, url }) => format!("process {pid}, at {url}"),
        None => "a process that does not say who it is".to_owned(),
    };
    UpError::InUse { data: state.root().to_owned(), holder }
}

/// 256 random bits in hexadecimal.
pub fn random_secret() -> SecretString {
    let (first, second): (u128, u128) = rand::random();
    SecretString::from(format!("{first:032x}{second:032x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_one_is_refused_and_told_who_is_first() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::new(directory.path().join("berth"));
        let mut first = HeldData::take(&state).unwrap();
        let pid = std::process::id();
        let error = HeldData::take(&state).unwrap_err().to_string();
        assert!(error.contains(&format!("process {pid}, which is starting")), "{error}");
        first.publish("http://127.0.0.1:1234").unwrap();
        let error = HeldData::take(&state).unwrap_err().to_string();
        assert!(error.contains(&format!("process {pid}, at http://127.0.0.1:1234")), "{error}");
        assert_eq!(state.read_note().unwrap().unwrap().url, "http://127.0.0.1:1234");
        drop(first);
        assert_eq!(state.read_note().unwrap(), None);
        HeldData::take(&state).unwrap();
    }

    #[test]
    fn the_token_is_made_once_and_private() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::new(directory.path().join("berth"));
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        let held = HeldData::take(&state).unwrap();
        let token = held.token().unwrap();
        assert_eq!(token.expose_secret().len(), 64);
        assert_eq!((mode(state.root()), mode(&state.token())), (0o700, 0o600));
        fs::set_permissions(state.token(), fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(held.token().unwrap().expose_secret(), token.expose_secret());
        assert_eq!(mode(&state.token()), 0o600);
        assert_ne!(random_secret().expose_secret(), random_secret().expose_secret());
    }
}
