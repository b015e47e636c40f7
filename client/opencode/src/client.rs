//! Typed client of `opencode serve`, directly or through a door. IO.
//!
//! Each call is bounded in time and in bytes and takes JSON only: opencode answers an unknown path with 200 and a web
//! page. `directory` goes along with every call that takes one, since opencode keeps sessions, events, permissions
//! and questions per directory. Reads are tried again, shortly, when no answer came; calls that change something
//! never are: that is the caller's decision.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use backon::{ExponentialBuilder, Retryable};
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use reqwest::{
    Method, StatusCode, Url,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue},
};
use secrecy::{ExposeSecret, SecretString};
use serde::de::DeserializeOwned;
use serde_json::Value;
use uuid::Uuid;

use berth_wire::{
    admission::{EPOCH_HEADER, FENCE_HEADER, KEY_HEADER},
    problem::{PROBLEM_JSON, Problem, ProblemType},
};

use crate::error::ClientError;

mod calls;
mod catalog;
mod fence;
mod files;
mod messages;
mod prompt;
mod proof;
mod protocol;
mod session;
mod stream;
mod subscription;

pub use calls::PermissionReply;
pub use catalog::{AgentDetails, ModelDetails};
pub use fence::FenceHolder;
pub use files::FileStream;
pub use messages::MessagePage;
pub use prompt::{Prompt, PromptContent, PromptPart};
pub use proof::DoorProof;
pub use protocol::Protocol;
pub use session::{Ensured, EnsuredHow, NewSession, SessionPatch};
pub use stream::{EventStream, StreamItem};
pub use subscription::{Subscription, SubscriptionCounts, SubscriptionItem};

/// Bound on words of the other side in an error, in characters.
const MAX_WORDS: usize = 600;
/// Bound on one answer, in bytes.
const MAX_BODY: usize = 64 * 1024 * 1024;

/// Where opencode is, and how long to wait for it.
#[derive(Clone)]
pub struct ClientConfig {
    /// Such as `http://127.0.0.1:4096`: a door, or opencode itself. Without a user or password.
    pub base_url: String,
    /// Password of user `opencode`.
    pub password: SecretString,
    /// Bound on making a connection.
    pub connect_timeout: Duration,
    /// Bound on one call, its answer included.
    pub request_timeout: Duration,
    /// Bound on the beginning of an answer that is a stream of all events: nothing boots for it. opencode holds requests
    /// for ever that arrive while it starts, so a subscription must not wait long.
    /// Never longer than `request_timeout`.
    pub stream_timeout: Duration,
    /// Bound on the time between two events of the stream. opencode sends a heartbeat each 10 s.
    pub idle_timeout: Duration,
    /// Let the door prove that it knows the password before it is sent; what cannot is [`ClientError::PortTaken`].
    /// opencode itself cannot. The proof is asked for on each new connection, within `connect_timeout`.
    pub prove: bool,
    /// The pod whose door this must be, by UID; looked at when it proves itself.
    pub pod_uid: Option<String>,
}

impl ClientConfig {
    /// With 5 s to connect, 60 s for a call (the first one in a directory boots it), 5 s for a stream to begin and 30 s
    /// between events.
    pub fn new(base_url: impl Into<String>, password: SecretString) -> Self {
        Self {
            base_url: base_url.into(),
            password,
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_mins(1),
            stream_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(30),
            prove: false,
            pod_uid: None,
        }
    }
}

impl fmt::Debug for ClientConfig {
    /// Without the address, which may hold a password before it is checked.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientConfig")
            .field("connect_timeout", &self.connect_timeout)
            .field("request_timeout", &self.request_timeout)
            .field("stream_timeout", &self.stream_timeout)
            .field("idle_timeout", &self.idle_timeout)
            .finish_non_exhaustive()
    }
}

/// What answers, and in which version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// Version of opencode.
    pub version: String,
}

/// A client; clones share their connections.
#[derive(Clone)]
pub struct OpencodeClient {
    http: reqwest::Client,
    base: Url,
    request_timeout: Duration,
    stream_timeout: Duration,
    idle_timeout: Duration,
    authorization: HeaderValue,
    /// The trace that its calls belong to, for the header `traceparent`.
    trace: Option<HeaderValue>,
    /// Of an owner's client.
    fence: Option<Arc<fence::Fence>>,
    /// What speaks at the other end, once that was asked. May change when opencode is exchanged.
    protocol: Arc<Mutex<Option<Protocol>>>,
}

impl fmt::Debug for OpencodeClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpencodeClient").field("base", &self.base.as_str()).finish_non_exhaustive()
    }
}

