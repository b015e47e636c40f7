//! Server and door around a fake opencode that fails on demand, in this process.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use berth_client::BerthClient;
use berth_door::DoorConfig;
use berth_opencode::{ClientConfig, OpencodeClient};
use berth_serve::{Exit, ServeLink, ServePhase, ServeState};
use berth_server::{Limits, SandboxAddress, Server, ServerConfig, Sharing, StaticDirectory};
use berth_testkit::fake_serve::{FakeControl, FakeServe, FakeServeConfig};
use berth_wire::{
    api::{CreateSession, PostMessage, Turn},
    door::ExitCause,
    event::EventPayload,
};
use jiff::Timestamp;
use secrecy::SecretString;
use tempfile::TempDir;
use tokio::{net::TcpListener, sync::watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use uuid::Uuid;

use crate::{log::SessionLog, wait::within};

/// Directory of the sandbox: nothing is really run there.
pub const FAKE_DIRECTORY: &str = "/fake";

/// How long the door lets a prompt take to begin; then opencode would be started anew.
const START_BOUND: Duration = Duration::from_secs(4);

/// A running stack around a fake. [`FakeStack::stop`] ends it.
#[derive(Debug)]
pub struct FakeStack {
    /// Client of the server.
    pub client: BerthClient,
    /// The fake.
    pub fake: FakeControl,
    /// A client of the door, as another program has one.
    pub door: OpencodeClient,
    serve: watch::Sender<ServeState>,
    shutdown: CancellationToken,
    tasks: TaskTracker,
    _folder: TempDir,
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback can be bound");
    let address = listener.local_addr().expect("a listener has an address");
    (listener, address)
}

impl FakeStack {
    /// Everything, with these bounds of the server.
    pub async fn start(limits: Limits) -> Self {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let (shutdown, tasks) = (CancellationToken::new(), TaskTracker::new());
        let secret = || SecretString::from(Uuid::new_v4().simple().to_string());
        let (password, internal, token) = (secret(), secret(), secret());

        let config = FakeServeConfig {
            password: Some(internal.clone()),
            directory: FAKE_DIRECTORY.to_owned(),
            ..FakeServeConfig::default()
        };
        let fake = FakeServe::bind(([127, 0, 0, 1], 0).into(), config).await.expect("loopback can be bound");
        let (control, upstream) = (fake.control(), fake.address());
        tasks.spawn(fake.run(shutdown.clone()));

        let (serve, watched) = watch::channel(state(upstream, 1));
        let (listener, door) = listen().await;
        let mut door_config = DoorConfig::new(password.clone(), internal);
        door_config.start_bound = START_BOUND;
        // It finds the fake at work, and nothing went on before.
        door_config.settle = Duration::ZERO;
        tasks.spawn(berth_door::run(listener, door_config, ServeLink::telling(watched), shutdown.clone()));

        let sandbox = SandboxAddress {
            namespace: "local".to_owned(),
            name: "default".to_owned(),
            directory: FAKE_DIRECTORY.to_owned(),
            aliases: Vec::new(),
            door_url: format!("http://{door}"),
            door_password: password.clone(),
            pod_uid: None,
        };
        let config = ServerConfig {
            database: folder.path().join("berth.db"),
            sharing: Sharing::Alone,
            token: token.clone(),
            limits,
        };
        let directory = Arc::new(StaticDirectory(vec![sandbox]));
        let server = Server::open(config, directory).await.expect("the server opens");
        let (listener, address) = listen().await;
        tasks.spawn(server.run(listener, shutdown.clone()));
        tasks.close();
        let door = ClientConfig::new(format!("http://{door}"), password);
        Self {
            client: BerthClient::new(&format!("http://{address}"), token).expect("a plain URL"),
            fake: control,
            door: OpencodeClient::new(door).expect("a plain URL"),
            serve,
            shutdown,
            tasks,
            _folder: folder,
        }
    }

    /// opencode is killed, and started anew under a supervisor's eyes.
    pub fn kill_and_restart(&self) {
        self.fake.die();
        self.serve.send_modify(|state| {
            state.record(Exit {
                boot: state.boot,
                boot_id: state.boot_id.clone(),
                exit: None,
                signal: Some(9),
                cause: ExitCause::Killed,
                detail: None,
                unsupported: None,
                at: Timestamp::now(),
                output_tail: String::new(),
            });
            state.phase = ServePhase::Starting;
        });
        self.fake.mend();
        self.serve.send_modify(|state| {
            state.boot += 1;
            state.boot_id = format!("boot-{}", state.boot);
            state.phase = ServePhase::Ready;
        });
    }

    /// A new session.
    pub async fn session(&self) -> Uuid {
        let body = CreateSession::default();
        self.client.create_session("local", "default", &body).await.expect("the session is made").id
    }

    /// Sends a prompt.
    pub async fn post(&self, session: Uuid, prompt: &str) -> Turn {
        let key = Uuid::new_v4().to_string();
        let body = PostMessage::text(prompt);
        self.client.post_message(session, &body, &key).await.expect("the prompt is taken")
    }

    /// Reads the session's log until the turn has ended; the log is checked.
    pub async fn end_of(&self, session: Uuid, turn: Uuid) -> SessionLog {
        let log = SessionLog::until_end(&self.client, session, turn).await;
        log.check();
        log
    }

    /// Waits until the session's log has an event that `wanted` picks, and returns what it picked.
    pub async fn wait_for<T>(
        &self,
        session: Uuid,
        what: &str,
        mut wanted: impl FnMut(&EventPayload) -> Option<T>,
    ) -> T {
        let mut found = None;
        SessionLog::until(&self.client, session, 0, what, |event| {
            found = wanted(&event.payload);
            found.is_some()
        })
        .await;
        found.expect("it was waited for")
    }

    /// Ends everything.
    pub async fn stop(self) {
        self.shutdown.cancel();
        within("the stack's tasks", self.tasks.wait()).await;
    }
}

fn state(address: SocketAddr, boot: u64) -> ServeState {
    ServeState {
        phase: ServePhase::Ready,
        boot,
        boot_id: format!("boot-{boot}"),
        pid: Some(1),
        address: Some(address),
        version: Some("1.18.33".to_owned()),
        ..ServeState::new(FAKE_DIRECTORY.into())
    }
}
