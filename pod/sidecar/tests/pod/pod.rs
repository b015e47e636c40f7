//! The pod: both programs, a real opencode and a scripted model on the loopback interface.

use berth_testkit::ports;
use std::{
    fs::OpenOptions,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
};

use berth_testkit::{
    ScriptedModel,
    installed::{opencode_config_home, opencode_program},
    provider_config,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use uuid::Uuid;

use crate::{
    processes::{self, OneOpencode},
    secret::MountedSecret,
    subscriber::Subscriber,
    wait::{some, until, within},
};

/// Name of the temporary directory of a pod.
const TEMPORARY: &str = "tmp";

/// Lines of each log that a failing test shows.
const SHOWN: usize = 40;

/// The supervisor that was built with these tests.
fn supervisor_program() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_berth-sidecar")).with_file_name("berth-supervisor")
}

/// A random password.
pub(crate) fn password() -> String {
    Uuid::new_v4().simple().to_string()
}

/// What a test may want otherwise.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// What both programs log.
    pub(crate) log_level: &'static str,
    /// How long opencode may take for an answer before that counts as none.
    pub(crate) health_deadline_ms: u64,
    /// Words before the supervisor's command.
    pub(crate) supervisor_wrapper: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self { log_level: "info", health_deadline_ms: 10_000, supervisor_wrapper: Vec::new() }
    }
}

/// One of the two programs: how it is started, and the process, while it lives.
#[derive(Debug)]
pub(crate) struct Program {
    name: &'static str,
    /// Words before its path.
    wrapper: Vec<String>,
    path: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    log: PathBuf,
    child: Option<Child>,
}

impl Program {
    /// Starts it.
    pub(crate) fn start(&mut self) {
        assert!(self.child.is_none(), "{} runs", self.name);
        assert!(self.path.is_file(), "{} is missing: `cargo build` makes it", self.path.display());
        let log = OpenOptions::new().create(true).append(true).open(&self.log).unwrap();
        let path = self.path.to_str().unwrap();
        let words: Vec<&str> = self.wrapper.iter().map(String::as_str).chain([path]).collect();
        let child = Command::new(words[0])
            .args(&words[1..])
            .args(&self.arguments)
            .env_clear()
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .kill_on_drop(true)
            .spawn();
        self.child = Some(child.unwrap_or_else(|error| panic!("{}: {error}", self.name)));
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().and_then(Child::id).unwrap_or_else(|| panic!("{} does not run", self.name))
    }

    /// SIGKILL; returns when it is no more.
    pub(crate) async fn kill(&mut self) {
        let mut child = self.child.take().expect("it runs");
        within("end by SIGKILL", child.kill()).await.unwrap();
    }

    /// SIGSTOP; returns when it runs no more.
    pub(crate) async fn stand_still(&self) {
        send(self.pid(), Signal::SIGSTOP);
        until("a stopped program", || processes::is_stopped(self.pid())).await;
    }

    /// SIGCONT.
    pub(crate) fn go_on(&self) {
        send(self.pid(), Signal::SIGCONT);
    }

    /// SIGTERM; gives how it ended.
    pub(crate) async fn terminate(&mut self) -> ExitStatus {
        send(self.pid(), Signal::SIGTERM);
        self.wait().await
    }

    /// Waits until it has ended, and gives how.
    pub(crate) async fn wait(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("it runs");
        within("end of a program", child.wait()).await.unwrap()
    }

    /// Everything that it has logged.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

/// Sends a signal.
pub(crate) fn send(pid: u32, signal: Signal) {
    kill(Pid::from_raw(pid.cast_signed()), signal)
        .unwrap_or_else(|error| panic!("{signal} to {pid}: {error}"));
}

/// Where everything listens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Addresses {
    pub(crate) door: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) control: SocketAddr,
    pub(crate) opencode: SocketAddr,
}

/// The pod. [`Pod::stop`] ends it and checks that nothing is left.
#[derive(Debug)]
pub(crate) struct Pod {
    pub(crate) supervisor: Program,
    pub(crate) sidecar: Program,
    pub(crate) secret: MountedSecret,
    pub(crate) addresses: Addresses,
    /// opencode's default directory.
    pub(crate) work: PathBuf,
    /// The door's password, which the harness uses.
    pub(crate) password: String,
    /// opencode's internal password.
    pub(crate) internal: String,
    client: reqwest::Client,
    one: Option<OneOpencode>,
    data: PathBuf,
    shutdown: CancellationToken,
    tasks: TaskTracker,
    folder: TempDir,
}