/// One call, before it is sent.
struct Call<'a> {
    method: Method,
    path: &'a [&'a str],
    query: Vec<(&'static str, String)>,
    body: Option<Value>,
    /// Names what it makes, or looks for: a door lets no two of them go on at once.
    key: Option<Uuid>,
}

impl<'a> Call<'a> {
    fn new(method: Method, path: &'a [&'a str]) -> Self {
        Self { method, path, query: Vec::new(), body: None, key: None }
    }

    fn get(path: &'a [&'a str]) -> Self {
        Self::new(Method::GET, path)
    }

    fn post(path: &'a [&'a str], body: Value) -> Self {
        Self { body: Some(body), ..Self::new(Method::POST, path) }
    }

    fn directory(self, directory: &str) -> Self {
        self.query("directory", directory)
    }

    fn keyed(self, key: Uuid) -> Self {
        Self { key: Some(key), ..self }
    }

    fn query(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.query.push((name, value.into()));
        self
    }
}

impl OpencodeClient {
    /// Prepares a client; makes no connection yet.
    pub fn new(config: ClientConfig) -> Result<Self, ClientError> {
        let ClientConfig {
            base_url,
            password,
            connect_timeout,
            request_timeout,
            stream_timeout,
            idle_timeout,
            prove,
            pod_uid,
        } = config;
        let base = base_of(&base_url)?;
        let authorization = basic(&password);
        let mut http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(connect_timeout);
        if prove {
            http = http.connector_layer(proof::Prover::new(&base, password, pod_uid)?);
        }
        let http = http.build().map_err(ClientError::Unreachable)?;
        Ok(Self {
            http,
            base,
            request_timeout,
            stream_timeout: stream_timeout.min(request_timeout),
            idle_timeout,
            authorization,
            trace: None,
            fence: None,
            protocol: Arc::default(),
        })
    }

    /// The same client, whose calls say that they belong to a trace (W3C `traceparent`). What is no header value is left
    /// out.
    #[must_use]
    pub fn traced(mut self, traceparent: &str) -> Self {
        self.trace = HeaderValue::try_from(traceparent).ok();
        self
    }

    /// Prepares a client, and asks what answers: see [`Self::health`].
    pub async fn connect(config: ClientConfig) -> Result<(Self, Health), ClientError> {
        let client = Self::new(config)?;
        let health = client.health().await?;
        Ok((client, health))
    }

    /// Asks what answers and checks that it is an opencode of a known line; later calls of this client and its clones
    /// take the forms that it understands. Ask again when opencode may have been exchanged.
    pub async fn health(&self) -> Result<Health, ClientError> {
        let answer = self.read(Call::get(&["global", "health"])).await;
        let (protocol, health) = Protocol::of_health(answer)?;
        *self.protocol.lock().unwrap_or_else(PoisonError::into_inner) = Some(protocol);
        Ok(health)
    }

    /// What speaks at the other end, once that was asked.
    pub fn protocol(&self) -> Option<Protocol> {
        *self.protocol.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where nobody asked, the newest is assumed.
    fn denies_unknown_requests(&self) -> bool {
        self.protocol().is_none_or(Protocol::denies_unknown_requests)
    }

    /// Sends a call that reads, again when no answer came, and reads its JSON.
    async fn read<T: DeserializeOwned>(&self, call: Call<'_>) -> Result<T, ClientError> {
        parse_json(&self.read_answer(&call).await?)
    }

    async fn read_answer(&self, call: &Call<'_>) -> Result<Answer, ClientError> {
        let policy = ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(100))
            .with_max_delay(Duration::from_secs(1))
            .with_max_times(2);
        let attempt = || self.send(call);
        let retry =
            |error: &ClientError| error.is_transient() && !matches!(error, ClientError::Timeout { .. });
        attempt.retry(policy).when(retry).await
    }

    /// Sends a call that changes something, once, and reads its JSON.
    async fn write<T: DeserializeOwned>(&self, call: Call<'_>) -> Result<T, ClientError> {
        parse_json(&self.send(&call).await?)
    }

    /// Sends a call once, under the fence where it changes something; the whole answer of a success.
    async fn send(&self, call: &Call<'_>) -> Result<Answer, ClientError> {
        match self.fence.as_deref().filter(|_| call.method != Method::GET) {
            Some(fence) => self.send_fenced(fence, call).await,
            None => self.exchange(call, None).await,
        }
    }

    async fn exchange(&self, call: &Call<'_>, stamp: Option<&fence::Stamp>) -> Result<Answer, ClientError> {
        let limit = self.request_timeout;
        let whole = async {
            let mut request = self.request(call)?;
            if let Some(stamp) = stamp {
                request = request.header(EPOCH_HEADER, &stamp.epoch).header(FENCE_HEADER, stamp.fence);
            }
            Answer::read(request.send().await.map_err(transport)?).await
        };
        let answer =
            tokio::time::timeout(limit, whole).await.map_err(|_| ClientError::Timeout { limit })??;
        if answer.status.is_success() { Ok(answer) } else { Err(answer.into_error()) }
    }

