//! A disk that tests can fill. IO.

use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

/// A disk of a mebibyte, in memory. Only root may mount one.
pub(crate) struct SmallDisk {
    folder: TempDir,
}

impl SmallDisk {
    pub(crate) fn mount() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let disk = Self { folder };
        run("mount", &["-t", "tmpfs", "-o", "size=1m", "tmpfs"], disk.path());
        disk
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    fn filler(&self) -> PathBuf {
        self.path().join("filler")
    }

    /// Nothing can be written there any more.
    pub(crate) fn make_read_only(&self) {
        run("mount", &["-o", "remount,ro"], self.path());
    }

    /// Takes all the space that is left.
    pub(crate) fn fill(&self) {
        let file = fs::File::create(self.filler()).unwrap();
        let block = [1; 4096];
        let mut at = 0;
        while let Ok(written) = file.write_at(&block, at) {
            at += written as u64;
        }
    }

    /// Gives it back.
    pub(crate) fn clear(&self) {
        fs::remove_file(self.filler()).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        run("umount", &["--lazy"], self.path());
    }
}

fn run(program: &str, arguments: &[&str], path: &Path) {
    let status = Command::new(program).args(arguments).arg(path).status().unwrap();
    assert!(status.success(), "{program} {arguments:?} (as root): {status}");
}
