//! The passwords of a door: fixed ones, or those in a directory that is looked at again and again. IO.
//!
//! The directory is one that Kubernetes mounts a Secret at: the files are links into `..data`, which is itself a link
//! and is exchanged as a whole. Two passwords may hold at a time, so a rotation fails no request: first the new one is
//! written as `password` and the old one as `password-previous`, later the latter is removed.

use std::{
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use secrecy::{ExposeSecret, SecretString};
use tokio::{
    fs::File,
    io::AsyncReadExt,
    sync::watch,
    time::{MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

use crate::{Metrics, auth::Credentials};

/// The door's password.
const PASSWORD: &str = "password";

/// The one before, while it still holds.
const PREVIOUS: &str = "password-previous";

/// opencode's internal password.
const INTERNAL: &str = "opencode-password";

/// The one before, which a running opencode may have been started with.
const INTERNAL_PREVIOUS: &str = "opencode-password-previous";

/// Longest password, in bytes.
const LONGEST: u64 = 1024;

/// Internal passwords that are tried at most.
const INTERNAL_KNOWN: usize = 3;

/// Pause between two looks.
const PERIOD: Duration = Duration::from_secs(2);

/// A password file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the file {name} of the door's secret cannot be used")]
pub struct SecretError {
    /// Its name.
    pub name: &'static str,
    /// Why.
    #[source]
    pub source: io::Error,
}

/// Where a door gets its passwords from; clones share them.
#[derive(Debug, Clone)]
pub struct Secrets {
    held: watch::Sender<Arc<Held>>,
    directory: Option<PathBuf>,
}

/// The passwords that hold now.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    /// Of the door; the first is the current one.
    pub(crate) passwords: Vec<SecretString>,
    /// The same, as callers give them.
    pub(crate) credentials: Credentials,
    /// Of opencode, in the order in which they are to be tried.
    pub(crate) internal: Vec<SecretString>,
}

impl Held {
    fn new(passwords: Vec<SecretString>, internal: Vec<SecretString>) -> Arc<Self> {
        let credentials = Credentials::new(&passwords);
        Arc::new(Self { passwords, credentials, internal })
    }
}

impl Secrets {
    /// Passwords that never change.
    pub fn fixed(password: SecretString, internal: SecretString) -> Self {
        Self::of(Held::new(vec![password], vec![internal]), None)
    }

    /// Passwords in the files `password`, `password-previous` (may be missing), `opencode-password` and
    /// `opencode-password-previous` (may be missing) of this directory: 1 to 1,024 bytes of UTF-8 each, where line ends
    /// at the end do not count. The door reads them again when they change. A file that cannot be used then keeps its
    /// old value.
    pub async fn in_directory(directory: impl Into<PathBuf>) -> Result<Self, SecretError> {
        let directory = directory.into();
        let read = Read::all(&directory).await;
        let passwords = [Some(read.password?), read.previous?];
        let internal = [Some(read.internal?), read.internal_previous?];
        let held = Held::new(listed(passwords.into_iter().flatten()), listed(internal.into_iter().flatten()));
        Ok(Self::of(held, Some(directory)))
    }

    fn of(held: Arc<Held>, directory: Option<PathBuf>) -> Self {
        Self { held: watch::Sender::new(held), directory }
    }

    /// What holds now.
    pub(crate) fn held(&self) -> Arc<Held> {
        Arc::clone(&self.held.borrow())
    }

    /// Looks again and again; returns at once when nothing can change.
    pub(crate) async fn follow(self, metrics: Metrics, shutdown: CancellationToken) {
        let Some(directory) = &self.directory else { return };
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut seen = None;
        while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
            let sight = sight(directory).await;
            if seen.as_ref() == Some(&sight) {
                continue;
            }
            // What was read badly is read again at the next look, and told once.
            let is_bad = self.read_again(directory, &metrics, seen.is_none()).await;
            seen = (!is_bad).then_some(sight);
        }
    }

    /// Takes over what can be used; gives whether something cannot.
    async fn read_again(&self, directory: &Path, metrics: &Metrics, is_told: bool) -> bool {
        let old = self.held();
        let mut bad = 0_u32;
        let mut report = |error: SecretError| {
            bad += 1;
            metrics.unusable_secrets.inc();
            let source: &dyn std::error::Error = &error.source;
            if !is_told {
                tracing::warn!(file = error.name, error = source, "a password keeps its old value");
            }
        };
        let read = Read::all(directory).await;
        let password = read.password.map_err(&mut report).ok().or_else(|| old.passwords.first().cloned());
        let previous = read.previous.unwrap_or_else(|error| {
            report(error);
            old.passwords.get(1).cloned()
        });
        let internal = read.internal.map_err(&mut report).ok().or_else(|| old.internal.first().cloned());
        let internal_previous = read.internal_previous.unwrap_or_else(|error| {
            report(error);
            None
        });
        // opencode may run with one that held before, whatever the files say.
        let known = old.internal.iter().cloned();
        let mut internal = listed([internal, internal_previous].into_iter().flatten().chain(known));
        internal.truncate(INTERNAL_KNOWN);
        let new = Held::new(listed([password, previous].into_iter().flatten()), internal);
        if !same(&new.passwords, &old.passwords) || !same(&new.internal, &old.internal) {
            tracing::info!(passwords = new.passwords.len(), "the door's passwords changed");
            self.held.send_replace(new);
        }
        bad > 0
    }
}

/// Each once.
fn listed(secrets: impl Iterator<Item = SecretString>) -> Vec<SecretString> {
    let mut listed: Vec<SecretString> = Vec::new();
    for secret in secrets {
        if !listed.iter().any(|known| known.expose_secret() == secret.expose_secret()) {
            listed.push(secret);
        }
    }
    listed
}

fn same(one: &[SecretString], other: &[SecretString]) -> bool {
    one.iter().map(ExposeSecret::expose_secret).eq(other.iter().map(ExposeSecret::expose_secret))
}

/// What the files look like from outside: which inode, how long, and when changed.
async fn sight(directory: &Path) -> [Option<(u64, u64, i64, i64)>; 4] {
    let mut sight = [None; 4];
    for (seen, name) in sight.iter_mut().zip([PASSWORD, PREVIOUS, INTERNAL, INTERNAL_PREVIOUS]) {
        let metadata = tokio::fs::metadata(directory.join(name)).await;
        *seen = metadata.ok().map(|file| (file.ino(), file.size(), file.mtime(), file.mtime_nsec()));
    }
    sight
}

/// All files, read from one state of the directory.
struct Read {
    password: Result<SecretString, SecretError>,
    previous: Result<Option<SecretString>, SecretError>,
    internal: Result<SecretString, SecretError>,
    internal_previous: Result<Option<SecretString>, SecretError>,
}

impl Read {
    async fn all(directory: &Path) -> Self {
        let data = tokio::fs::canonicalize(directory.join("..data")).await;
        let directory = data.as_deref().unwrap_or(directory);
        Self {
            password: read(directory, PASSWORD).await,
            previous: optional(read(directory, PREVIOUS).await),
            internal: read(directory, INTERNAL).await,
            internal_previous: optional(read(directory, INTERNAL_PREVIOUS).await),
        }
    }
}

fn optional(read: Result<SecretString, SecretError>) -> Result<Option<SecretString>, SecretError> {
    match read {
        Err(error) if error.source.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

async fn read(directory: &Path, name: &'static str) -> Result<SecretString, SecretError> {
    read_file(&directory.join(name)).await.map_err(|source| SecretError { name, source })
}

async fn read_file(path: &Path) -> io::Result<SecretString> {
    let mut text = String::new();
    File::open(path).await?.take(LONGEST + 1).read_to_string(&mut text).await?;
    let invalid = |why| Err(io::Error::new(io::ErrorKind::InvalidData, why));
    if text.len() as u64 > LONGEST {
        return invalid("it is too long");
    }
    let secret = text.trim_end_matches(['\r', '\n']);
    if secret.is_empty() {
        return invalid("it is empty");
    }
    Ok(secret.into())
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use tempfile::TempDir;

    use super::*;

    /// Writes the files as the kubelet does: into a new directory, to which `..data` is made to point at once.
    fn mount(directory: &TempDir, version: &str, files: &[(&str, &[u8])]) {
        let path = directory.path();
        fs::create_dir(path.join(version)).unwrap();
        for (name, bytes) in files {
            fs::write(path.join(version).join(name), bytes).unwrap();
        }
        symlink(version, path.join("..data_tmp")).unwrap();
        let old = fs::canonicalize(path.join("..data")).ok();
        fs::rename(path.join("..data_tmp"), path.join("..data")).unwrap();
        for name in [PASSWORD, PREVIOUS, INTERNAL, INTERNAL_PREVIOUS] {
            let _ = symlink(Path::new("..data").join(name), path.join(name));
        }
        if let Some(old) = old {
            fs::remove_dir_all(old).unwrap();
        }
    }

    fn shown(secrets: &[SecretString]) -> Vec<&str> {
        secrets.iter().map(ExposeSecret::expose_secret).collect()
    }

    #[tokio::test]
    async fn each_state_of_the_mounted_secret_is_taken_as_a_whole() {
        let directory = TempDir::new().unwrap();
        mount(&directory, "..1", &[(PASSWORD, b"one\n"), (INTERNAL, b"inner")]);
        let secrets = Secrets::in_directory(directory.path()).await.unwrap();
        assert_eq!(shown(&secrets.held().passwords), ["one"]);
        let first = sight(directory.path()).await;
        assert_eq!(first, sight(directory.path()).await);

        let both: [(&str, &[u8]); 3] = [(PASSWORD, b"two"), (PREVIOUS, b"one"), (INTERNAL, b"inner 2")];
        mount(&directory, "..2", &both);
        assert_ne!(first, sight(directory.path()).await);
        let metrics = Metrics::default();
        assert!(!secrets.read_again(directory.path(), &metrics, false).await);
        assert_eq!(shown(&secrets.held().passwords), ["two", "one"]);
        assert_eq!(shown(&secrets.held().internal), ["inner 2", "inner"]);

        mount(&directory, "..3", &[(PASSWORD, b"two"), (INTERNAL, b"inner 2")]);
        assert!(!secrets.read_again(directory.path(), &metrics, false).await);
        assert_eq!(shown(&secrets.held().passwords), ["two"]);
        assert_eq!(metrics.unusable_secrets.get(), 0);
        assert!(!format!("{secrets:?}").contains("two"));
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_used_keeps_its_value_and_is_counted() {
        let directory = TempDir::new().unwrap();
        mount(&directory, "..1", &[(PASSWORD, b"one"), (PREVIOUS, b"zero"), (INTERNAL, b"inner")]);
        let secrets = Secrets::in_directory(directory.path()).await.unwrap();
        let long = vec![b'x'; 1025];
        let bad: [&[(&str, &[u8])]; 4] = [
            &[(PREVIOUS, b"zero"), (INTERNAL, b"inner")],
            &[(PASSWORD, b"\n"), (PREVIOUS, b"zero"), (INTERNAL, b"inner")],
            &[(PASSWORD, &long), (PREVIOUS, b"zero"), (INTERNAL, b"inner")],
            &[(PASSWORD, b"one"), (PREVIOUS, b"\xff"), (INTERNAL, b"inner")],
        ];
        let metrics = Metrics::default();
        for (count, files) in (1..).zip(bad) {
            mount(&directory, &format!("..bad{count}"), files);
            assert!(secrets.read_again(directory.path(), &metrics, false).await);
            assert_eq!(shown(&secrets.held().passwords), ["one", "zero"], "{count}");
            assert_eq!(metrics.unusable_secrets.get(), count);
        }
        let missing = Secrets::in_directory(directory.path().join("none")).await.unwrap_err();
        assert_eq!(missing.name, PASSWORD);
    }
}
