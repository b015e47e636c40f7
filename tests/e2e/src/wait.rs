//! Bounds on waits.

use std::{fmt::Debug, time::Duration};

/// Longest wait for anything in a cluster: far beyond what is seen on a busy machine.
pub const LONG: Duration = Duration::from_mins(4);

/// Between two looks at what cannot be watched.
const PAUSE: Duration = Duration::from_millis(500);

#[expect(clippy::panic, reason = "this is how a test fails")]
fn failed(what: &str, last: &str) -> ! {
    panic!("waiting for {what}: in vain for {LONG:?}{last}")
}

/// Waits for `future`, and fails the test with `what` at the bound.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, future).await.unwrap_or_else(|_| failed(what, ""))
}

/// Looks again and again until a look gives what is waited for; what the last one gave instead is told at the bound.
pub async fn until<T, E: Debug>(what: &str, mut look: impl AsyncFnMut() -> Result<T, E>) -> T {
    let begun = tokio::time::Instant::now();
    loop {
        match look().await {
            Ok(found) => return found,
            Err(seen) if begun.elapsed() > LONG => failed(what, &format!("; last: {seen:#?}")),
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}
