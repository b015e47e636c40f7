//! Bounds on waits.

use std::time::Duration;

/// Longest wait for anything in a test: far beyond what is seen on a busy machine.
pub const BOUND: Duration = Duration::from_secs(90);

/// Waits for `future`, and fails the test with `what` at the bound.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(BOUND, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited {BOUND:?} for {what}"),
    }
}
