//! The admin listener: `/live`, `/ready` and `/metrics`, for the kubelet, the supervisor and Prometheus. IO.
//!
//! It has no secret and asks for none, so everything that it does is bounded: it reads no body, and when too many
//! connect the oldest connection makes room, so that whoever holds connections open cannot keep the kubelet out.

use std::{collections::VecDeque, convert::Infallible, pin::pin, sync::Arc, time::Duration};

use berth_wire::problem::{PROBLEM_JSON, Problem, ProblemType};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::{encoding::text::encode, metrics::counter::Counter, registry::Registry};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    time::{sleep, timeout},
};
use tokio_io_timeout::TimeoutStream;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::readiness::Readiness;

/// Connections at a time.
const CONNECTIONS: usize = 64;

/// Bytes of a request's head; more is answered with 431.
const HEAD_MAX: usize = 16 * 1024;

/// Headers of a request; more are answered with 431.
const HEADERS_MAX: usize = 64;

/// How long a request's head may take, counted from the end of the one before it.
const HEAD_WAIT: Duration = Duration::from_secs(10);

/// How long a client may refuse to take bytes.
const WRITE_WAIT: Duration = Duration::from_secs(10);

/// How long a connection has to end at shutdown.
const DRAIN: Duration = Duration::from_secs(1);

/// Pause after a failure to accept, such as a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Media type of the metrics.
const OPENMETRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// What the listener tells.
#[derive(Debug)]
pub(crate) struct Admin {
    registry: Registry,
    readiness: watch::Receiver<Readiness>,
    cut_connections: Counter,
}

impl Admin {
    /// Tells what is registered and whether opencode may be started.
    pub(crate) fn new(mut registry: Registry, readiness: watch::Receiver<Readiness>) -> Arc<Self> {
        let cut_connections = Counter::default();
        registry.register(
            "berth_sidecar_admin_cut_connections",
            "Connections to the admin listener that made room for newer ones",
            cut_connections.clone(),
        );
        Arc::new(Self { registry, readiness, cut_connections })
    }

    fn answer(&self, method: &Method, path: &str) -> Response<Full<Bytes>> {
        let known = matches!(path, "/live" | "/ready" | "/metrics");
        if known && ![Method::GET, Method::HEAD].contains(method) {
            let mut response = problem(ProblemType::MethodNotAllowed, "This is only for reading.");
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        match path {
            "/live" => text("live\n", HeaderValue::from_static("text/plain")),
            "/ready" => self.ready(),
            "/metrics" => self.metrics(),
            _ => problem(ProblemType::NotFound, "There are /live, /ready and /metrics."),
        }
    }

    fn ready(&self) -> Response<Full<Bytes>> {
        match *self.readiness.borrow() {
            Readiness::Ready => text("ready\n", HeaderValue::from_static("text/plain")),
            Readiness::NotYet(reason) => {
                let mut response = problem(ProblemType::Starting, reason);
                response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
                response
            }
        }
    }

    fn metrics(&self) -> Response<Full<Bytes>> {
        let mut shown = String::new();
        match encode(&mut shown, &self.registry) {
            Ok(()) => text(shown, OPENMETRICS),
            Err(error) => {
                tracing::error!(%error, "the metrics cannot be written");
                problem(ProblemType::Internal, "The metrics cannot be written.")
            }
        }
    }
}

fn text(body: impl Into<Bytes>, kind: HeaderValue) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

fn problem(kind: ProblemType, detail: &str) -> Response<Full<Bytes>> {
    let problem = Problem::new(kind, detail);
    let mut response =
        text(serde_json::to_vec(&problem).unwrap_or_default(), HeaderValue::from_static(PROBLEM_JSON));
    *response.status_mut() =
        StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
}

/// Serves until `shutdown`, and returns when the connections have ended.
pub(crate) async fn run(listener: TcpListener, admin: Arc<Admin>, shutdown: CancellationToken) {
    let tracker = TaskTracker::new();
    let mut open: VecDeque<CancellationToken> = VecDeque::new();
    while let Some(accepted) = shutdown.run_until_cancelled(listener.accept()).await {
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "the admin listener cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        open.retain(|connection| !connection.is_cancelled());
        if open.len() >= CONNECTIONS
            && let Some(oldest) = open.pop_front()
        {
            oldest.cancel();
            admin.cut_connections.inc();
        }
        let end = CancellationToken::new();
        open.push_back(end.clone());
        let connection = drive(stream, Arc::clone(&admin), end, shutdown.clone());
        tracker.spawn(connection);
    }
    tracker.close();
    tracker.wait().await;
}

/// Serves one connection until it ends, is cut, or for a short while after shutdown began.
async fn drive(stream: TcpStream, admin: Arc<Admin>, end: CancellationToken, shutdown: CancellationToken) {
    let cut = end.clone();
    // However it ends, its place is free then.
    let _place = end.drop_guard();
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(WRITE_WAIT));
    let service = service_fn(move |request: Request<Incoming>| {
        let response = admin.answer(request.method(), request.uri().path());
        async move { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WAIT)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_MAX)
        .serve_connection(TokioIo::new(Box::pin(stream)), service);
    let mut connection = pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = cut.cancelled() => return,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            timeout(DRAIN, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection to the admin listener ended early");
    }
}

#[cfg(test)]
mod tests {
    use std::{net::SocketAddr, time::Duration};

