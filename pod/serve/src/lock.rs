//! The lock of a data directory: two opencodes on one directory corrupt each other's turns. IO.
//!
//! The kernel frees the lock when its holder dies, however it dies; the file's text only says who it is.

use std::{
    fmt,
    fs::{File, OpenOptions, TryLockError},
    io::{self, Read, Seek, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Who holds a data directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Process id of the supervisor; 0 when it has not written it yet.
    pub pid: u32,
    /// When it took the directory.
    pub since: Timestamp,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.pid == 0 {
            return f.write_str("another supervisor that has just started");
        }
        write!(f, "the supervisor with process id {} since {:.0}", self.pid, self.since)
    }
}

/// Why the lock was not taken.
#[derive(Debug)]
pub(crate) enum LockError {
    /// It is held.
    Held(Holder),
    /// The file cannot be used.
    Io(io::Error),
}

impl From<io::Error> for LockError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The lock, held until it is dropped.
#[derive(Debug)]
pub(crate) struct DataLock {
    _file: File,
}

impl DataLock {
    /// Takes the lock without waiting.
    pub(crate) fn take(path: &Path) -> Result<Self, LockError> {
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(LockError::Held(read_holder(&mut file)?)),
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
        let holder = Holder { pid: std::process::id(), since: Timestamp::now() };
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(serde_json::to_string(&holder).map_err(io::Error::from)?.as_bytes())?;
        Ok(Self { _file: file })
    }
}

fn read_holder(file: &mut File) -> io::Result<Holder> {
    let mut text = String::new();
    file.take(1024).read_to_string(&mut text)?;
    Ok(serde_json::from_str(&text).unwrap_or(Holder { pid: 0, since: Timestamp::UNIX_EPOCH }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_holder_is_told_who_the_first_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        std::fs::write(&path, "left over from a longer text than the new holder will write, not JSON at all")
            .unwrap();
        let first = DataLock::take(&path).unwrap();
        match DataLock::take(&path) {
            Err(LockError::Held(holder)) => {
                assert_eq!(holder.pid, std::process::id());
                assert!(holder.to_string().contains(&std::process::id().to_string()), "{holder}");
            }
            other => panic!("{other:?}"),
        }
        drop(first);
        DataLock::take(&path).unwrap();
    }
}