    fn request(&self, call: &Call<'_>) -> Result<reqwest::RequestBuilder, ClientError> {
        let mut url = self.base.clone();
        for segment in call.path {
            // A segment of dots would climb, an empty one would name another route.
            if segment.is_empty() || *segment == "." || *segment == ".." {
                return Err(ClientError::InvalidRequest(format!("not a path segment: {segment:?}")));
            }
        }
        url.path_segments_mut()
            .map_err(|()| ClientError::InvalidRequest("the base URL has no path".to_owned()))?
            .pop_if_empty()
            .extend(call.path);
        let request = self.http.request(call.method.clone(), url).query(&call.query);
        let mut request = request.header(AUTHORIZATION, self.authorization.clone());
        if let Some(trace) = &self.trace {
            request = request.header("traceparent", trace.clone());
        }
        if let Some(key) = call.key {
            request = request.header(KEY_HEADER, key.to_string());
        }
        Ok(match &call.body {
            Some(body) => request.json(body),
            None => request,
        })
    }
}

/// The address, which errors do not repeat: a password may be in it.
fn base_of(url: &str) -> Result<Url, ClientError> {
    let refused = |why: &str| ClientError::InvalidRequest(why.to_owned());
    let base = Url::parse(url).map_err(|error| refused(&format!("the base URL is none: {error}")))?;
    if !matches!(base.scheme(), "http" | "https") {
        return Err(refused("the base URL is not one of http or https"));
    }
    if !base.username().is_empty() || base.password().is_some() {
        return Err(refused("the base URL holds a user or password, which are given apart from it"));
    }
    Ok(base)
}

fn basic(password: &SecretString) -> HeaderValue {
    let credentials = STANDARD.encode(format!("opencode:{}", password.expose_secret()));
    let mut value = HeaderValue::try_from(format!("Basic {credentials}")).expect("base64 is visible ASCII");
    value.set_sensitive(true);
    value
}

/// Maps a failure below HTTP; the URL goes, since it names directories.
fn transport(error: reqwest::Error) -> ClientError {
    if proof::ProofError::caused(&error) {
        return ClientError::PortTaken;
    }
    ClientError::Unreachable(error.without_url())
}

/// A whole answer.
struct Answer {
    status: StatusCode,
    content_type: String,
    /// Where the page before this one is found.
    next_cursor: Option<String>,
    body: Bytes,
}