    use berth_testkit::Scale;
    use rand::{RngExt, SeedableRng, rngs::StdRng};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        task::JoinHandle,
    };

    use super::*;

    /// Bound on everything that a test waits for.
    const BOUND: Duration = Duration::from_secs(20);

    struct Running {
        address: SocketAddr,
        readiness: watch::Sender<Readiness>,
        admin: Arc<Admin>,
        shutdown: CancellationToken,
        task: JoinHandle<()>,
    }

    impl Running {
        async fn start() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let (readiness, ready) = watch::channel(Readiness::NotYet("the restore goes on"));
            let (admin, shutdown) = (Admin::new(Registry::default(), ready), CancellationToken::new());
            let address = listener.local_addr().unwrap();
            let task = tokio::task::spawn_local(run(listener, Arc::clone(&admin), shutdown.clone()));
            Self { address, readiness, admin, shutdown, task }
        }

        /// What comes back until the listener closes the connection.
        async fn send(&self, pieces: &[&[u8]]) -> String {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            for piece in pieces {
                // The listener may answer and close before all is written.
                let _ = stream.write_all(piece).await;
                tokio::task::yield_now().await;
            }
            let _ = stream.shutdown().await;
            let mut answer = Vec::new();
            let _ = timeout(BOUND, stream.read_to_end(&mut answer)).await.expect("an end in time");
            String::from_utf8(answer).unwrap()
        }

