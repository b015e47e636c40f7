//! What the tests share: bounded waits, programs that stand in for opencode, and a real opencode.

use std::{
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{Json, Router, http::StatusCode, routing::get};
use berth_serve::{ConfigHome, ServeConfig, ServeState, Supervisor, Timings};
use berth_testkit::installed::{opencode_config_home, opencode_program};
pub(crate) use berth_testkit::wait::{BOUND, until, within};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{net::TcpListener, task::JoinSet};

/// Bound on a start of opencode on a machine that does other things too.
pub(crate) const START: Duration = Duration::from_mins(1);

/// Internal password of opencode.
pub(crate) const INTERNAL: &str = "internal password";

/// Says that it listens where `ANSWERS_AT` says, and stays.
pub(crate) const LISTENS: &str = r#"echo "opencode server listening on http://$ANSWERS_AT""#;

pub(crate) struct Bench {
    pub(crate) directory: TempDir,
    pub(crate) answers_at: SocketAddr,
    silent: Arc<AtomicBool>,
    _tasks: JoinSet<()>,
}

impl Bench {
    /// Somewhere to run programs, and an address that answers health requests with this version.
    pub(crate) async fn new(version: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let answers_at = listener.local_addr().unwrap();
        let silent = Arc::new(AtomicBool::new(false));
        let is_silent = Arc::clone(&silent);
        let health = get(move || {
            let is_silent = Arc::clone(&is_silent);
            async move {
                if is_silent.load(Ordering::SeqCst) {
                    std::future::pending::<()>().await;
                }
                Json(json!({"healthy": true, "version": version}))
            }
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            axum::serve(listener, Router::new().route("/global/health", health)).await.unwrap();
        });
        Self { directory: tempfile::tempdir().unwrap(), answers_at, silent, _tasks: tasks }
    }

    /// Health requests are not answered while this is so.
    pub(crate) fn silence(&self, silent: bool) {
        self.silent.store(silent, Ordering::SeqCst);
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// A configuration that runs this shell script as opencode, with short bounds.
    pub(crate) fn config(&self, script: &str) -> ServeConfig {
        let program = self.directory.path().join("opencode");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let inherited = [("PATH".into(), "/usr/bin:/bin".into()), ("SECRET".into(), "not passed on".into())];
        let mut config =
            ServeConfig::new(program, self.directory.path(), self.data(), "internal".into(), inherited);
        config.environment.insert("ANSWERS_AT".to_owned(), self.answers_at.to_string());
        config.timings = Timings {
            start: Duration::from_secs(5),
            backoff_first: Duration::from_millis(20),
            grace: Duration::from_millis(200),
            orphan_grace: Duration::from_millis(200),
            ..Timings::default()
        };
        config
    }
}

/// Waits until the state is as wanted.
pub(crate) async fn until_state(
    supervisor: &Supervisor,
    what: &'static str,
    wanted: impl FnMut(&ServeState) -> bool,
) -> ServeState {
    let mut state = supervisor.watch();
    let state = within(what, state.wait_for(wanted)).await;
    state.unwrap().clone()
}

/// The process that a script told of by `echo child $!`.
pub(crate) fn child_of(bench: &Bench) -> u32 {
    child_in(&bench.data())
}

/// The same, of the script that runs on this data directory; the newest.
pub(crate) fn child_in(data: &Path) -> u32 {
    child_of_log(data).unwrap()
}

/// The same, if it told already.
pub(crate) fn child_of_log(data: &Path) -> Option<u32> {
    let log = std::fs::read_to_string(berth_serve::log_file(data)).ok()?;
    log.lines().rev().find_map(|line| line.strip_prefix("child "))?.parse().ok()
}

/// Commands of the processes with this working directory.
pub(crate) fn processes_in(work: &Path) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter(|entry| std::fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == work))
        .map(|entry| {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).replace('\0', " ")
        })
        .collect()
}

