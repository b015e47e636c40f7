//! A database that is damaged, before the program starts and while it runs: it is named with what to do, nobody is answered
//! without a reason, and nothing is written over what can be saved.

use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Longest wait for anything.
const BOUND: Duration = Duration::from_mins(1);
/// More than fit into a page.
const SESSIONS: usize = 60;

/// A folder with everything that the program is given.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let sandbox = json!({
            "namespace": "local", "name": "away", "door_url": "http://127.0.0.1:1", "password_file": "token",
            "directory": "/work",
        });
        fs::write(folder.path().join("token"), "secret").unwrap();
        fs::write(folder.path().join("sandboxes.json"), json!({ "sandboxes": [sandbox] }).to_string())
            .unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn database(&self) -> PathBuf {
        self.path("berth.db")
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_berth-controller"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--log", "json"]);
        command.arg("--database").arg(self.database());
        command.arg("--token-file").arg(self.path("token"));
        command.arg("--sandboxes").arg(self.path("sandboxes.json"));
        command.env_clear().stdin(Stdio::null());
        command
    }

    /// The program, which is expected to end by itself.
    fn refused(&self) -> (Option<i32>, String) {
        let Output { status, stderr, .. } = self.command().output().unwrap();
        (status.code(), String::from_utf8_lossy(&stderr).into_owned())
    }

    /// The program, once it serves.
    async fn serve(&self) -> Serving {
        let log = self.path("log");
        let child = self.command().stderr(fs::File::create(&log).unwrap()).spawn().unwrap();
        let mut serving = Serving { child, log, url: String::new() };
        let begun = Instant::now();
        while serving.url.is_empty() {
            assert!(begun.elapsed() < BOUND, "it does not serve: {}", serving.said());
            let lines = serving.said();
            let mut lines = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let address = lines.find_map(|line| Some(line["address"].as_str()?.to_owned()));
            serving.url = address.map(|address| format!("http://{address}")).unwrap_or_default();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        serving
    }
}

struct Serving {
    child: Child,
    log: PathBuf,
    url: String,
}

impl Serving {
    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Status and body of an answer.
    async fn ask(&self, method: Method, path: &str, body: Option<Value>) -> (u16, Value) {
        let client = reqwest::Client::builder().timeout(BOUND).no_proxy().build().unwrap();
        let mut request = client.request(method, format!("{}{path}", self.url)).bearer_auth("secret");
        if let Some(body) = body {
            request = request.json(&body);
        }
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap_or_default())
    }

    async fn sessions(&self) -> Vec<String> {
        let (status, page) = self.ask(Method::GET, "/v1/sandboxes/local/away/sessions?limit=200", None).await;
        assert_eq!(status, 200, "{page}");
        let items = page["items"].as_array().unwrap();
        items.iter().map(|session| session["id"].as_str().unwrap().to_owned()).collect()
    }

    /// SIGTERM, and its end.
    fn stop(mut self) {
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(0), "{}", self.said());
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A database with sessions, which are given too.
async fn filled(place: &Place) -> Vec<String> {
    let server = place.serve().await;
    for number in 0..SESSIONS {
        let new = json!({ "title": format!("{number} {}", "x".repeat(180)) });
        let (status, made) = server.ask(Method::POST, "/v1/sandboxes/local/away/sessions", Some(new)).await;
        assert_eq!(status, 201, "{made}");
    }
    let sessions = server.sessions().await;
    assert_eq!(sessions.len(), SESSIONS);
    server.stop();
    sessions
}

/// Writes over all of a file from there on, where whoever has it open sees it.
fn spoil(path: &Path, from: u64) {
    let length = fs::metadata(path).unwrap().len() - from;
    let file = fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(&vec![0xa5; usize::try_from(length).unwrap()], from).unwrap();
}

#[tokio::test]
async fn a_damaged_database_is_named_at_the_start_and_left_as_it_is() {
    let place = Place::new();
    let sessions = filled(&place).await;
    let whole = fs::read(place.database()).unwrap();
    for (from, words) in [(0, "is not an SQLite database"), (100, "is damaged")] {
        fs::write(place.database(), &whole).unwrap();
        spoil(&place.database(), from);
        let spoilt = fs::read(place.database()).unwrap();
        let (code, said) = place.refused();
        assert_eq!(code, Some(74), "{said}");
        assert!(said.contains("berth.db") && said.contains(words), "{said}");
        assert!(fs::read(place.database()).unwrap() == spoilt, "from {from}: it was changed");
    }
    fs::write(place.database(), &whole).unwrap();
    let server = place.serve().await;
    assert_eq!(server.sessions().await, sessions, "with the whole file everything is there");
    server.stop();
}

#[tokio::test]
async fn a_database_that_is_damaged_while_it_is_used_is_told_to_everybody_who_asks() {
    let place = Place::new();
    let sessions = filled(&place).await;
    let whole = fs::read(place.database()).unwrap();
    let server = place.serve().await;
    spoil(&place.database(), 0);
    let of = |rest: &str| format!("/v1/sessions/{}{rest}", sessions[0]);
    let prompt = json!({ "parts": [{ "type": "text", "text": "hello" }] });
    for (method, path, body) in [
        (Method::GET, "/v1/sandboxes/local/away/sessions".to_owned(), None),
        (Method::GET, of(""), None),
        (Method::GET, of("/turns"), None),
        (Method::GET, of("/messages"), None),
        (Method::GET, of("/events"), None),
        (Method::PATCH, of(""), Some(json!({ "title": "another" }))),
        (Method::POST, of("/messages"), Some(prompt)),
        (Method::POST, "/v1/sandboxes/local/away/sessions".to_owned(), Some(json!({}))),
        (Method::DELETE, of(""), None),
        (Method::GET, "/readyz".to_owned(), None),
    ] {
        let (status, problem) = server.ask(method.clone(), &path, body).await;
        let kind = problem["type"].as_str().unwrap_or_default();
        assert!(
            status == 503 && kind.ends_with("/storage-unavailable"),
            "{method} {path}: {status} {problem}"
        );
    }
    assert_eq!(server.ask(Method::GET, "/healthz", None).await.0, 200, "a restart would mend nothing");
    let said = server.said();
    assert!(
        said.contains("berth.db is damaged") || said.contains("berth.db is not an SQLite database"),
        "{said}"
    );
    server.stop();
    fs::write(place.database(), &whole).unwrap();
    let server = place.serve().await;
    assert_eq!(server.sessions().await, sessions, "nothing that was refused had half an effect");
    server.stop();
}