impl Answer {
    async fn read(mut response: reqwest::Response) -> Result<Self, ClientError> {
        let status = response.status();
        let content_type = content_type(&response);
        let next_cursor = header(&response, "x-next-cursor").filter(|cursor| !cursor.is_empty());
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(transport)? {
            if body.len() + chunk.len() > MAX_BODY {
                return Err(ClientError::BodyTooLarge { limit: MAX_BODY });
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Self { status, content_type, next_cursor, body: Bytes::from(body) })
    }

    /// What an answer that is no success says.
    fn into_error(self) -> ClientError {
        let status = self.status.as_u16();
        if self.content_type == PROBLEM_JSON
            && let Ok(problem) = serde_json::from_slice::<Problem>(&self.body)
        {
            return match problem.problem_type() {
                _ if status == 401 => ClientError::Unauthorized,
                Some(ProblemType::StaleFence) => ClientError::StaleFence,
                Some(ProblemType::StaleEpoch) => ClientError::StaleEpoch,
                Some(ProblemType::Gated) => ClientError::Gated(Box::new(problem)),
                _ => ClientError::Refused(Box::new(problem)),
            };
        }
        if status == 401 {
            return ClientError::Unauthorized;
        }
        let json: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let text = |value: &Value| shortened(value.as_str().unwrap_or_default());
        let name = if json["name"].is_string() { text(&json["name"]) } else { text(&json["_tag"]) };
        let message = if name.starts_with("Config") {
            shortened(&configuration_fault(&json["data"]))
        } else if json["data"]["message"].is_string() {
            text(&json["data"]["message"])
        } else {
            text(&json["message"])
        };
        if status == 404 && name.ends_with("NotFoundError") {
            return ClientError::NotFound { message };
        }
        ClientError::Status { status, name, message }
    }
}

/// Which file, and what is wrong with it. opencode's own words hold the whole file, and with it what is secret there.
fn configuration_fault(data: &Value) -> String {
    let path = data["path"].as_str().unwrap_or("a configuration file");
    let words = data["message"].as_str().unwrap_or_default();
    let mut faults: Vec<String> = match words.rsplit_once("--- Errors ---") {
        Some((_, listed)) => listed.lines().filter(|line| is_place(line)).map(str::to_owned).collect(),
        None if words.contains("---") => Vec::new(),
        // Beneath its words a parser shows lines of the file.
        None => words.trim().lines().take(1).map(str::to_owned).collect(),
    };
    let issues = data["issues"].as_array().map(Vec::as_slice).unwrap_or_default();
    faults.extend(issues.iter().map(|issue| {
        let keys = issue["path"].as_array().map(Vec::as_slice).unwrap_or_default();
        let keys: Vec<String> =
            keys.iter().map(|key| key.as_str().map_or_else(|| key.to_string(), str::to_owned)).collect();
        format!("{}: not a value that opencode takes", keys.join("."))
    }));
    faults.retain(|fault| !fault.is_empty());
    faults.dedup();
    if faults.is_empty() { path.to_owned() } else { format!("{path}: {}", faults.join("; ")) }
}

/// Whether a line says what is wrong and where, as in `CommaExpected at line 3, column 9`, and nothing else.
fn is_place(line: &str) -> bool {
    let place = || {
        let (fault, at) = line.split_once(" at line ")?;
        let (row, column) = at.split_once(", column ")?;
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let named = !fault.is_empty() && fault.bytes().all(|byte| byte.is_ascii_alphabetic());
        Some(named && is_number(row) && is_number(column))
    };
    place().unwrap_or(false)
}

fn content_type(response: &reqwest::Response) -> String {
    let value = header(response, CONTENT_TYPE.as_str()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

fn header(response: &reqwest::Response, name: &str) -> Option<String> {
    Some(response.headers().get(name)?.to_str().ok()?.to_owned())
}

fn parse_json<T: DeserializeOwned>(answer: &Answer) -> Result<T, ClientError> {
    if answer.content_type != "application/json" {
        let kind = if answer.content_type.is_empty() { "nothing" } else { &answer.content_type };
        return Err(ClientError::UnexpectedBody { seen: format!("{kind} instead of JSON") });
    }
    serde_json::from_slice(&answer.body).map_err(|error| ClientError::UnexpectedBody {
        seen: format!("JSON of another shape ({})", shortened(&error.to_string())),
    })
}

/// The beginning of words that may be as long as an answer.
fn shortened(words: &str) -> String {
    let mut chars = words.chars();
    let mut short: String = chars.by_ref().take(MAX_WORDS).collect();
    if chars.next().is_some() {
        short.push('…');
    }
    short
}

/// Asks for an event stream.
fn accept_events() -> (reqwest::header::HeaderName, HeaderValue) {
    (ACCEPT, HeaderValue::from_static("text/event-stream"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// As opencode 1.18.33 answers.
    #[test]
    fn a_broken_configuration_is_named_without_what_it_holds() {
        let broken = json!({
            "path": "/workspace/opencode.json",
            "message": "\n--- JSONC Input ---\n{\"apiKey\": \"sk-1\",\n\n--- Errors ---\nCloseBraceExpected at line 2, \
                        column 1\nCloseBraceExpected at line 2, column 1\n--- End ---",
        });
        let words = "/workspace/opencode.json: CloseBraceExpected at line 2, column 1";
        assert_eq!(configuration_fault(&broken), words);
        let issues = json!([{ "path": ["permission", "bash"], "message": "Expected object, got sk-1" }]);
        let invalid = json!({ "path": "/workspace/opencode.json", "issues": issues });
        let words = "/workspace/opencode.json: permission.bash: not a value that opencode takes";
        assert_eq!(configuration_fault(&invalid), words);
        assert_eq!(configuration_fault(&Value::Null), "a configuration file");
    }

    /// opencode 1.18.33 shows the line of each fault beneath it; a file may hold what looks like opencode's own marks, and
    /// a parser of another format shows lines of its own.
    #[test]
    fn no_line_of_a_broken_configuration_is_told() {
        let listed =
            "CommaExpected at line 3, column 9\n   Line 3:   \"apiKey\" \"sk-1\"\n                  ^";
        let told = [
            format!("\n--- JSONC Input ---\n{{\n \"apiKey\" \"sk-1\"\n--- Errors ---\n{listed}\n--- End ---"),
            format!(
                "\n--- JSONC Input ---\n--- Errors ---\nsk-1 at line 1\n--- Errors ---\n{listed}\n--- End ---"
            ),
            "bad indentation at line 2, column 3:\n  apiKey: sk-1\n  ^".to_owned(),
        ];
        for message in told {
            let fault =
                configuration_fault(&json!({ "path": "/workspace/opencode.json", "message": message }));
            assert!(!fault.contains("sk-1"), "{fault}");
            assert!(fault.contains(" at line "), "{fault}");
        }
    }
}
