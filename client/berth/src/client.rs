//! One method per route of the server's API. Does IO.

use std::{sync::Arc, time::Duration};

use backon::{ExponentialBuilder, Retryable};
use berth_wire::{
    api::{
        AgentInfo, CancelRequest, CancelResponse, CreateSession, HistoryTurn, IDEMPOTENCY_KEY, LIST_MAX,
        ListQuery, ModelInfo, Page, PermissionAnswer, PostMessage, QuestionAnswer, RenameSession, Sandbox,
        Session, SessionFilter, Turn,
    },
    problem::Problem,
};
use reqwest::{Method, RequestBuilder, Response, Url, header};
use secrecy::{ExposeSecret, SecretString};
use serde::{Serialize, de::DeserializeOwned};
use uuid::Uuid;

use crate::{ClientError, EventStream};

mod files;

pub use files::FileContent;

/// Bound on making a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Bound on a whole call, event streams excepted.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Bound on silence: three of the server's keepalives, which it sends each 15 s.
const READ_TIMEOUT: Duration = Duration::from_secs(45);
/// Largest answer that is read, event streams excepted; a long session's whole history fits.
const ANSWER_LIMIT: usize = 256 * 1024 * 1024;
/// How much of an answer that is not understood is shown.
const EXCERPT_LIMIT: usize = 200;

/// How often, and how fast, what is safe to repeat is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Attempts after the first, in a row.
    pub retries: usize,
    /// Wait before the first retry; it doubles, with jitter on top.
    pub first_delay: Duration,
    /// Bound on the wait before jitter.
    pub longest_delay: Duration,
    /// Bound on all waits in a row together; the attempts' own time comes on top.
    pub limit: Option<Duration>,
}

impl Default for RetryPolicy {
    /// Ten retries over 15 to 30 s: longer than a server's restart takes.
    fn default() -> Self {
        let (first_delay, longest_delay) = (Duration::from_millis(100), Duration::from_secs(3));
        Self { retries: 10, first_delay, longest_delay, limit: None }
    }
}

impl RetryPolicy {
    /// For as long as this, counted anew whenever an attempt succeeds.
    pub fn lasting(limit: Duration) -> Self {
        Self { retries: usize::MAX, limit: Some(limit), ..Self::default() }
    }

    pub(crate) fn builder(self) -> ExponentialBuilder {
        ExponentialBuilder::new()
            .with_min_delay(self.first_delay)
            .with_max_delay(self.longest_delay)
            .with_max_times(self.retries)
            .with_total_delay(self.limit)
            .with_jitter()
    }
}

/// Tells where the server is now, if it is known.
#[derive(Clone)]
struct Whereabouts(Arc<dyn Fn() -> Option<String> + Send + Sync>);

impl std::fmt::Debug for Whereabouts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Whereabouts")
    }
}

/// A connection pool to one Berth server. Cheap to clone.
#[derive(Debug, Clone)]
pub struct BerthClient {
    http: reqwest::Client,
    base: Arc<Url>,
    whereabouts: Option<Whereabouts>,
    token: SecretString,
    retry: RetryPolicy,
}

impl BerthClient {
    /// A client of the server at `base_url`, such as `http://127.0.0.1:7447`, which authenticates with `token`.
    /// Makes no connection yet.
    pub fn new(base_url: &str, token: SecretString) -> Result<Self, ClientError> {
        let invalid = || ClientError::InvalidUrl { url: base_url.to_owned() };
        let base = Url::parse(base_url).map_err(|_| invalid())?;
        if !is_http(&base) {
            return Err(invalid());
        }
        let mut builder =
            reqwest::Client::builder().connect_timeout(CONNECT_TIMEOUT).read_timeout(READ_TIMEOUT);
        if is_loopback(&base) {
            builder = builder.no_proxy();
        }
        let http = builder.build().map_err(ClientError::Setup)?;
        let (base, retry) = (Arc::new(base), RetryPolicy::default());
        Ok(Self { http, base, whereabouts: None, token, retry })
    }

    /// The same client with another retry policy.
    #[must_use]
    pub fn with_retry(mut self, retry: RetryPolicy) -> Self {
        self.retry = retry;
        self
    }

