//! Supervisor and door against a real opencode. No model is needed: sessions are made, renamed and used for shell
//! commands of the caller.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use berth_serve::{ConfigHome, ServeConfig, ServePhase, Supervisor};
use berth_testkit::installed::{old_opencode_program, opencode_config_home, opencode_program};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::rig::{INTERNAL, RunningDoor, until, within};

/// Bound on a start of opencode on a machine that does other things too.
pub(crate) const START: Duration = Duration::from_mins(1);

/// The pinned opencode and its configuration directory.
fn installed() -> (PathBuf, ConfigHome) {
    (opencode_program(), opencode_config_home().map_or(ConfigHome::Own, ConfigHome::At))
}

/// A directory with an opencode on it.
pub(crate) struct Sandbox {
    pub(crate) supervisor: Supervisor,
    pub(crate) work: PathBuf,
    _directory: TempDir,
}

impl Sandbox {
    pub(crate) async fn start() -> Self {
        Self::with(&configuration()).await
    }

    /// With this configuration of opencode.
    pub(crate) async fn with(configuration: &Value) -> Self {
        let (program, config_home) = installed();
        Self::of(program, config_home, configuration).await
    }

    async fn of(program: PathBuf, config_home: ConfigHome, configuration: &Value) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let work = directory.path().join("work");
        std::fs::create_dir(&work).expect("a working directory");
        let work = work.canonicalize().expect("a real path");
        let inherited = std::env::vars_os();
        let data = directory.path().join("data");
        let mut config = ServeConfig::new(program, &work, data, INTERNAL.into(), inherited);
        config.config_home = config_home;
        // Some tests kill it many times, and none is about the pauses between its starts.
        config.timings.backoff_longest = config.timings.backoff_first;
        let switches = [
            "OPENCODE_DISABLE_MODELS_FETCH",
            "OPENCODE_DISABLE_AUTOUPDATE",
            "OPENCODE_DISABLE_LSP_DOWNLOAD",
            "OPENCODE_DISABLE_DEFAULT_PLUGINS",
            "OPENCODE_PURE",
        ];
        config.environment.extend(switches.map(|name| (name.to_owned(), "1".to_owned())));
        config.environment.insert("OPENCODE_CONFIG_CONTENT".to_owned(), configuration.to_string());
        let supervisor = Supervisor::start(config).await.expect("a supervisor");
        Self { supervisor, work, _directory: directory }
    }

    pub(crate) async fn door(&self) -> RunningDoor {
        self.door_with(|_| {}).await
    }

    pub(crate) async fn door_with(&self, change: impl FnOnce(&mut berth_door::DoorConfig)) -> RunningDoor {
        let door = RunningDoor::start_at(self.supervisor.link(), change).await;
        self.supervisor.ready(START).await.expect("an opencode that answers");
        door.ready().await;
        door
    }
}

/// A provider that is never asked.
fn configuration() -> Value {
    json!({
        "autoupdate": false, "share": "disabled", "snapshot": false, "lsp": false, "formatter": false,
        "enabled_providers": ["none"], "model": "none/m", "small_model": "none/m",
        "provider": {"none": {
            "npm": "@ai-sdk/openai-compatible", "name": "None",
            "options": {"baseURL": "http://127.0.0.1:9/v1", "apiKey": "none"},
            "models": {"m": {"name": "M", "tool_call": true, "limit": {"context": 200_000, "output": 8192}}},
        }},
    })
}

pub(crate) async fn json_of(request: reqwest::RequestBuilder) -> Value {
    let response = within("answer", request.send()).await.expect("an answer");
    assert_eq!(response.status(), 200, "{}", response.url());
    response.json().await.expect("JSON")
}

pub(crate) async fn create_session(door: &RunningDoor) -> String {
    let session = json_of(door.post("/session").json(&json!({}))).await;
    session["id"].as_str().expect("an id").to_owned()
}

async fn rename(door: &RunningDoor, session: &str, title: &str) {
    let url = door.url(&format!("/session/{session}"));
    let request = crate::rig::client().patch(url).basic_auth("opencode", Some(crate::rig::PASSWORD));
    json_of(request.json(&json!({ "title": title }))).await;
}

/// Processes with the working directory in their environment or as their own.
fn processes_in(work: &Path) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    entries
        .filter(|entry| std::fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == work))
        .map(|entry| {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).replace('\0', " ")
        })
        .collect()
}

/// The door asks opencode to say something in a directory that does not exist, to know that its subscription hears. It
/// would be open without that too, with the first heartbeat.
#[tokio::test]
async fn old_and_new_opencode_say_what_they_are_asked_to_say() {
    let (program, config_home) = installed();
    for (program, config_home) in [(program, config_home), (old_opencode_program(), ConfigHome::Own)] {
        let sandbox = Sandbox::of(program, config_home, &configuration()).await;
        let door = sandbox.door().await;
        let version = door.state().await["version"].clone();
        let mut live = door.events("/event?directory=%2F.nobody-works-here", None).await;
        let echo = json!({"type": "tui.prompt.append", "properties": {"text": ""}});
        let asked = door.post("/tui/publish?directory=%2F.nobody-works-here").json(&echo);
        assert_eq!(json_of(asked).await, json!(true), "{version}");
        // A directory that is used for the first time has things of its own to say, too.
        while live.kind().await.1 != "tui.prompt.append" {}
        door.stop().await;
        sandbox.supervisor.stop().await;
    }
}

