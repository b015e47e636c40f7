//! Has a door prove that it knows the password, before the password is sent to it. IO.
//!
//! While a door's program is down, something else in its pod may take its port, and another pod may get its address. So
//! each new connection carries a challenge before anything else, and is used for calls only when what is at its other
//! end gave the proof. A pool opens connections as it likes, so this stands between it and the network.

use std::{
    error::Error,
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use berth_wire::proof::{Challenge, Proof};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Request, StatusCode,
    client::conn::http1::{self, SendRequest},
    header::{CONTENT_TYPE, HOST, HeaderValue},
    rt::{Read, Write},
};
use reqwest::Url;
use secrecy::{ExposeSecret, SecretString};
use tower::{Layer, Service};

use crate::error::ClientError;

/// Bytes of the answer to a challenge; a proof has a few hundred.
const ANSWER_MAX: usize = 16 * 1024;

/// Why a connection is not used.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProofError {
    /// It answers, and does not know the password, or is another pod's.
    #[error("what listens there does not prove that it is the door")]
    Unproved,
    /// It broke before there was an answer.
    #[error("the connection broke before the door proved itself")]
    Broken(#[source] hyper::Error),
}

impl ProofError {
    /// Whether this is why a call came to nothing.
    pub(super) fn caused(error: &(dyn Error + 'static)) -> bool {
        std::iter::successors(Some(error), |error| (*error).source())
            .any(|error| matches!(error.downcast_ref(), Some(Self::Unproved)))
    }
}

/// What is to be proved on each connection.
#[derive(Clone)]
pub(super) struct Prover(Arc<Claim>);

struct Claim {
    host: HeaderValue,
    path: String,
    password: SecretString,
    pod_uid: Option<String>,
}

impl fmt::Debug for Prover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prover").field("path", &self.0.path).finish_non_exhaustive()
    }
}

impl Prover {
    /// For the door at this address, which must know the password and be that of the pod, if one is named.
    pub(super) fn new(
        base: &Url,
        password: SecretString,
        pod_uid: Option<String>,
    ) -> Result<Self, ClientError> {
        let host = HeaderValue::try_from(base.authority())
            .map_err(|_| ClientError::InvalidRequest("the base URL has no host".to_owned()))?;
        let path = format!("{}/berth/proof", base.path().trim_end_matches('/'));
        Ok(Self(Arc::new(Claim { host, path, password, pod_uid })))
    }
}

/// What the door at the other end of a connection must prove that it knows, for whoever makes connections by other means
/// than [`OpencodeClient`](super::OpencodeClient). Clones are of one.
#[derive(Clone)]
pub struct DoorProof(Arc<Claim>);

impl fmt::Debug for DoorProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DoorProof").finish_non_exhaustive()
    }
}

impl DoorProof {
    /// The password, and the pod by its UID where it must be that one's door.
    pub fn new(password: SecretString, pod_uid: Option<String>) -> Self {
        let (host, path) = (HeaderValue::from_static("door"), "/berth/proof".to_owned());
        Self(Arc::new(Claim { host, path, password, pod_uid }))
    }

    /// Gives the connection back once it was proved, with nothing sent or read but the proof; what cannot prove itself is
    /// [`ClientError::PortTaken`]. The caller bounds it.
    pub async fn of<C: Read + Write + Unpin>(&self, connection: C) -> Result<C, ClientError> {
        self.0.prove(connection).await.map_err(|error| match error {
            ProofError::Unproved => ClientError::PortTaken,
            ProofError::Broken(_) => ClientError::UnexpectedBody { seen: error.to_string() },
        })
    }
}

impl<S> Layer<S> for Prover {
    type Service = Proving<S>;

    fn layer(&self, connector: S) -> Proving<S> {
        Proving { connector, claim: Arc::clone(&self.0) }
    }
}

/// Makes connections that were proved.
#[derive(Clone)]
pub(super) struct Proving<S> {
    connector: S,
    claim: Arc<Claim>,
}

type BoxError = Box<dyn Error + Send + Sync>;

impl<S, R> Service<R> for Proving<S>
where
    S: Service<R, Error = BoxError>,
    S::Future: Send + 'static,
    S::Response: Read + Write + Unpin + Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.connector.poll_ready(context)
    }

    fn call(&mut self, target: R) -> Self::Future {
        let (connecting, claim) = (self.connector.call(target), Arc::clone(&self.claim));
        Box::pin(async move { Ok(claim.prove(connecting.await?).await?) })
    }
}

impl Claim {
    /// Gives the connection back when what is at its other end has proved itself. The caller bounds it.
    async fn prove<C: Read + Write + Unpin>(&self, connection: C) -> Result<C, ProofError> {
        let nonce: [u8; 32] = rand::random();
        let (sender, exchange) = http1::handshake(connection).await.map_err(ProofError::Broken)?;
        // The exchange ends when the sender is gone and the answer was read.
        let (proof, exchanged) = tokio::join!(self.ask(sender, &nonce), exchange.without_shutdown());
        let is_proof =
            |proof: &Proof| proof.verify(self.password.expose_secret(), &nonce, self.pod_uid.as_deref());
        if !proof?.as_ref().is_some_and(is_proof) {
            return Err(ProofError::Unproved);
        }
        let exchanged = exchanged.map_err(ProofError::Broken)?;
        // What comes after the answer belongs to nothing that was asked.
        if exchanged.read_buf.is_empty() { Ok(exchanged.io) } else { Err(ProofError::Unproved) }
    }

    /// The proof, or `None` from something that is no door.
    async fn ask(
        &self,
        mut sender: SendRequest<Full<Bytes>>,
        nonce: &[u8],
    ) -> Result<Option<Proof>, ProofError> {
        let challenge = serde_json::to_vec(&Challenge::new(nonce)).unwrap_or_default();
        let mut request = Request::post(self.path.as_str()).body(Full::from(challenge)).unwrap_or_default();
        request.headers_mut().insert(HOST, self.host.clone());
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let answer = sender.send_request(request).await.map_err(ProofError::Broken)?;
        let is_ok = answer.status() == StatusCode::OK;
        let Ok(body) = Limited::new(answer.into_body(), ANSWER_MAX).collect().await else { return Ok(None) };
        Ok(serde_json::from_slice(&body.to_bytes()).ok().filter(|_| is_ok))
    }
}
