//! All parts around one real opencode, in this process.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use berth_client::BerthClient;
use berth_door::DoorConfig;
use berth_opencode::{ClientConfig, OpencodeClient};
use berth_serve::{ConfigHome, ServeConfig, Supervisor};
use berth_server::{Limits, SandboxAddress, Server, ServerConfig, Sharing, StaticDirectory};
use berth_testkit::{ModelLog, ScriptedModel, provider_config};
use berth_wire::{
    api::{CreateSession, Session, Turn},
    event::{EventPayload, PermissionRequested},
};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use uuid::Uuid;

use crate::{
    cutter::Cutter,
    log::SessionLog,
    programs::{opencode_config_home, opencode_program},
    talk,
    wait::{BOUND, within},
};

/// What a test may want otherwise.
#[derive(Debug)]
pub struct Options {
    /// opencode's `permission` setting.
    pub permission: Value,
    /// Make the working directory a git repository, in which opencode keeps track of files.
    pub git: bool,
    /// More settings of opencode: an object whose members take the place of others.
    pub config: Value,
    /// More of opencode's environment.
    pub environment: Vec<(&'static str, &'static str)>,
    /// Put a [`Cutter`] between server and door.
    pub cutter: bool,
    /// The server's bounds.
    pub limits: Limits,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            permission: json!({ "bash": "allow", "edit": "allow" }),
            git: false,
            config: json!({}),
            environment: Vec::new(),
            cutter: false,
            limits: Limits::default(),
        }
    }
}

/// A running stack. [`Stack::stop`] ends it and checks that nothing is left.
#[derive(Debug)]
pub struct Stack {
    /// Client of the server.
    pub client: BerthClient,
    /// Address of the server.
    pub server: SocketAddr,
    /// Its token.
    pub token: SecretString,
    /// Address of the door.
    pub door: SocketAddr,
    /// Its password.
    pub door_password: SecretString,
    /// The sandbox's working directory.
    pub work: PathBuf,
    /// What the model was asked.
    pub model: ModelLog,
    /// Between server and door, if asked for.
    pub cutter: Option<Cutter>,
    /// opencode's own password, which only its door knows.
    internal: SecretString,
    sandbox: SandboxAddress,
    limits: Limits,
    supervisor: Supervisor,
    serving: CancellationToken,
    servers: TaskTracker,
    shutdown: CancellationToken,
    tasks: TaskTracker,
    folder: TempDir,
}

pub(crate) fn secret() -> SecretString {
    SecretString::from(Uuid::new_v4().simple().to_string())
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback can be bound");
    let address = listener.local_addr().expect("a listener has an address");
    (listener, address)
}

impl Stack {
    /// Everything with defaults.
    pub async fn start() -> Self {
        Self::with(Options::default()).await
    }

