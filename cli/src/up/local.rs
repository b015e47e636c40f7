//! Local mode: a server on SQLite and its sandboxes, started and stopped as one. Does IO.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use berth_serve::{Exit, ServePhase, ServeState};
use berth_server::{Limits, OpenError, RunError, Server, ServerConfig, Sharing, StaticDirectory};
use berth_testkit::ScriptedModel;
use futures_util::{
    FutureExt, StreamExt,
    future::{join_all, try_join_all},
    stream::FuturesUnordered,
};
use tokio::{net::TcpListener, sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::{
    data::HeldData,
    model::{Model, link_auth, own_environment, scripted_environment},
    sandbox::{LocalSandbox, SandboxConfig, SandboxError},
};
use crate::{directories, error::CliError, state::StateDir};

/// A sandbox that is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxSpec {
    /// Its name, unique among the wanted.
    pub name: String,
    /// Working directory of its agent.
    pub directory: PathBuf,
    /// Other names of it, through symbolic links.
    pub aliases: Vec<PathBuf>,
}

/// What local mode is to be.
#[derive(Debug, Clone)]
pub struct LocalConfig {
    /// Where it keeps its files.
    pub state: StateDir,
    /// Its sandboxes.
    pub sandboxes: Vec<SandboxSpec>,
    /// The model.
    pub model: Model,
    /// opencode's binary.
    pub program: PathBuf,
    /// Port of the server on 127.0.0.1; 0 takes any.
    pub port: u16,
    /// Environment of this program, of which opencode gets what it needs to run.
    pub inherited: BTreeMap<OsString, OsString>,
    /// Bounds of the server.
    pub limits: Limits,
    /// The file that this process logs to, when it runs in the background.
    pub log: Option<PathBuf>,
}

