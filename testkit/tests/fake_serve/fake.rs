//! Starts a fake and speaks to it in plain HTTP.

use std::time::Duration;

use berth_testkit::fake_serve::{FakeControl, FakeServe, FakeServeConfig};
use futures_util::{Stream, StreamExt};
use serde_json::{Value, json};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

/// Bound on every wait of these tests.
const BOUND: Duration = Duration::from_secs(20);
/// Time in which a late event of a turn would come.
const QUIET: Duration = Duration::from_millis(100);

/// Awaits something that must not take long.
pub(crate) async fn bounded<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(BOUND, what).await.expect("done within the bound")
}

/// A fake that runs until it is dropped.
pub(crate) struct Fake {
    pub(crate) base: String,
    pub(crate) control: FakeControl,
    pub(crate) client: reqwest::Client,
    _running: DropGuard,
    _tasks: TaskTracker,
}

impl Fake {
    pub(crate) async fn start(config: FakeServeConfig) -> Self {
        let fake = FakeServe::bind("127.0.0.1:0".parse().unwrap(), config).await.unwrap();
        let (base, control) = (format!("http://{}", fake.address()), fake.control());
        let (shutdown, tasks) = (CancellationToken::new(), TaskTracker::new());
        let running = fake.run(shutdown.clone());
        tasks.spawn(async move { running.await.unwrap() });
        let redirect = reqwest::redirect::Policy::none();
        let client = reqwest::Client::builder().no_proxy().timeout(BOUND).redirect(redirect).build().unwrap();
        Self { base, control, client, _running: shutdown.drop_guard(), _tasks: tasks }
    }

    pub(crate) async fn get(&self, path: &str) -> reqwest::Response {
        self.client.get(format!("{}{path}", self.base)).send().await.unwrap()
    }

    pub(crate) async fn get_json(&self, path: &str) -> Value {
        self.get(path).await.json().await.unwrap()
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> reqwest::Response {
        self.client.post(format!("{}{path}", self.base)).json(body).send().await.unwrap()
    }

    /// The id of a new session.
    pub(crate) async fn session(&self, directory: &str, body: &Value) -> String {
        let path = format!("/session?directory={directory}");
        let session: Value = self.post(&path, body).await.json().await.unwrap();
        session["id"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn prompt(&self, session: &str, text: &str) {
        let body = json!({ "parts": [{ "type": "text", "text": text }] });
        let answer = self.post(&format!("/session/{session}/prompt_async"), &body).await;
        assert_eq!(answer.status(), 204);
    }

    /// Opens an event stream, which has begun when this returns.
    pub(crate) async fn events(&self, path: &str) -> Events {
        let answer = self.get(path).await;
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        let mut events = Events { bytes: Box::pin(answer.bytes_stream()), text: String::new() };
        let first = events.next().await;
        assert_eq!(kind(&first), "server.connected");
        events.text = format!("data: {first}\n\n{}", events.text);
        events
    }
}

/// The type of an event, in an envelope or bare.
pub(crate) fn kind(event: &Value) -> &str {
    let payload = if event["payload"].is_object() { &event["payload"] } else { event };
    payload["type"].as_str().unwrap_or_default()
}

/// An event stream.
pub(crate) struct Events {
    bytes: std::pin::Pin<Box<dyn Stream<Item = reqwest::Result<bytes::Bytes>>>>,
    text: String,
}

impl Events {
    pub(crate) async fn next(&mut self) -> Value {
        loop {
            if let Some((frame, rest)) = self.text.split_once("\n\n") {
                let event = serde_json::from_str(frame.strip_prefix("data: ").unwrap()).unwrap();
                self.text = rest.to_owned();
                return event;
            }
            let bytes = bounded(self.bytes.next()).await.expect("the stream goes on").unwrap();
            self.text.push_str(std::str::from_utf8(&bytes).unwrap());
        }
    }

    /// Everything up to the first event of this type, that one included.
    pub(crate) async fn until(&mut self, wanted: impl Fn(&Value) -> bool) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            events.push(self.next().await);
            if events.last().is_some_and(&wanted) {
                return events;
            }
        }
    }

    /// Everything that comes until it is quiet for a while.
    pub(crate) async fn rest(&mut self) -> Vec<Value> {
        let mut events = Vec::new();
        while let Ok(event) = tokio::time::timeout(QUIET, self.next()).await {
            events.push(event);
        }
        events
    }
}
