//! Accepts connections and drives HTTP/1.1 on each, within bounds. IO.

use std::{convert::Infallible, io, pin::Pin, sync::Arc, time::Duration};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::metrics::gauge::Gauge;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{sleep, timeout},
};
use tokio_io_timeout::TimeoutStream;

use crate::{Door, Metrics, events::Subscribed, guests::Guests, routes};

/// Bytes of a request's head; more is answered with 431.
const HEAD_MAX: usize = 64 * 1024;

/// Headers of a request; more are answered with 431.
const HEADERS_MAX: usize = 128;

/// Pause after a failure to accept, such as a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// How long a guest that is cut may take to make room.
const ROOM_BOUND: Duration = Duration::from_secs(1);

/// How long a client may go on sending after its connection has ended.
const LINGER: Duration = Duration::from_secs(2);

/// Failures to accept in a row after which the door gives up.
const ACCEPT_FAILURES: u32 = 100;

/// Accepts until shutdown.
pub(crate) async fn accept(listener: TcpListener, door: &Arc<Door>) -> io::Result<()> {
    let slots = Arc::new(Semaphore::new(door.config.connections));
    let mut failures = 0;
    loop {
        let accepted = tokio::select! {
            () = door.shutdown.cancelled() => return Ok(()),
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) if is_of_one_connection(&error) => continue,
            Err(error) if failures < ACCEPT_FAILURES => {
                failures += 1;
                tracing::warn!(%error, failures, "the door cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        failures = 0;
        let Some(slot) = slot(&slots, &door.guests).await else {
            door.config.metrics.refused_connections.inc();
            tracing::warn!(limit = door.config.connections, "a connection over the limit is closed");
            continue;
        };
        let place = Place::taken(slot, &door.config.metrics);
        door.tracker.spawn(drive(Arc::clone(door), stream, place));
    }
}

/// A connection's place, until its last byte: also after it has become a tunnel. An extension of its requests.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    _taken: Arc<Taken>,
}

#[derive(Debug)]
struct Taken {
    _slot: OwnedSemaphorePermit,
    connections: Gauge,
}

impl Place {
    fn taken(slot: OwnedSemaphorePermit, metrics: &Metrics) -> Self {
        metrics.connections.inc();
        Self { _taken: Arc::new(Taken { _slot: slot, connections: metrics.connections.clone() }) }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.connections.dec();
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// A place for a connection. When all are taken, the oldest guest makes room.
async fn slot(slots: &Arc<Semaphore>, guests: &Guests) -> Option<OwnedSemaphorePermit> {
    if let Ok(slot) = Arc::clone(slots).try_acquire_owned() {
        return Some(slot);
    }
    if !guests.cut_oldest() {
        return None;
    }
    timeout(ROOM_BOUND, Arc::clone(slots).acquire_owned()).await.ok()?.ok()
}

/// Serves one connection to its end, or for a short while after shutdown began.
async fn drive(door: Arc<Door>, stream: TcpStream, place: Place) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection broke at once");
        return;
    }
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(door.config.write_wait));
    let guest = door.guests.enter();
    let subscribed = Subscribed::default();
    let for_requests = (Arc::clone(&door), Arc::clone(&guest), subscribed.clone(), place);
    let service = service_fn(move |mut request| {
        request.extensions_mut().insert(for_requests.2.clone());
        request.extensions_mut().insert(for_requests.3.clone());
        let (door, guest) = (Arc::clone(&for_requests.0), Arc::clone(&for_requests.1));
        async move { Ok::<_, Infallible>(routes::handle(door, guest, request).await) }
    });
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(door.config.head_wait)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_MAX)
        .serve_connection(TokioIo::new(Box::pin(stream)), service)
        .with_upgrades();
    let result = tokio::select! {
        result = &mut connection => result,
        () = guest.overstays(door.config.guest_wait) => {
            tracing::debug!("a connection that gave no password is cut");
            return;
        }
        () = door.shutdown.cancelled() => {
            Pin::new(&mut connection).graceful_shutdown();
            let Ok(result) = timeout(door.config.drain, &mut connection).await else {
                tracing::info!("a connection is cut at shutdown");
                return;
            };
            result
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection to the door ended early");
        if is_stalled(&error) {
            subscribed.report_stalled(&door);
        }
    }
    if let Some(parts) = connection.into_parts() {
        door.shutdown.run_until_cancelled(timeout(LINGER, linger(parts.io.into_inner()))).await;
    }
}

/// The client took no bytes for too long.
fn is_stalled(error: &hyper::Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
    source.is_some_and(|source| source.kind() == io::ErrorKind::TimedOut)
}

/// Takes what the client still sends, until it closes: a socket that is closed with bytes in it is reset, and the client
/// may lose the answer that tells it why its upload was refused.
async fn linger(mut stream: Pin<Box<TimeoutStream<TcpStream>>>) {
    let mut rest = vec![0; 16 * 1024];
    let _ = stream.shutdown().await;
    while stream.read(&mut rest).await.is_ok_and(|count| count > 0) {}
}
