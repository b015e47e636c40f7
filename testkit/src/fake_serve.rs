//! A server that looks like `opencode serve` 1.18.33 on the routes that a turn needs, and fails on demand in the ways
//! that the real one will not.
//!
//! Prompts play the scripts of the scripted model ([`crate::script`], [`crate::scenarios`]) with the fake as its own
//! model; nothing is really run. What it sends has the order, the keys and the JSON types of captured streams. A
//! [`Fault`] is chosen for the whole server ([`FakeServeConfig::fault`], [`FakeControl::spoil`]) or by a word in a
//! prompt, `fault:NAME`, so that it can be chosen through everything that stands before the fake.
//!
//! [`FakeServe`] is the server and does the IO; [`FakeControl`] is the handle to it while it runs.

use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::extract::Request;
use base64::{Engine, engine::general_purpose::STANDARD};
use http::header::AUTHORIZATION;
use hyper::server::conn::http1;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use secrecy::{ExposeSecret, SecretString};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::world::World;

mod asks;
mod events;
mod fault;
mod ids;
mod prompts;
mod routes;
mod shapes;
mod spoil;
mod turn;
mod unruly;
mod world;

pub use fault::{AnswerFault, Fault, FaultError, StreamFault, TurnFault};

/// Number of requests that are kept; older ones are forgotten.
pub const MAX_SEEN: usize = 10_000;
/// Time for the last bytes to leave before a connection is closed: closing drops what was not sent.
const FLUSH: Duration = Duration::from_millis(20);
/// How long turns have to end once the server is told to stop.
const STOP_BOUND: Duration = Duration::from_secs(5);

/// Why a body stops short. The connection is closed on it.
#[derive(Debug, thiserror::Error)]
#[error("the fake closes the connection")]
struct Broken;

/// How the fake behaves.
#[derive(Debug, Clone)]
pub struct FakeServeConfig {
    /// Password of user `opencode`; none lets everybody in.
    pub password: Option<SecretString>,
    /// Version that it claims.
    pub version: String,
    /// Directory of requests that name none.
    pub directory: String,
    /// Time between two heartbeats.
    pub heartbeat: Duration,
    /// Permissions that every session asks for, such as `bash`. A prompt asks for more by the word `ask:NAME`.
    pub ask: Vec<String>,
    /// What goes wrong from the start.
    pub fault: Option<Fault>,
}

impl Default for FakeServeConfig {
    /// No password, version 1.18.33, a heartbeat each 10 s as opencode's, nothing asked for, nothing wrong.
    fn default() -> Self {
        Self {
            password: None,
            version: "1.18.33".to_owned(),
            directory: "/fake".to_owned(),
            heartbeat: Duration::from_secs(10),
            ask: Vec::new(),
            fault: None,
        }
    }
}

/// A request that came, as far as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenRequest {
    /// Its method.
    pub method: String,
    /// Its path, without the query.
    pub path: String,
    /// Its query, empty when there is none.
    pub query: String,
}

/// What may change while it runs.
#[derive(Debug)]
struct Switches {
    fault: Option<Fault>,
    /// The fault ends with the first thing that it spoils.
    once: bool,
    /// Requests that are still let in with [`AnswerFault::Unauthorized`].
    admitted: u64,
    dead: bool,
    /// Cancelled when this run of the fake dies.
    boot: CancellationToken,
}

impl Switches {
    fn set(&mut self, fault: Option<Fault>, once: bool) {
        self.fault = fault;
        self.once = once;
        self.admitted = match fault {
            Some(Fault::Answer(AnswerFault::Unauthorized(requests))) => requests,
            _ => 0,
        };
    }

    /// Something is being spoiled.
    fn spend(&mut self) {
        if self.once {
            self.set(None, false);
        }
    }
}

#[derive(Debug)]
struct Shared {
    config: FakeServeConfig,
    world: Mutex<World>,
    switches: Mutex<Switches>,
    seen: Mutex<VecDeque<SeenRequest>>,
    turns: TaskTracker,
}

impl Shared {
    // Panics under these locks leave whole values behind.
    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn switches(&self) -> MutexGuard<'_, Switches> {
        self.switches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seen(&self) -> MutexGuard<'_, VecDeque<SeenRequest>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn boot(&self) -> CancellationToken {
        self.switches().boot.clone()
    }

    /// Until when a connection that was made is served; the error is what spoils it, or that the fake is dead.
    fn admit(&self) -> Result<CancellationToken, Option<AnswerFault>> {
        let mut switches = self.switches();
        match switches.fault {
            _ if switches.dead => Err(None),
            Some(Fault::Answer(fault @ (AnswerFault::Closed | AnswerFault::NotHttp))) => {
                switches.spend();
                Err(Some(fault))
            }
            _ => Ok(switches.boot.clone()),
        }
    }

    /// How the next stream is to be spoiled.
    fn stream_fault(&self) -> Option<StreamFault> {
        let mut switches = self.switches();
        let Some(Fault::Stream(fault)) = switches.fault else { return None };
        switches.spend();
        Some(fault)
    }

    /// How the next turn is to be spoiled.
    fn turn_fault(&self) -> Option<TurnFault> {
        let mut switches = self.switches();
        let Some(Fault::Turn(fault)) = switches.fault else { return None };
        switches.spend();
        Some(fault)
    }

    /// How the answer to the next request is to be spoiled.
    fn answer_fault(&self) -> Option<AnswerFault> {
        let mut switches = self.switches();
        match switches.fault {
            Some(Fault::Answer(AnswerFault::Unauthorized(_))) if switches.admitted > 0 => {
                switches.admitted -= 1;
                None
            }
            Some(Fault::Answer(fault)) => {
                switches.spend();
                Some(fault)
            }
            _ => None,
        }
    }

    fn see(&self, request: &Request) {
        let uri = request.uri();
        let seen = SeenRequest {
            method: request.method().to_string(),
            path: uri.path().to_owned(),
            query: uri.query().unwrap_or_default().to_owned(),
        };
        let mut list = self.seen();
        if list.len() >= MAX_SEEN {
            list.pop_front();
        }
        list.push_back(seen);
    }

    /// As opencode: Basic, or the same in the query for those who cannot send headers.
    fn is_authorized(&self, request: &Request) -> bool {
        let Some(password) = &self.config.password else { return true };
        let right = STANDARD.encode(format!("opencode:{}", password.expose_secret()));
        let header = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = request.uri().query().unwrap_or_default().split('&');
        header.and_then(|value| value.strip_prefix("Basic ")) == Some(right.as_str())
            || token.filter_map(|pair| pair.strip_prefix("auth_token=")).any(|token| token == right)
    }

    /// As a SIGKILL: connections are cut, turns stop as they are, and nothing more is accepted.
    fn die(&self) {
        let mut switches = self.switches();
        switches.dead = true;
        switches.boot.cancel();
    }
}

