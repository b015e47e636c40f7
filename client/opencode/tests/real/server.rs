//! An opencode of a version, its scripted model, and one subscription that all of its tests read from.

use berth_testkit::ports;
use std::{path::PathBuf, process::Stdio, sync::Arc, time::Duration};

use berth_opencode::{
    ClientConfig, Event, GlobalEvent, NewSession, OpencodeClient, SessionPatch, SubscriptionItem,
};
use berth_testkit::{
    ModelLog, ScriptedModel,
    installed::{old_opencode_program, opencode_program},
    provider_config,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    sync::{Mutex, broadcast},
    task::JoinSet,
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub(crate) const PASSWORD: &str = "a password for this test";
/// Bound on a start.
const BOUND: Duration = Duration::from_secs(90);
/// Events that a slow test may be behind.
const EVENTS: usize = 1 << 16;

/// A version of opencode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    /// 1.15.4
    Old,
    /// 1.18.33
    Pinned,
}

impl Version {
    pub(crate) const ALL: [Self; 2] = [Self::Old, Self::Pinned];

    pub(crate) fn number(self) -> &'static str {
        match self {
            Self::Old => "1.15.4",
            Self::Pinned => "1.18.33",
        }
    }

    pub(crate) fn module(self) -> &'static str {
        match self {
            Self::Old => "v1_15_4",
            Self::Pinned => "v1_18_33",
        }
    }

    fn binary(self) -> PathBuf {
        match self {
            Self::Old => old_opencode_program(),
            Self::Pinned => opencode_program(),
        }
    }
}

/// A running opencode with a directory that is warm.
pub(crate) struct Server {
    pub(crate) version: Version,
    pub(crate) client: OpencodeClient,
    /// Where it listens.
    pub(crate) port: u16,
    /// Directory whose instance has booted.
    pub(crate) directory: String,
    pub(crate) model: ModelLog,
    config: Value,
    events: broadcast::Sender<Arc<GlobalEvent>>,
    process: Mutex<Option<Child>>,
    root: TempDir,
    /// The model and the pump.
    tasks: JoinSet<()>,
}

fn configuration(version: Version, model: &ScriptedModel) -> Value {
    let mut config = provider_config(model.address());
    config["permission"] = json!({ "bash": { "*": "allow", "touch *": "ask" } });
    // Subagents may use subagents of their own.
    config["agent"]["general"] =
        json!({ "tools": { "task": true }, "permission": { "task": { "*": "allow" } } });
    if version == Version::Pinned {
        config["subagent_depth"] = json!(2);
    }
    // opencode gives models of this name another tool for edits.
    let models = &mut config["provider"]["scripted"]["models"];
    models["gpt-5"] = models["m"].clone();
    config
}

impl Server {
    pub(crate) async fn start(version: Version) -> Self {
        let mut tasks = JoinSet::new();
        let model = ScriptedModel::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let (config, log) = (configuration(version, &model), model.log());
        tasks.spawn(async move { model.run(CancellationToken::new()).await.unwrap() });
        let port = ports::free().port();
        let base = format!("http://127.0.0.1:{port}");
        let mut client_config = ClientConfig::new(base, PASSWORD.into());
        // Directories that boot at the same time wait for each other.
        client_config.request_timeout = Duration::from_mins(2);
        let client = OpencodeClient::new(client_config).unwrap();
        let (events, _) = broadcast::channel(EVENTS);
        let root = tempfile::tempdir().unwrap();
        let directory = new_directory(&root, "shared");
        let mut server = Self {
            version,
            client,
            port,
            directory,
            model: log,
            config,
            events,
            process: Mutex::new(None),
            root,
            tasks,
        };
        server.boot().await;
        server.tasks.spawn(pump(server.client.clone(), server.events.clone()));
        server.prove_events().await;
        server
    }

    /// A directory of its own, which is cold.
    pub(crate) fn cold_directory(&self) -> String {
        new_directory(&self.root, &Uuid::now_v7().to_string())
    }

