//! Ports for programs that must be told of each other before any of them has bound its own. IO.

use std::{
    net::{SocketAddr, TcpListener},
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr as UnixAddress, UnixListener},
    },
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU16, Ordering},
    },
};

/// Ports that the kernel gives to nobody by itself.
const RANGE: std::ops::Range<u16> = 18_000..30_000;

static NEXT: AtomicU16 = AtomicU16::new(0);

/// What this process has claimed, for as long as it lives.
static CLAIMED: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());

/// A loopback address that nobody listens on, and that no other caller of this is given on this machine while this
/// process lives: a program that is killed finds its port free when it starts again.
///
/// # Panics
///
/// When every port of the range is taken.
#[expect(clippy::expect_used, reason = "this is how a test fails")]
pub fn free() -> SocketAddr {
    let size = RANGE.end - RANGE.start;
    // Test programs that run at a time begin at different places.
    let begin = u16::try_from(std::process::id() % u32::from(size)).unwrap_or_default();
    let ports = std::iter::repeat_with(|| {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        RANGE.start + begin.wrapping_add(step) % size
    });
    let port = ports.take(usize::from(size)).find(|&port| claim(port)).expect("a port is free");
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// Whether it is this process's now. The kernel knows each name once, and forgets it with its process.
fn claim(port: u16) -> bool {
    let name = UnixAddress::from_abstract_name(format!("berth-test-port-{port}"));
    let Ok(claim) = name.and_then(|name| UnixListener::bind_addr(&name)) else { return false };
    if TcpListener::bind(("127.0.0.1", port)).is_err() {
        return false;
    }
    CLAIMED.lock().unwrap_or_else(PoisonError::into_inner).push(claim);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_process_has_claimed_is_not_given() {
        let port = free().port();
        assert!(!claim(port), "it is claimed once");
        let other = RANGE.clone().find(|&port| claim(port)).unwrap();
        let given: Vec<u16> = (0..RANGE.len() / 4).map(|_| free().port()).collect();
        assert!(!given.contains(&other) && !given.contains(&port), "each is given once");
    }

    #[test]
    fn what_somebody_listens_on_is_not_claimed() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        assert!(!claim(listener.local_addr().unwrap().port()));
    }
}
