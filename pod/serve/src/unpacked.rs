//! Where opencode's runtime unpacks libraries: a directory for each run, removed with it. IO.
//!
//! opencode is one file with native libraries in it. Its runtime writes them to the temporary directory when they are
//! wanted first, under a new name in each run, and never removes them, however it ends: 5.6 MB to look for files,
//! 0.6 MB more for terminals (measured on opencode 1.15.4 and 1.18.33). It prefers the directory that
//! [`VARIABLE`] names. So this one is moved, and `TMPDIR` stays what the container says it is: files that tools leave
//! there are theirs. Without such a directory, or with a full one, opencode starts as well; terminals do not, then.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Names the directory to the runtime, and to such programs of its kind as tools run.
pub(crate) const VARIABLE: &str = "BUN_TMPDIR";

/// How long a removal may take. The agent may have put anything there.
const BOUND: Duration = Duration::from_secs(2);

/// How deep it goes.
const DEPTH: usize = 16;

/// Why something is left.
#[derive(Debug, thiserror::Error)]
enum RemoveError {
    #[error("there is more than can be removed in {} s", BOUND.as_secs())]
    Bound,
    #[error("directories lie more than {DEPTH} deep in one another")]
    Depth,
    #[error("{} cannot be removed", path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// Below the private data directory: in a temporary directory that others share they could put something there first.
fn folder(data: &Path) -> PathBuf {
    data.join("unpacked")
}

/// Makes the directory of a run. Without it opencode runs as well: that is logged.
pub(crate) fn make(data: &Path, boot_id: &str) -> Option<PathBuf> {
    let directory = folder(data).join(boot_id);
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&directory)
        .inspect_err(
            |error| tracing::warn!(%error, "opencode unpacks its libraries into the temporary directory"),
        )
        .ok()?;
    Some(directory)
}

/// Removes what runs have unpacked; none must be alive.
pub(crate) async fn clear(data: &Path) {
    let folder = folder(data);
    let removed = tokio::task::spawn_blocking(move || remove(&folder, DEPTH, Instant::now() + BOUND)).await;
    if let Ok(Err(error)) = removed {
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        tracing::warn!(%error, cause, "unpacked libraries are left");
    }
}

/// Removes a file, a link, or a directory with all in it. It is told how deep to go: the agent decides how deep it is.
fn remove(path: &Path, depth: usize, deadline: Instant) -> Result<(), RemoveError> {
    if Instant::now() >= deadline {
        return Err(RemoveError::Bound);
    }
    let failed = |source| RemoveError::Io { path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Ok(data) if data.is_dir() => {
            let depth = depth.checked_sub(1).ok_or(RemoveError::Depth)?;
            for entry in fs::read_dir(path).map_err(failed)? {
                remove(&entry.map_err(failed)?.path(), depth, deadline)?;
            }
            fs::remove_dir(path).map_err(failed)
        }
        Ok(_) => fs::remove_file(path).map_err(failed),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn far() -> Instant {
        Instant::now() + Duration::from_mins(1)
    }

    #[tokio::test]
    async fn a_run_has_a_private_directory_and_all_of_them_go() {
        let data = tempfile::tempdir().unwrap();
        clear(data.path()).await;
        for boot_id in ["one", "two"] {
            let directory = make(data.path(), boot_id).unwrap();
            assert_eq!(directory.metadata().unwrap().permissions().mode() & 0o777, 0o700);
            fs::create_dir(directory.join("of-a-tool")).unwrap();
            fs::write(directory.join("of-a-tool/file"), "").unwrap();
            fs::write(directory.join(".1-00000000.so"), "").unwrap();
        }
        clear(data.path()).await;
        assert!(!folder(data.path()).exists());
    }

    #[tokio::test]
    async fn a_link_is_removed_and_not_followed() {
        let data = tempfile::tempdir().unwrap();
        let precious = data.path().join("precious");
        fs::create_dir(&precious).unwrap();
        fs::write(precious.join("file"), "").unwrap();
        symlink(&precious, make(data.path(), "one").unwrap().join("link")).unwrap();
        clear(data.path()).await;
        symlink(&precious, folder(data.path())).unwrap();
        clear(data.path()).await;
        assert!(precious.join("file").exists() && !folder(data.path()).exists());
    }

    #[test]
    fn what_the_agent_puts_there_keeps_nobody_long() {
        let data = tempfile::tempdir().unwrap();
        let deep = (0..DEPTH).fold(data.path().join("deep"), |path, _| path.join("d"));
        fs::create_dir_all(&deep).unwrap();
        assert!(matches!(remove(&data.path().join("deep"), DEPTH, far()), Err(RemoveError::Depth)));
        assert!(matches!(remove(&deep, DEPTH, Instant::now()), Err(RemoveError::Bound)));
        assert!(deep.exists());
        remove(&deep, DEPTH, far()).unwrap();
        remove(&data.path().join("deep"), DEPTH, far()).unwrap();
    }

    #[test]
    fn a_file_in_its_place_means_no_directory() {
        let data = tempfile::tempdir().unwrap();
        fs::write(folder(data.path()), "").unwrap();
        assert_eq!(make(data.path(), "one"), None);
        remove(&folder(data.path()), DEPTH, far()).unwrap();
        assert!(make(data.path(), "one").is_some());
    }
}
