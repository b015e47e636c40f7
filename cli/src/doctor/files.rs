//! The data directory: whether it can be used, who may read what in it, and what was left behind. Does IO.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use berth_command::check::Check;
use berth_serve::Holder as Supervisor;
use rustix::fs::{Access, access};

use super::{DoctorConfig, machine::existing};
use crate::{process, state::ServerNote};

/// Most sandboxes that are looked at.
const SANDBOXES_MAX: usize = 1_000;

pub(super) fn checks(config: &DoctorConfig, up: Option<&ServerNote>) -> Vec<Check> {
    let root = config.server.state.root();
    vec![writable(root), permissions(config), leftovers(config, up)]
}

fn writable(root: &Path) -> Check {
    const NAME: &str = "data directory";
    let there = existing(root);
    let fix = "give --data, or BERTH_DATA, a directory of yours";
    if root.exists() && !root.is_dir() {
        return Check::bad(NAME, format!("{} is not a directory", root.display()), fix);
    }
    match access(&there, Access::WRITE_OK | Access::EXEC_OK) {
        Ok(()) if there == root => Check::good(NAME, root.display().to_string()),
        Ok(()) => Check::good(NAME, format!("{}, which is still to be made", root.display())),
        Err(error) => Check::bad(NAME, format!("{} cannot be written to: {error}", there.display()), fix),
    }
}

/// Files that only their owner may read.
fn permissions(config: &DoctorConfig) -> Check {
    const NAME: &str = "secret files";
    let state = &config.server.state;
    let mut paths: Vec<PathBuf> = vec![state.root().to_owned()];
    // What is in the data directory is out of reach while that is.
    if others_may(state.root()).is_some() {
        paths.extend([state.token(), state.database(), state.log(), state.chat_history()]);
    }
    paths.push(config.auth.clone());
    paths.extend(config.server.token_file.clone());
    let open: Vec<_> = paths.iter().filter(|path| others_may(path).is_some()).collect();
    if open.is_empty() {
        return Check::good(NAME, "only their owner may read them");
    }
    let named = open.iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
    let fix = open.iter().map(|path| format!("chmod go-rwx '{}'", path.display())).collect::<Vec<_>>();
    Check::bad(NAME, format!("others may read {}", named.join(", ")), fix.join("; "))
}

/// The rights of others than the owner, if they have any.
fn others_may(path: &Path) -> Option<u32> {
    let mode = fs::metadata(path).ok()?.permissions().mode() & 0o077;
    Some(mode).filter(|mode| *mode != 0)
}

/// What a killed one left: notes clear themselves, processes do not.
fn leftovers(config: &DoctorConfig, up: Option<&ServerNote>) -> Check {
    const NAME: &str = "leftovers";
    let state = &config.server.state;
    let held = sandboxes(state.root())
        .into_iter()
        .filter_map(|(name, data)| Some((name, supervisor(&data)?)))
        .filter(|(_, holder)| up.is_none_or(|note| note.pid != holder.pid))
        .map(|(name, holder)| format!("sandbox {name}: {holder}"))
        .collect::<Vec<_>>();
    if !held.is_empty() {
        let fix = "end it: nothing else can run on that sandbox meanwhile";
        return Check::bad(NAME, held.join(", "), fix);
    }
    match state.read_note() {
        Ok(Some(note)) if up.is_none() && !note.is_of_living_process() => {
            let found = format!("process {} was killed, and left server.json", note.pid);
            Check::note(NAME, found, "nothing to do: the next `berth up` clears it")
        }
        Err(error) => Check::bad(NAME, error.to_string(), format!("rm '{}'", state.server_note().display())),
        Ok(_) => Check::good(NAME, "nothing was left behind"),
    }
}

/// Names and data directories of all sandboxes that there ever were.
pub(super) fn sandboxes(root: &Path) -> Vec<(String, PathBuf)> {
    let read = || -> io::Result<Vec<(String, PathBuf)>> {
        let entries = fs::read_dir(root.join("sandboxes"))?.take(SANDBOXES_MAX);
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                found.push((entry.file_name().to_string_lossy().into_owned(), entry.path()));
            }
        }
        found.sort();
        Ok(found)
    };
    read().unwrap_or_default()
}

/// Who supervises opencode on this directory, if that process is still there.
fn supervisor(data: &Path) -> Option<Supervisor> {
    let path = data.join("lock");
    let holder: Supervisor = serde_json::from_str(&fs::read_to_string(&path).ok()?).ok()?;
    process::started(holder.pid).ok()?;
    // Its number may be another process's by now. The lock decides; it is only tried when there is that doubt.
    let held = matches!(fs::File::open(&path).ok()?.try_lock_shared(), Err(fs::TryLockError::WouldBlock));
    held.then_some(holder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_command::check::Verdict;

    #[test]
    fn a_directory_that_can_be_made_is_good_and_a_file_is_not() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(writable(&directory.path().join("a/b")).verdict, Verdict::Good);
        fs::write(directory.path().join("file"), "").unwrap();
        assert_eq!(writable(&directory.path().join("file")).verdict, Verdict::Bad);
    }

    #[test]
    fn the_rights_of_others_are_seen() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("token");
        fs::write(&file, "").unwrap();
        for (mode, others) in [(0o600, None), (0o640, Some(0o040)), (0o604, Some(0o004)), (0o700, None)] {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(others_may(&file), others, "{mode:o}");
        }
        assert_eq!(others_may(&directory.path().join("absent")), None);
    }
}
