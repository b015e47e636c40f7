//! A process of this machine that cannot be taken for another one: by its id and by when the kernel started it. IO.

use std::{fs, io, os::fd::OwnedFd, time::Duration};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};
use tokio::time::interval;

/// How often it is looked whether a process has ended.
const LOOK: Duration = Duration::from_millis(20);

/// When this process was started, as [`started`] tells it.
pub fn own_start() -> io::Result<String> {
    started(std::process::id())
}

/// When the process was started: the boot of the machine, and the kernel's ticks since then. An id that was given to
/// another process since has another one.
pub fn started(pid: u32) -> io::Result<String> {
    let stat = fs::read(format!("/proc/{pid}/stat"))?;
    let ticks = start_ticks(&stat).ok_or(io::ErrorKind::NotFound)?;
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(format!("{}/{ticks}", boot.trim()))
}

/// Field 22 of `pid (name) state parent ...`, where the name may hold anything, parentheses too. `None` also when the
/// process has ended, and nobody has asked how yet.
fn start_ticks(stat: &[u8]) -> Option<u64> {
    let close = stat.iter().rposition(|byte| *byte == b')')?;
    let mut rest = std::str::from_utf8(stat.get(close + 1..)?).ok()?.split_ascii_whitespace();
    let state = rest.next()?;
    rest.nth(18)?.parse().ok().filter(|_| !matches!(state, "Z" | "X"))
}

/// One certain process. What is sent to it can reach no other, even if its id is given away.
#[derive(Debug)]
pub struct Process(OwnedFd);

impl Process {
    /// The process with this id, if it is the one that was started then.
    pub fn find(pid: u32, start: &str) -> io::Result<Option<Self>> {
        let Some(pid_of_it) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
        let descriptor = match pidfd_open(pid_of_it, PidfdFlags::empty()) {
            Ok(descriptor) => descriptor,
            Err(rustix::io::Errno::SRCH) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // The descriptor holds on to whatever had the id when it was opened: if that is the right one now, it was then.
        match started(pid) {
            Ok(found) if found == start => Ok(Some(Self(descriptor))),
            Ok(_) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Asks it to end.
    pub fn terminate(&self) -> io::Result<()> {
        self.send(Signal::TERM)
    }

    /// Ends it.
    pub fn kill(&self) -> io::Result<()> {
        self.send(Signal::KILL)
    }

    fn send(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(&self.0, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until it has ended.
    pub async fn ended(&self) -> io::Result<()> {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut look = interval(LOOK);
        loop {
            look.tick().await;
            // The descriptor can be read once the process is no more.
            if poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&at_once))? > 0 {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_start_is_read_whatever_the_name() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20";
        assert_eq!(start_ticks(format!("12 (a) b (c) {rest}").as_bytes()), Some(4711));
        assert_eq!(start_ticks(b"12 (a) S 1 2"), None);
        assert_eq!(start_ticks(format!("12 (a) {}", rest.replace('S', "Z")).as_bytes()), None);
        assert_eq!(start_ticks(b""), None);
        assert_eq!(own_start().unwrap(), own_start().unwrap());
    }

    #[tokio::test]
    async fn only_the_process_that_was_meant_is_found_and_ended() {
        let mut child = Command::new("sleep").arg("4712").stdin(Stdio::null()).spawn().unwrap();
        let start = started(child.id()).unwrap();
        assert!(Process::find(child.id(), "another-boot/1").unwrap().is_none());
        let process = Process::find(child.id(), &start).unwrap().unwrap();
        process.terminate().unwrap();
        process.ended().await.unwrap();
        child.wait().unwrap();
        assert!(Process::find(child.id(), &start).unwrap().is_none());
        process.kill().unwrap();
    }
}
