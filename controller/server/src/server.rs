//! Wiring: opens the store, starts the runners, serves HTTP, and ends all three in order.

use std::{io, sync::Arc};

use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    app::App,
    config::ServerConfig,
    directory::SandboxDirectory,
    http,
    metrics::Metrics,
    runner::Runners,
    store::{Sharing, SqliteStore, Store, StoreOpenError},
};

/// Why the server could not start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The database cannot be used.
    #[error("the session store cannot be opened")]
    Store(#[from] StoreOpenError),
}

/// Why the server ended before it was told to.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The listener failed.
    #[error("the HTTP listener failed")]
    Serve(#[from] io::Error),
}

/// A server that is ready to run.
pub struct Server {
    config: ServerConfig,
    store: Arc<dyn Store>,
    directory: Arc<dyn SandboxDirectory>,
    metrics: Metrics,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Server {
    /// Opens the store.
    pub async fn open(config: ServerConfig, directory: Arc<dyn SandboxDirectory>) -> Result<Self, OpenError> {
        let metrics = Metrics::default();
        let store = SqliteStore::open(&config.database, config.sharing).await?.counting(metrics.clone());
        Ok(Self { config, store: Arc::new(store), directory, metrics })
    }

    /// Serves until `shutdown`; then ends event streams, lets open requests finish within their bound, stops the
    /// runners where they stand (their state is in the store) and closes the store.
    pub async fn run(self, listener: TcpListener, shutdown: CancellationToken) -> Result<(), RunError> {
        let Self { config, store, directory, metrics } = self;
        let limits = config.limits.clone();
        // Who is alone may take over from itself what an earlier process left; others each have a name of their own.
        let owner = match config.sharing {
            Sharing::Alone => Uuid::nil(),
            Sharing::Shared => Uuid::new_v4(),
        };
        let runners = Runners::start(&store, &directory, &limits, &metrics, owner, shutdown.child_token());
        let app = Arc::new(App::new(Arc::clone(&store), directory, limits, shutdown.child_token(), metrics));
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&app).follow_directory(shutdown.clone()));
        let served = http::serve(listener, app, config.token, shutdown).await;
        tasks.shutdown().await;
        runners.stop().await;
        store.close().await;
        Ok(served?)
    }
}