impl Pod {
    /// Prepares everything and starts neither program.
    pub(crate) async fn prepare(options: &Options) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let (work, data) = (root.join("work"), root.join("data"));
        std::fs::create_dir(&work).unwrap();
        std::fs::create_dir(root.join(TEMPORARY)).unwrap();
        let (shutdown, tasks) = (CancellationToken::new(), TaskTracker::new());
        let model = ScriptedModel::bind(([127, 0, 0, 1], 0).into()).await.unwrap();
        let mut config = provider_config(model.address());
        config["permission"] = json!({ "bash": "allow", "edit": "allow" });
        tasks.spawn(model.run(shutdown.clone()));
        tasks.close();

        let (password, internal) = (password(), password());
        let secret = MountedSecret::new(
            root.join("secret"),
            &[("password", &password), ("opencode-password", &internal)],
        );
        let addresses = Addresses {
            door: ports::free(),
            admin: ports::free(),
            control: ports::free(),
            opencode: ports::free(),
        };
        let one = OneOpencode::watch(opencode_program(), data.clone());
        Self {
            supervisor: supervisor(&root, &secret, addresses, &config, options),
            sidecar: sidecar(&root, &secret, addresses, options),
            secret,
            addresses,
            work,
            password,
            internal,
            client: reqwest::Client::builder().pool_max_idle_per_host(0).no_proxy().build().unwrap(),
            one: Some(one),
            data,
            shutdown,
            tasks,
            folder,
        }
    }

    /// Starts both programs and waits until requests pass.
    pub(crate) async fn start(options: &Options) -> Self {
        let mut pod = Self::prepare(options).await;
        pod.sidecar.start();
        pod.supervisor.start();
        pod.ready().await;
        pod
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addresses.door)
    }

    pub(crate) fn client(&self) -> &reqwest::Client {
        &self.client
    }

    pub(crate) fn get(&self, path: &str) -> reqwest::RequestBuilder {
        self.client.get(self.url(path)).basic_auth("opencode", Some(&self.password))
    }

    pub(crate) fn post(&self, path: &str) -> reqwest::RequestBuilder {
        self.client.post(self.url(path)).basic_auth("opencode", Some(&self.password))
    }

    /// Waits until requests pass.
    pub(crate) async fn ready(&self) {
        some("readiness", async || {
            let probe = self.client.get(self.url("/doc")).send().await.ok()?;
            (probe.status() == 200).then_some(())
        })
        .await;
    }

    /// Where opencode and the journal stand, as the door tells it.
    pub(crate) async fn state(&self) -> Value {
        some("state", async || self.get("/berth/state").send().await.ok()?.json().await.ok()).await
    }

    /// Waits until the door's state satisfies this.
    pub(crate) async fn state_when(&self, what: &str, mut wanted: impl FnMut(&Value) -> bool) -> Value {
        some(what, async || {
            let state: Value = self.get("/berth/state").send().await.ok()?.json().await.ok()?;
            wanted(&state).then_some(state)
        })
        .await
    }

    /// Follows all events.
    pub(crate) fn follow(&self) -> Subscriber {
        Subscriber::start(self.client.clone(), self.url("/global/event"), self.password.clone())
    }

    /// Follows the events of the working directory.
    pub(crate) fn follow_directory(&self) -> Subscriber {
        Subscriber::start(self.client.clone(), self.url("/event"), self.password.clone())
    }

    /// A new session.
    pub(crate) async fn session(&self) -> String {
        let response = within("session", self.post("/session").json(&json!({})).send()).await.unwrap();
        assert_eq!(response.status(), 200);
        response.json::<Value>().await.unwrap()["id"].as_str().unwrap().to_owned()
    }

    /// Sends a prompt; opencode takes it.
    pub(crate) async fn prompt(&self, session: &str, text: &str) {
        let body = json!({ "parts": [{ "type": "text", "text": text }] });
        let request = self.post(&format!("/session/{session}/prompt_async")).json(&body);
        let response = within("prompt", request.send()).await.unwrap();
        assert_eq!(response.status(), 204, "{}", response.text().await.unwrap_or_default());
    }

    /// Text of the session's newest message.
    pub(crate) async fn newest_text(&self, session: &str) -> Option<String> {
        let response = self.get(&format!("/session/{session}/message")).send().await.ok()?;
        let messages: Vec<Value> = response.json().await.ok()?;
        let newest = messages.last()?;
        let is_done =
            newest["info"]["role"] == "assistant" && newest["info"]["time"]["completed"].is_number();
        let parts = newest["parts"].as_array()?.iter().filter(|part| part["type"] == "text");
        is_done.then(|| parts.filter_map(|part| part["text"].as_str()).collect())
    }

    /// Prompts and waits for the answer: everything works.
    pub(crate) async fn expect_alive(&self, session: &str, word: &str) {
        self.prompt(session, &format!("@stub say:{word}")).await;
        some("the answer to a new prompt", async || (self.newest_text(session).await? == word).then_some(()))
            .await;
    }

    /// opencode's servers on this data directory.
    pub(crate) fn servers(&self) -> Vec<u32> {
        processes::servers(&opencode_program(), &self.data)
    }

    /// Ends both programs, and checks their exit codes, that there never were two opencodes, and that no process is left.
    pub(crate) async fn stop(self) {
        self.stop_and(|_| ()).await;
    }

    /// The same, with a look at what the programs left.
    pub(crate) async fn stop_and(mut self, look: impl FnOnce(&Self)) {
        let ends = [self.supervisor.terminate().await, self.sidecar.terminate().await];
        assert_eq!(ends.map(|end| end.code()), [Some(0), Some(0)]);
        self.one.take().expect("it is looked once").finish();
        self.shutdown.cancel();
        within("end of the model", self.tasks.wait()).await;
        let root = self.folder.path().canonicalize().unwrap();
        until("end of all processes", || processes::working_in(&root).is_empty()).await;
        assert!(!self.data.join("unpacked").exists(), "what opencode unpacked goes with it");
        let left = processes::libraries_in(&root.join(TEMPORARY));
        assert_eq!(left, Vec::<PathBuf>::new(), "nothing is unpacked elsewhere");
        look(&self);
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for program in [&self.supervisor, &self.sidecar] {
            let log = program.log();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("--- {}\n{}", program.name, lines[lines.len().saturating_sub(SHOWN)..].join("\n"));
        }
    }
}

