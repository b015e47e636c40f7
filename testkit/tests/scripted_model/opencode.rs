//! A real opencode, of its own in everything, that has a scripted model for its only provider.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use berth_testkit::{
    ModelLog, ModelWire, RecordedRequest, ScriptedModel,
    installed::{opencode_config_home, opencode_program},
    provider_config_for,
};
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Bound on one turn, and on every wait.
pub(crate) const BOUND: Duration = Duration::from_secs(90);
const PASSWORD: &str = "of-this-test-only";

#[expect(clippy::disallowed_methods, reason = "these tests have no configuration but the environment")]
fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// opencode and its model.
pub(crate) struct Opencode {
    base: String,
    client: reqwest::Client,
    child: Child,
    pub(crate) log: ModelLog,
    stop_model: CancellationToken,
    tasks: TaskTracker,
    home: TempDir,
}

impl Opencode {
    pub(crate) async fn start(wire: ModelWire) -> Self {
        let model = ScriptedModel::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("work")).unwrap();
        let mut child = command(home.path(), &provider_config_for(wire, model.address())).spawn().unwrap();
        let (log, stop_model, tasks) = (model.log(), CancellationToken::new(), TaskTracker::new());
        let running = model.run(stop_model.clone());
        tasks.spawn(async move { running.await.unwrap() });
        let base = tokio::time::timeout(BOUND, listening(&mut child, &tasks)).await.expect("opencode starts");
        let client = reqwest::Client::builder().timeout(BOUND).build().unwrap();
        Self { base, client, child, log, stop_model, tasks, home }
    }

    /// The directory that its sessions work in.
    pub(crate) fn work(&self) -> PathBuf {
        self.home.path().join("work").canonicalize().unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        self.send(self.client.get(format!("{}{path}", self.base))).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Value {
        self.send(self.client.post(format!("{}{path}", self.base)).json(body)).await
    }

    /// The answer's JSON; null when it has no body.
    async fn send(&self, request: reqwest::RequestBuilder) -> Value {
        let response = request.basic_auth("opencode", Some(PASSWORD)).send().await.unwrap();
        let (status, url, body) = (response.status(), response.url().clone(), response.text().await.unwrap());
        assert!(status.is_success(), "{url} gave {status}: {body}");
        if body.is_empty() { Value::Null } else { serde_json::from_str(&body).unwrap() }
    }

    /// A new session; `ask` makes its shell commands ask for permission.
    pub(crate) async fn session(&self, ask: bool) -> Session<'_> {
        let rules =
            if ask { json!([{"permission": "bash", "pattern": "*", "action": "ask"}]) } else { json!([]) };
        let session = self.post("/session", &json!({"permission": rules})).await;
        Session { opencode: self, id: session["id"].as_str().unwrap().to_owned() }
    }

    pub(crate) async fn stop(mut self) {
        self.kill();
        self.child.wait().await.unwrap();
        self.stop_model.cancel();
        self.tasks.close();
        tokio::time::timeout(BOUND, self.tasks.wait()).await.expect("the model stops");
    }

    fn kill(&self) {
        let group = self.child.id().and_then(|id| i32::try_from(id).ok());
        if let Some(group) = group {
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
    }
}

impl Drop for Opencode {
    fn drop(&mut self) {
        self.kill();
    }
}

/// opencode with nothing of this machine's and no reason to reach out of it.
fn command(home: &Path, configuration: &Value) -> Command {
    let mut command = Command::new(opencode_program());
    command.args(["serve", "--hostname", "127.0.0.1", "--port", "0"]).current_dir(home.join("work"));
    command.env_clear().env("HOME", home).env("OPENCODE_CONFIG_CONTENT", configuration.to_string());
    command.env("OPENCODE_SERVER_PASSWORD", PASSWORD).envs(variable("PATH").map(|path| ("PATH", path)));
    for (name, folder) in [("DATA", "data"), ("STATE", "state"), ("CACHE", "cache"), ("CONFIG", "config")] {
        command.env(format!("XDG_{name}_HOME"), home.join(folder));
    }
    // It leaves libraries there that it unpacks (measured on opencode 1.15.4 and 1.18.33).
    command.env("BUN_TMPDIR", home);
    if let Some(complete) = opencode_config_home() {
        command.env("XDG_CONFIG_HOME", complete);
    }
    for switch in ["MODELS_FETCH", "AUTOUPDATE", "LSP_DOWNLOAD", "DEFAULT_PLUGINS"] {
        command.env(format!("OPENCODE_DISABLE_{switch}"), "1");
    }
    command.env("OPENCODE_PURE", "1");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .kill_on_drop(true);
    command
}

