//! Kills for memory, by the count that the kernel keeps for our control group. Parsing and book-keeping are pure.
//!
//! Version 2 has `oom_kill` in `memory.events`, version 1 in `memory.oom_control` (Linux 4.13 and later). The count is
//! of the whole group, opencode and its tools and ourselves, and tells nobody's name. So a kill is opencode's only if
//! opencode was ended by a SIGKILL that we did not send; and one is a tool's only if opencode answered a request that
//! began after the count had risen. What that cannot tell: somebody's own SIGKILL of opencode within the few seconds
//! after a tool was killed for memory.

use std::{fs, io::Read, path::PathBuf};

/// Bytes of a file of the kernel's that are read.
const FILE_MAX: u64 = 256 * 1024;

/// Kills for memory in our control group so far; `None` where there is no such count.
pub(crate) async fn count() -> Option<u64> {
    // Files of the kernel's: there is no disk to wait for, but what the kernel does for them may take its time.
    tokio::task::spawn_blocking(read).await.ok().flatten()
}

fn read() -> Option<u64> {
    let file = locate(&text("/proc/self/cgroup")?, &text("/proc/self/mountinfo")?)?;
    parse(&text(file)?)
}

fn text(path: impl Into<PathBuf>) -> Option<String> {
    let mut bytes = Vec::new();
    fs::File::open(path.into()).ok()?.take(FILE_MAX).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The file with the count, by the texts of `/proc/self/cgroup` and `/proc/self/mountinfo`.
fn locate(groups: &str, mounts: &str) -> Option<PathBuf> {
    let version_1 = groups.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|name| name == "memory").then_some(path)
    });
    if let Some(path) = version_1 {
        let is_memory = |kind: &str, options: &str| {
            kind == "cgroup" && options.split(',').any(|option| option == "memory")
        };
        return Some(mounted(mounts, path, is_memory)?.join("memory.oom_control"));
    }
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(mounted(mounts, path, |kind, _| kind == "cgroup2")?.join("memory.events"))
}

/// Where a control group is mounted. In a container the mount may begin at the container's own group, while the path
/// is the host's.
fn mounted(mounts: &str, path: &str, is_wanted: impl Fn(&str, &str) -> bool) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let mut kind = kind.split(' ');
        let (kind, options) = (kind.next()?, kind.nth(1)?);
        let mut mount = mount.split(' ').skip(3);
        let (root, point) = (mount.next()?, mount.next()?);
        let below = path.strip_prefix(root.trim_end_matches('/')).unwrap_or_default();
        is_wanted(kind, options).then(|| PathBuf::from(point).join(below.trim_start_matches('/')))
    })
}

/// The count in `memory.events` or `memory.oom_control`.
fn parse(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

/// Who was killed for memory in one run after the other.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// Kills that were told.
    told: u64,
    /// Kills when the newest check began.
    seen: u64,
}

impl Ledger {
    /// A run begins.
    pub(crate) fn begin(&mut self, count: Option<u64>) {
        // What cannot be read now is no reason to take all earlier kills for new ones later.
        self.told = count.unwrap_or(self.told);
        self.seen = self.told;
    }

    /// A check begins.
    pub(crate) fn seen(&mut self, count: Option<u64>) {
        self.seen = count.unwrap_or_default().max(self.told);
    }

    /// The check was answered, so opencode was none of them: gives how many others were killed.
    pub(crate) fn answered(&mut self) -> u64 {
        let others = self.seen.saturating_sub(self.told);
        self.told = self.told.max(self.seen);
        others
    }

    /// opencode ended; by a SIGKILL that we did not send if `by_others`. Gives whether it was for memory, and how many
    /// others were killed.
    pub(crate) fn ended(&mut self, count: Option<u64>, by_others: bool) -> (bool, u64) {
        let killed = count.unwrap_or_default().saturating_sub(self.told);
        self.told += killed;
        let ours = by_others && killed > 0;
        (ours, killed - u64::from(ours))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const V2_EVENTS: &str = "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n";
    const V1_CONTROL: &str = "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n";

    #[test]
    fn the_count_is_read_in_both_versions() {
        assert_eq!((parse(V2_EVENTS), parse(V1_CONTROL)), (Some(2), Some(7)));
        for text in ["", "oom_kill", "oom_kill x", "oom_kill_disable 0\n", "oom_kill 99999999999999999999999"]
        {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn the_file_is_found_in_both_versions_on_a_host_and_in_a_container() {
        let v1 = "9:name=systemd:/\n4:cpu,memory:/pods/one\n0::/\n";
        let v1_host = "31 24 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                       32 24 0:28 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,cpu,memory\n\
                       33 24 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let v1_container = "32 24 0:28 /pods/one /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let v1_elsewhere = "32 24 0:28 /other /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let v2_host = "33 24 0:29 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        for (groups, mounts, file) in [
            (v1, v1_host, "/sys/fs/cgroup/memory/pods/one/memory.oom_control"),
            (v1, v1_container, "/sys/fs/cgroup/memory/memory.oom_control"),
            (v1, v1_elsewhere, "/sys/fs/cgroup/memory/memory.oom_control"),
            ("0::/pods/two\n", v2_host, "/sys/fs/cgroup/pods/two/memory.events"),
            ("0::/\n", v2_host, "/sys/fs/cgroup/memory.events"),
        ] {
            assert_eq!(locate(groups, mounts), Some(file.into()), "{groups} {mounts}");
        }
        assert_eq!(locate("", v2_host), None);
        assert_eq!(locate("0::/\n", ""), None);
    }

    #[test]
    fn here_there_is_a_count_or_no_control_group() {
        if let Some(file) =
            locate(&text("/proc/self/cgroup").unwrap(), &text("/proc/self/mountinfo").unwrap())
        {
            assert_eq!(read().is_some(), file.is_file() && parse(&text(file).unwrap()).is_some());
        }
    }

    #[test]
    fn a_kill_is_opencodes_only_with_its_own_death() {
        let mut ledger = Ledger::default();
        ledger.begin(Some(5));
        ledger.seen(Some(6));
        assert_eq!(ledger.answered(), 1, "a tool's");
        ledger.seen(Some(7));
        assert_eq!(ledger.ended(Some(7), true), (true, 0), "seen by the check that was never answered");
        ledger.begin(Some(7));
        assert_eq!(ledger.ended(Some(7), true), (false, 0));
        ledger.begin(Some(7));
        assert_eq!(ledger.ended(Some(10), true), (true, 2));
        ledger.begin(Some(10));
        assert_eq!(ledger.ended(Some(12), false), (false, 2), "it ended otherwise");
        ledger.begin(None);
        ledger.seen(None);
        assert_eq!((ledger.answered(), ledger.ended(None, true)), (0, (false, 0)));
        ledger.begin(None);
        assert_eq!(ledger.ended(Some(12), true), (false, 0), "all of them were told before");
    }

    proptest! {
        #[test]
        fn texts_that_are_none_of_the_kernels_are_no_trouble(groups: String, mounts: String) {
            let _ = (locate(&groups, &mounts), parse(&groups));
        }
    }
}