#[tokio::test]
async fn sessions_the_document_and_resuming_through_the_door() {
    let sandbox = Sandbox::start().await;
    let door = sandbox.door().await;
    let state = door.state().await;
    assert_eq!((state["phase"].as_str(), state["boot"].as_u64()), (Some("ready"), Some(1)), "{state}");
    assert_eq!(state["version"], "1.18.33");
    let probe = json_of(crate::rig::client().get(door.url("/doc"))).await;
    assert_eq!(probe["status"], "ready");
    let document = json_of(door.get("/doc")).await;
    assert!(document["paths"]["/session"].is_object());

    let mut live = door.events("/global/event", None).await;
    let mut of_directory = door.events("/event", None).await;
    let session = create_session(&door).await;
    let listed = json_of(door.get("/session")).await;
    assert_eq!(listed[0]["id"], session.as_str());
    let titles: Vec<String> = (0..8).map(|n| format!("title {n}")).collect();
    for title in &titles {
        rename(&door, &session, title).await;
    }
    let mut seen = Vec::new();
    while seen.last().is_none_or(|(_, title)| *title != titles[7]) {
        let (id, event) = live.next().await;
        if event["type"] == "session.updated" {
            seen.push((
                id.expect("an id"),
                event["properties"]["info"]["title"].as_str().unwrap_or_default().to_owned(),
            ));
        }
    }
    for title in &titles {
        assert_eq!(seen.iter().filter(|(_, seen)| seen == title).count(), 1, "{title}: {seen:?}");
    }
    let after = seen.iter().position(|(_, title)| *title == titles[3]).expect("title 3");
    let mut resumed = door.events("/global/event", Some(&seen[after].0)).await;
    // Of the titles in between, the last one alone is still worth something.
    let rest = loop {
        let (id, event) = resumed.next().await;
        if event["type"] == "session.updated" {
            break (
                id.expect("an id"),
                event["properties"]["info"]["title"].as_str().unwrap_or_default().to_owned(),
            );
        }
    };
    assert_eq!(Some(&rest), seen.last());
    while of_directory.kind().await.1 != "session.created" {}
    door.stop().await;
    sandbox.supervisor.stop().await;
    assert_eq!(processes_in(&sandbox.work), Vec::<String>::new());
}

#[tokio::test]
async fn a_killed_opencode_comes_back_and_no_request_is_lost() {
    let sandbox = Sandbox::start().await;
    let door = sandbox.door().await;
    let session = create_session(&door).await;
    let mut live = door.events("/global/event", None).await;
    let epoch = door.state().await["epoch"].clone();
    let pid = sandbox.supervisor.watch().borrow().pid.expect("a process").cast_signed();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGKILL).expect("kill");
    let told = async {
        let mut told = Vec::new();
        while told.len() < 2 {
            let (_, event) = live.next().await;
            if event["type"].as_str().is_some_and(|kind| kind.starts_with("berth.")) {
                told.push(event);
            }
        }
        told
    };
    let mut waiting = JoinSet::new();
    let exited = async {
        sandbox.supervisor.watch().wait_for(|state| state.last_exit().is_some()).await.expect("a supervisor");
        for _ in 0..10 {
            waiting.spawn(door.get(&format!("/session/{session}")).send());
        }
    };
    let (told, ()) =
        tokio::time::timeout(START, async { tokio::join!(told, exited) }).await.expect("a restart");
    assert_eq!(told[0]["type"], "berth.serve.exited");
    assert_eq!(
        (&told[0]["properties"]["cause"], &told[0]["properties"]["signal"]),
        (&json!("Killed"), &json!(9))
    );
    assert_eq!(
        (&told[1]["type"], &told[1]["properties"]["boot"]),
        (&json!("berth.serve.started"), &json!(2))
    );
    while let Some(response) = within("answer", waiting.join_next()).await {
        let response = response.expect("a task").expect("an answer");
        assert_eq!(response.status(), 200, "requests waited for the restart");
    }
    let state = door.state().await;
    assert_eq!((&state["epoch"], &state["boot"]), (&epoch, &json!(2)));
    assert!(state["last_exit"].as_str().is_some_and(|words| words.contains("signal 9")), "{state}");
    door.stop().await;
    sandbox.supervisor.stop().await;
}

/// Lets opencode run a command that leaves a `sleep 600` in a session of its own.
pub(crate) async fn leave_behind(sandbox: &Sandbox, door: &RunningDoor) {
    let session = create_session(door).await;
    let command = "setsid sleep 600 >/dev/null 2>&1 & echo started";
    let body = json!({"agent": "build", "command": command, "model": {"providerID": "none", "modelID": "m"}});
    json_of(door.post(&format!("/session/{session}/shell")).json(&body)).await;
    let left_behind = || processes_in(&sandbox.work).iter().any(|line| line.starts_with("sleep 600"));
    until("process in a session of its own", left_behind).await;
}

#[tokio::test]
async fn what_a_shell_command_left_behind_ends_with_opencode() {
    let sandbox = Sandbox::start().await;
    let door = sandbox.door().await;
    leave_behind(&sandbox, &door).await;
    sandbox.supervisor.stop().await;
    assert_eq!(processes_in(&sandbox.work), Vec::<String>::new());
    assert_eq!(sandbox.supervisor.watch().borrow().phase, ServePhase::Stopped);
    let refused = within("refusal", door.get("/session").send()).await.expect("an answer");
    assert_eq!(
        crate::rig::problem(refused).await.problem_type(),
        Some(berth_wire::problem::ProblemType::Stopped)
    );
    door.stop().await;
}
