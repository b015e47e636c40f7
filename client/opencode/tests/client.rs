//! The client against answers that a real opencode or door gives now and then: web pages, refusals, cut bodies, silence.

#![expect(clippy::unwrap_used, reason = "helpers of tests: a failure is a failed test")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Json, Router,
    body::Body,
    extract::{Query, State},
    http::{HeaderMap, StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use berth_opencode::{
    ClientConfig, ClientError, EnsuredHow, Event, NewSession, OpencodeClient, PermissionReply, Prompt,
    PromptPart, SessionPatch, model::SESSION_METADATA,
};
use berth_wire::problem::{PROBLEM_JSON, Problem, ProblemType};
use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    task::JoinSet,
};
use uuid::Uuid;

const PASSWORD: &str = "correct horse battery";

/// Something that answers, until it is dropped.
struct Peer {
    client: OpencodeClient,
    _serving: JoinSet<()>,
}

fn client_at(address: std::net::SocketAddr) -> OpencodeClient {
    let mut config = ClientConfig::new(format!("http://{address}"), PASSWORD.into());
    config.request_timeout = Duration::from_secs(5);
    config.idle_timeout = Duration::from_millis(200);
    OpencodeClient::new(config).unwrap()
}

async fn serve(router: Router) -> Peer {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = client_at(listener.local_addr().unwrap());
    let mut serving = JoinSet::new();
    serving.spawn(async move { axum::serve(listener, router).await.unwrap() });
    Peer { client, _serving: serving }
}

/// Answers every connection with these bytes, then closes it.
async fn serve_bytes(bytes: &'static [u8]) -> Peer {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = client_at(listener.local_addr().unwrap());
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(bytes).await;
            let _ = stream.shutdown().await;
        }
    });
    Peer { client, _serving: serving }
}

fn page() -> Response {
    ([(CONTENT_TYPE, "text/html; charset=utf-8")], "<!doctype html>").into_response()
}

fn problem(kind: ProblemType) -> Response {
    let problem = Problem::new(kind, "wait a little");
    let status = StatusCode::from_u16(problem.status).unwrap();
    (status, [(CONTENT_TYPE, PROBLEM_JSON)], serde_json::to_string(&problem).unwrap()).into_response()
}

fn health_answering(answer: fn() -> Response) -> Router {
    Router::new().route("/global/health", get(move || async move { answer() }))
}

#[tokio::test]
async fn known_versions_are_healthy() {
    for (version, known) in [
        ("1.15.4", true),
        ("1.18.33", true),
        ("1.14.9", false),
        ("1.19.0", false),
        ("2.0", false),
        ("x", false),
    ] {
        let body = json!({ "healthy": true, "version": version });
        let router = Router::new().route("/global/health", get(move || async move { Json(body) }));
        let peer = serve(router).await;
        match peer.client.health().await {
            Ok(health) => assert!(known && health.version == version, "{version}"),
            Err(ClientError::UnsupportedVersion { seen }) => {
                assert!(!known && seen.contains(version), "{seen}");
            }
            Err(error) => panic!("{version}: {error:?}"),
        }
    }
}

#[tokio::test]
async fn what_is_no_opencode_is_named() {
    let other: fn() -> Response = || Json(json!({ "status": "ok" })).into_response();
    let nothing: fn() -> Response = || StatusCode::NO_CONTENT.into_response();
    for (answer, words) in
        [(page as fn() -> Response, "text/html"), (other, "without a version"), (nothing, "nothing")]
    {
        let peer = serve(health_answering(answer)).await;
        let error = peer.client.health().await.unwrap_err();
        let ClientError::UnsupportedVersion { seen } = &error else { panic!("{error:?}") };
        assert!(seen.contains(words), "{seen}");
        assert!(!error.is_transient());
    }
}

#[tokio::test]
async fn a_web_page_is_no_answer() {
    let peer = serve(Router::new().fallback(|| async { page() })).await;
    let error = peer.client.list_permissions("/w").await.unwrap_err();
    assert!(
        matches!(&error, ClientError::UnexpectedBody { seen } if seen.contains("text/html")),
        "{error:?}"
    );
    let error = peer.client.abort("/w", "ses_1").await.unwrap_err();
    assert!(matches!(&error, ClientError::UnexpectedBody { .. }), "{error:?}");
    let error = peer.client.global_events(None).await.unwrap_err();
    assert!(matches!(&error, ClientError::UnexpectedBody { .. }), "{error:?}");
}