        async fn ask(&self, method: &str, path: &str) -> String {
            self.send(&[
                format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes()
            ])
            .await
        }
    }

    async fn locally<F: Future>(test: F) -> F::Output {
        tokio::task::LocalSet::new().run_until(test).await
    }

    #[tokio::test]
    async fn each_route_answers_and_the_rest_is_typed() {
        locally(async {
            let running = Running::start().await;
            assert!(running.ask("GET", "/live").await.starts_with("HTTP/1.1 200 OK\r\n"));
            assert!(running.ask("GET", "/live?probe=1").await.starts_with("HTTP/1.1 200 OK\r\n"));
            let head = running.ask("HEAD", "/live").await;
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"), "{head}");
            let waits = running.ask("GET", "/ready").await;
            assert!(waits.starts_with("HTTP/1.1 503") && waits.contains("the restore goes on"), "{waits}");
            assert!(waits.contains("retry-after: 1\r\n") && waits.contains(PROBLEM_JSON), "{waits}");
            running.readiness.send_replace(Readiness::Ready);
            assert!(running.ask("GET", "/ready").await.starts_with("HTTP/1.1 200 OK\r\n"));
            let metrics = running.ask("GET", "/metrics").await;
            assert!(metrics.contains("content-type: application/openmetrics-text"), "{metrics}");
            assert!(metrics.contains("\nberth_sidecar_admin_cut_connections_total 0\n"), "{metrics}");
            assert!(metrics.ends_with("# EOF\n"), "{metrics}");
            let posted = running.ask("POST", "/metrics").await;
            assert!(posted.starts_with("HTTP/1.1 405") && posted.contains("allow: GET, HEAD"), "{posted}");
            for path in ["/", "/live/", "//live", "/LIVE", "/%6cive", "/berth/state", "/../live"] {
                let answer = running.ask("GET", path).await;
                assert!(
                    answer.starts_with("HTTP/1.1 404") && answer.contains(PROBLEM_JSON),
                    "{path}: {answer}"
                );
            }
            running.shutdown.cancel();
            timeout(BOUND, running.task).await.expect("an end in time").unwrap();
        })
        .await;
    }

    #[tokio::test]
    async fn hostile_bytes_are_refused_or_closed_and_the_listener_goes_on() {
        locally(async {
            let running = Running::start().await;
            let long =
                |name: &str, length| format!("GET /live HTTP/1.1\r\n{name}: {}\r\n\r\n", "a".repeat(length));
            let many = format!("GET /live HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(HEADERS_MAX + 1));
            let cases: [(&[u8], &str); 10] = [
                (b"", ""),
                (b"\0\0\0\0", "HTTP/1.1 400"),
                (b"GET /live", ""),
                (b"GET / HTTP/9.9\r\n\r\n", "HTTP/1.1 400"),
                (b"GET /\0 HTTP/1.1\r\n\r\n", "HTTP/1.1 400"),
                (b"GET /live HTTP/1.1\r\nhost : x\r\n\r\n", "HTTP/1.1 400"),
                (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "HTTP/1.1 400"),
                (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", ""),
                (many.as_bytes(), "HTTP/1.1 431"),
                (&long("x", HEAD_MAX * 2).into_bytes(), "HTTP/1.1 431"),
            ];
            for (bytes, expected) in cases {
                let answer = running.send(&[bytes]).await;
                assert!(answer.starts_with(expected), "{}: {answer}", bytes.escape_ascii());
                assert!(running.ask("GET", "/live").await.starts_with("HTTP/1.1 200"));
            }
        })
        .await;
    }

    /// A request, spoilt in a way that the seed decides, in pieces.
    fn hostile(seed: u64) -> Vec<Vec<u8>> {
        let mut random = StdRng::seed_from_u64(seed);
        let paths = ["/live", "/ready", "/metrics", "/", "*", "http://x/live", "//", "/%00", "/../live"];
        let methods = ["GET", "HEAD", "POST", "CONNECT", "TRACE", "get", "G\0T", ""];
        let (method, path) = (random.random_range(0..methods.len()), random.random_range(0..paths.len()));
        let mut bytes = format!("{} {} HTTP/1.1\r\n", methods[method], paths[path]).into_bytes();
        for _ in 0..random.random_range(0..4) {
            let lines: [&[u8]; 8] = [
                b"host: x\r\n",
                b"content-length: 5\r\n",
                b"content-length: 99999999999999999999\r\n",
                b"transfer-encoding: chunked\r\n",
                b"connection: upgrade\r\nupgrade: websocket\r\n",
                b"expect: 100-continue\r\n",
                b" folded\r\n",
                b"bare: line\nfeed: x\r\n",
            ];
            bytes.extend_from_slice(lines[random.random_range(0..lines.len())]);
        }
        bytes.extend_from_slice(b"\r\n5\r\nhello\r\n0\r\n\r\n");
        match random.random_range(0..5) {
            0 => bytes = (0..random.random_range(0..4_096)).map(|_| random.random()).collect(),
            1 => bytes.truncate(random.random_range(0..=bytes.len())),
            2 => bytes
                .splice(5..5, std::iter::repeat_n(b'a', random.random_range(0..HEAD_MAX * 2)))
                .for_each(drop),
            3 => (0..random.random_range(1..8)).for_each(|_| {
                let at = random.random_range(0..bytes.len());
                bytes[at] = random.random();
            }),
            _ => {}
        }
        let middle = random.random_range(0..=bytes.len());
        vec![bytes[..middle].to_vec(), bytes[middle..].to_vec()]
    }

    #[tokio::test]
    async fn whatever_comes_is_answered_in_http_or_closed() {
        locally(async {
            let running = Running::start().await;
            let scale = Scale::current();
            let seeds = scale.pick(500, 10_000);
            for seed in 0..seeds {
                let pieces = hostile(seed);
                let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
                let answer = running.send(&pieces).await;
                assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 "), "seed {seed}: {answer}");
                if seed % 50 == 0 {
                    assert!(running.ask("GET", "/live").await.starts_with("HTTP/1.1 200"), "seed {seed}");
                }
            }
            scale.report("whatever_comes_is_answered_in_http_or_closed", seeds, &[("requests", seeds)]);
        })
        .await;
    }

    #[tokio::test]
    async fn a_body_is_not_read_and_smuggles_nothing() {
        locally(async {
            let running = Running::start().await;
            for smuggled in [
                "POST /live HTTP/1.1\r\ncontent-length: 40\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /metrics HTTP/1.1\r\n\r\n",
                "POST /live HTTP/1.1\r\ncontent-length: 0\r\ncontent-length: 26\r\n\r\nGET /metrics HTTP/1.1\r\n\r\n",
                "POST /live HTTP/1.1\r\ncontent-length: 1000000000\r\n\r\nGET /metrics HTTP/1.1\r\n\r\n",
            ] {
                let answer = running.send(&[smuggled.as_bytes()]).await;
                assert!(answer.starts_with("HTTP/1.1 40"), "{answer}");
                assert!(!answer.contains("openmetrics"), "{answer}");
            }
        })
        .await;
    }

    #[tokio::test]
    async fn whoever_holds_connections_open_keeps_nobody_out() {
        locally(async {
            let running = Running::start().await;
            let mut held = Vec::new();
            for _ in 0..CONNECTIONS * 2 {
                let mut stream = TcpStream::connect(running.address).await.unwrap();
                stream.write_all(b"GET /live HTTP/1.1\r\n").await.unwrap();
                held.push(stream);
            }
            assert!(running.ask("GET", "/live").await.starts_with("HTTP/1.1 200"));
            let mut rest = Vec::new();
            let read = timeout(BOUND, held[0].read_to_end(&mut rest)).await.expect("the oldest is cut");
            assert!(read.is_err() || rest.is_empty());
            assert_eq!(running.admin.cut_connections.get(), CONNECTIONS as u64 + 1);
        })
        .await;
    }
}
