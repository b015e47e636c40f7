//! One HTTP request and its answer, on a connection of its own, within a bound and a few KiB. IO.
//!
//! A small client instead of a whole one: the supervisor asks for nothing but health, and must stay small.

use std::{net::SocketAddr, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::{
    body::{Bytes, Incoming},
    client::conn::http1::{self, Connection, SendRequest},
};
use hyper_util::rt::TokioIo;
use secrecy::{ExposeSecret, SecretString};
use tokio::{net::TcpStream, time::timeout};

/// User name that opencode, the door and the supervisor expect.
pub(crate) const USER: &str = "opencode";

/// Bytes of an answer that are read.
const BODY_MAX: usize = 256 * 1024;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExchangeError {
    /// Nothing listens there.
    #[error("no connection is accepted")]
    Connect(#[source] std::io::Error),
    /// What listens there does not speak HTTP, or broke off.
    #[error("the connection broke before the answer was complete")]
    Http(#[source] hyper::Error),
    /// The answer is larger than is read.
    #[error("the answer has more than {BODY_MAX} bytes")]
    TooLarge,
    /// It took too long.
    #[error("there was no answer within {} ms", .0.as_millis())]
    Timeout(Duration),
}

/// What is asked.
#[derive(Debug)]
pub(crate) struct Question<'a> {
    pub(crate) address: SocketAddr,
    pub(crate) method: Method,
    pub(crate) path: &'a str,
    pub(crate) password: Option<SecretString>,
    /// JSON.
    pub(crate) body: Vec<u8>,
}

impl<'a> Question<'a> {
    /// A GET.
    pub(crate) fn get(address: SocketAddr, path: &'a str, password: Option<SecretString>) -> Self {
        Self { address, method: Method::GET, path, password, body: Vec::new() }
    }

    pub(crate) fn request(self) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(self.body.into()));
        *request.method_mut() = self.method;
        *request.uri_mut() = self.path.parse().unwrap_or_else(|_| http::Uri::from_static("/"));
        let headers = request.headers_mut();
        if let Ok(host) = HeaderValue::try_from(self.address.to_string()) {
            headers.insert(header::HOST, host);
        }
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(password) = &self.password {
            headers.insert(header::AUTHORIZATION, basic(password));
        }
        request
    }
}

/// `Authorization: Basic` for user [`USER`]; marked sensitive, so that no Debug shows it.
pub(crate) fn basic(password: &SecretString) -> HeaderValue {
    let token = STANDARD.encode(format!("{USER}:{}", password.expose_secret()));
    let mut value =
        HeaderValue::try_from(format!("Basic {token}")).unwrap_or_else(|_| HeaderValue::from_static("Basic"));
    value.set_sensitive(true);
    value
}

/// Status and whole body of the answer.
pub(crate) async fn exchange(
    question: Question<'_>,
    bound: Duration,
) -> Result<(StatusCode, Bytes), ExchangeError> {
    timeout(bound, answer(question)).await.map_err(|_| ExchangeError::Timeout(bound))?
}

async fn answer(question: Question<'_>) -> Result<(StatusCode, Bytes), ExchangeError> {
    let (mut sender, connection) = connect(question.address).await?;
    let answer = async {
        let response = sender.send_request(question.request()).await.map_err(ExchangeError::Http)?;
        let (head, body) = response.into_parts();
        Ok((head.status, whole(body).await?))
    };
    alongside(connection, answer).await
}

/// A connection of its own.
pub(crate) async fn connect(
    address: SocketAddr,
) -> Result<(SendRequest<Full<Bytes>>, Connection<TokioIo<TcpStream>, Full<Bytes>>), ExchangeError> {
    let stream = TcpStream::connect(address).await.map_err(ExchangeError::Connect)?;
    stream.set_nodelay(true).map_err(ExchangeError::Connect)?;
    http1::handshake(TokioIo::new(stream)).await.map_err(ExchangeError::Http)
}

/// Drives the connection in the same task, and drops it with the answer.
pub(crate) async fn alongside<T>(
    connection: Connection<TokioIo<TcpStream>, Full<Bytes>>,
    answer: impl Future<Output = T>,
) -> T {
    let driven = async {
        // How it ends is seen by who waits for the answer.
        let _ = connection.await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        answer = answer => answer,
        () = driven => unreachable!("it is pending"),
    }
}

async fn whole(body: Incoming) -> Result<Bytes, ExchangeError> {
    match Limited::new(body, BODY_MAX).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) => match error.downcast::<hyper::Error>() {
            Ok(error) => Err(ExchangeError::Http(*error)),
            Err(error) => {
                debug_assert!(error.is::<LengthLimitError>());
                Err(ExchangeError::TooLarge)
            }
        },
    }
}
