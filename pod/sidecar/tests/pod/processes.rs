//! What runs on this machine for one data directory, as `/proc` tells it.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::mpsc::{self, RecvTimeoutError},
    thread::JoinHandle,
    time::Duration,
};

/// Pause between two looks of [`OneOpencode`].
const PERIOD: Duration = Duration::from_millis(25);

/// Ids of all processes.
pub(crate) fn all() -> impl Iterator<Item = u32> {
    std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// A file in `/proc` with entries that end with NUL; empty for a zombie.
pub(crate) fn entries(pid: u32, file: &str) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    bytes.split(|byte| *byte == 0).filter(|entry| !entry.is_empty()).map(<[u8]>::to_vec).collect()
}

/// Processes with this variable in their environment.
pub(crate) fn with_variable(name: &str, value: &OsStr) -> Vec<u32> {
    let wanted = [name.as_bytes(), b"=", value.as_bytes()].concat();
    all().filter(|&pid| entries(pid, "environ").contains(&wanted)).collect()
}

/// opencode and what it started in this run of it.
pub(crate) fn of_boot(boot_id: &str) -> Vec<u32> {
    with_variable("BERTH_SERVE_BOOT", OsStr::new(boot_id))
}

/// Processes whose working directory lies in this folder, with their command lines.
pub(crate) fn working_in(folder: &Path) -> Vec<String> {
    let inside = |pid: &u32| {
        std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|directory| directory.starts_with(folder))
    };
    let line = |pid| String::from_utf8_lossy(&entries(pid, "cmdline").join(&b' ')).into_owned();
    all().filter(inside).map(|pid| format!("{pid}: {}", line(pid))).collect()
}

fn parent(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// Servers of this opencode on this data directory. A child of one that has not become another program yet is none.
pub(crate) fn servers(opencode: &Path, data: &Path) -> Vec<u32> {
    let data_home = [b"XDG_DATA_HOME=", data.join("data").as_os_str().as_bytes()].concat();
    let serves = |pid: &u32| {
        std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == opencode)
            && entries(*pid, "cmdline").iter().any(|argument| argument == b"serve")
            && entries(*pid, "environ").contains(&data_home)
    };
    let found: Vec<u32> = all().filter(serves).collect();
    found.iter().copied().filter(|&pid| !parent(pid).is_some_and(|parent| found.contains(&parent))).collect()
}

/// It was stopped by SIGSTOP.
pub(crate) fn is_stopped(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && line.contains('T'))
}

/// It runs, or may run: it has not ended.
pub(crate) fn is_alive(pid: u32) -> bool {
    std::fs::read_link(format!("/proc/{pid}/exe")).is_ok()
}

/// Libraries that opencode's runtime has unpacked into this folder.
pub(crate) fn libraries_in(folder: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    files.filter(|file| file.extension().is_some_and(|kind| kind == "so" || kind == "node")).collect()
}

/// Looks all the time that there are never two opencodes on one data directory.
#[derive(Debug)]
pub(crate) struct OneOpencode {
    stop: mpsc::Sender<()>,
    thread: JoinHandle<Vec<Vec<u32>>>,
}

impl OneOpencode {
    /// Begins to look.
    pub(crate) fn watch(opencode: PathBuf, data: PathBuf) -> Self {
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut seen = Vec::new();
            while matches!(stopped.recv_timeout(PERIOD), Err(RecvTimeoutError::Timeout)) {
                let servers = servers(&opencode, &data);
                if servers.len() > 1 {
                    seen.push(servers);
                }
            }
            seen
        });
        Self { stop, thread }
    }

    /// Fails if there ever were two.
    pub(crate) fn finish(self) {
        drop(self.stop);
        let seen = self.thread.join().expect("the look-out");
        assert!(seen.is_empty(), "more than one opencode on one data directory: {seen:?}");
    }
}
