//! A disk that tests can fill, and make read only. IO.

use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    time::{Duration, Instant},
};

use tempfile::TempDir;

/// A disk of a mebibyte, in memory, or a folder. Only root may mount the one, and freeze the other.
pub(crate) struct SmallDisk {
    folder: TempDir,
    mounted: bool,
}

impl SmallDisk {
    pub(crate) fn mount() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let disk = Self { folder, mounted: true };
        run("mount", &["-t", "tmpfs", "-o", "size=1m", "tmpfs"], disk.path());
        disk
    }

    /// A folder on the disk that there is.
    pub(crate) fn folder() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), mounted: false }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    fn filler(&self) -> PathBuf {
        self.path().join("filler")
    }

    /// Nothing can be written there any more. That is refused while a file is open for writing, also in a process that
    /// another thread has just begun, until it runs its program: then it is tried again.
    pub(crate) async fn make_read_only(&self) {
        let until = Instant::now() + Duration::from_secs(10);
        while !try_run("mount", &["-o", "remount,ro"], self.path()).success() {
            assert!(Instant::now() < until, "a file stays open for writing");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Nothing in the folder can be written any more, not even files that are open, as when a file system turns read only
    /// under a program that runs; remounting would be refused. A disk in memory goes on writing to open files.
    pub(crate) fn freeze(&self) {
        self.mark("+i");
    }

    /// It can be written again.
    pub(crate) fn thaw(&self) {
        self.mark("-i");
    }

    /// A file that SQLite removes meanwhile needs no mark.
    fn mark(&self, change: &str) {
        let files = fs::read_dir(self.path()).unwrap().map(|file| file.unwrap().path());
        for path in files.chain([self.path().to_owned()]) {
            let status = try_run("chattr", &[change], &path);
            assert!(status.success() || !path.exists(), "chattr {change} (as root): {status}");
        }
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
        if self.mounted {
            run("umount", &["--lazy"], self.path());
        } else {
            self.thaw();
        }
    }
}

fn try_run(program: &str, arguments: &[&str], path: &Path) -> ExitStatus {
    Command::new(program).args(arguments).arg(path).status().unwrap()
}

fn run(program: &str, arguments: &[&str], path: &Path) {
    let status = try_run(program, arguments, path);
    assert!(status.success(), "{program} {arguments:?} (as root): {status}");
}
