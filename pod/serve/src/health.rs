//! Waits until opencode answers, in a version that Berth speaks. IO.

use std::{net::SocketAddr, time::Duration};

use berth_opencode::{ClientConfig, ClientError, OpencodeClient};
use secrecy::SecretString;
use tokio::time::{sleep, timeout};

/// Pause between attempts.
const PAUSE: Duration = Duration::from_millis(100);

/// Something that answers and is no opencode that Berth speaks to.
#[derive(Debug)]
pub(crate) struct Unsupported {
    /// What it is, in words, such as `version 2.0.0`.
    pub(crate) seen: String,
}

/// Asks until opencode answers and gives its version. Each attempt has a connection of its own and `bound`, since a
/// request that comes before opencode is wired is never answered. The caller bounds the whole.
pub(crate) async fn wait(
    address: SocketAddr,
    password: &SecretString,
    bound: Duration,
) -> Result<String, Unsupported> {
    loop {
        match timeout(bound, ask(address, password, bound)).await {
            Ok(Ok(version)) => return Ok(version),
            Ok(Err(ClientError::UnsupportedVersion { seen })) => return Err(Unsupported { seen }),
            Ok(Err(error)) => tracing::debug!(%error, "opencode listens and gives no answer yet"),
            Err(_) => tracing::debug!("opencode listens and gives no answer in time yet"),
        }
        sleep(PAUSE).await;
    }
}

/// One attempt. A client keeps its connections, so each attempt has a client of its own.
async fn ask(address: SocketAddr, password: &SecretString, bound: Duration) -> Result<String, ClientError> {
    let mut config = ClientConfig::new(format!("http://{address}"), password.clone());
    config.connect_timeout = bound;
    config.request_timeout = bound;
    Ok(OpencodeClient::new(config)?.health().await?.version)
}
