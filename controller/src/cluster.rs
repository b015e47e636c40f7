//! The way to the cluster, of the pod that this runs in or of the current context of a kubeconfig, and the sandboxes that
//! the server finds there. IO.

use std::time::Duration;

use kube::{Client, Config};

use crate::exit::ControllerError;

pub(crate) mod directory;
mod place;
pub mod rules;
mod work;

/// Bound on making a connection to the apiserver.
const CONNECT: Duration = Duration::from_secs(10);

/// A client, once the apiserver has answered.
pub(crate) async fn connect() -> Result<Client, ControllerError> {
    let failed = |error: Box<dyn std::error::Error + Send + Sync>| ControllerError::Cluster { source: error };
    let mut config = Config::infer().await.map_err(|error| failed(error.into()))?;
    config.connect_timeout = Some(CONNECT);
    let client = Client::try_from(config).map_err(|error| failed(error.into()))?;
    let version = client.apiserver_version().await.map_err(|error| failed(error.into()))?;
    tracing::info!(version = version.git_version, "the cluster answers");
    Ok(client)
}
