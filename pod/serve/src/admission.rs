//! Whether opencode may be started: somebody else is asked before each start. IO.

use std::time::Duration;

use http::StatusCode;
use tokio::time::{Instant, sleep};

use crate::{
    WaitFor,
    exchange::{Question, exchange},
};

/// Bound on one question.
const BOUND: Duration = Duration::from_secs(2);

/// Pause before the next one.
const PAUSE: Duration = Duration::from_millis(250);

/// How often it is said that the wait goes on.
const SAY: Duration = Duration::from_secs(30);

/// Asks until the answer is yes, for ever if need be, and says now and then that it waits.
pub(crate) async fn wait(who: Option<WaitFor>) {
    let Some(who) = who else { return };
    let begun = Instant::now();
    let mut said: Option<Instant> = None;
    loop {
        let why = match exchange(Question::get(who.address, &who.path, None), BOUND).await {
            Ok((StatusCode::OK, _)) => break,
            Ok((status, _)) => format!("it answered {status}"),
            Err(error) => error.to_string(),
        };
        if said.is_none_or(|said| said.elapsed() >= SAY) {
            said = Some(Instant::now());
            let waited_s = begun.elapsed().as_secs();
            tracing::info!(asked = %who.address, path = who.path, why, waited_s, "opencode may not start yet");
        }
        sleep(PAUSE).await;
    }
    if said.is_some() {
        tracing::info!(waited_ms = begun.elapsed().as_millis(), "opencode may start");
    }
}