/// Why local mode did not start, or ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum UpError {
    /// Another one uses the data directory.
    #[error(
        "{} is in use by another `berth up`: {holder}; talk to that one, end it with `berth down`, or give --data another \
         directory",
        data.display()
    )]
    InUse {
        /// The data directory.
        data: PathBuf,
        /// Who.
        holder: String,
    },
    /// Another one is being started in the background.
    #[error("another `berth up --detach` is starting on {}; see `berth status` in a moment", data.display())]
    Starting {
        /// The data directory.
        data: PathBuf,
    },
    /// The process in the background cannot be started.
    #[error("{} cannot be started", program.display())]
    Spawn {
        /// The program.
        program: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The process in the background did not come to answer.
    #[error("it did not start in the background: {how}; its log is {}, and ends with:{said}", log.display())]
    Background {
        /// How it failed.
        how: String,
        /// Its log.
        log: PathBuf,
        /// The end of it, each line on one of its own.
        said: String,
    },
    /// A file of the data directory cannot be used.
    #[error("{} cannot be used", path.display())]
    Data {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The token file cannot be used.
    #[error(transparent)]
    Token(Box<CliError>),
    /// opencode is nowhere.
    #[error(
        "opencode is not found: `make opencode` in Berth's repository fetches the pinned one, \
         `npm install -g opencode-ai@{version}` installs it for all, --opencode names it",
        version = super::binary::OPENCODE_VERSION
    )]
    OpencodeMissing,
    /// opencode is not where it was said to be.
    #[error("--opencode: there is no program at {}", path.display())]
    OpencodeGiven {
        /// The path that was given.
        path: PathBuf,
    },
    /// The port cannot be had.
    #[error("--port: {port} on 127.0.0.1 cannot be had; 0 takes any that is free")]
    Port {
        /// The port.
        port: u16,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The scripted model cannot be started, or failed.
    #[error("the scripted model failed")]
    Model(#[source] io::Error),
    /// A sandbox failed.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// The server cannot be started.
    #[error("the server cannot be started")]
    Open(#[from] OpenError),
    /// The server failed.
    #[error("the server failed")]
    Server(#[from] RunError),
    /// A part of this process ended though nobody told it to.
    #[error("the {part} ended by itself")]
    Ended {
        /// Which part.
        part: &'static str,
        /// How, if it did not end well.
        #[source]
        source: Option<tokio::task::JoinError>,
    },
}

/// What happens while local mode runs.
#[derive(Debug)]
pub enum LocalEvent {
    /// A sandbox's opencode ended; it is started again.
    OpencodeExited {
        /// The sandbox.
        sandbox: String,
        /// How it ended.
        exit: Exit,
    },
    /// A sandbox's opencode answers again.
    OpencodeReady {
        /// The sandbox.
        sandbox: String,
        /// How many times it has been started.
        boot: u64,
    },
}

/// Follows one sandbox's opencode.
struct Follow {
    sandbox: String,
    state: watch::Receiver<ServeState>,
    /// Exits and boots that were told.
    exited: u64,
    ready: u64,
}

impl Follow {
    /// The next thing to tell. Dropping the future loses none.
    async fn next(&mut self) -> LocalEvent {
        loop {
            let state = self.state.borrow_and_update().clone();
            if let Some(exit) = state.exits.into_iter().find(|exit| exit.boot > self.exited) {
                self.exited = exit.boot;
                return LocalEvent::OpencodeExited { sandbox: self.sandbox.clone(), exit };
            }
            if state.phase == ServePhase::Ready && state.boot > self.ready {
                self.ready = state.boot;
                return LocalEvent::OpencodeReady { sandbox: self.sandbox.clone(), boot: state.boot };
            }
            if self.state.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

/// Running local mode. It must be ended by [`Local::stop`]: dropping it ends everything too, without waiting.
pub struct Local {
    url: String,
    data: HeldData,
    sandboxes: Vec<LocalSandbox>,
    follows: Vec<Follow>,
    server: JoinSet<Result<(), UpError>>,
    model: JoinSet<Result<(), UpError>>,
    /// Ends the server.
    shutdown: CancellationToken,
    /// Ends the model, after everything that talks to it.
    model_shutdown: CancellationToken,
}

impl std::fmt::Debug for Local {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Local")
            .field("url", &self.url)
            .field("sandboxes", &self.sandboxes)
            .finish_non_exhaustive()
    }
}

impl Local {
    /// Takes the data directory and starts everything in it. The server answers from then on; opencode does once
    /// [`Local::ready`] returns.
    pub async fn start(config: LocalConfig) -> Result<Self, UpError> {
        let data = HeldData::take(&config.state, config.log.as_deref())?;
        let token = data.token()?;
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, config.port));
        let port = |source| UpError::Port { port: config.port, source };
        let listener = TcpListener::bind(listen).await.map_err(port)?;
        let url = format!("http://{}", listener.local_addr().map_err(port)?);
        let (shutdown, model_shutdown) = (CancellationToken::new(), CancellationToken::new());
        let mut model = JoinSet::new();
        let environment = start_model(&config.model, &mut model, &model_shutdown).await?;
        let sandboxes = start_sandboxes(&config, &environment).await?;
        let addresses = sandboxes.iter().map(|sandbox| sandbox.address().clone()).collect();
        let server_config = ServerConfig {
            database: config.state.database(),
            // The data directory is locked for this process.
            sharing: Sharing::Alone,
            token,
            limits: config.limits,
        };
        let mut server = JoinSet::new();
        match Server::open(server_config, Arc::new(StaticDirectory(addresses))).await {
            Ok(open) => {
                let run = open.run(listener, shutdown.clone());
                server.spawn(async move { Ok(run.await?) });
            }
            Err(error) => {
                join_all(sandboxes.into_iter().map(LocalSandbox::stop)).await;
                return Err(error.into());
            }
        }
        let follows = Vec::new();
        Ok(Self { url, data, sandboxes, follows, server, model, shutdown, model_shutdown })
    }

    /// Base address of the server.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The data directory.
    pub fn state(&self) -> &StateDir {
        self.data.state()
    }

    /// The sandboxes.
    pub fn sandboxes(&self) -> &[LocalSandbox] {
        &self.sandboxes
    }

    /// Waits until every sandbox's opencode answers, and publishes the server's address for other programs.
    pub async fn ready(&mut self, bound: Duration) -> Result<(), UpError> {
        try_join_all(self.sandboxes.iter().map(|sandbox| sandbox.ready(bound))).await?;
        self.follows = self.sandboxes.iter().map(follow).collect();
        self.data.publish(&self.url)
    }

    /// Waits for the next thing that happens to a sandbox. An error means that a part of local mode failed and that
    /// it should be stopped. Call it after [`Local::ready`].
    pub async fn next_event(&mut self) -> Result<LocalEvent, UpError> {
        let events = self.follows.iter_mut().map(|follow| follow.next().boxed());
        let mut events: FuturesUnordered<_> = events.collect();
        let mut failures: FuturesUnordered<_> =
            self.sandboxes.iter_mut().map(|sandbox| sandbox.failed().boxed()).collect();
        tokio::select! {
            Some(event) = events.next() => Ok(event),
            Some(error) = failures.next() => Err(error.into()),
            Some(ended) = self.server.join_next() => Err(premature("server", ended)),
            Some(ended) = self.model.join_next() => Err(premature("scripted model", ended)),
            else => Err(UpError::Ended { part: "whole of local mode", source: None }),
        }
    }

    /// Ends everything in order: the server drains, then doors close and opencodes end, then the model goes. No
    /// process is left, and the data directory is free.
    pub async fn stop(mut self) {
        self.shutdown.cancel();
        drain("server", &mut self.server).await;
        join_all(self.sandboxes.drain(..).map(LocalSandbox::stop)).await;
        self.model_shutdown.cancel();
        drain("scripted model", &mut self.model).await;
    }
}

/// Starts the model where it is ours, and gives the environment that leads opencode to it.
async fn start_model(
    model: &Model,
    tasks: &mut JoinSet<Result<(), UpError>>,
    shutdown: &CancellationToken,
) -> Result<BTreeMap<String, String>, UpError> {
    match model {
        Model::Own { environment, .. } => Ok(own_environment(environment)),
        Model::Scripted { .. } => {
            let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            let model = ScriptedModel::bind(any).await.map_err(UpError::Model)?;
            let address = model.address();
            let run = model.run(shutdown.clone());
            tasks.spawn(async move { run.await.map_err(UpError::Model) });
            Ok(scripted_environment(address))
        }
    }
}

/// Starts all sandboxes; when one cannot be started, those that were are stopped again.
async fn start_sandboxes(
    config: &LocalConfig,
    environment: &BTreeMap<String, String>,
) -> Result<Vec<LocalSandbox>, UpError> {
    let starts = config.sandboxes.iter().map(|spec| start_sandbox(config, spec, environment.clone()));
    let (started, failed): (Vec<_>, Vec<_>) = join_all(starts).await.into_iter().partition(Result::is_ok);
    let started: Vec<LocalSandbox> = started.into_iter().flatten().collect();
    match failed.into_iter().find_map(Result::err) {
        None => Ok(started),
        Some(error) => {
            join_all(started.into_iter().map(LocalSandbox::stop)).await;
            Err(error)
        }
    }
}

async fn start_sandbox(
    config: &LocalConfig,
    spec: &SandboxSpec,
    environment: BTreeMap<String, String>,
) -> Result<LocalSandbox, UpError> {
    let data = config.state.sandbox(&spec.name);
    let auth = match &config.model {
        Model::Own { auth, .. } => Some(auth.as_path()),
        Model::Scripted { .. } => None,
    };
    link_auth(&data, auth)
        .and_then(|()| directories::note(&data, &spec.directory))
        .map_err(|source| UpError::Data { path: data.clone(), source })?;
    let sandbox = SandboxConfig {
        name: spec.name.clone(),
        directory: spec.directory.clone(),
        aliases: spec.aliases.clone(),
        data,
        program: config.program.clone(),
        config_home: config.model.config_home(),
        inherited: config.inherited.clone(),
        environment,
    };
    Ok(LocalSandbox::start(sandbox).await?)
}

fn follow(sandbox: &LocalSandbox) -> Follow {
    let state = sandbox.watch();
    let (exited, ready) = {
        let state = state.borrow();
        (state.last_exit().map_or(0, |exit| exit.boot), state.boot)
    };
    Follow { sandbox: sandbox.address().name.clone(), state, exited, ready }
}

type Joined = Result<Result<(), UpError>, tokio::task::JoinError>;

fn premature(part: &'static str, ended: Joined) -> UpError {
    match ended {
        Ok(Err(error)) => error,
        Ok(Ok(())) => UpError::Ended { part, source: None },
        Err(error) => UpError::Ended { part, source: Some(error) },
    }
}

async fn drain(part: &'static str, tasks: &mut JoinSet<Result<(), UpError>>) {
    while let Some(ended) = tasks.join_next().await {
        if !matches!(ended, Ok(Ok(()))) {
            let error = crate::error::error_chain(&premature(part, ended));
            tracing::error!(error, part, "a part of local mode ended badly");
        }
    }
}
