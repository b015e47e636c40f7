//! `berth-controller serve` on the loopback interface, and a client of its API. IO.

use std::{
    fs,
    net::SocketAddr,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use berth_wire::sse::{SseEvent, SseReader};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::Programs;
use crate::pod::{
    process::{Program, cpu, flags, memory},
    rig::{free_addresses, within},
    timed::{self, Seen, Turn},
};

/// What callers send.
const TOKEN: &str = "the-token-of-a-benchmark";

/// Longest wait for an answer, and for the next event of a turn.
const BOUND: Duration = Duration::from_mins(1);

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    program: Program,
    /// Its API.
    pub(crate) api: Api,
}

impl Server {
    /// Starts it with its files in `root`, where `secret/password` is the door's and `work` the sandbox's directory, and
    /// waits until it answers.
    pub(crate) async fn start(programs: &Programs, root: &Path, door: SocketAddr) -> anyhow::Result<Self> {
        let sandbox = json!({
            "namespace": "local", "name": "default", "door_url": format!("http://{door}"),
            "password_file": "secret/password", "directory": root.join("work"),
        });
        fs::write(root.join("sandboxes.json"), json!({ "sandboxes": [sandbox] }).to_string())?;
        fs::write(root.join("token"), TOKEN)?;
        let [address] = free_addresses();
        let path = |name: &str| root.join(name).display().to_string();
        let mut arguments = vec!["serve".to_owned()];
        arguments.extend(flags([
            ("--database", path(DATABASE)),
            ("--listen", address.to_string()),
            ("--token-file", path("token")),
            ("--sandboxes", path("sandboxes.json")),
        ]));
        let log = root.join("server.log");
        let program = Program::start("berth-controller", &programs.controller, arguments, &[], &log)?;
        let api = Api::new(address)?;
        let begun = Instant::now();
        while !api.answers().await {
            within(begun, "the server does not answer", &log)?;
            sleep(PAUSE).await;
        }
        Ok(Self { program, api })
    }

    /// Processor time so far, in seconds.
    pub(crate) fn cpu(&self) -> anyhow::Result<f64> {
        cpu(self.program.pid())
    }

    /// Resident memory, in MiB.
    pub(crate) fn resident(&self) -> anyhow::Result<f64> {
        Ok(memory(self.program.pid())?.resident)
    }

    /// Ends it.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        self.program.stop().await
    }
}

/// Name of the SQLite file.
pub(crate) const DATABASE: &str = "berth.db";

/// A client of the API.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    base: String,
    client: reqwest::Client,
}

impl Api {
    fn new(address: SocketAddr) -> anyhow::Result<Self> {
        let client = reqwest::Client::builder().connect_timeout(Duration::from_secs(5)).no_proxy();
        Ok(Self { base: format!("http://{address}/v1"), client: client.build()? })
    }

    async fn answers(&self) -> bool {
        let asked = self.client.get(format!("{}/sandboxes/local/default", self.base)).bearer_auth(TOKEN);
        asked.timeout(BOUND).send().await.is_ok_and(|answer| answer.status().is_success())
    }

    async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        let asked = self.client.post(format!("{}{path}", self.base)).bearer_auth(TOKEN).json(body);
        let answer = asked.timeout(BOUND).send().await?;
        let (status, text) = (answer.status(), answer.text().await?);
        ensure!(status.is_success(), "{path} is answered with {status}: {text}");
        Ok(serde_json::from_str(&text)?)
    }

    /// A new session. It has a title, so opencode asks no model for one.
    pub(crate) async fn session(&self) -> anyhow::Result<String> {
        let session =
            self.post("/sandboxes/local/default/sessions", &json!({ "title": "a benchmark" })).await?;
        session["id"].as_str().map(ToOwned::to_owned).context("a session without an id")
    }

    /// Queues a prompt.
    pub(crate) async fn prompt(&self, session: &str, prompt: &str) -> anyhow::Result<()> {
        let body = json!({ "parts": [{ "type": "text", "text": prompt }] });
        self.post(&format!("/sessions/{session}/messages"), &body).await.map(drop)
    }

    /// Opens the stream of a session's events, from its start.
    pub(crate) async fn stream(&self, session: &str) -> anyhow::Result<reqwest::Response> {
        let asked = self.client.get(format!("{}/sessions/{session}/events", self.base)).bearer_auth(TOKEN);
        Ok(asked.send().await?.error_for_status()?)
    }

    /// A GET of any address, with the same connections.
    pub(crate) async fn plain(&self, address: &str) -> anyhow::Result<reqwest::Response> {
        Ok(self.client.get(address).send().await?.error_for_status()?)
    }

    /// The events of a session, from its start.
    pub(crate) async fn events(&self, session: &str) -> anyhow::Result<SseReader> {
        Ok(SseReader::new(self.stream(session).await?.bytes_stream()))
    }

    /// Prompts, and reads until the turn has ended.
    pub(crate) async fn turn(
        &self,
        events: &mut SseReader,
        session: &str,
        prompt: &str,
    ) -> anyhow::Result<Turn> {
        timed::turn(self.prompt(session, prompt), async || seen(&next(events).await?)).await
    }
}

/// The next event, within a bound.
pub(crate) async fn next(events: &mut SseReader) -> anyhow::Result<SseEvent> {
    let event = timeout(BOUND, events.next()).await.context("no event in time")?;
    Ok(event.context("the stream ended")??)
}

/// Whether it is text of the agent.
pub(crate) fn is_delta(event: &SseEvent) -> bool {
    event.event.as_deref() == Some("agent_message_chunk")
}

/// Whether it is the end of a turn; an error when the turn did not succeed.
pub(crate) fn is_end(event: &SseEvent) -> anyhow::Result<bool> {
    let ended = event.event.as_deref() == Some("turn_ended");
    ensure!(!ended || event.data.contains(r#""state":"succeeded""#), "the turn failed: {}", event.data);
    Ok(ended)
}

fn seen(event: &SseEvent) -> anyhow::Result<Seen> {
    let ended = is_end(event)?;
    Ok(match is_delta(event) {
        true => Seen::Delta,
        false if ended => Seen::End,
        false => Seen::Other,
    })
}
