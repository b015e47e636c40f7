//! The API on a real store, without any sandbox.

use std::{path::Path, sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Method, Request, StatusCode},
    response::Response,
    routing::get,
};
use berth_wire::{
    api::{Page, Session, Turn},
    problem::{Problem, ProblemType},
    turn::TurnErrorReason,
};
use http_body_util::BodyExt;
use secrecy::SecretString;
use serde::de::DeserializeOwned;
use serde_json::json;
use sqlx::{Connection, SqliteConnection, sqlite::SqliteConnectOptions};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;
use uuid::Uuid;

use super::{guarded, router};
use crate::{
    app::App,
    config::Limits,
    directory::{SandboxAddress, StaticDirectory},
    metrics::Metrics,
    store::{NewSession, SandboxKey, Sharing, SqliteStore, Store, small_disk::SmallDisk},
};

mod hostile;
mod lists;

const BOUND: Duration = Duration::from_secs(10);

struct Api {
    store: Arc<dyn Store>,
    router: Router,
    #[expect(dead_code, reason = "it is there until this is dropped")]
    folder: Option<TempDir>,
}

impl Api {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let api = Self::on(folder.path()).await;
        Self { folder: Some(folder), ..api }
    }

    /// With its database in this folder.
    async fn on(folder: &Path) -> Self {
        let store: Arc<dyn Store> =
            Arc::new(SqliteStore::open(&folder.join("berth.db"), Sharing::Alone).await.unwrap());
        let away = SandboxAddress {
            namespace: "local".to_owned(),
            name: "default".to_owned(),
            directory: "/work".to_owned(),
            aliases: Vec::new(),
            door_url: "http://127.0.0.1:1".to_owned(),
            door_password: SecretString::from("password"),
            pod_uid: None,
        };
        let directory = Arc::new(StaticDirectory(vec![away]));
        let app = App::new(
            Arc::clone(&store),
            directory,
            Limits::default(),
            CancellationToken::new(),
            Metrics::default(),
        );
        let router = router(&Arc::new(app), SecretString::from("token"));
        Self { store, router, folder: None }
    }

    async fn session(&self) -> Uuid {
        let sandbox = SandboxKey { namespace: "local".to_owned(), name: "default".to_owned() };
        let new = NewSession { id: Uuid::now_v7(), sandbox, directory: "/work".to_owned(), title: None };
        self.store.create_session(new).await.unwrap().id
    }

    async fn send(&self, method: Method, path: &str, body: String) -> Response {
        let request = request(method, path).header("content-type", "application/json");
        self.router.clone().oneshot(request.body(Body::from(body)).unwrap()).await.unwrap()
    }
}

fn request(method: Method, path: &str) -> axum::http::request::Builder {
    let request = Request::builder().method(method).uri(path);
    request.header("host", "localhost").header("authorization", "Bearer token")
}

async fn problem(response: Response) -> Problem {
    json(response).await
}

async fn json<T: DeserializeOwned>(response: Response) -> T {
    serde_json::from_slice(&to_bytes(response.into_body(), usize::MAX).await.unwrap()).unwrap()
}

#[tokio::test]
async fn a_panic_is_an_internal_problem_with_a_request_id() {
    async fn breaks() -> &'static str {
        panic!("a secret")
    }
    let router = guarded(Router::new().route("/", get(breaks)), Metrics::default());
    let request = request(Method::GET, "/").body(Body::empty()).unwrap();
    let response = router.oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let problem = problem(response).await;
    assert_eq!(problem.problem_type(), Some(ProblemType::Internal));
    assert!(problem.extensions.contains_key("request_id") && !problem.detail.contains("secret"));
}

#[tokio::test]
async fn on_a_full_disk_callers_are_told_what_to_do_and_reads_go_on() {
    is_told(SmallDisk::mount(), SmallDisk::fill, SmallDisk::clear, "free some space").await;
}

#[tokio::test]
async fn on_a_disk_that_turned_read_only_callers_are_told_what_to_do_and_reads_go_on() {
    is_told(SmallDisk::folder(), SmallDisk::freeze, SmallDisk::thaw, "written").await;
}

async fn is_told(disk: SmallDisk, spoil: fn(&SmallDisk), mend: fn(&SmallDisk), advice: &str) {
    let api = Api::on(disk.path()).await;
    let path = format!("/v1/sessions/{}", api.session().await);
    let messages = format!("{path}/messages");
    let body = json!({ "parts": [{ "type": "text", "text": "x".repeat(64 * 1024) }] }).to_string();
    spoil(&disk);
    for _ in 0..2 {
        let refused = problem(api.send(Method::POST, &messages, body.clone()).await).await;
        assert_eq!(refused.problem_type(), Some(ProblemType::StorageUnavailable));
        assert!(refused.detail.contains(advice) && !refused.detail.contains("berth.db"), "{refused:?}");
    }
    assert_eq!(api.send(Method::GET, &path, String::new()).await.status(), StatusCode::OK);
    mend(&disk);
    assert_eq!(api.send(Method::POST, &messages, body).await.status(), StatusCode::ACCEPTED);
    let session: Session = json(api.send(Method::GET, &path, String::new()).await).await;
    assert_eq!((session.last_seq, session.open_turns.len()), (1, 1), "what was refused left nothing");
    api.store.close().await;
}

