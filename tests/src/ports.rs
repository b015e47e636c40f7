//! Ports that programs must know of each other before either has bound its own.

use std::{
    net::{SocketAddr, TcpListener},
    sync::atomic::{AtomicU16, Ordering},
};

/// Ports that the kernel gives to nobody by itself.
const RANGE: std::ops::Range<u16> = 18_000..30_000;

static NEXT: AtomicU16 = AtomicU16::new(0);

/// A loopback address that nobody listens on and that no other test of this process is given.
pub(crate) fn free() -> SocketAddr {
    let size = RANGE.end - RANGE.start;
    // Test programs that run at a time begin at different places.
    let begin = u16::try_from(std::process::id() % u32::from(size)).unwrap_or_default();
    let addresses = std::iter::repeat_with(|| {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        SocketAddr::from(([127, 0, 0, 1], RANGE.start + begin.wrapping_add(step) % size))
    });
    let free = addresses.take(usize::from(size)).find(|address| TcpListener::bind(address).is_ok());
    free.expect("a port is free")
}
