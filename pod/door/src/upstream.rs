//! Connections to opencode on the loopback interface.
//!
//! One connection per request, never a pool: opencode comes back on another port after each restart, a request that
//! reaches it before it is wired is never answered and poisons its connection (measured on opencode 1.18.33), and a
//! whole detour through the door costs 0.3 to 0.5 ms with it (debug build, two cores). IO.

use std::{io, net::SocketAddr, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderValue, Request, Response, header};
use http_body_util::Empty;
use hyper::{
    body::{Body, Bytes, Incoming},
    client::conn::http1,
};
use hyper_util::rt::TokioIo;
use secrecy::{ExposeSecret, SecretString};
use tokio::{net::TcpStream, sync::watch, time::timeout};
use tokio_util::task::TaskTracker;

use crate::Secrets;

/// User name that opencode and the door expect.
pub(crate) const USER: &str = "opencode";

/// Bound on a connection to the loopback interface.
const CONNECT_BOUND: Duration = Duration::from_secs(2);

/// Why there is no answer from opencode.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpstreamError {
    /// Nothing was sent: the request may safely be sent again.
    #[error("opencode does not accept connections")]
    Connect(#[source] io::Error),
    /// The request may or may not have been carried out.
    #[error("opencode broke the connection before it answered")]
    Exchange(#[source] hyper::Error),
}

/// `Authorization` for the opencode that runs now: the one that its event stream was opened with.
#[derive(Debug)]
pub(crate) struct Authorization(watch::Sender<HeaderValue>);

impl Authorization {
    pub(crate) fn new(secrets: &Secrets) -> Self {
        let first = secrets.held().internal.first().map_or(HeaderValue::from_static(""), basic);
        Self(watch::Sender::new(first))
    }

    pub(crate) fn get(&self) -> HeaderValue {
        self.0.borrow().clone()
    }

    pub(crate) fn set(&self, value: HeaderValue) {
        self.0.send_replace(value);
    }
}

/// Takes one request over a connection of its own.
pub(crate) type Sender<B> = http1::SendRequest<B>;

/// Connects to opencode. The connection is driven on `tracker` and ends with the answer's body, or as soon as the
/// sender or the answer is dropped.
pub(crate) async fn connect<B>(address: SocketAddr, tracker: &TaskTracker) -> Result<Sender<B>, UpstreamError>
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let stream = connect_tcp(address).await.map_err(UpstreamError::Connect)?;
    let (sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(UpstreamError::Exchange)?;
    tracker.spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "a connection to opencode ended early");
        }
    });
    Ok(sender)
}

/// Sends a request and gives the head of the answer with its streaming body.
pub(crate) async fn send<B>(
    address: SocketAddr,
    request: Request<B>,
    tracker: &TaskTracker,
) -> Result<Response<Incoming>, UpstreamError>
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut sender = connect(address, tracker).await?;
    sender.send_request(request).await.map_err(UpstreamError::Exchange)
}

async fn connect_tcp(address: SocketAddr) -> io::Result<TcpStream> {
    let stream =
        timeout(CONNECT_BOUND, TcpStream::connect(address)).await.map_err(|_| io::ErrorKind::TimedOut)??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A GET without a body, as opencode wants it.
pub(crate) fn get(path: &str, address: SocketAddr, authorization: &HeaderValue) -> Request<Empty<Bytes>> {
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = path.parse().unwrap_or_else(|_| http::Uri::from_static("/"));
    request.headers_mut().insert(header::HOST, host(address));
    request.headers_mut().insert(header::AUTHORIZATION, authorization.clone());
    request
}

/// `Host` of opencode.
pub(crate) fn host(address: SocketAddr) -> HeaderValue {
    HeaderValue::try_from(address.to_string()).expect("an address is printable ASCII")
}

/// `Authorization: Basic` for user [`USER`]; marked sensitive, so that no Debug shows it.
pub(crate) fn basic(password: &SecretString) -> HeaderValue {
    let token = STANDARD.encode(format!("{USER}:{}", password.expose_secret()));
    let mut value = HeaderValue::try_from(format!("Basic {token}")).expect("base64 is printable ASCII");
    value.set_sensitive(true);
    value
}