    /// The same client for a server that may come back at another address: `whereabouts` is asked before each
    /// connection attempt and must answer at once. Where it says nothing, or nothing usable, the first address holds.
    /// Everything that it names gets the token.
    #[must_use]
    pub fn following(mut self, whereabouts: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        self.whereabouts = Some(Whereabouts(Arc::new(whereabouts)));
        self
    }

    /// Base address of the server, as it was at first.
    pub fn base_url(&self) -> &str {
        self.base.as_str()
    }

    /// `GET /v1/sandboxes`: every sandbox that the caller may see.
    pub async fn list_sandboxes(&self) -> Result<Vec<Sandbox>, ClientError> {
        self.items(&["v1", "sandboxes"]).await
    }

    /// `GET /v1/sandboxes/{namespace}/{name}`
    pub async fn get_sandbox(&self, namespace: &str, name: &str) -> Result<Sandbox, ClientError> {
        self.json(self.call(Method::GET, &["v1", "sandboxes", namespace, name])).await
    }

    /// `POST /v1/sandboxes/{namespace}/{name}/sessions`. Not repeated: a second call makes a second session.
    pub async fn create_session(
        &self,
        namespace: &str,
        name: &str,
        body: &CreateSession,
    ) -> Result<Session, ClientError> {
        let path = ["v1", "sandboxes", namespace, name, "sessions"];
        self.json(self.call(Method::POST, &path).json(body)).await
    }

    /// `GET /v1/sandboxes/{namespace}/{name}/sessions`: one page, newest first.
    pub async fn session_page(
        &self,
        namespace: &str,
        name: &str,
        filter: &SessionFilter,
    ) -> Result<Page<Session>, ClientError> {
        self.page(&["v1", "sandboxes", namespace, name, "sessions"], filter).await
    }

    /// All of a sandbox's sessions that the filter lets through, newest first, page by page.
    pub async fn list_sessions(
        &self,
        namespace: &str,
        name: &str,
        filter: &SessionFilter,
    ) -> Result<Vec<Session>, ClientError> {
        let path = ["v1", "sandboxes", namespace, name, "sessions"];
        let page = |cursor| SessionFilter { cursor, limit: Some(LIST_MAX), ..filter.clone() };
        self.all_pages(&path, page).await
    }

    /// `GET /v1/sandboxes/{namespace}/{name}/models`: what the sandbox's opencode is configured with.
    pub async fn list_models(&self, namespace: &str, name: &str) -> Result<Vec<ModelInfo>, ClientError> {
        self.items(&["v1", "sandboxes", namespace, name, "models"]).await
    }

    /// `GET /v1/sandboxes/{namespace}/{name}/agents`: what the sandbox's opencode is configured with.
    pub async fn list_agents(&self, namespace: &str, name: &str) -> Result<Vec<AgentInfo>, ClientError> {
        self.items(&["v1", "sandboxes", namespace, name, "agents"]).await
    }

    /// `GET /v1/sessions/{id}`
    pub async fn get_session(&self, session: Uuid) -> Result<Session, ClientError> {
        self.json(self.call(Method::GET, &["v1", "sessions", &session.to_string()])).await
    }

    /// `PATCH /v1/sessions/{id}`: gives it a title of 1 to 200 characters.
    pub async fn rename_session(&self, session: Uuid, title: &str) -> Result<Session, ClientError> {
        let path = ["v1", "sessions", &session.to_string()];
        self.json(self.call(Method::PATCH, &path).json(&RenameSession { title: title.to_owned() })).await
    }

    /// `DELETE /v1/sessions/{id}`: aborts what runs in it and deletes it.
    pub async fn delete_session(&self, session: Uuid) -> Result<(), ClientError> {
        self.done(self.call(Method::DELETE, &["v1", "sessions", &session.to_string()])).await
    }

    /// `POST /v1/sessions/{id}/messages`: hands a prompt in and returns its turn, queued. When the connection
    /// fails it is sent again under the same key, so it is one turn however often it was sent.
    pub async fn post_message(
        &self,
        session: Uuid,
        body: &PostMessage,
        idempotency_key: &str,
    ) -> Result<Turn, ClientError> {
        let path = ["v1", "sessions", &session.to_string(), "messages"];
        let attempt =
            || self.json(self.call(Method::POST, &path).header(IDEMPOTENCY_KEY, idempotency_key).json(body));
        attempt.retry(self.retry.builder()).when(ClientError::is_transient).await
    }