    /// What is sent from now on.
    pub(crate) fn events(&self) -> broadcast::Receiver<Arc<GlobalEvent>> {
        self.events.subscribe()
    }

    /// Starts opencode on its data and its port.
    pub(crate) async fn boot(&self) {
        let mut child = self.command().spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        timeout(BOUND, async {
            loop {
                let line = lines.next_line().await.unwrap().expect("opencode says that it listens");
                if line.contains("listening on ") {
                    return;
                }
            }
        })
        .await
        .unwrap();
        *self.process.lock().await = Some(child);
        let health = self.client.health().await.unwrap();
        assert_eq!(health.version, self.version.number());
    }

    fn command(&self) -> Command {
        let root = self.root.path();
        let mut command = Command::new(self.version.binary());
        let port = self.port.to_string();
        command.args(["serve", "--hostname", "127.0.0.1", "--port", &port]).current_dir(&self.directory);
        command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", root.join("home"));
        for name in ["CONFIG", "DATA", "STATE", "CACHE"] {
            command.env(format!("XDG_{name}_HOME"), root.join(name));
        }
        for name in ["MODELS_FETCH", "AUTOUPDATE", "LSP_DOWNLOAD", "DEFAULT_PLUGINS"] {
            command.env(format!("OPENCODE_DISABLE_{name}"), "1");
        }
        // It leaves libraries there that it unpacks (measured on opencode 1.15.4 and 1.18.33).
        command.env("BUN_TMPDIR", root);
        // What it would install into its configuration directory is refused at once.
        command.env("npm_config_registry", "http://127.0.0.1:9/");
        command.env("OPENCODE_PURE", "1").env("OPENCODE_SERVER_PASSWORD", PASSWORD);
        command.env("OPENCODE_CONFIG_CONTENT", self.config.to_string());
        // It writes a few lines only, which the pipe holds.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        command
    }

    /// Ends opencode as a crash would.
    pub(crate) async fn kill(&self) {
        if let Some(mut child) = self.process.lock().await.take() {
            child.kill().await.unwrap();
        }
    }

    /// Ends opencode, and removes all that it has written: a shared server is never dropped.
    pub(crate) async fn end(&self) {
        self.kill().await;
        std::fs::remove_dir_all(self.root.path()).expect("nobody writes there any more");
    }

    pub(crate) async fn new_session(&self, directory: &str) -> String {
        let new = NewSession { title: None, berth_session_id: Uuid::now_v7(), permission: Vec::new() };
        self.client.create_session(directory, &new).await.unwrap().id
    }

    /// Waits until the subscription delivers: opencode loses what it sends right after it has answered.
    pub(crate) async fn prove_events(&self) {
        let mut events = self.events();
        let session = self.new_session(&self.directory).await;
        let seen = async {
            for attempt in 0.. {
                let patch = SessionPatch { title: Some(format!("attempt {attempt}")), permission: None };
                self.client.patch_session(&self.directory, &session, &patch).await.unwrap();
                while let Ok(event) = timeout(Duration::from_millis(200), events.recv()).await {
                    if matches!(&event.unwrap().event, Event::SessionUpdated(info) if info.id == session) {
                        return;
                    }
                }
            }
        };
        timeout(BOUND, seen).await.unwrap();
    }
}

fn new_directory(root: &TempDir, name: &str) -> String {
    let directory = root.path().canonicalize().unwrap().join("work").join(name);
    std::fs::create_dir_all(&directory).unwrap();
    directory.to_str().unwrap().to_owned()
}

/// Passes events on; one that is not understood is a failure.
async fn pump(client: OpencodeClient, events: broadcast::Sender<Arc<GlobalEvent>>) {
    let mut subscription = client.subscribe(None);
    loop {
        match subscription.next().await {
            SubscriptionItem::Event(item) => {
                // Nobody may be listening.
                let _ = events.send(Arc::new(item.event));
            }
            SubscriptionItem::Unreadable(error) => panic!("an event was not understood: {error:?}"),
            SubscriptionItem::Connected { .. } | SubscriptionItem::Lost(_) => {}
        }
    }
}
