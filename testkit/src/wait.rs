//! Bounded waits for tests: each fails its test with what it waited for.

use std::{future::Future, time::Duration};

/// Longest wait for anything in a test: far beyond what is seen on a busy machine.
pub const BOUND: Duration = Duration::from_secs(90);

/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// Waits for a future, but not for ever.
///
/// # Panics
///
/// At the [bound](BOUND), with `what`.
#[expect(clippy::panic, reason = "this is how a test fails")]
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    let Ok(output) = tokio::time::timeout(BOUND, future).await else { panic!("no {what} in {BOUND:?}") };
    output
}

/// Waits until a condition holds, but not for ever.
///
/// # Panics
///
/// See [`within`].
pub async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    within(what, async {
        while !condition() {
            tokio::time::sleep(PAUSE).await;
        }
    })
    .await;
}

/// Asks again and again until there is an answer, but not for ever.
///
/// # Panics
///
/// See [`within`].
pub async fn some<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let asking = async {
        loop {
            match ask().await {
                Some(found) => return found,
                None => tokio::time::sleep(PAUSE).await,
            }
        }
    };
    within(what, asking).await
}