    /// `GET /v1/sessions/{id}/messages`: one page of the assembled history, oldest turn first unless the query says
    /// otherwise.
    pub async fn history_page(
        &self,
        session: Uuid,
        query: &ListQuery,
    ) -> Result<Page<HistoryTurn>, ClientError> {
        self.page(&["v1", "sessions", &session.to_string(), "messages"], query).await
    }

    /// The whole assembled history, oldest turn first, page by page.
    pub async fn history(&self, session: Uuid) -> Result<Vec<HistoryTurn>, ClientError> {
        self.all_pages(&["v1", "sessions", &session.to_string(), "messages"], next_page).await
    }

    /// `GET /v1/sessions/{id}/turns`: one page, oldest first unless the query says otherwise.
    pub async fn turn_page(&self, session: Uuid, query: &ListQuery) -> Result<Page<Turn>, ClientError> {
        self.page(&["v1", "sessions", &session.to_string(), "turns"], query).await
    }

    /// All turns, oldest first, page by page.
    pub async fn list_turns(&self, session: Uuid) -> Result<Vec<Turn>, ClientError> {
        self.all_pages(&["v1", "sessions", &session.to_string(), "turns"], next_page).await
    }

    /// `GET /v1/turns/{id}`
    pub async fn get_turn(&self, turn: Uuid) -> Result<Turn, ClientError> {
        self.json(self.call(Method::GET, &["v1", "turns", &turn.to_string()])).await
    }

    /// `POST /v1/turns/{id}/retry`: queues the prompt of a turn that did not succeed once more, as a new turn; sent
    /// again under the same key when the connection fails.
    pub async fn retry_turn(&self, turn: Uuid, idempotency_key: &str) -> Result<Turn, ClientError> {
        let path = ["v1", "turns", &turn.to_string(), "retry"];
        let attempt = || self.json(self.call(Method::POST, &path).header(IDEMPOTENCY_KEY, idempotency_key));
        attempt.retry(self.retry.builder()).when(ClientError::is_transient).await
    }

    /// `POST /v1/sessions/{id}/cancel`; sent again when the connection fails.
    pub async fn cancel(&self, session: Uuid, body: CancelRequest) -> Result<CancelResponse, ClientError> {
        let path = ["v1", "sessions", &session.to_string(), "cancel"];
        let attempt = || self.json(self.call(Method::POST, &path).json(&body));
        attempt.retry(self.retry.builder()).when(ClientError::is_transient).await
    }

    /// `POST /v1/sessions/{id}/permissions/{pid}`; sent again when the connection fails, so that
    /// [`AlreadyResolved`](berth_wire::problem::ProblemType::AlreadyResolved) can mean this very answer.
    pub async fn answer_permission(
        &self,
        session: Uuid,
        permission_id: &str,
        answer: &PermissionAnswer,
    ) -> Result<(), ClientError> {
        let path = ["v1", "sessions", &session.to_string(), "permissions", permission_id];
        let attempt = || self.done(self.call(Method::POST, &path).json(answer));
        attempt.retry(self.retry.builder()).when(ClientError::is_transient).await
    }

    /// `POST /v1/sessions/{id}/questions/{qid}`; sent again like an answer to a permission request.
    pub async fn answer_question(
        &self,
        session: Uuid,
        question_id: &str,
        answer: &QuestionAnswer,
    ) -> Result<(), ClientError> {
        let path = ["v1", "sessions", &session.to_string(), "questions", question_id];
        let attempt = || self.done(self.call(Method::POST, &path).json(answer));
        attempt.retry(self.retry.builder()).when(ClientError::is_transient).await
    }

    /// `GET /v1/sessions/{id}/events`: the log after event `after` (0: from the start), then live, for ever.
    pub fn events(&self, session: Uuid, after: i64) -> EventStream {
        EventStream::new(self.clone(), self.retry, session, after)
    }

    /// Opens one connection to the event stream.
    pub(crate) async fn open_events(&self, session: Uuid, after: i64) -> Result<Response, ClientError> {
        let url = self.url(&["v1", "sessions", &session.to_string(), "events"]);
        let request = self
            .http
            .get(url)
            .bearer_auth(self.token.expose_secret())
            .header(header::ACCEPT, "text/event-stream")
            .header("last-event-id", after.to_string());
        self.accepted(request).await
    }

