//! The identity of a data directory, which marks every process that works on it. IO.
//!
//! A random id in a file, joined with the directory's device and inode: it survives restarts, a copy of the
//! directory gets another one, and so does a new directory at the same path. Nobody's processes are ended but those
//! of this very directory.

use std::{fs, io, os::unix::fs::MetadataExt, path::Path};

use uuid::Uuid;

/// The identity of `data`, made on first use.
pub(crate) fn of(data: &Path) -> io::Result<String> {
    let file = data.join("serve-id");
    let kept = fs::read_to_string(&file).ok().and_then(|text| text.trim().parse::<Uuid>().ok());
    let id = match kept {
        Some(id) => id,
        None => create(&file)?,
    };
    let metadata = fs::metadata(data)?;
    Ok(format!("{}-{:x}-{:x}", id.simple(), metadata.dev(), metadata.ino()))
}

fn create(file: &Path) -> io::Result<Uuid> {
    let id = Uuid::new_v4();
    fs::write(file, id.to_string())?;
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
}
