//! One sandbox on this machine: a supervisor that keeps opencode running, and a door in front of it. Does IO.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use berth_door::DoorConfig;
use berth_opencode::{ClientConfig, OpencodeClient};
use berth_serve::{ConfigHome, ServeConfig, ServeState, StartError, Supervisor};
use berth_server::SandboxAddress;
use berth_wire::api::SandboxPhase;
use tokio::{
    net::TcpListener,
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::data::random_secret;
use crate::config::LOCAL;

/// The door opens about 100 ms after opencode answers; it is asked this often.
const DOOR_POLL: Duration = Duration::from_millis(25);

/// What a sandbox is made of.
#[derive(Clone)]
pub struct SandboxConfig {
    /// Its name.
    pub name: String,
    /// Working directory of its agent.
    pub directory: PathBuf,
    /// Other names of it, through symbolic links.
    pub aliases: Vec<PathBuf>,
    /// What it keeps for itself: opencode's data, state, cache, lock and output.
    pub data: PathBuf,
    /// opencode's binary.
    pub program: PathBuf,
    /// opencode's configuration directory.
    pub config_home: ConfigHome,
    /// Environment of this program, of which the supervisor passes on what opencode needs to run.
    pub inherited: BTreeMap<OsString, OsString>,
    /// Variables for opencode on top. Not shown by `Debug`.
    pub environment: BTreeMap<String, String>,
}

impl std::fmt::Debug for SandboxConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SandboxConfig")
            .field("name", &self.name)
            .field("directory", &self.directory)
            .field("data", &self.data)
            .field("program", &self.program)
            .field("config_home", &self.config_home)
            .field("environment", &self.environment.keys())
            .finish_non_exhaustive()
    }
}

/// Why a sandbox did not start, or ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// opencode cannot be supervised.
    #[error("sandbox {name} cannot be started")]
    Start {
        /// The sandbox.
        name: String,
        /// Why.
        #[source]
        source: StartError,
    },
    /// No port for its door, or the door failed.
    #[error("the door of sandbox {name} failed")]
    Door {
        /// The sandbox.
        name: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Its door does not say how it stands.
    #[error("the door of sandbox {name} does not say how it stands")]
    DoorState {
        /// The sandbox.
        name: String,
        /// Why.
        #[source]
        source: berth_opencode::ClientError,
    },
    /// opencode was started and did not come to answer.
    #[error("sandbox {name}: {why}")]
    NotReady {
        /// The sandbox.
        name: String,
        /// What is known of it, the end of its output included.
        why: String,
    },
}

/// A running sandbox. [`LocalSandbox::stop`] ends it in order; dropping it ends opencode too, without waiting.
#[derive(Debug)]
pub struct LocalSandbox {
    address: SandboxAddress,
    supervisor: Supervisor,
    door: JoinSet<io::Result<()>>,
    shutdown: CancellationToken,
}

impl LocalSandbox {
    /// Starts supervisor and door. opencode answers a few seconds later: see [`LocalSandbox::ready`].
    pub async fn start(config: SandboxConfig) -> Result<Self, SandboxError> {
        let SandboxConfig { name, directory, aliases, data, program, config_home, inherited, environment } =
            config;
        let (password, internal) = (random_secret(), random_secret());
        let mut serve = ServeConfig::new(program, directory, data, internal.clone(), inherited);
        serve.config_home = config_home;
        serve.environment = environment;
        let bound = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await;
        let bound = bound.and_then(|listener| listener.local_addr().map(|address| (listener, address)));
        let (listener, door_address) =
            bound.map_err(|source| SandboxError::Door { name: name.clone(), source })?;
        let supervisor = Supervisor::start(serve)
            .await
            .map_err(|source| SandboxError::Start { name: name.clone(), source })?;
        let link = supervisor.link();
        let address = SandboxAddress {
            namespace: LOCAL.to_owned(),
            name,
            directory: link.state().borrow().directory.display().to_string(),
            aliases: aliases.iter().map(|alias| alias.display().to_string()).collect(),
            door_url: format!("http://{door_address}"),
            door_password: password.clone(),
            pod_uid: None,
        };
        let shutdown = CancellationToken::new();
        let mut door = JoinSet::new();
        let mut door_config = DoorConfig::new(password, internal);
        door_config.files = Some(PathBuf::from(&address.directory));
        door.spawn(berth_door::run(listener, door_config, link, shutdown.clone()));
        Ok(Self { address, supervisor, door, shutdown })
    }

    /// How the server reaches it.
    pub fn address(&self) -> &SandboxAddress {
        &self.address
    }

    /// Follows where its opencode stands.
    pub fn watch(&self) -> watch::Receiver<ServeState> {
        self.supervisor.watch()
    }

    /// Waits until opencode answers and its door lets requests pass. A first start that fails is an error at once.
    pub async fn ready(&self, bound: Duration) -> Result<(), SandboxError> {
        let not_ready = |why| SandboxError::NotReady { name: self.address.name.clone(), why };
        let until = Instant::now() + bound;
        self.supervisor.ready(bound).await.map_err(|state| not_ready(why(&state, bound)))?;
        timeout_at(until, self.door_ready()).await.unwrap_or_else(|_| {
            let seconds = bound.as_secs();
            Err(not_ready(format!("opencode answers, but its door is not open after {seconds} s")))
        })
    }

    async fn door_ready(&self) -> Result<(), SandboxError> {
        let failed = |source| SandboxError::DoorState { name: self.address.name.clone(), source };
        let config = ClientConfig::new(&*self.address.door_url, self.address.door_password.clone());
        let client = OpencodeClient::new(config).map_err(failed)?;
        while client.door_state().await.map_err(failed)?.phase != SandboxPhase::Ready {
            sleep(DOOR_POLL).await;
        }
        Ok(())
    }

    /// Waits until the door ends; only a failure ends it before [`LocalSandbox::stop`].
    pub async fn failed(&mut self) -> SandboxError {
        let result = self.door.join_next().await;
        let source = match result {
            Some(Ok(Err(error))) => error,
            Some(Ok(Ok(()))) | None => io::Error::other("it ended by itself"),
            Some(Err(error)) => io::Error::other(error),
        };
        SandboxError::Door { name: self.address.name.clone(), source }
    }

    /// Closes the door, and ends opencode and all that it started.
    pub async fn stop(mut self) {
        self.shutdown.cancel();
        while self.door.join_next().await.is_some() {}
        self.supervisor.stop().await;
    }
}

fn why(state: &ServeState, bound: Duration) -> String {
    match state.last_exit() {
        Some(exit) if exit.output_tail.trim().is_empty() => exit.to_string(),
        Some(exit) => format!("{exit}; the end of its output:\n{}", exit.output_tail.trim_end()),
        None => format!("opencode does not answer after {} s", bound.as_secs()),
    }
}
