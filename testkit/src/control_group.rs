//! A control group with a limit on memory, for tests of what the kernel does when that is used up. Wants root. IO.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
};

/// Set to `1` it leaves tests out that want root; without it they fail where that cannot be had.
pub const WITHOUT_ROOT: &str = "BERTH_TEST_WITHOUT_ROOT";

/// Tests that want root are to be left out, as the environment says ([`WITHOUT_ROOT`]).
#[expect(clippy::disallowed_methods, reason = "this is where tests read their environment")]
pub fn is_without_root() -> bool {
    std::env::var_os(WITHOUT_ROOT).is_some_and(|value| value == "1")
}

/// A control group of version 1 or 2. Removed when it is dropped, if no process is in it any more.
#[derive(Debug)]
pub struct ControlGroup {
    directory: PathBuf,
    /// The file that counts kills.
    kills: &'static str,
    /// What the line of `memory.stat` with the memory of processes begins with.
    used: &'static str,
}

impl ControlGroup {
    /// Makes one whose processes may use so many bytes together.
    pub fn with_memory(limit: u64) -> io::Result<Self> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let version_1 = Path::new("/sys/fs/cgroup/memory");
        let is_version_1 = version_1.join("memory.limit_in_bytes").exists();
        let (root, kills, used, limits): (_, _, _, &[&str]) = if is_version_1 {
            (
                version_1,
                "memory.oom_control",
                "total_rss ",
                &["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"],
            )
        } else {
            (Path::new("/sys/fs/cgroup"), "memory.events", "anon ", &["memory.max"])
        };
        let name = format!("berth-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let group = Self { directory: root.join(name), kills, used };
        fs::create_dir(&group.directory)?;
        for file in limits {
            fs::write(group.directory.join(file), limit.to_string())?;
        }
        Ok(group)
    }

    /// Words before a command that let it move itself into the group; its process id stays the same.
    pub fn wrapper(&self) -> [String; 4] {
        let script = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", self.directory.display());
        ["/bin/sh".to_owned(), "-c".to_owned(), script, "sh".to_owned()]
    }

    /// Bytes that its processes use, without what the kernel could take back from them.
    pub fn used(&self) -> io::Result<u64> {
        self.number("memory.stat", self.used)
    }

    /// How many of its processes the kernel has killed for memory.
    pub fn kills(&self) -> io::Result<u64> {
        self.number(self.kills, "oom_kill ")
    }

    fn number(&self, file: &str, name: &str) -> io::Result<u64> {
        let text = fs::read_to_string(self.directory.join(file))?;
        let number = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        number
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{file} does not tell {name}")))
    }

    /// Removes it; fails while a process is in it.
    pub fn remove(&self) -> io::Result<()> {
        fs::remove_dir(&self.directory)
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // It may be removed already, or still hold processes of a test that failed.
        let _ = self.remove();
    }
}
