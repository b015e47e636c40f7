//! Bounds on waits.

use std::{future::Future, time::Duration};

/// Bound on everything that a test waits for: far beyond what is seen on a busy machine.
pub(crate) const BOUND: Duration = Duration::from_secs(90);

/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// Waits for a future, but not for ever.
pub(crate) async fn within<F: Future>(what: &str, future: F) -> F::Output {
    let Ok(output) = tokio::time::timeout(BOUND, future).await else { panic!("no {what} in {BOUND:?}") };
    output
}

/// Waits until a condition holds, but not for ever.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    within(what, async {
        while !condition() {
            tokio::time::sleep(PAUSE).await;
        }
    })
    .await;
}

/// Asks again and again until there is an answer, but not for ever.
pub(crate) async fn some<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    within(what, async {
        loop {
            match ask().await {
                Some(found) => return found,
                None => tokio::time::sleep(PAUSE).await,
            }
        }
    })
    .await
}
