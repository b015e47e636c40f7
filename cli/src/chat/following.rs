//! The events of a session, for as long as somebody wants them: also when the server is away for long. Does IO.

use std::time::Duration;

use berth_client::{BerthClient, ClientError, EventStream, RetryPolicy};
use berth_wire::event::SessionEvent;
use uuid::Uuid;

/// Tries in a row; then it begins anew, for ever.
const RETRY: RetryPolicy = RetryPolicy {
    retries: 5,
    first_delay: Duration::from_millis(100),
    longest_delay: Duration::from_secs(1),
    limit: None,
};
/// Wait before it begins anew.
const PAUSE: Duration = Duration::from_millis(500);

/// The events of one session from a position on, each exactly once.
#[derive(Debug)]
pub(super) struct Following {
    client: BerthClient,
    session: Uuid,
    last: i64,
    stream: EventStream,
}

impl Following {
    /// What follows event `last` of the session.
    pub(super) fn new(client: BerthClient, session: Uuid, last: i64) -> Self {
        let stream = client.clone().with_retry(RETRY).events(session, last);
        Self { client, session, last, stream }
    }

    /// A client of the server.
    pub(super) fn client(&self) -> &BerthClient {
        &self.client
    }

    /// There is a connection.
    pub(super) fn is_connected(&self) -> bool {
        self.stream.is_connected()
    }

    /// Goes over to another session.
    pub(super) fn turn_to(&mut self, session: Uuid, last: i64) {
        *self = Self::new(self.client.clone(), session, last);
    }

    /// The next event. Fails only for what does not get better by waiting. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Result<SessionEvent, ClientError> {
        loop {
            match self.stream.next().await {
                Ok(event) => {
                    self.last = event.seq;
                    return Ok(event);
                }
                Err(error) if error.is_unreachable() => {
                    tracing::debug!(%error, "the event stream is lost; trying anew");
                    // The old stream is over. Before the pause: a future that is dropped in it must not come back to it.
                    self.stream = self.client.clone().with_retry(RETRY).events(self.session, self.last);
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}