/// The fake, bound to its address.
#[derive(Debug)]
pub struct FakeServe {
    listener: TcpListener,
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl FakeServe {
    /// Binds the address; port 0 takes a free one.
    pub async fn bind(address: SocketAddr, config: FakeServeConfig) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let mut switches =
            Switches { fault: None, once: false, admitted: 0, dead: false, boot: CancellationToken::new() };
        switches.set(config.fault, false);
        let shared = Shared {
            world: Mutex::new(World::new(&config.version)),
            config,
            switches: Mutex::new(switches),
            seen: Mutex::default(),
            turns: TaskTracker::new(),
        };
        Ok(Self { listener, address, shared: Arc::new(shared) })
    }

    /// The bound address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Handle to the fake; it outlives the server.
    pub fn control(&self) -> FakeControl {
        FakeControl { shared: Arc::clone(&self.shared) }
    }

    /// Serves until `shutdown`, then cuts what is open and returns within five seconds.
    pub async fn run(self, shutdown: CancellationToken) -> io::Result<()> {
        let service = TowerToHyperService::new(routes::router(Arc::clone(&self.shared)));
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                Some(_) = connections.join_next() => continue,
                () = shutdown.cancelled() => break,
            };
            let Ok((stream, _)) = accepted else {
                // One that broke before it was accepted is none; without a pause, none to be had would keep this busy.
                tokio::time::sleep(FLUSH).await;
                continue;
            };
            match self.shared.admit() {
                Ok(boot) => {
                    let serving =
                        http1::Builder::new().serve_connection(TokioIo::new(stream), service.clone());
                    connections.spawn(async move {
                        tokio::select! {
                            served = serving => if let Err(error) = served {
                                tracing::debug!(%error, "a connection of the fake ended early");
                            },
                            () = boot.cancelled() => {}
                        }
                    });
                }
                Err(Some(AnswerFault::NotHttp)) => {
                    connections.spawn(speak_nonsense(stream));
                }
                Err(_) => drop(stream),
            }
        }
        self.shared.die();
        self.shared.turns.close();
        if tokio::time::timeout(STOP_BOUND, self.shared.turns.wait()).await.is_err() {
            tracing::warn!("turns of the fake were still running when it stopped");
        }
        Ok(())
    }
}

async fn speak_nonsense(mut stream: TcpStream) {
    let spoken = async {
        stream.write_all(b"220 smtp.example ready\r\n").await?;
        tokio::time::sleep(FLUSH).await;
        stream.shutdown().await
    };
    if let Err(error) = spoken.await {
        tracing::debug!(%error, "the other side left before the nonsense");
    }
}

/// Handle to a fake that runs.
#[derive(Debug, Clone)]
pub struct FakeControl {
    shared: Arc<Shared>,
}

impl FakeControl {
    /// Spoils answers, streams that are opened, or turns that begin, from now on.
    pub fn spoil(&self, fault: impl Into<Fault>) {
        self.shared.switches().set(Some(fault.into()), false);
    }

    /// Spoils the next answer, the next stream that is opened, or the next turn, and none after that.
    pub fn spoil_once(&self, fault: impl Into<Fault>) {
        self.shared.switches().set(Some(fault.into()), true);
    }

    /// Ends the server's fault. What died is up again, as after a new start of opencode: nothing runs, nothing is
    /// asked, and messages that were open stay open.
    pub fn mend(&self) {
        let mut world = self.shared.world();
        let mut switches = self.shared.switches();
        switches.set(None, false);
        if std::mem::take(&mut switches.dead) {
            switches.boot = CancellationToken::new();
            world.forget_running();
        }
    }

    /// As a SIGKILL: connections are cut, turns stop as they are, and nothing is accepted until it is mended.
    pub fn die(&self) {
        self.shared.die();
    }

    /// Removes a message behind everybody's back, as a person does who reverts; one that is not there is told of all the
    /// same.
    pub fn remove_message(&self, session: &str, message: &str) {
        self.shared.world().remove_message(session, message, now());
    }

    /// Whether it died.
    pub fn is_dead(&self) -> bool {
        self.shared.switches().dead
    }

    /// The requests so far, the newest last; at most [`MAX_SEEN`].
    pub fn requests(&self) -> Vec<SeenRequest> {
        self.shared.seen().iter().cloned().collect()
    }
}

/// Unix milliseconds.
fn now() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}
