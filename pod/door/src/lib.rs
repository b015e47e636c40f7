//! The door: the only way to an opencode from outside its pod.
//!
//! It authenticates every request, passes all of opencode's routes through unchanged (`proxy`), serves the two
//! event streams from a journal with ids (`journal`, `events`), and answers `/doc` and `/berth/state` itself.
//! It keeps requests waiting while opencode starts, and answers with problem+json when it cannot serve them. It does
//! not run opencode: see [`berth_serve`]. IO.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use berth_serve::{ServeLink, ServeState};
use secrecy::SecretString;
use tokio::{net::TcpListener, sync::watch, time::timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

mod admission;
mod auth;
mod body;
mod broken;
mod class;
mod connections;
mod control;
mod directories;
mod document;
mod errands;
mod events;
#[doc(hidden)]
pub mod examine;
mod exchange;
mod fence;
mod files;
mod gate;
mod guests;
mod journal;
mod key;
mod memory;
mod mend;
mod metrics;
mod passage;
mod prewarm;
mod proof;
mod proxy;
mod refusal;
mod renewal;
mod restart;
mod room;
mod routes;
mod secrets;
mod subscription;
mod turns;
mod upstream;

use admission::Admission;
use directories::Directories;
use guests::Guests;
use journal::Journal;
use mend::Mending;
use passage::Passage;
use room::Room;
use turns::Turns;
use upstream::Authorization;

pub use metrics::Metrics;
pub use secrets::{SecretError, Secrets};

/// What a door is and its bounds.
#[derive(Debug, Clone)]
pub struct DoorConfig {
    /// The password that callers give, with user name `opencode`, and the internal one of the opencode behind the door.
    pub secrets: Secrets,
    /// UID of the pod that this is the door of: part of the door's proof of itself.
    pub pod_uid: Option<String>,
    /// How long a request waits for opencode to start.
    pub start_wait: Duration,
    /// Bytes of events that the journal keeps.
    pub ring_bytes: usize,
    /// Time between heartbeats on event streams; opencode's own is 10 s.
    pub heartbeat: Duration,
    /// How long a request's head may take to arrive, counted from the end of the one before it.
    pub head_wait: Duration,
    /// How long a connection may be idle before it has given the password.
    pub guest_wait: Duration,
    /// How long a client may refuse to take bytes before its connection is cut.
    pub write_wait: Duration,
    /// How long an upload may give no byte before it is cut; downloads are never cut for that.
    pub upload_idle: Duration,
    /// How long an upload may take in all: what is in flight keeps a gate from closing.
    pub upload_bound: Duration,
    /// Bytes of the bodies of fenced calls, which are read whole, at a time.
    pub fenced_bytes: usize,
    /// How long a new holder of the fence waits for calls under a lower one to end.
    pub fence_wait: Duration,
    /// How long after its start a door that found an opencode at work sends on no call with a key: opencode may still
    /// carry one that the door before had sent.
    pub settle: Duration,
    /// How long requests in flight may go on after shutdown began.
    pub drain: Duration,
    /// How long a prompt that opencode took may take to begin, before opencode is started anew.
    pub start_bound: Duration,
    /// Directories with an instance in opencode; beyond it, idle ones are disposed of.
    pub directories: usize,
    /// Bytes of resident memory above which an idle opencode is started anew.
    pub memory_watermark: u64,
    /// How long nothing must have run before memory is looked at.
    pub recycle_idle: Duration,
    /// Shortest time between two starts for memory.
    pub recycle_rest: Duration,
    /// Connections at a time, tunnels among them. For one more, the oldest that has not given the password makes room;
    /// when all have, it is closed at once, and counted.
    pub connections: usize,
    /// Files beneath this directory are handed out; without one, none. No links in it.
    pub files: Option<PathBuf>,
    /// What the door counts.
    pub metrics: Metrics,
}

impl DoorConfig {
    /// The default bounds, and passwords that never change.
    pub fn new(password: SecretString, internal: SecretString) -> Self {
        Self::with_secrets(Secrets::fixed(password, internal))
    }

    /// The default bounds.
    pub fn with_secrets(secrets: Secrets) -> Self {
        Self {
            secrets,
            pod_uid: None,
            start_wait: Duration::from_secs(30),
            ring_bytes: 32 * 1024 * 1024,
            heartbeat: Duration::from_secs(10),
            head_wait: Duration::from_mins(2),
            guest_wait: Duration::from_secs(10),
            write_wait: Duration::from_mins(1),
            upload_idle: Duration::from_mins(1),
            upload_bound: Duration::from_mins(10),
            fenced_bytes: 128 * 1024 * 1024,
            fence_wait: Duration::from_secs(30),
            settle: Duration::from_secs(15),
            drain: Duration::from_secs(3),
            start_bound: Duration::from_mins(1),
            directories: 12,
            memory_watermark: 3 * 512 * 1024 * 1024,
            recycle_idle: Duration::from_secs(30),
            recycle_rest: Duration::from_mins(10),
            connections: 1024,
            files: None,
            metrics: Metrics::default(),
        }
    }
}

/// What all of a door's tasks share.
#[derive(Debug)]
struct Door {
    config: DoorConfig,
    guests: Arc<Guests>,
    upstream: Authorization,
    journal: Arc<Journal>,
    admission: Arc<Admission>,
    room: Room,
    turns: Turns,
    directories: Directories,
    mending: Mending,
    passage: watch::Receiver<Passage>,
    link: ServeLink,
    serve: watch::Receiver<ServeState>,
    document: document::Cache,
    tracker: TaskTracker,
    shutdown: CancellationToken,
}

/// Serves the door on `listener` until `shutdown`, and returns when its tasks have ended: event streams end at once,
/// requests in flight get [`DoorConfig::drain`]. The error is that of a listener that cannot accept any more.
pub async fn run(
    listener: TcpListener,
    config: DoorConfig,
    link: ServeLink,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let (passage_sender, passage) = watch::channel(Passage::Starting);
    let journal = Arc::new(Journal::new(config.ring_bytes, config.metrics.journal.clone()));
    let door = Arc::new(Door {
        guests: Arc::default(),
        upstream: Authorization::new(&config.secrets),
        admission: Arc::new(Admission::new(Arc::clone(&journal))),
        room: Room::new(config.fenced_bytes, config.metrics.fenced_bytes.clone()),
        journal,
        turns: Turns::new(config.start_bound, config.metrics.turns.clone()),
        directories: Directories::default(),
        mending: Mending::default(),
        passage,
        serve: link.state(),
        link,
        document: document::Cache::default(),
        tracker: TaskTracker::new(),
        shutdown: shutdown.child_token(),
        config,
    });
    door.tracker.spawn(subscription::run(Arc::clone(&door), passage_sender));
    let secrets = door.config.secrets.clone();
    door.tracker.spawn(secrets.follow(door.config.metrics.clone(), door.shutdown.clone()));
    door.tracker.spawn(turns::run(Arc::clone(&door)));
    door.tracker.spawn(directories::run(Arc::clone(&door)));
    door.tracker.spawn(memory::run(Arc::clone(&door)));
    door.tracker.spawn(mend::run(Arc::clone(&door)));
    door.tracker.spawn(prewarm::run(Arc::clone(&door)));
    let keeper = Arc::clone(&door);
    door.tracker
        .spawn(async move { keeper.shutdown.run_until_cancelled(keeper.admission.keep_time()).await });
    let result = connections::accept(listener, &door).await;
    door.shutdown.cancel();
    door.tracker.close();
    if timeout(door.config.drain * 2, door.tracker.wait()).await.is_err() {
        tracing::warn!(tasks = door.tracker.len(), "tasks of the door do not end");
    }
    result
}
