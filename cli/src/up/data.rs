//! The data directory of a running `berth up`: made, locked, and with a token and a note in it. Does IO.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Seek, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::Path,
};

use secrecy::{ExposeSecret, SecretString};

use super::UpError;
use crate::state::{Holder, ServerNote, StateDir, read_holder, read_token};

/// The data directory, held by this process until it is dropped.
#[derive(Debug)]
pub struct HeldData {
    state: StateDir,
    lock: File,
    note: ServerNote,
}

impl HeldData {
    /// Makes the directory when it is missing, and takes it for this process. What a killed predecessor said of its
    /// server is removed. `log` is where this process logs to, when that is a file.
    pub fn take(state: &StateDir, log: Option<&Path>) -> Result<Self, UpError> {
        let data = |source| UpError::Data { path: state.root().to_owned(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(state.root()).map_err(data)?;
        let mut lock = open_private(&state.lock()).map_err(data)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(held(state, &mut lock)),
            Err(TryLockError::Error(source)) => return Err(data(source)),
        }
        let note = ServerNote::of_process(log.map(Path::to_owned));
        let mut held = Self { state: state.clone(), lock, note };
        held.remove_note();
        held.write_lock().map_err(data)?;
        Ok(held)
    }

    /// The directory.
    pub fn state(&self) -> &StateDir {
        &self.state
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
        url.clone_into(&mut self.note.url);
        let text = serde_json::to_string(&self.note).map_err(|error| data(error.into()))?;
        // Whoever waits for the note reads all of it or nothing.
        let fresh = self.state.root().join("server.json.new");
        fs::write(&fresh, text + "\n").map_err(data)?;
        fs::rename(&fresh, &path).map_err(data)?;
        self.write_lock().map_err(data)
    }

    fn write_lock(&mut self) -> io::Result<()> {
        self.lock.set_len(0)?;
        self.lock.rewind()?;
        serde_json::to_writer(&self.lock, &self.note)?;
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
        // The kernel frees the lock; nobody is to take its text for a holder until then.
        if let Err(error) = self.lock.set_len(0) {
            tracing::warn!(%error, "the lock's file cannot be emptied");
        }
    }
}

fn open_private(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

fn held(state: &StateDir, lock: &mut File) -> UpError {
    match read_holder(lock) {
        Holder::Known(note) => in_use(state, &note),
        Holder::Unknown | Holder::Nobody => {
            let holder = "a process that does not say who it is".to_owned();
            UpError::InUse { data: state.root().to_owned(), holder }
        }
    }
}

/// The refusal of a data directory that is somebody's.
pub(super) fn in_use(state: &StateDir, note: &ServerNote) -> UpError {
    let holder = if note.is_published() {
        format!("process {}, at {}", note.pid, note.url)
    } else {
        format!("process {}, which is starting", note.pid)
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
        let mut first = HeldData::take(&state, None).unwrap();
        let pid = std::process::id();
        let error = HeldData::take(&state, None).unwrap_err().to_string();
        assert!(error.contains(&format!("process {pid}, which is starting")), "{error}");
        first.publish("http://127.0.0.1:1234").unwrap();
        let error = HeldData::take(&state, None).unwrap_err().to_string();
        assert!(error.contains(&format!("process {pid}, at http://127.0.0.1:1234")), "{error}");
        let note = state.read_note().unwrap().unwrap();
        assert_eq!(note.url, "http://127.0.0.1:1234");
        assert_eq!(state.holder().unwrap(), Holder::Known(note));
        drop(first);
        assert_eq!(state.read_note().unwrap(), None);
        assert_eq!(state.holder().unwrap(), Holder::Nobody);
        HeldData::take(&state, None).unwrap();
    }

    #[test]
    fn the_token_is_made_once_and_private() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::new(directory.path().join("berth"));
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        let held = HeldData::take(&state, None).unwrap();
        let token = held.token().unwrap();
        assert_eq!(token.expose_secret().len(), 64);
        assert_eq!((mode(state.root()), mode(&state.token())), (0o700, 0o600));
        fs::set_permissions(state.token(), fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(held.token().unwrap().expose_secret(), token.expose_secret());
        assert_eq!(mode(&state.token()), 0o600);
        assert_ne!(random_secret().expose_secret(), random_secret().expose_secret());
    }
}
