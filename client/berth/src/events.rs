//! A session's event log as a stream that survives broken connections. Does IO.
//!
//! The server numbers a session's events densely. The stream remembers the last number it gave out, asks for what
//! follows it on each new connection (`Last-Event-ID`), and checks that nothing is missing and nothing comes twice.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use backon::{BackoffBuilder, ExponentialBackoff};
use berth_wire::{event::SessionEvent, sse::SseReader};
use futures_util::{
    Stream, StreamExt,
    stream::{BoxStream, try_unfold},
};
use uuid::Uuid;

use crate::{BerthClient, ClientError, RetryPolicy};

/// A connection that lived this long was a good one, even if no event came over it.
const GOOD_CONNECTION: Duration = Duration::from_secs(10);

/// The events of a session in order, each exactly once. Ends only with an error, and yields nothing after it.
///
/// Broken connections are resumed; the number of failed attempts in a row is bounded by the client's
/// [`RetryPolicy`]. Dropping a pending [`EventStream::next`] loses nothing.
pub struct EventStream {
    events: BoxStream<'static, Result<SessionEvent, ClientError>>,
    failures: Arc<AtomicUsize>,
    connected: Arc<AtomicBool>,
}

impl std::fmt::Debug for EventStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventStream").finish_non_exhaustive()
    }
}

impl EventStream {
    pub(crate) fn new(client: BerthClient, retry: RetryPolicy, session: Uuid, after: i64) -> Self {
        let failures = Arc::new(AtomicUsize::new(0));
        let connected = Arc::new(AtomicBool::new(false));
        let subscription = Subscription {
            client,
            session,
            retry,
            last: after,
            connection: None,
            delays: retry.builder().build(),
            failures: Arc::clone(&failures),
            connected: Arc::clone(&connected),
        };
        let step = |mut subscription: Subscription| async move {
            let event = subscription.next().await?;
            Ok(Some((event, subscription)))
        };
        Self { events: try_unfold(subscription, step).boxed(), failures, connected }
    }

    /// Failed attempts to resume it since the last event: not 0 while the server is away.
    pub fn failures(&self) -> usize {
        self.failures.load(Ordering::Relaxed)
    }

    /// There is a connection to the server, as far as is known; events may come over it, or none for long.
    pub fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    /// The next event. After an error the stream is over, and further calls say that it has ended.
    pub async fn next(&mut self) -> Result<SessionEvent, ClientError> {
        self.events.next().await.unwrap_or(Err(ClientError::StreamEnded))
    }
}

impl Stream for EventStream {
    type Item = Result<SessionEvent, ClientError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.events.poll_next_unpin(cx)
    }
}

struct Connection {
    reader: SseReader,
    since: Instant,
}

struct Subscription {
    client: BerthClient,
    session: Uuid,
    retry: RetryPolicy,
    /// Number of the last event that was given out.
    last: i64,
    connection: Option<Connection>,
    delays: ExponentialBackoff,
    /// Failed attempts in a row. Written here, read by the stream's owner.
    failures: Arc<AtomicUsize>,
    /// Written here, likewise.
    connected: Arc<AtomicBool>,
}

impl Subscription {
    async fn next(&mut self) -> Result<SessionEvent, ClientError> {
        loop {
            match self.attempt().await {
                Ok(event) => {
                    self.forgive();
                    return Ok(event);
                }
                Err(error) if error.is_transient() => self.wait_after(error).await?,
                Err(error) => return Err(error),
            }
        }
    }

    /// The next event over the present connection, or over a new one when there is none.
    async fn attempt(&mut self) -> Result<SessionEvent, ClientError> {
        let connection = if let Some(connection) = &mut self.connection {
            connection
        } else {
            let response = self.client.open_events(self.session, self.last).await?;
            let reader = SseReader::new(response.bytes_stream());
            self.connected.store(true, Ordering::Relaxed);
            self.connection.insert(Connection { reader, since: Instant::now() })
        };
        let frame = connection.reader.next().await.ok_or(ClientError::StreamEnded)?;
        let frame = frame.map_err(ClientError::Stream)?;
        let event: SessionEvent = serde_json::from_str(&frame.data)
            .map_err(|source| ClientError::Malformed { what: "event", source })?;
        let expected = self.last + 1;
        if event.seq != expected {
            return Err(ClientError::NotConsecutive { expected, found: event.seq });
        }
        self.last = event.seq;
        Ok(event)
    }

    async fn wait_after(&mut self, error: ClientError) -> Result<(), ClientError> {
        let connection = self.connection.take();
        self.connected.store(false, Ordering::Relaxed);
        if connection.is_some_and(|connection| connection.since.elapsed() >= GOOD_CONNECTION) {
            self.forgive();
        }
        let attempts = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        let Some(delay) = self.delays.next() else {
            return Err(ClientError::StreamLost { attempts, source: Box::new(error) });
        };
        tokio::time::sleep(delay).await;
        Ok(())
    }

    fn forgive(&mut self) {
        if self.failures.swap(0, Ordering::Relaxed) > 0 {
            self.delays = self.retry.builder().build();
        }
    }
}
