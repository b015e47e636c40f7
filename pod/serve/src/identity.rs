//! The identity of a data directory, which marks every process that works on it. IO.
//!
//! A random id in a file, joined with the directory's device and inode: it survives restarts, a copy of the
//! directory gets another one, and so does a new directory at the same path. Nobody's processes are ended but those
//! of this very directory.

use std::{
    fs::{self, OpenOptions},
    io::{self, Read},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
};

use uuid::Uuid;

/// The identity of `data`, made on first use.
pub(crate) fn of(data: &Path) -> io::Result<String> {
    let file = data.join("serve-id");
    let id = match kept(&file) {
        Some(id) => id,
        None => create(&file)?,
    };
    let metadata = fs::metadata(data)?;
    Ok(format!("{}-{:x}-{:x}", id.simple(), metadata.dev(), metadata.ino()))
}

/// The agent may have put anything there: no pipe is waited for, and no long file is read.
fn kept(file: &Path) -> Option<Uuid> {
    let file = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(file).ok()?;
    let mut text = String::new();
    file.take(64).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// Takes the place of what is there as a whole: a supervisor that is killed meanwhile leaves no half of it.
fn create(file: &Path) -> io::Result<Uuid> {
    let (id, new) = (Uuid::new_v4(), file.with_added_extension("new"));
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    io::Write::write_all(&mut fs::File::create_new(&new)?, id.to_string().as_bytes())?;
    fs::rename(&new, file)?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stays_and_a_copy_has_another() {
        let directories = tempfile::tempdir().unwrap();
        let (one, copy) = (directories.path().join("one"), directories.path().join("copy"));
        fs::create_dir(&one).unwrap();
        fs::create_dir(&copy).unwrap();
        let id = of(&one).unwrap();
        assert_eq!(of(&one).unwrap(), id);
        fs::copy(one.join("serve-id"), copy.join("serve-id")).unwrap();
        assert_ne!(of(&copy).unwrap(), id);
        fs::write(one.join("serve-id"), "garbage").unwrap();
        assert_ne!(of(&one).unwrap(), id);
    }

    #[test]
    fn a_pipe_and_a_file_without_an_end_are_replaced() {
        let data = tempfile::tempdir().unwrap();
        let file = data.path().join("serve-id");
        nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let id = of(data.path()).unwrap();
        assert_eq!(of(data.path()).unwrap(), id);
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &file).unwrap();
        let id = of(data.path()).unwrap();
        assert_eq!(of(data.path()).unwrap(), id);
    }
}
