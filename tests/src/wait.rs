//! Bounds on waits.

use std::time::Duration;

/// Longest wait for anything in a test: far beyond what is seen on a busy machine.
pub const BOUND: Duration = Duration::from_secs(90);

#[expect(clippy::panic, reason = "this is how a test fails")]
fn failed(what: &str, why: &str) -> ! {
    panic!("waiting for {what}: {why} ({BOUND:?})")
}

/// Waits for `future`, and fails the test with `what` at the bound.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(BOUND, future).await.unwrap_or_else(|error| failed(what, &error.to_string()))
}
