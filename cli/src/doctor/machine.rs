//! This machine: room on the disk and in memory, programs, the port, the clock. Does IO.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    time::{Duration, UNIX_EPOCH},
};

use berth_command::check::Check;
use jiff::Timestamp;

use super::DoctorConfig;
use crate::{state::ServerNote, up::binary::is_program};

const MIB: u64 = 1024 * 1024;
const GIB: u64 = 1024 * MIB;
/// Below this much free space things fail soon.
const DISK_BAD: u64 = GIB;
/// Below this much it is said.
const DISK_NOTE: u64 = 5 * GIB;
/// An opencode takes about 0.5 GB, and its tools what they take.
const MEMORY_NOTE: u64 = GIB;
/// A clock before this release is wrong: 2026-01-01.
const RELEASE: i64 = 1_767_225_600;
/// Files from further in the future mean that the clock went back.
const CLOCK_SLACK: Duration = Duration::from_mins(2);

pub(super) fn checks(config: &DoctorConfig, up: Option<&ServerNote>) -> Vec<Check> {
    let root = config.server.state.root();
    let mut checks = vec![disk(&existing(root)), memory(), port(config.port, up), clock(root)];
    checks.extend(programs(&config.path));
    checks
}

/// The path, or what there is of it.
pub(super) fn existing(path: &Path) -> PathBuf {
    path.ancestors().find(|ancestor| ancestor.exists()).unwrap_or_else(|| Path::new("/")).to_owned()
}

fn disk(directory: &Path) -> Check {
    const NAME: &str = "disk space";
    let found = match rustix::fs::statvfs(directory) {
        Ok(found) => found,
        Err(error) => {
            let found = format!("{} cannot be looked at: {error}", directory.display());
            return Check::bad(NAME, found, "give --data, or BERTH_DATA, another directory");
        }
    };
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    let text = format!("{} free at {}", size(free), directory.display());
    let fix = "make room, or give --data, or BERTH_DATA, a directory on another disk";
    // Some file systems count no files.
    if found.f_files > 0 && found.f_favail < 1_000 {
        return Check::bad(NAME, format!("{} files more at {}", found.f_favail, directory.display()), fix);
    }
    match free {
        free if free < DISK_BAD => Check::bad(NAME, text, fix),
        free if free < DISK_NOTE => Check::note(NAME, text, fix),
        _ => Check::good(NAME, text),
    }
}

fn memory() -> Check {
    const NAME: &str = "memory";
    let available = fs::read_to_string("/proc/meminfo").ok().and_then(|text| available(&text));
    let Some(available) = available else {
        return Check::note(NAME, "not known", "each sandbox's opencode takes about 0.5 GB");
    };
    let text = format!("{} free", size(available));
    if available < MEMORY_NOTE {
        return Check::note(
            NAME,
            text,
            "each sandbox's opencode takes about 0.5 GB, and its tools what they take",
        );
    }
    Check::good(NAME, text)
}

/// `MemAvailable:    123 kB` in bytes.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// `1.5 GiB`, `12 MiB`.
pub(super) fn size(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= GIB => format!("{}.{} GiB", bytes / GIB, bytes % GIB * 10 / GIB),
        bytes if bytes >= MIB => format!("{} MiB", bytes / MIB),
        bytes => format!("{} KiB", bytes.div_ceil(1024)),
    }
}

fn port(port: u16, up: Option<&ServerNote>) -> Check {
    const NAME: &str = "port";
    if let Some(note) = up.filter(|note| note.url.ends_with(&format!(":{port}"))) {
        return Check::good(NAME, format!("{port} is this server's, process {}", note.pid));
    }
    match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
        Ok(_) => Check::good(NAME, format!("{port} on 127.0.0.1 is free")),
        // Nobody wants it.
        Err(error) if up.is_some() => Check::note(
            NAME,
            format!("{port} on 127.0.0.1 cannot be had: {error}"),
            "the server has another one",
        ),
        Err(error) => {
            let fix = format!(
                "`ss -ltnp 'sport = :{port}'` tells whose it is; `berth up --port 0` takes another one"
            );
            Check::bad(NAME, format!("{port} on 127.0.0.1 cannot be had: {error}"), fix)
        }
    }
}

fn clock(root: &Path) -> Check {
    const NAME: &str = "clock";
    const FIX: &str =
        "set it, with `timedatectl set-ntp true` for example; turns' times and bounds depend on it";
    let now = Timestamp::now();
    if now.as_second() < RELEASE {
        return Check::bad(NAME, format!("it says {now:.0}, which is before this version of Berth"), FIX);
    }
    let changed = fs::metadata(root.join("berth.db")).and_then(|metadata| metadata.modified()).ok();
    let changed = changed.and_then(|changed| changed.duration_since(UNIX_EPOCH).ok());
    let since = Duration::from_secs(u64::try_from(now.as_second()).unwrap_or_default());
    if changed.is_some_and(|changed| changed > since + CLOCK_SLACK) {
        return Check::bad(NAME, format!("it says {now:.0}, but the database was changed later"), FIX);
    }
    Check::good(NAME, format!("{now:.0}"))
}

fn programs(path: &[PathBuf]) -> Vec<Check> {
    let place = |name: &str| path.iter().map(|directory| directory.join(name)).find(|file| is_program(file));
    let wanted = [
        (
            "git",
            "install git: without it opencode cannot tell what a session changed, and `berth diff` is empty",
        ),
        (
            "rg",
            "install ripgrep: opencode searches with it, and older versions fetch their own from the network",
        ),
    ];
    let check = |(name, fix): (&'static str, &str)| match place(name) {
        Some(file) => Check::good(name, file.display().to_string()),
        None => Check::note(name, "not on PATH", fix),
    };
    wanted.into_iter().map(check).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_command::check::Verdict;

    #[test]
    fn sizes_and_memory_are_read() {
        assert_eq!(size(512), "1 KiB");
        assert_eq!(size(3 * MIB), "3 MiB");
        assert_eq!(size(GIB + GIB / 2), "1.5 GiB");
        assert_eq!(available("MemTotal: 9 kB\nMemAvailable:   12 kB\n"), Some(12 * 1024));
        assert_eq!(available("MemAvailable: x kB\n"), None);
    }

    #[test]
    fn a_port_that_is_taken_is_in_the_way_unless_it_is_ours() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let number = taken.local_addr().unwrap().port();
        assert_eq!(port(number, None).verdict, Verdict::Bad);
        let note: ServerNote =
            serde_json::from_str(&format!(r#"{{"url":"http://127.0.0.1:{number}","pid":7}}"#)).unwrap();
        assert_eq!(port(number, Some(&note)).verdict, Verdict::Good);
    }

    #[test]
    fn a_clock_that_went_back_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(clock(directory.path()).verdict, Verdict::Good);
        let file = fs::File::create(directory.path().join("berth.db")).unwrap();
        let future = Timestamp::now().as_second() + 3600;
        file.set_modified(UNIX_EPOCH + Duration::from_secs(u64::try_from(future).unwrap())).unwrap();
        assert_eq!(clock(directory.path()).verdict, Verdict::Bad);
    }

    #[test]
    fn missing_programs_are_named_with_what_they_are_for() {
        let all = programs(&[]);
        assert!(all.iter().all(|check| check.verdict == Verdict::Note && check.fix.is_some()), "{all:?}");
    }
}
