//! Processes as Linux's `/proc` shows them: who is whose child, and how much memory they hold. Parsing is pure.

use std::{collections::BTreeSet, fs};

/// One process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) parent: i32,
    /// It has ended, and nobody has waited for it.
    pub(crate) is_zombie: bool,
}

/// All processes of this process namespace; none where there is no `/proc`.
pub(crate) fn all() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter_map(|pid| parse_stat(&fs::read(format!("/proc/{pid}/stat")).ok()?))
        .collect()
}

/// The processes that `ancestor` started, and those that these started, without `ancestor`.
pub(crate) fn descendants(processes: &[Process], ancestor: i32) -> BTreeSet<i32> {
    let mut found = BTreeSet::new();
    let mut parents = vec![ancestor];
    while let Some(parent) = parents.pop() {
        let children = processes.iter().filter(|process| process.parent == parent && process.pid != ancestor);
        parents.extend(children.map(|child| child.pid).filter(|pid| found.insert(*pid)));
    }
    found
}

/// Resident bytes of a process; 0 when it is gone.
pub(crate) fn resident(pid: i32) -> u64 {
    fs::read_to_string(format!("/proc/{pid}/status")).map_or(0, |text| parse_resident(&text))
}

/// `pid (name) state parent ...`, where the name may hold anything, parentheses too.
fn parse_stat(stat: &[u8]) -> Option<Process> {
    let open = stat.iter().position(|byte| *byte == b'(')?;
    let close = stat.iter().rposition(|byte| *byte == b')')?;
    let pid = std::str::from_utf8(stat.get(..open)?).ok()?.trim().parse().ok()?;
    let mut rest = std::str::from_utf8(stat.get(close + 1..)?).ok()?.split_ascii_whitespace();
    let (state, parent) = (rest.next()?, rest.next()?.parse().ok()?);
    Some(Process { pid, parent, is_zombie: matches!(state, "Z" | "X") })
}

/// `VmRSS:      123 kB`, in bytes; 0 when there is none.
fn parse_resident(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or_default().saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn process(pid: i32, parent: i32) -> Process {
        Process { pid, parent, is_zombie: false }
    }

    #[test]
    fn lines_are_read_whatever_the_name() {
        assert_eq!(parse_stat(b"12 (sleep) S 7 12 12 0"), Some(process(12, 7)));
        assert_eq!(parse_stat(b"12 (a) Z (b\xff c) R 7 1"), Some(process(12, 7)));
        let zombie = Process { is_zombie: true, ..process(12, 1) };
        assert_eq!(parse_stat(b"12 (x) Z 1 1"), Some(zombie));
        for text in ["", "12", "12 (x", "12 )x( S 1", "x (y) S 1", "12 (y) S", "12 (y) S z"] {
            assert_eq!(parse_stat(text.as_bytes()), None, "{text}");
        }
        assert_eq!(parse_resident("Name:\tx\nVmRSS:\t    12 kB\nVmData:\t 1 kB\n"), 12 * 1024);
        assert_eq!(parse_resident("VmRSS:\t x kB"), 0);
    }

    #[test]
    fn descendants_are_of_all_generations() {
        let processes =
            [process(2, 1), process(3, 2), process(4, 3), process(5, 1), process(6, 9), process(1, 0)];
        assert_eq!(descendants(&processes, 2), BTreeSet::from([3, 4]));
        assert_eq!(descendants(&processes, 1), BTreeSet::from([2, 3, 4, 5]));
        assert_eq!(descendants(&[process(1, 2), process(2, 1)], 1), BTreeSet::from([2]), "a torn picture");
    }

    #[test]
    fn this_process_is_seen() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(all().iter().any(|process| process.pid == own && !process.is_zombie));
        assert!(resident(own) > 1024 * 1024);
        assert_eq!(resident(-1), 0);
    }

    proptest! {
        #[test]
        fn bytes_that_are_none_of_the_kernels_are_no_trouble(bytes: Vec<u8>, text: String) {
            let _ = (parse_stat(&bytes), parse_resident(&text));
        }
    }
}
