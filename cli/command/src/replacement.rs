//! A file that is written beside its place, under a name that nobody else has, and takes that place when it is whole.
//! What breaks off leaves what was there, and nothing else. Does IO.

use std::{
    fs::{File, Permissions},
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use tempfile::NamedTempFile;

/// The file, until it takes its place; it is removed when this is dropped.
#[derive(Debug)]
pub struct Replacement {
    file: NamedTempFile,
    place: PathBuf,
}

impl Replacement {
    /// Begins an empty file for this place, with this mode less the umask.
    pub fn begin(place: &Path, mode: u32) -> io::Result<Self> {
        let directory = place.parent().filter(|directory| !directory.as_os_str().is_empty());
        let file = tempfile::Builder::new()
            .prefix(".berth-")
            .suffix(".part")
            .permissions(Permissions::from_mode(mode))
            .tempfile_in(directory.unwrap_or_else(|| Path::new(".")))?;
        Ok(Self { file, place: place.to_owned() })
    }

    /// The file, for what wants one.
    pub fn file(&self) -> &File {
        self.file.as_file()
    }

    /// Takes its place. What is there, a link included, is replaced where `replace`; otherwise this fails with
    /// [`io::ErrorKind::AlreadyExists`].
    pub fn finish(self, replace: bool) -> io::Result<()> {
        let Self { file, place } = self;
        let placed = if replace { file.persist(place) } else { file.persist_noclobber(place) };
        placed.map(drop).map_err(|failed| failed.error)
    }
}

impl Write for Replacement {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    fn write(place: &Path, replace: bool) -> io::Result<()> {
        let mut file = Replacement::begin(place, 0o600)?;
        file.write_all(b"new")?;
        file.finish(replace)
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_is_beside_the_place_is_not_touched() {
        let folder = tempfile::tempdir().unwrap();
        let [place, part, other] = ["x", "x.part", "other"].map(|name| folder.path().join(name));
        fs::write(&other, "precious").unwrap();
        symlink(&other, &part).unwrap();
        write(&place, false).unwrap();
        assert_eq!(fs::read(&place).unwrap(), b"new");
        assert_eq!(fs::read(&other).unwrap(), b"precious");
        assert_eq!(names(folder.path()), ["other", "x", "x.part"]);
        assert_eq!(fs::metadata(&place).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn what_is_there_is_replaced_where_that_is_wanted_and_what_it_links_to_never() {
        let folder = tempfile::tempdir().unwrap();
        let [place, other] = ["x", "other"].map(|name| folder.path().join(name));
        fs::write(&other, "precious").unwrap();
        symlink(&other, &place).unwrap();
        assert_eq!(write(&place, false).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(names(folder.path()), ["other", "x"], "nothing is left behind");
        write(&place, true).unwrap();
        assert_eq!(
            (fs::read(&place).unwrap(), fs::read(&other).unwrap()),
            (b"new".into(), b"precious".into())
        );
        drop(Replacement::begin(&place, 0o600).unwrap());
        assert_eq!(names(folder.path()), ["other", "x"]);
    }
}