fn supervisor(
    root: &Path,
    secret: &MountedSecret,
    addresses: Addresses,
    config: &Value,
    options: &Options,
) -> Program {
    let path = |path: PathBuf| path.to_str().unwrap().to_owned();
    let arguments = [
        ("--opencode", path(opencode_program())),
        ("--directory", path(root.join("work"))),
        ("--data", path(root.join("data"))),
        ("--config-home", path(opencode_config_home().expect("`make opencode` makes it"))),
        ("--port", addresses.opencode.port().to_string()),
        ("--password-file", path(secret.path().join("opencode-password"))),
        ("--control", addresses.control.to_string()),
        ("--wait-for", format!("http://{}/ready", addresses.admin)),
        ("--termination-log", path(root.join("termination-log"))),
        ("--log-level", options.log_level.to_owned()),
        // A test that kills opencode again and again need not wait as a person would.
        ("--backoff-longest", "200".to_owned()),
        ("--health-period", "500".to_owned()),
        ("--health-deadline", options.health_deadline_ms.to_string()),
        ("--grace", "500".to_owned()),
    ];
    let switches = [
        "OPENCODE_DISABLE_MODELS_FETCH",
        "OPENCODE_DISABLE_AUTOUPDATE",
        "OPENCODE_DISABLE_LSP_DOWNLOAD",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS",
        "OPENCODE_PURE",
    ];
    let mut environment: Vec<(String, String)> =
        switches.iter().map(|&name| (name.to_owned(), "1".to_owned())).collect();
    environment.push(("OPENCODE_CONFIG_CONTENT".to_owned(), config.to_string()));
    environment.extend(common(root));
    Program {
        name: "berth-supervisor",
        wrapper: options.supervisor_wrapper.clone(),
        path: supervisor_program(),
        arguments: flat(&arguments),
        environment,
        log: root.join("supervisor.log"),
        child: None,
    }
}

fn sidecar(root: &Path, secret: &MountedSecret, addresses: Addresses, options: &Options) -> Program {
    let arguments = [
        ("--listen", addresses.door.to_string()),
        ("--admin", addresses.admin.to_string()),
        ("--supervisor", addresses.control.to_string()),
        ("--secret", secret.path().to_str().unwrap().to_owned()),
        ("--pod-uid", "11111111-2222-3333-4444-555555555555".to_owned()),
        ("--log-level", options.log_level.to_owned()),
    ];
    Program {
        name: "berth-sidecar",
        wrapper: Vec::new(),
        path: env!("CARGO_BIN_EXE_berth-sidecar").into(),
        arguments: flat(&arguments),
        environment: common(root),
        log: root.join("sidecar.log"),
        child: None,
    }
}

fn flat(arguments: &[(&str, String)]) -> Vec<String> {
    arguments.iter().flat_map(|(name, value)| [(*name).to_owned(), value.clone()]).collect()
}

/// What a container has at least.
#[expect(clippy::disallowed_methods, reason = "what runs in the pod is found as this test is")]
fn common(root: &Path) -> Vec<(String, String)> {
    let path = std::env::var("PATH").unwrap_or_else(|_| "/usr/bin:/bin".to_owned());
    vec![
        ("PATH".to_owned(), path),
        ("HOME".to_owned(), root.to_str().unwrap().to_owned()),
        ("TMPDIR".to_owned(), root.join(TEMPORARY).to_str().unwrap().to_owned()),
    ]
}