    /// Everything, as `options` say.
    pub async fn with(options: Options) -> Self {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let work = folder.path().join("work");
        std::fs::create_dir_all(&work).expect("a folder can be made");
        let work = work.canonicalize().expect("the folder is there");
        if options.git {
            make_repository(&work).await;
        }
        let (shutdown, tasks) = (CancellationToken::new(), TaskTracker::new());

        let model = ScriptedModel::bind(([127, 0, 0, 1], 0).into()).await.expect("loopback can be bound");
        let (log, mut config) = (model.log(), provider_config(model.address()));
        config["permission"] = options.permission;
        config["snapshot"] = json!(options.git);
        for (name, value) in options.config.as_object().into_iter().flatten() {
            config[name.as_str()] = value.clone();
        }
        tasks.spawn(model.run(shutdown.clone()));

        let (password, internal, token) = (secret(), secret(), secret());
        let mut environment = offline_environment(&config);
        let more = options.environment.into_iter();
        environment.extend(more.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let supervisor = supervise(&folder, &work, internal.clone(), environment).await;
        let (listener, door) = listen().await;
        let mut door_config = DoorConfig::new(password.clone(), internal.clone());
        door_config.files = Some(work.clone());
        tasks.spawn(berth_door::run(listener, door_config, supervisor.link(), shutdown.clone()));

        let cutter = if options.cutter { Some(Cutter::start(door).await) } else { None };
        let reached = cutter.as_ref().map_or(door, Cutter::address);
        let sandbox = SandboxAddress {
            namespace: "local".to_owned(),
            name: "default".to_owned(),
            directory: work.to_str().expect("the folder has a plain name").to_owned(),
            aliases: Vec::new(),
            door_url: format!("http://{reached}"),
            door_password: password.clone(),
            pod_uid: None,
        };
        tasks.close();

        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut stack = Self {
            client: BerthClient::new("http://127.0.0.1", token.clone()).expect("a plain URL"),
            server: nowhere,
            token,
            door,
            door_password: password,
            work,
            model: log,
            cutter,
            internal,
            sandbox,
            limits: options.limits,
            supervisor,
            serving: CancellationToken::new(),
            servers: TaskTracker::new(),
            shutdown,
            tasks,
            folder,
        };
        stack.serve().await;
        stack
    }

    async fn serve(&mut self) {
        let database = self.folder.path().join("berth.db");
        let config = ServerConfig {
            database,
            sharing: Sharing::Alone,
            token: self.token.clone(),
            limits: self.limits.clone(),
        };
        let directory = Arc::new(StaticDirectory(vec![self.sandbox.clone()]));
        let server = Server::open(config, directory).await.expect("the server opens");
        let (listener, address) = listen().await;
        self.serving = CancellationToken::new();
        self.servers = TaskTracker::new();
        self.servers.spawn(server.run(listener, self.serving.clone()));
        self.servers.close();
        self.server = address;
        self.client =
            BerthClient::new(&format!("http://{address}"), self.token.clone()).expect("a plain URL");
    }

    /// Ends the server and starts another one on the same database; opencode and its door go on meanwhile.
    pub async fn restart_server(&mut self) {
        self.serving.cancel();
        within("the server's end", self.servers.wait()).await;
        self.serve().await;
    }

    /// A client of the door, as the server has one.
    pub fn opencode(&self) -> OpencodeClient {
        let config = ClientConfig::new(format!("http://{}", self.door), self.door_password.clone());
        OpencodeClient::new(config).expect("a plain URL")
    }

    /// Sends a call past the server, and past the typed client, as somebody else's program would.
    pub async fn raw_opencode(&self, method: &str, path: &str, body: Value) -> reqwest::StatusCode {
        let http = reqwest::Client::builder().timeout(BOUND).build().expect("a client");
        let method = method.parse().expect("a method");
        let request = http.request(method, format!("http://{}{path}", self.door)).json(&body);
        let request = request.query(&[("directory", &self.work)]);
        let request = request.basic_auth("opencode", Some(self.door_password.expose_secret()));
        request.send().await.expect("the door answers").status()
    }

    /// A client of opencode itself, past its door, as something inside the sandbox may have one.
    pub async fn opencode_past_its_door(&self) -> OpencodeClient {
        let ready = self.supervisor.ready(BOUND).await.expect("opencode comes up");
        let address = ready.address.expect("a ready opencode has an address");
        let config = ClientConfig::new(format!("http://{address}"), self.internal.clone());
        OpencodeClient::new(config).expect("a plain URL")
    }

    /// Process id of opencode, once it answers.
    pub async fn opencode_pid(&self) -> u32 {
        let ready = self.supervisor.ready(BOUND).await.expect("opencode comes up");
        ready.pid.expect("a ready opencode has a process")
    }

    /// A new session.
    pub async fn session(&self) -> Session {
        let body = CreateSession::default();
        self.client.create_session("local", "default", &body).await.expect("the session is made")
    }

    /// Sends a prompt.
    pub async fn post(&self, session: Uuid, prompt: &str) -> Turn {
        talk::post(&self.client, session, prompt).await
    }

    /// Sends a prompt and reads the session's log until its turn has ended; the log is checked.
    pub async fn prompt(&self, session: Uuid, prompt: &str) -> (Turn, SessionLog) {
        talk::prompt(&self.client, session, prompt).await
    }

    /// Waits until the session's log has an event that `wanted` picks, and returns what it picked.
    pub async fn wait_for<T>(
        &self,
        session: Uuid,
        what: &str,
        wanted: impl FnMut(&EventPayload) -> Option<T>,
    ) -> T {
        within(what, talk::find(&self.client, session, wanted)).await
    }

    /// Waits for a permission request.
    pub async fn wait_for_permission(&self, session: Uuid) -> PermissionRequested {
        self.wait_for(session, "a permission request", |payload| match payload {
            EventPayload::PermissionRequested(asked) => Some(asked.clone()),
            _ => None,
        })
        .await
    }

    /// Waits until the agent has said something in this session's log.
    pub async fn wait_for_text(&self, session: Uuid) {
        self.wait_for(session, "text", |payload| payload.as_chunk().map(|_| ())).await;
    }

    /// Waits until a tool call runs.
    pub async fn wait_for_running_tool(&self, session: Uuid) {
        self.wait_for(session, "a running tool", |payload| {
            let (kind, value) = payload.to_parts();
            (kind == "tool_call_update" && value["status"] == "in_progress").then_some(())
        })
        .await;
    }

    /// Ends everything, and checks that no process is left.
    pub async fn stop(self) {
        self.serving.cancel();
        within("the server's end", self.servers.wait()).await;
        self.shutdown.cancel();
        within("the stack's tasks", self.tasks.wait()).await;
        within("opencode's end", self.supervisor.stop()).await;
        let left = processes_in(self.folder.path());
        assert!(left.is_empty(), "processes are left: {left:?}");
    }
}

/// A repository with one empty commit.
async fn make_repository(work: &std::path::Path) {
    let author = ["-c", "user.name=test", "-c", "user.email=test@example.invalid"];
    let commit = ["commit", "--quiet", "--allow-empty", "--message=first"];
    for arguments in [&["init", "--quiet"][..], &[&author[..], &commit[..]].concat()] {
        let mut git = tokio::process::Command::new("git");
        let done = git.args(arguments).current_dir(work).status().await.expect("git runs");
        assert!(done.success(), "git {arguments:?}");
    }
}

async fn supervise(
    folder: &TempDir,
    work: &std::path::Path,
    password: SecretString,
    environment: BTreeMap<String, String>,
) -> Supervisor {
    let data = folder.path().join("sandbox");
    let mut serve = ServeConfig::new(opencode_program(), work, data, password, std::env::vars_os());
    serve.config_home = ConfigHome::At(opencode_config_home());
    serve.environment = environment;
    // A test that kills opencode again and again need not wait as a person would.
    serve.timings.backoff_first = Duration::from_millis(200);
    serve.timings.backoff_longest = Duration::from_secs(1);
    Supervisor::start(serve).await.expect("the supervisor starts")
}

pub(crate) fn offline_environment(config: &Value) -> BTreeMap<String, String> {
    let switches = [
        "OPENCODE_DISABLE_MODELS_FETCH",
        "OPENCODE_DISABLE_AUTOUPDATE",
        "OPENCODE_DISABLE_LSP_DOWNLOAD",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS",
        "OPENCODE_PURE",
    ];
    let mut environment: BTreeMap<String, String> =
        switches.iter().map(|&name| (name.to_owned(), "1".to_owned())).collect();
    environment.insert("OPENCODE_CONFIG_CONTENT".to_owned(), config.to_string());
    environment
}

/// Processes whose working directory lies in `folder`.
pub(crate) fn processes_in(folder: &std::path::Path) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").expect("/proc is there").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let inside = |pid: &u32| {
        std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|directory| directory.starts_with(folder))
    };
    pids.filter(inside).collect()
}