    /// Base address of the server now.
    fn base_now(&self) -> Url {
        let told = self.whereabouts.as_ref().and_then(|whereabouts| (whereabouts.0)());
        let told = told.and_then(|url| Url::parse(&url).ok());
        told.filter(is_http).unwrap_or_else(|| Url::clone(&self.base))
    }

    fn url(&self, path: &[&str]) -> Url {
        let mut url = self.base_now();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        url
    }

    fn call(&self, method: Method, path: &[&str]) -> RequestBuilder {
        self.http
            .request(method, self.url(path))
            .bearer_auth(self.token.expose_secret())
            .header(header::ACCEPT, "application/json")
            .timeout(CALL_TIMEOUT)
    }

    async fn items<T: DeserializeOwned>(&self, path: &[&str]) -> Result<Vec<T>, ClientError> {
        let page: Page<T> = self.json(self.call(Method::GET, path)).await?;
        Ok(page.items)
    }

    async fn page<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &impl Serialize,
    ) -> Result<Page<T>, ClientError> {
        self.json(self.call(Method::GET, path).query(query)).await
    }

    /// Every item of a list; the server ends it, since each page's cursor leads on.
    async fn all_pages<T: DeserializeOwned, Q: Serialize>(
        &self,
        path: &[&str],
        query: impl Fn(Option<String>) -> Q,
    ) -> Result<Vec<T>, ClientError> {
        let (mut items, mut cursor) = (Vec::new(), None);
        loop {
            let page: Page<T> = self.page(path, &query(cursor.take())).await?;
            items.extend(page.items);
            match page.next_cursor {
                Some(next) => cursor = Some(next),
                None => return Ok(items),
            }
        }
    }

    async fn json<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, ClientError> {
        let body = self.body(self.accepted(request).await?).await?;
        serde_json::from_slice(&body).map_err(|source| ClientError::Malformed { what: "answer", source })
    }

    async fn done(&self, request: RequestBuilder) -> Result<(), ClientError> {
        self.accepted(request).await.map(drop)
    }

    /// Sends the request; every status but a 2xx becomes an error.
    async fn accepted(&self, request: RequestBuilder) -> Result<Response, ClientError> {
        let response = request.send().await.map_err(|source| self.unreachable(source))?;
        let status = response.status().as_u16();
        if response.status().is_success() {
            return Ok(response);
        }
        let body = self.body(response).await?;
        Err(match serde_json::from_slice::<Problem>(&body) {
            Ok(problem) => ClientError::Problem(Box::new(problem)),
            Err(_) => ClientError::UnexpectedAnswer {
                url: self.base_url().to_owned(),
                status,
                excerpt: String::from_utf8_lossy(&body).chars().take(EXCERPT_LIMIT).collect(),
            },
        })
    }

    async fn body(&self, mut response: Response) -> Result<Vec<u8>, ClientError> {
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|source| self.unreachable(source))? {
            if body.len() + chunk.len() > ANSWER_LIMIT {
                return Err(ClientError::AnswerTooLarge { limit: ANSWER_LIMIT });
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    fn unreachable(&self, source: reqwest::Error) -> ClientError {
        ClientError::Unreachable { url: self.base_now().into(), source: source.without_url() }
    }
}

fn next_page(cursor: Option<String>) -> ListQuery {
    ListQuery { limit: Some(LIST_MAX), cursor, order: None }
}

fn is_http(url: &Url) -> bool {
    url.scheme() == "http" && url.host_str().is_some()
}

/// A proxy named in the environment must not see what is meant for this machine.
fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use backon::BackoffBuilder;

    use super::*;

    #[test]
    fn a_policy_lasts_as_long_as_it_says() {
        let longest_wait = RetryPolicy::default().longest_delay * 2;
        for limit in [Duration::ZERO, Duration::from_secs(4), Duration::from_mins(10)] {
            let waits: Duration = RetryPolicy::lasting(limit).builder().build().sum();
            assert!(waits <= limit && waits + longest_wait >= limit, "{waits:?} of {limit:?}");
        }
        let waits: Duration = RetryPolicy::default().builder().build().sum();
        assert!((Duration::from_secs(15)..Duration::from_secs(40)).contains(&waits), "{waits:?}");
    }
}
