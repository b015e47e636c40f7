//! A client of opencode, directly or through the door: the same code for both. IO.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, ensure};
use berth_wire::sse::SseReader;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::timed::{self, Seen, Turn};

/// Longest wait for an event of a turn.
const EVENT_BOUND: Duration = Duration::from_mins(1);

/// After a subscription, until its stream misses nothing: opencode may lose events right after its first one.
const SETTLE: Duration = Duration::from_millis(200);

/// A way to opencode.
#[derive(Debug, Clone)]
pub(crate) struct Way {
    address: SocketAddr,
    password: String,
    client: reqwest::Client,
}

impl Way {
    /// A way with connections that are kept.
    pub(crate) fn new(address: SocketAddr, password: &str) -> anyhow::Result<Self> {
        let client = reqwest::Client::builder().connect_timeout(Duration::from_secs(5)).no_proxy();
        Ok(Self { address, password: password.to_owned(), client: client.build()? })
    }

    /// A GET.
    pub(crate) fn get(&self, path: &str) -> reqwest::RequestBuilder {
        let url = format!("http://{}{path}", self.address);
        self.client.get(url).basic_auth("opencode", Some(&self.password))
    }

    fn post(&self, path: &str, body: &Value) -> reqwest::RequestBuilder {
        let url = format!("http://{}{path}", self.address);
        self.client.post(url).basic_auth("opencode", Some(&self.password)).json(body)
    }

    /// A GET of JSON.
    pub(crate) async fn json(&self, path: &str) -> anyhow::Result<Value> {
        let answer = self.get(path).timeout(EVENT_BOUND).send().await?.error_for_status()?;
        Ok(answer.json().await?)
    }

    /// A new session. It has a title, so opencode asks no model for one.
    pub(crate) async fn session(&self) -> anyhow::Result<String> {
        let answer = self.post("/session", &json!({ "title": "a benchmark" })).timeout(EVENT_BOUND);
        let session: Value = answer.send().await?.error_for_status()?.json().await?;
        session["id"].as_str().map(ToOwned::to_owned).context("a session without an id")
    }

    /// Subscribes to all events.
    pub(crate) async fn subscribe(&self) -> anyhow::Result<SseReader> {
        self.subscribe_to("/global/event").await
    }

    /// Subscribes to one of opencode's streams.
    pub(crate) async fn subscribe_to(&self, path: &str) -> anyhow::Result<SseReader> {
        let answer = self.get(path).send().await?.error_for_status()?;
        let mut events = SseReader::new(answer.bytes_stream());
        next(&mut events).await.context("no first event")?;
        sleep(SETTLE).await;
        Ok(events)
    }

    /// Prompts, and reads until the session is idle again.
    pub(crate) async fn turn(
        &self,
        events: &mut SseReader,
        session: &str,
        prompt: &str,
    ) -> anyhow::Result<Turn> {
        let body = json!({ "parts": [{ "type": "text", "text": prompt }] });
        let request = self.post(&format!("/session/{session}/prompt_async"), &body).timeout(EVENT_BOUND);
        let sent = async { Ok(request.send().await?.error_for_status().map(drop)?) };
        timed::turn(sent, async || seen(&next(events).await?, session)).await
    }
}

/// The next event's data, within a bound.
pub(crate) async fn next(events: &mut SseReader) -> anyhow::Result<String> {
    let event = timeout(EVENT_BOUND, events.next()).await.context("no event in time")?;
    Ok(event.context("the stream ended")??.data)
}

/// What an event's data says of the session's turn; an error when that failed.
fn seen(data: &str, session: &str) -> anyhow::Result<Seen> {
    if !data.contains(session) {
        return Ok(Seen::Other);
    }
    ensure!(!data.contains(r#""type":"session.error""#), "the turn failed: {data}");
    Ok(if data.contains(r#""type":"message.part.delta""#) {
        Seen::Delta
    } else if data.contains(r#""type":"session.idle""#) {
        Seen::End
    } else {
        Seen::Other
    })
}