/// Waits for the line that says where it listens; reads on afterwards, so that the pipe never fills.
async fn listening(child: &mut Child, tasks: &TaskTracker) -> String {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    while let Some(line) = lines.next_line().await.unwrap() {
        if let Some((_, address)) = line.split_once("listening on ") {
            let base = address.trim().to_owned();
            tasks.spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
            return base;
        }
    }
    panic!("opencode ended before it listened");
}

/// A session of opencode.
pub(crate) struct Session<'a> {
    pub(crate) opencode: &'a Opencode,
    pub(crate) id: String,
}

impl Session<'_> {
    /// Runs one turn to its end; the last assistant message.
    pub(crate) async fn prompt(&self, text: &str) -> Message {
        let answer = self.opencode.post(&format!("/session/{}/message", self.id), &prompt_body(text)).await;
        Message(answer)
    }

    /// Starts a turn.
    pub(crate) async fn start(&self, text: &str) {
        self.opencode.post(&format!("/session/{}/prompt_async", self.id), &prompt_body(text)).await;
    }

    pub(crate) async fn abort(&self) {
        self.opencode.post(&format!("/session/{}/abort", self.id), &json!({})).await;
    }

    /// Every message of the assistant.
    pub(crate) async fn answers(&self) -> Vec<Message> {
        let messages = self.opencode.get(&format!("/session/{}/message", self.id)).await;
        let messages =
            messages.as_array().unwrap().iter().filter(|message| message["info"]["role"] == "assistant");
        messages.cloned().map(Message).collect()
    }

    /// Every tool part, in order.
    pub(crate) async fn tools(&self) -> Vec<Value> {
        self.answers().await.iter().flat_map(|answer| answer.parts("tool")).collect()
    }

    /// Waits for a request (`permission` or `question`) of this session, and gives its id.
    pub(crate) async fn asked(&self, kind: &str) -> String {
        let find = async || {
            let asked = self.opencode.get(&format!("/{kind}")).await;
            let mine = asked.as_array()?.iter().find(|asked| asked["sessionID"] == self.id.as_str())?;
            mine["id"].as_str().map(str::to_owned)
        };
        until(find).await
    }

    /// Waits until no turn runs.
    pub(crate) async fn idle(&self) {
        until(async || self.opencode.get("/session/status").await[&self.id].is_null().then_some(())).await;
    }

    /// What the model was asked for this session, titles left out.
    pub(crate) fn requests(&self) -> Vec<RecordedRequest> {
        let requests = self.opencode.log.requests().into_iter();
        requests.filter(|request| !request.title && request.session.as_deref() == Some(&self.id)).collect()
    }

    /// Waits until what the model was asked for this session meets a condition.
    pub(crate) async fn requests_until(&self, condition: impl Fn(&[RecordedRequest]) -> bool) {
        let met = self.opencode.log.wait_until(|_| condition(&self.requests()));
        tokio::time::timeout(BOUND, met).await.expect("the model is asked");
    }
}

fn prompt_body(text: &str) -> Value {
    json!({"parts": [{"type": "text", "text": text}]})
}

/// Asks again until there is an answer. The pause keeps the asking from being the load.
pub(crate) async fn until<T>(find: impl AsyncFn() -> Option<T>) -> T {
    let mut pause = tokio::time::interval(Duration::from_millis(50));
    let asking = async {
        loop {
            pause.tick().await;
            if let Some(found) = find().await {
                return found;
            }
        }
    };
    tokio::time::timeout(BOUND, asking).await.expect("it comes within the bound")
}

/// A message with its parts.
#[derive(Debug, Clone)]
pub(crate) struct Message(pub(crate) Value);

impl Message {
    pub(crate) fn parts(&self, kind: &str) -> Vec<Value> {
        let parts = self.0["parts"].as_array().unwrap().iter();
        parts.filter(|part| part["type"] == kind).cloned().collect()
    }

    /// The text of all its parts of a kind.
    pub(crate) fn text_of(&self, kind: &str) -> String {
        self.parts(kind).iter().filter_map(|part| part["text"].as_str()).collect()
    }

    pub(crate) fn text(&self) -> String {
        self.text_of("text")
    }

    pub(crate) fn finish(&self) -> Option<&str> {
        self.0["info"]["finish"].as_str()
    }

    pub(crate) fn error(&self) -> &Value {
        &self.0["info"]["error"]
    }
}
