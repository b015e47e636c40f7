//! Ports that both programs must know before either has bound its own.

use std::{
    net::{SocketAddr, TcpListener},
    sync::atomic::{AtomicU16, Ordering},
};

/// Ports that the kernel gives to nobody by itself.
const RANGE: std::ops::Range<u16> = 18_000..30_000;

static NEXT: AtomicU16 = AtomicU16::new(0);

/// A loopback address that nobody listens on and that no other test of this process is given.
pub(crate) fn free() -> SocketAddr {
    // Test programs that run at a time begin at different places.
    let begin = u16::try_from(std::process::id() % u32::from(RANGE.end - RANGE.start)).unwrap();
    for _ in RANGE {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = RANGE.start + (begin + step) % (RANGE.end - RANGE.start);
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
    panic!("no port is free in {RANGE:?}");
}