#[tokio::test]
async fn what_is_stored_and_not_understood_is_told_as_that() {
    let folder = tempfile::tempdir().unwrap();
    let api = Api::on(folder.path()).await;
    let session = format!("/v1/sessions/{}", api.session().await);
    let body = json!({ "parts": [{ "type": "text", "text": "x" }] }).to_string();
    let turn: Turn = json(api.send(Method::POST, &format!("{session}/messages"), body).await).await;
    let options = SqliteConnectOptions::new().filename(folder.path().join("berth.db"));
    let mut rows = SqliteConnection::connect_with(&options).await.unwrap();
    sqlx::query("UPDATE turn SET prompt = '{', state = 'failed'").execute(&mut rows).await.unwrap();
    rows.close().await.unwrap();
    for (method, path) in [(Method::GET, ""), (Method::POST, "/retry")] {
        let response = api.send(method, &format!("/v1/turns/{}{path}", turn.id), String::new()).await;
        let refused = problem(response).await;
        assert_eq!(refused.problem_type(), Some(ProblemType::StateUnreadable), "{path}");
        assert!(refused.detail.contains("restore a backup"), "{refused}");
    }
    let page: Page<Turn> =
        json(api.send(Method::GET, &format!("{session}/turns"), String::new()).await).await;
    let error = page.items[0].error.as_ref().unwrap();
    assert_eq!((page.items[0].id, error.reason), (turn.id, TurnErrorReason::StateUnreadable));
    for path in ["", "/messages", "/events?after=0"] {
        let response = api.send(Method::GET, &format!("{session}{path}"), String::new()).await;
        assert_eq!(response.status(), StatusCode::OK, "{path}");
    }
}

#[tokio::test]
async fn a_prompt_is_queued_with_the_trace_that_it_came_in() {
    let api = Api::new().await;
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let path = format!("/v1/sessions/{}/messages", api.session().await);
    let body = json!({ "parts": [{ "type": "text", "text": "x" }] }).to_string();
    let request = request(Method::POST, &path)
        .header("content-type", "application/json")
        .header("traceparent", format!("00-{trace}-00f067aa0ba902b7-01"));
    let response = api.router.clone().oneshot(request.body(Body::from(body)).unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::ACCEPTED);
    let sandbox = SandboxKey { namespace: "local".to_owned(), name: "default".to_owned() };
    let queued = api.store.load_work(&sandbox).await.unwrap().remove(0).queued.unwrap();
    let traceparent = queued.options.traceparent.unwrap();
    assert!(
        traceparent.starts_with(&format!("00-{trace}-")) && traceparent.ends_with("-01"),
        "{traceparent}"
    );
    assert!(!traceparent.contains("00f067aa0ba902b7"), "its parent is our request: {traceparent}");
}

#[tokio::test]
async fn the_parts_of_a_prompt_are_bounded() {
    let api = Api::new().await;
    let path = format!("/v1/sessions/{}/messages", api.session().await);
    let body = |count: usize| json!({ "parts": vec![json!({ "type": "text", "text": "x" }); count] });
    let refused = problem(api.send(Method::POST, &path, body(65).to_string()).await).await;
    assert_eq!(refused.problem_type(), Some(ProblemType::Invalid));
    assert!(refused.detail.contains("64"), "{refused}");
    let taken = api.send(Method::POST, &path, body(64).to_string()).await;
    assert_eq!(taken.status(), StatusCode::ACCEPTED);
}

#[tokio::test]
async fn a_stream_of_events_ends_with_its_session() {
    let api = Api::new().await;
    let session = api.session().await;
    let path = format!("/v1/sessions/{session}");
    let mut stream = api.send(Method::GET, &format!("{path}/events"), String::new()).await.into_body();
    let ended = async {
        let (frame, _) = tokio::join!(stream.frame(), api.send(Method::DELETE, &path, String::new()));
        frame.is_none()
    };
    assert!(tokio::time::timeout(BOUND, ended).await.expect("it ends before the next keepalive"));
}

#[tokio::test]
async fn a_server_is_ready_while_its_store_answers() {
    let api = Api::new().await;
    for path in ["/readyz", "/healthz"] {
        assert_eq!(api.send(Method::GET, path, String::new()).await.status(), StatusCode::OK, "{path}");
    }
    api.store.close().await;
    let response = api.send(Method::GET, "/readyz", String::new()).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(problem(response).await.problem_type(), Some(ProblemType::StorageUnavailable));
    assert_eq!(api.send(Method::GET, "/healthz", String::new()).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn what_an_agent_would_not_be_told_is_refused() {
    let api = Api::new().await;
    let path = format!("/v1/sessions/{}/permissions/per_1", api.session().await);
    for (decision, field) in [("once", Some("message")), ("always", Some("message")), ("reject", None)] {
        let body = json!({ "decision": decision, "message": "use git mv" });
        let response = api.send(Method::POST, &path, body.to_string()).await;
        let kind = if field.is_some() { ProblemType::Invalid } else { ProblemType::NotFound };
        let refused = problem(response).await;
        assert_eq!(refused.problem_type(), Some(kind), "{decision}: {refused}");
        assert_eq!(serde_json::to_value(&refused).unwrap()["field"].as_str(), field, "{decision}");
    }
}
