//! The working directories that a sandbox has had, as `berth up` notes them beside its data: whoever looks at its logs later,
//! with no server up, finds the project that they are of. IO.

use std::{
    fs, io,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// Most directories of one sandbox that are kept, the newest ones.
const KEPT: usize = 64;
/// Longest list that is read, in bytes.
const LIST_MAX: u64 = 1024 * 1024;

fn list(data: &Path) -> PathBuf {
    data.join("directories")
}

/// Notes that the sandbox with this data works in `directory`.
pub fn note(data: &Path, directory: &Path) -> io::Result<()> {
    let mut known = noted(data);
    if known.last().is_some_and(|last| last == directory) {
        return Ok(());
    }
    known.retain(|known| known != directory);
    known.push(directory.to_owned());
    let lines = known.iter().skip(known.len().saturating_sub(KEPT));
    // What cannot be a line of the list is left out.
    let lines = lines.filter_map(|path| path.to_str()).filter(|path| !path.contains('\n'));
    let text: String = lines.flat_map(|line| [line, "\n"]).collect();
    fs::create_dir_all(data)?;
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600).open(list(data))?.write_all(text.as_bytes())
}

/// The directories that were noted, the last one last.
pub fn noted(data: &Path) -> Vec<PathBuf> {
    let path = list(data);
    if !fs::metadata(&path).is_ok_and(|metadata| metadata.len() <= LIST_MAX) {
        return Vec::new();
    }
    fs::read_to_string(&path).unwrap_or_default().lines().map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_directory_is_noted_once_and_the_last_one_is_the_last() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("sandboxes/x");
        assert!(noted(&data).is_empty());
        for directory in ["/a", "/b b", "/a", "/a", "/c"] {
            note(&data, Path::new(directory)).unwrap();
        }
        assert_eq!(noted(&data), [Path::new("/b b"), Path::new("/a"), Path::new("/c")]);
        for number in 0..2 * KEPT {
            note(&data, Path::new(&format!("/{number}"))).unwrap();
        }
        assert_eq!(noted(&data).len(), KEPT);
    }
}