/// The environment of a process once it has begun. While one program becomes another there is none.
pub(crate) async fn environment_of(pid: u32) -> String {
    let mut environment = String::new();
    until("environment", || {
        environment = std::fs::read_to_string(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.contains("BERTH_SERVE_ID=")
    })
    .await;
    environment
}

/// Somebody who says when opencode may start.
pub(crate) struct Gate {
    pub(crate) address: SocketAddr,
    shared: Arc<(AtomicBool, AtomicUsize)>,
    _tasks: JoinSet<()>,
}

impl Gate {
    /// One that says no.
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new((AtomicBool::new(false), AtomicUsize::new(0)));
        let asked = Arc::clone(&shared);
        let ready = get(move || async move {
            asked.1.fetch_add(1, Ordering::SeqCst);
            if asked.0.load(Ordering::SeqCst) { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
        });
        let mut tasks = JoinSet::new();
        tasks
            .spawn(async move { axum::serve(listener, Router::new().route("/ready", ready)).await.unwrap() });
        Self { address, shared, _tasks: tasks }
    }

    pub(crate) fn open(&self, open: bool) {
        self.shared.0.store(open, Ordering::SeqCst);
    }

    pub(crate) fn asked(&self) -> usize {
        self.shared.1.load(Ordering::SeqCst)
    }
}

/// The pinned opencode and its configuration directory.
pub(crate) fn installed() -> (PathBuf, ConfigHome) {
    (opencode_program(), opencode_config_home().map_or(ConfigHome::Own, ConfigHome::At))
}

/// What a real opencode needs to run without a network, and with a provider that is never asked.
pub(crate) fn offline() -> Vec<(String, String)> {
    let switches = [
        "OPENCODE_DISABLE_MODELS_FETCH",
        "OPENCODE_DISABLE_AUTOUPDATE",
        "OPENCODE_DISABLE_LSP_DOWNLOAD",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS",
        "OPENCODE_PURE",
    ];
    let configuration = json!({
        "autoupdate": false, "share": "disabled", "snapshot": false, "lsp": false, "formatter": false,
        "enabled_providers": ["none"], "model": "none/m", "small_model": "none/m",
        "provider": {"none": {
            "npm": "@ai-sdk/openai-compatible", "name": "None",
            "options": {"baseURL": "http://127.0.0.1:9/v1", "apiKey": "none"},
            "models": {"m": {"name": "M", "tool_call": true, "limit": {"context": 200_000, "output": 8192}}},
        }},
    });
    let switches = switches.map(|name| (name.to_owned(), "1".to_owned()));
    let configuration = ("OPENCODE_CONFIG_CONTENT".to_owned(), configuration.to_string());
    switches.into_iter().chain([configuration]).collect()
}

/// A configuration that runs the real opencode in this directory.
pub(crate) fn real(directory: &TempDir) -> ServeConfig {
    let work = directory.path().join("work");
    std::fs::create_dir_all(&work).unwrap();
    let (program, config_home) = installed();
    let data = directory.path().join("data");
    let inherited = std::env::vars_os();
    let mut config =
        ServeConfig::new(program, work.canonicalize().unwrap(), data, INTERNAL.into(), inherited);
    config.config_home = config_home;
    config.environment.extend(offline());
    config
}

/// Lets opencode's bash tool run a command in a new session, and gives what it printed.
pub(crate) async fn shell(address: SocketAddr, command: &str) -> String {
    let answer = post_shell(address, command).await.expect("an answer");
    let parts = answer["parts"].as_array().unwrap();
    let outputs = parts.iter().filter_map(|part| part["state"]["output"].as_str());
    outputs.collect()
}

/// Lets opencode look for files.
pub(crate) async fn find_file(address: SocketAddr) {
    let client = reqwest::Client::builder().no_proxy().timeout(START).build().unwrap();
    let request =
        client.get(format!("http://{address}/find/file?query=x")).basic_auth("opencode", Some(INTERNAL));
    request.send().await.unwrap().error_for_status().unwrap();
}

async fn post_shell(address: SocketAddr, command: &str) -> reqwest::Result<Value> {
    let session = post(address, "/session", &json!({})).await?;
    let path = format!("/session/{}/shell", session["id"].as_str().unwrap());
    let body = json!({"agent": "build", "command": command, "model": {"providerID": "none", "modelID": "m"}});
    post(address, &path, &body).await
}

async fn post(address: SocketAddr, path: &str, body: &Value) -> reqwest::Result<Value> {
    let client = reqwest::Client::builder().no_proxy().timeout(START).build().unwrap();
    let request = client.post(format!("http://{address}{path}")).basic_auth("opencode", Some(INTERNAL));
    request.json(body).send().await?.error_for_status()?.json().await
}
