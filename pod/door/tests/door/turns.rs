//! The turn table of a door: before a real opencode with a scripted model, and before a fake one that fails on demand.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use berth_door::Metrics;
use berth_opencode::ids;
use berth_testkit::{ModelLog, ScriptedModel, provider_config};
use prometheus_client::registry::Registry;
use reqwest::{RequestBuilder, Response};
use serde_json::{Value, json};
use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    real_opencode::{Sandbox, json_of},
    rig::{Events, INTERNAL, RunningDoor, client},
};

mod aborts;
mod faults;
mod gate;
mod mended;
mod real;

/// Bound on a turn, on a machine that does other things too.
const LONG: Duration = Duration::from_mins(1);

/// A door before a real opencode whose model is scripted.
struct Rig {
    sandbox: Sandbox,
    door: RunningDoor,
    model: ModelLog,
    directories: AtomicUsize,
    counters: Registry,
    _model: JoinSet<()>,
    _guard: DropGuard,
}

/// A session and its directory.
#[derive(Debug, Clone)]
struct Session {
    id: String,
    directory: String,
}

impl Rig {
    async fn start() -> Self {
        let model = ScriptedModel::bind("127.0.0.1:0".parse().expect("an address")).await.expect("a model");
        let mut configuration = provider_config(model.address());
        configuration["permission"] = json!({"bash": {"*": "allow", "touch *": "ask"}});
        let log = model.log();
        let shutdown = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let stop = shutdown.clone();
        tasks.spawn(async move { model.run(stop).await.expect("the model runs") });
        let sandbox = Sandbox::with(&configuration).await;
        let mut counters = Registry::default();
        let metrics = Metrics::register(&mut counters);
        let door = sandbox.door_with(|config| config.metrics = metrics).await;
        let directories = AtomicUsize::new(0);
        Self {
            sandbox,
            door,
            model: log,
            directories,
            counters,
            _model: tasks,
            _guard: shutdown.drop_guard(),
        }
    }

    async fn stop(self) {
        self.door.stop().await;
        self.sandbox.supervisor.stop().await;
    }

    /// Kills opencode.
    fn kill(&self) {
        let pid = self.sandbox.supervisor.watch().borrow().pid.expect("a process").cast_signed();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGKILL).expect("kill");
    }

    /// A directory that opencode has not seen yet.
    fn cold_directory(&self) -> PathBuf {
        let number = self.directories.fetch_add(1, Ordering::Relaxed);
        let directory = self.sandbox.work.join(format!("cold{number}"));
        std::fs::create_dir(&directory).expect("a directory");
        directory
    }

    /// A session in a directory that is cold: to make a session does not boot its instance for good.
    async fn cold_session(&self) -> Session {
        self.session_in(self.cold_directory()).await
    }

    async fn session_in(&self, directory: PathBuf) -> Session {
        let directory = directory.to_string_lossy().into_owned();
        let request = self.door.post(&format!("/session?directory={directory}")).json(&json!({}));
        let session = json_of(request).await;
        Session { id: session["id"].as_str().expect("an id").to_owned(), directory }
    }

    /// `POST /session/{id}/{call}` for the session's directory.
    fn call(&self, session: &Session, call: &str) -> RequestBuilder {
        self.door.post(&format!("/session/{}/{call}?directory={}", session.id, session.directory))
    }

    async fn prompt(&self, session: &Session, body: &Value) -> Response {
        self.call(session, "prompt_async").json(body).send().await.expect("an answer")
    }

    /// Sends a script as a prompt, and gives its id.
    async fn script(&self, session: &Session, script: &str) -> String {
        let id = ids::message_id();
        let response = self.prompt(session, &scripted(&id, script)).await;
        assert_eq!(response.status(), 204);
        id
    }

    async fn abort(&self, session: &Session) {
        let answer = timeout(LONG, self.call(session, "abort").send()).await.expect("in time");
        let answer = answer.expect("an answer");
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.text().await.expect("a body"), "true");
    }

    async fn turns(&self) -> Value {
        json_of(self.door.get("/berth/turns")).await
    }

    /// Waits until the table is idle.
    async fn idle(&self) {
        idle(&self.door).await;
    }

    /// Closes the instance of a directory, behind the door's back: each takes about 41 MB.
    async fn dispose(&self, session: &Session) {
        let address = self.sandbox.supervisor.watch().borrow().address.expect("an address");
        let url = format!("http://{address}/instance/dispose?directory={}", session.directory);
        json_of(client().post(url).basic_auth("opencode", Some(INTERNAL))).await;
    }

    /// Requests of the agent of a directory to its model, without those for titles.
    fn asked(&self, session: &Session) -> usize {
        let requests = self.model.requests();
        let of = |directory: &Option<String>| directory.as_deref() == Some(session.directory.as_str());
        requests.iter().filter(|request| !request.title && of(&request.directory)).count()
    }

    /// Plays one more turn in a session, so that whatever was left of the one before would have been done.
    async fn mark(&self, session: &Session, events: &mut Events) {
        let id = self.script(session, "@stub say:marker").await;
        turn(events, &id, "ended").await;
    }
}

