//! The event stream against a server that cuts, doubles, loses and refuses.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use berth_client::{BerthClient, ClientError, RetryPolicy};
use berth_wire::{
    event::{EventPayload, SessionEvent, Voice},
    problem::{PROBLEM_JSON, Problem, ProblemType},
    sse::{KEEPALIVE, write_event},
};
use bytes::Bytes;
use futures_util::{StreamExt, stream::once};
use jiff::Timestamp;
use secrecy::SecretString;
use tokio::{net::TcpListener, task::JoinSet};
use uuid::Uuid;

const TOKEN: &str = "let-me-in";
const QUICK: RetryPolicy = RetryPolicy {
    retries: 3,
    first_delay: Duration::from_millis(1),
    longest_delay: Duration::from_millis(5),
    limit: None,
};

/// What the server does with one connection: sends these bytes, then breaks it.
type Script = Box<dyn Fn(i64) -> Vec<u8> + Send + Sync>;

struct Fake {
    /// `Last-Event-ID` of each connection, in order.
    asked: Mutex<Vec<i64>>,
    script: Script,
}

fn event(seq: i64) -> SessionEvent {
    SessionEvent {
        session_id: Uuid::nil(),
        seq,
        turn_id: None,
        at: Timestamp::UNIX_EPOCH,
        payload: EventPayload::chunk(Voice::Message, "p", 0, "x"),
    }
}

fn frames(seqs: impl IntoIterator<Item = i64>) -> Vec<u8> {
    let mut out = Vec::new();
    for seq in seqs {
        let data = serde_json::to_string(&event(seq)).unwrap();
        write_event(&mut out, Some(&seq.to_string()), Some("agent_message_chunk"), &data);
        out.extend_from_slice(KEEPALIVE);
    }
    out
}

async fn serve_events(State(fake): State<Arc<Fake>>, headers: HeaderMap) -> Response {
    let authorised = headers.get(header::AUTHORIZATION).is_some_and(|value| value == "Bearer let-me-in");
    if !authorised {
        let problem = Problem::new(ProblemType::Unauthorized, "the token is wrong");
        let body = serde_json::to_string(&problem).unwrap();
        return (StatusCode::UNAUTHORIZED, [(header::CONTENT_TYPE, PROBLEM_JSON)], body).into_response();
    }
    let after = headers["last-event-id"].to_str().unwrap().parse().unwrap();
    fake.asked.lock().unwrap().push(after);
    let bytes = Bytes::from((fake.script)(after));
    let cut = async {
        tokio::task::yield_now().await; // lets the bytes before the cut leave
        Err(std::io::Error::other("cut"))
    };
    Response::new(Body::from_stream(once(async { Ok(bytes) }).chain(once(cut))))
}

struct Running {
    fake: Arc<Fake>,
    url: String,
    tasks: JoinSet<()>,
}

async fn start(script: impl Fn(i64) -> Vec<u8> + Send + Sync + 'static) -> Running {
    let fake = Arc::new(Fake { asked: Mutex::default(), script: Box::new(script) });
    let route = Router::new().route("/v1/sessions/{id}/events", get(serve_events));
    let router = route.with_state(Arc::clone(&fake));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
    Running { fake, url, tasks }
}

fn client(url: &str, token: &str) -> BerthClient {
    BerthClient::new(url, SecretString::from(token)).unwrap().with_retry(QUICK)
}

#[tokio::test]
async fn cuts_at_any_byte_lose_and_double_nothing() {
    let whole = frames(1..=20).len();
    for step in [1, 37, 400, whole] {
        // Each connection gives `step` bytes more than the one before, so cuts fall at every kind of place.
        let connections = Mutex::new(0);
        let server = start(move |after| {
            let mut connections = connections.lock().unwrap();
            *connections += 1;
            let mut bytes = frames(after + 1..=20);
            bytes.truncate(600 + step * *connections % 1000);
            bytes
        })
        .await;
        let mut events = client(&server.url, TOKEN).events(Uuid::nil(), 0);
        for seq in 1..=20 {
            assert_eq!(events.next().await.unwrap(), event(seq), "step {step}");
        }
        let asked = server.fake.asked.lock().unwrap().clone();
        assert!(asked.len() > 1, "the stream was cut at least once");
        assert!(asked.is_sorted(), "{asked:?}");
    }
}

#[tokio::test]
async fn begins_after_the_given_event() {
    let server = start(|after| frames(after + 1..=9)).await;
    let mut events = client(&server.url, TOKEN).events(Uuid::nil(), 6);
    assert_eq!(events.next().await.unwrap().seq, 7);
    assert_eq!(*server.fake.asked.lock().unwrap(), [6]);
}

#[tokio::test]
async fn holes_and_doubles_are_errors() {
    for (sent, found) in [(vec![1, 3], 3), (vec![1, 1], 1)] {
        let server = start(move |_| frames(sent.clone())).await;
        let mut events = client(&server.url, TOKEN).events(Uuid::nil(), 0);
        assert_eq!(events.next().await.unwrap().seq, 1);
        let error = events.next().await.unwrap_err();
        let ClientError::NotConsecutive { expected: 2, found: seen } = error else { panic!("{error:?}") };
        assert_eq!(seen, found);
        assert!(events.next().await.is_err(), "the stream is over");
        assert_eq!(server.fake.asked.lock().unwrap().len(), 1, "a defect is not retried");
    }
}

#[tokio::test]
async fn a_wrong_token_is_a_problem_at_once() {
    let server = start(|_| Vec::new()).await;
    let error = client(&server.url, "hunter2").events(Uuid::nil(), 0).next().await.unwrap_err();
    assert_eq!(error.problem().unwrap().problem_type(), Some(ProblemType::Unauthorized));
    assert!(!format!("{error:?}{error}").contains("hunter2"));
}

#[tokio::test]
async fn a_server_that_stays_away_is_given_up() {
    let mut server = start(|_| frames([1])).await;
    let mut events = client(&server.url, TOKEN).events(Uuid::nil(), 0);
    events.next().await.unwrap();
    server.tasks.shutdown().await;
    let error = tokio::time::timeout(Duration::from_secs(20), events.next()).await.unwrap().unwrap_err();
    assert!(matches!(error, ClientError::StreamLost { attempts: 4, .. }), "{error:?}");
    assert!(error.is_unreachable());
    assert_eq!(events.failures(), 4);
}

#[tokio::test]
async fn a_server_that_only_ever_hangs_up_is_given_up() {
    let server = start(|_| Vec::new()).await;
    let error = client(&server.url, TOKEN).events(Uuid::nil(), 0).next().await.unwrap_err();
    assert!(matches!(error, ClientError::StreamLost { attempts: 4, .. }), "{error:?}");
    assert_eq!(server.fake.asked.lock().unwrap().len(), 4);
}