#[tokio::test]
async fn a_wrong_password_is_told_and_never_shown() {
    let peer = serve(Router::new().fallback(|headers: HeaderMap| async move {
        assert!(headers["authorization"].to_str().unwrap().starts_with("Basic "));
        StatusCode::UNAUTHORIZED
    }))
    .await;
    let error = peer.client.health().await.unwrap_err();
    assert!(matches!(error, ClientError::Unauthorized) && !error.is_transient(), "{error:?}");
    let error = peer.client.global_events(None).await.unwrap_err();
    assert!(matches!(error, ClientError::Unauthorized), "{error:?}");
    let shown = format!("{:?} {:?}", peer.client, ClientConfig::new("http://x", PASSWORD.into()));
    assert!(!shown.contains("horse"), "{shown}");
}

fn counting(answer: fn() -> Response) -> (Router, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let router = Router::new()
        .fallback(move |State(calls): State<Arc<AtomicUsize>>| async move {
            calls.fetch_add(1, Ordering::SeqCst);
            answer()
        })
        .with_state(Arc::clone(&calls));
    (router, calls)
}

#[tokio::test]
async fn a_door_that_is_starting_is_asked_again_for_reads_only() {
    let (router, calls) = counting(|| problem(ProblemType::Starting));
    let peer = serve(router).await;
    let error = peer.client.session_status("/w").await.unwrap_err();
    let ClientError::Refused(refusal) = &error else { panic!("{error:?}") };
    assert_eq!(refusal.problem_type(), Some(ProblemType::Starting));
    assert!(error.is_transient());
    assert_eq!(calls.swap(0, Ordering::SeqCst), 3);
    let prompt = Prompt::new("msg_1", vec![PromptPart::text("hi")]);
    assert!(matches!(peer.client.send_prompt("/w", "ses_1", &prompt).await, Err(ClientError::Refused(_))));
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_refusal_that_lasts_is_not_asked_again() {
    let (router, calls) = counting(|| problem(ProblemType::Stopped));
    let peer = serve(router).await;
    let error = peer.client.session_status("/w").await.unwrap_err();
    assert!(!error.is_transient(), "{error:?}");
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn opencodes_own_errors_keep_their_names() {
    let answer =
        |status: u16, body: Value| (StatusCode::from_u16(status).unwrap(), Json(body)).into_response();
    let config =
        json!({ "name": "ConfigJsonError", "data": { "path": "/w/opencode.json", "message": "not JSON" } });
    let gone = json!({ "name": "NotFoundError", "data": { "message": "Session not found: ses_1" } });
    let settled = json!({ "_tag": "PermissionNotFoundError", "requestID": "per_1", "message": "gone" });
    let router = Router::new()
        .route("/question", get(move || async move { answer(400, config) }))
        .route("/session/{id}", get(move || async move { answer(404, gone) }))
        .route("/permission/{id}/reply", post(move || async move { answer(404, settled) }))
        .route("/permission", get(move || async move { (StatusCode::NOT_FOUND, page()) }));
    let client = serve(router).await;
    let client = &client.client;
    let error = client.list_questions("/w").await.unwrap_err();
    let ClientError::Status { status: 400, name, message } = &error else { panic!("{error:?}") };
    assert_eq!((name.as_str(), message.as_str()), ("ConfigJsonError", "/w/opencode.json: not JSON"));
    let error = client.get_session("/w", "ses_1").await.unwrap_err();
    assert!(matches!(&error, ClientError::NotFound { message } if message.contains("ses_1")), "{error:?}");
    let error = client.reply_permission("/w", "per_1", PermissionReply::Once, None).await.unwrap_err();
    assert!(matches!(&error, ClientError::NotFound { .. }), "{error:?}");
    let error = client.list_permissions("/w").await.unwrap_err();
    assert!(matches!(&error, ClientError::Status { status: 404, .. }), "only JSON says not found: {error:?}");
}

#[tokio::test]
async fn a_cut_answer_is_no_answer() {
    let head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{\"ses_1\":";
    let peer = serve_bytes(head).await;
    let error = peer.client.session_status("/w").await.unwrap_err();
    assert!(matches!(error, ClientError::Unreachable(_)) && error.is_transient(), "{error:?}");
}

#[tokio::test]
async fn an_answer_has_a_largest_size() {
    let router = Router::new().fallback(|| async {
        let megabyte = bytes::Bytes::from(vec![b' '; 1024 * 1024]);
        let body = futures_util::stream::repeat(Ok::<_, std::convert::Infallible>(megabyte));
        ([(CONTENT_TYPE, "application/json")], Body::from_stream(body))
    });
    let peer = serve(router).await;
    let error = peer.client.session_status("/w").await.unwrap_err();
    assert!(matches!(error, ClientError::BodyTooLarge { .. }) && !error.is_transient(), "{error:?}");
}

#[tokio::test]
async fn silence_has_a_bound() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut config = ClientConfig::new(format!("http://{}", listener.local_addr().unwrap()), PASSWORD.into());
    config.request_timeout = Duration::from_millis(150);
    let client = OpencodeClient::new(config).unwrap();
    let error = client.health().await.unwrap_err();
    assert!(matches!(error, ClientError::Timeout { .. }) && error.is_transient(), "{error:?}");
    let error = client.global_events(None).await.unwrap_err();
    assert!(matches!(error, ClientError::Timeout { .. }), "{error:?}");
}

#[tokio::test]
async fn ids_stay_in_their_segment() {
    let (router, calls) = counting(page);
    let peer = serve(router).await;
    for id in ["..", ".", ""] {
        assert!(
            matches!(peer.client.get_session("/w", id).await, Err(ClientError::InvalidRequest(_))),
            "{id:?}"
        );
    }
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    assert!(OpencodeClient::new(ClientConfig::new("not a url", PASSWORD.into())).is_err());
}

/// An event stream of these frames, which then stays open and silent.
fn stream_of(frames: Vec<String>) -> Response {
    let frames = futures_util::stream::iter(frames.into_iter().map(Ok::<_, std::io::Error>));
    let body = Body::from_stream(frames.chain(futures_util::stream::pending()));
    ([(CONTENT_TYPE, "text/event-stream")], body).into_response()
}

#[tokio::test]
async fn the_stream_tells_cursors_outlives_a_bad_frame_and_notices_silence() {
    let router = Router::new().route(
        "/global/event",
        get(|headers: HeaderMap| async move {
            let after = headers["last-event-id"].to_str().unwrap().to_owned();
            stream_of(vec![
                format!("id: {after}0\ndata: {{\"payload\":{{\"type\":\"server.heartbeat\",\"properties\":{{}}}}}}\n\n"),
                "id: e-9\ndata: not json\n\n".to_owned(),
                "data: {\"directory\":\"/w\",\"payload\":{\"type\":\"from.the.future\"}}\n\n".to_owned(),
            ])
        }),
    );
    let peer = serve(router).await;
    let mut events = peer.client.global_events(Some(&"e-8".parse().unwrap())).await.unwrap();
    let item = events.next().await.unwrap().unwrap();
    assert_eq!(item.cursor.map(|cursor| cursor.to_string()).as_deref(), Some("e-80"));
    assert_eq!(item.event.event, Event::ServerHeartbeat);
    let error = events.next().await.unwrap().unwrap_err();
    assert!(matches!(error, ClientError::Event(_)), "{error:?}");
    let item = events.next().await.unwrap().unwrap();
    assert_eq!((item.event.kind.as_str(), item.event.directory.as_deref()), ("from.the.future", Some("/w")));
    let error = events.next().await.unwrap().unwrap_err();
    assert!(matches!(error, ClientError::StreamIdle { .. }) && error.is_transient(), "{error:?}");
    assert!(events.next().await.is_none());
}

#[tokio::test]
async fn a_stream_that_is_cut_ends_with_an_error() {
    let bytes =
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n5\r\ndata:";
    let peer = serve_bytes(bytes).await;
    let mut events = peer.client.global_events(None).await.unwrap();
    let error = events.next().await.unwrap().unwrap_err();
    assert!(matches!(error, ClientError::Stream(_)) && error.is_transient(), "{error:?}");
    assert!(events.next().await.is_none());
}

/// Sessions of one directory, as opencode keeps them.
fn sessions(listed: Vec<Value>) -> (Router, Arc<AtomicUsize>) {
    let created = Arc::new(AtomicUsize::new(0));
    let create = |State(created): State<Arc<AtomicUsize>>,
                  Query(query): Query<Value>,
                  Json(body): Json<Value>| async move {
        assert_eq!(query["directory"], "/w");
        created.fetch_add(1, Ordering::SeqCst);
        Json(
            json!({ "id": "ses_new", "title": body["title"], "metadata": body["metadata"], "directory": "/w" }),
        )
    };
    let rename =
        |Json(body): Json<Value>| async move { Json(json!({ "id": "ses_known", "title": body["title"] })) };
    let gone = || async { (StatusCode::NOT_FOUND, Json(json!({ "name": "NotFoundError", "data": {} }))) };
    let known = json!({ "id": "ses_known", "title": "t", "directory": "/w" });
    let router = Router::new()
        .route("/session", get(move || async move { Json(listed) }).post(create))
        .route("/session/ses_known", get(move || async move { Json(known) }).patch(rename))
        .route("/session/ses_down", get(|| async { StatusCode::BAD_GATEWAY }))
        .route("/session/{id}", get(gone))
        .with_state(Arc::clone(&created));
    (router, created)
}

#[tokio::test]
async fn a_session_is_made_only_when_there_is_none() {
    let ours = Uuid::now_v7();
    let new = NewSession { title: Some("t".to_owned()), berth_session_id: ours, permission: Vec::new() };
    let other = json!({ "id": "ses_other", "metadata": { SESSION_METADATA: Uuid::now_v7() } });
    let found = json!({ "id": "ses_found", "metadata": { SESSION_METADATA: ours } });
    let child = json!({ "id": "ses_child", "parentID": "ses_found", "metadata": { SESSION_METADATA: ours } });

    let (router, created) = sessions(vec![other.clone(), child, found]);
    let peer = serve(router).await;
    let ensured = peer.client.ensure_session("/w", Some("ses_known"), &new).await.unwrap();
    assert_eq!((ensured.session.id.as_str(), ensured.how), ("ses_known", EnsuredHow::Known));
    let ensured = peer.client.ensure_session("/w", Some("ses_gone"), &new).await.unwrap();
    assert_eq!((ensured.session.id.as_str(), ensured.how), ("ses_found", EnsuredHow::Found));
    let error = peer.client.ensure_session("/w", Some("ses_down"), &new).await.unwrap_err();
    assert!(error.is_transient(), "an outage makes no session: {error:?}");
    assert_eq!(created.load(Ordering::SeqCst), 0);
    let patch = SessionPatch { title: Some("new".to_owned()), permission: None };
    assert_eq!(peer.client.patch_session("/w", "ses_known", &patch).await.unwrap().title, "new");

    let (router, created) = sessions(vec![other]);
    let peer = serve(router).await;
    let ensured = peer.client.ensure_session("/w", None, &new).await.unwrap();
    assert_eq!((ensured.session.berth_session_id(), ensured.how), (Some(ours), EnsuredHow::Created));
    assert_eq!(created.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn words_of_the_other_side_are_bounded() {
    let long = "x".repeat(1_000_000);
    let error = json!({ "name": long, "data": { "message": long } });
    let refused = {
        let error = error.clone();
        move || std::future::ready((StatusCode::BAD_REQUEST, Json(error.clone())).into_response())
    };
    let gone = json!({ "name": "NotFoundError", "data": { "message": long } });
    let gone = move || std::future::ready((StatusCode::NOT_FOUND, Json(gone.clone())).into_response());
    let odd = move || {
        std::future::ready(Json(json!({ "id": "ses_1", "title": "t", "sessions": error })).into_response())
    };
    let shape = move || std::future::ready(Json(json!(long)).into_response());
    let router = Router::new()
        .route("/session/ses_refused", get(refused))
        .route("/session/ses_gone", get(gone))
        .route("/session/ses_odd", get(odd))
        .route("/session/ses_shape", get(shape));
    let peer = serve(router).await;
    for id in ["ses_refused", "ses_gone", "ses_shape"] {
        let error = peer.client.get_session("/w", id).await.unwrap_err();
        assert!(error.to_string().len() < 2000, "{id}: {} bytes", error.to_string().len());
        assert!(format!("{error:?}").len() < 2000, "{id}");
    }
    assert!(peer.client.get_session("/w", "ses_odd").await.is_ok());
}

#[test]
fn an_address_is_one_of_http_without_a_password() {
    for address in [
        "http://opencode:hunter2@127.0.0.1:4096",
        "http://hunter2@127.0.0.1:4096",
        "http://opencode:hunter2@127.0.0.1:99999",
        "ftp://127.0.0.1",
        "data:hunter2",
        "127.0.0.1:4096",
    ] {
        let error = OpencodeClient::new(ClientConfig::new(address, "x".into())).unwrap_err();
        assert!(matches!(error, ClientError::InvalidRequest(_)), "{address}: {error:?}");
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    }
    let config = ClientConfig::new("http://opencode:hunter2@127.0.0.1:4096", "x".into());
    assert!(!format!("{config:?}").contains("hunter2"), "{config:?}");
}