fn scripted(id: &str, script: &str) -> Value {
    json!({
        "messageID": id,
        "parts": [{"id": ids::part_id(), "type": "text", "text": script}],
    })
}

/// Waits until a door's table is idle.
async fn idle(door: &RunningDoor) {
    let waiting = async {
        while json_of(door.get("/berth/turns")).await["activity"] != "idle" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let in_time = timeout(LONG, waiting).await.is_ok();
    assert!(in_time, "not idle: {}", json_of(door.get("/berth/turns")).await);
}

/// The events up to the one that satisfies a condition, with it.
async fn until(events: &mut Events, what: &str, wanted: impl Fn(&Value) -> bool) -> Vec<Value> {
    let deadline = Instant::now() + LONG;
    let mut seen = Vec::new();
    loop {
        assert!(Instant::now() < deadline, "no {what} in {}", story(&seen));
        let (_, event) = events.next().await;
        let found = wanted(&event);
        seen.push(event);
        if found {
            return seen;
        }
    }
}

fn is_turn(event: &Value, phase: &str) -> bool {
    event["type"] == "berth.turn" && event["properties"]["phase"] == phase
}

/// The events up to this phase of the turn with this prompt.
async fn turn(events: &mut Events, message: &str, phase: &str) -> Vec<Value> {
    let of = |event: &Value| is_turn(event, phase) && event["properties"]["message_id"] == message;
    until(events, phase, of).await
}

/// The events up to this phase of the session's next turn.
async fn session_turn(events: &mut Events, session: &Session, phase: &str) -> Vec<Value> {
    let of =
        |event: &Value| is_turn(event, phase) && event["properties"]["session_id"] == session.id.as_str();
    until(events, phase, of).await
}

fn outcome(seen: &[Value]) -> &str {
    let last = seen.last().expect("events");
    last["properties"]["outcome"].as_str().unwrap_or("none")
}

/// What is told of a session's turns, in words.
fn phases(seen: &[Value], session: &Session) -> Vec<String> {
    let turns = seen.iter().filter(|event| {
        event["type"] == "berth.turn" && event["properties"]["session_id"] == session.id.as_str()
    });
    let word = |value: &Value| value.as_str().map(|word| format!(" {word}")).unwrap_or_default();
    turns
        .map(|event| {
            let properties = &event["properties"];
            let phase = properties["phase"].as_str().unwrap_or_default();
            format!("{phase}{}", word(&properties["outcome"]))
        })
        .collect()
}

/// Events in short, for failures.
fn story(seen: &[Value]) -> String {
    let line = |event: &Value| {
        let properties = &event["properties"];
        let info = &properties["info"];
        let own = if event["type"] == "berth.turn" { properties } else { &Value::Null };
        let (kind, session, status) =
            (&event["type"], &properties["sessionID"], &properties["status"]["type"]);
        let directory = &properties["directory"];
        format!("\n{kind} {session} {status} {} {} {directory} {own}", info["role"], info["id"])
    };
    seen.iter().rev().take(60).rev().map(line).collect()
}

/// A step of a script that runs a command.
fn bash(command: &str) -> String {
    format!("tool:bash:{}", json!({"command": command, "description": "x"}))
}
