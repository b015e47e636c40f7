//! Single calls against a server that breaks connections and answers oddly.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use berth_client::{BerthClient, ClientError, RetryPolicy};
use berth_wire::{
    api::{Page, PostMessage, Turn},
    problem::{Problem, ProblemType},
    turn::TurnState,
};
use jiff::Timestamp;
use secrecy::SecretString;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use uuid::Uuid;

/// A server that reads one request per connection and answers it with the next of `answers`; an empty answer is a
/// connection closed without one.
struct Scripted {
    url: String,
    requests: Arc<Mutex<Vec<String>>>,
    _tasks: JoinSet<()>,
}

async fn read_request(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                return text;
            }
        }
        let count = stream.read(&mut buffer).await.unwrap();
        assert!(count > 0, "the request is whole");
        bytes.extend_from_slice(&buffer[..count]);
    }
}

async fn start(answers: Vec<String>) -> Scripted {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/prefix", listener.local_addr().unwrap());
    let requests = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&requests);
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        for answer in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let request = read_request(&mut stream).await;
            seen.lock().unwrap().push(request);
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    Scripted { url, requests, _tasks: tasks }
}

fn answer(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn turn() -> Turn {
    Turn {
        id: Uuid::from_u128(7),
        session_id: Uuid::nil(),
        ordinal: 1,
        state: TurnState::Queued,
        prompt: PostMessage::text("hello").parts,
        model: None,
        agent: None,
        retry_of: None,
        stop_reason: None,
        error: None,
        usage: None,
        created_at: Timestamp::UNIX_EPOCH,
        started_at: None,
        ended_at: None,
    }
}

fn client(url: &str) -> BerthClient {
    let delay = Duration::from_millis(1);
    let retry = RetryPolicy { retries: 2, first_delay: delay, longest_delay: delay, limit: None };
    BerthClient::new(url, SecretString::from("secret-token")).unwrap().with_retry(retry)
}

#[tokio::test]
async fn a_prompt_is_sent_again_under_the_same_key_when_the_connection_breaks() {
    let accepted = answer("202 Accepted", &serde_json::to_string(&turn()).unwrap());
    let server = start(vec![String::new(), String::new(), accepted]).await;
    let body = PostMessage::text("hello");
    let got = client(&server.url).post_message(Uuid::nil(), &body, "key-1").await.unwrap();
    assert_eq!(got, turn());
    let requests = server.requests.lock().unwrap();
    assert_eq!(requests.len(), 3);
    for request in requests.iter() {
        assert!(
            request.starts_with("POST /prefix/v1/sessions/00000000-0000-0000-0000-000000000000/messages ")
        );
        assert!(request.contains("idempotency-key: key-1\r\n"), "{request}");
        assert!(request.contains("authorization: Bearer secret-token\r\n"), "{request}");
    }
}

#[tokio::test]
async fn a_server_that_came_back_elsewhere_is_found() {
    let accepted = answer("202 Accepted", &serde_json::to_string(&turn()).unwrap());
    let (first, second) = (start(vec![String::new()]).await, start(vec![accepted]).await);
    let (seen, elsewhere) = (Arc::clone(&first.requests), second.url.clone());
    let here = first.url.clone();
    let whereabouts =
        move || Some(if seen.lock().unwrap().is_empty() { here.clone() } else { elsewhere.clone() });
    let client = client("http://127.0.0.1:1").following(whereabouts);
    let got = client.post_message(Uuid::nil(), &PostMessage::text("hello"), "key-1").await.unwrap();
    assert_eq!(got, turn());
    assert_eq!((first.requests.lock().unwrap().len(), second.requests.lock().unwrap().len()), (1, 1));
}

#[tokio::test]
async fn where_nothing_usable_is_known_the_first_address_holds() {
    for told in [None, Some("ftp://127.0.0.1".to_owned()), Some("?".to_owned())] {
        let server = start(vec![answer("200 OK", &serde_json::to_string(&turn()).unwrap())]).await;
        let client = client(&server.url).following(move || told.clone());
        assert_eq!(client.get_turn(Uuid::nil()).await.unwrap(), turn());
    }
}

#[tokio::test]
async fn the_retries_of_a_prompt_are_bounded() {
    let server = start(vec![String::new(); 5]).await;
    let error = client(&server.url)
        .post_message(Uuid::nil(), &PostMessage::text("hello"), "key-1")
        .await
        .unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { .. }), "{error:?}");
    assert!(error.is_unreachable());
    assert_eq!(server.requests.lock().unwrap().len(), 3);
}

#[tokio::test]
async fn a_list_is_read_page_by_page() {
    let other = Turn { id: Uuid::from_u128(8), ordinal: 2, ..turn() };
    let page = |items: &[Turn], next: Option<&str>| {
        let page = Page { items: items.to_vec(), next_cursor: next.map(str::to_owned) };
        answer("200 OK", &serde_json::to_string(&page).unwrap())
    };
    let server = start(vec![page(&[turn()], Some("b2_x-")), page(std::slice::from_ref(&other), None)]).await;
    let turns = client(&server.url).list_turns(Uuid::nil()).await.unwrap();
    assert_eq!(turns, [turn(), other]);
    let requests = server.requests.lock().unwrap();
    assert!(requests[0].contains("/turns?limit=200 HTTP"), "{}", requests[0]);
    assert!(requests[1].contains("/turns?limit=200&cursor=b2_x- HTTP"), "{}", requests[1]);
}

#[tokio::test]
async fn a_refusal_keeps_the_servers_words_and_is_not_repeated() {
    let problem = Problem::new(ProblemType::QueueFull, "8 prompts wait already").with("limit", 8);
    let text = serde_json::to_string(&problem).unwrap();
    let server = start(vec![answer("429 Too Many Requests", &text), String::new()]).await;
    let error = client(&server.url)
        .post_message(Uuid::nil(), &PostMessage::text("hello"), "key-1")
        .await
        .unwrap_err();
    assert_eq!(error.problem(), Some(&problem));
    assert_eq!(error.to_string(), "The session's queue is full: 8 prompts wait already");
    assert_eq!(server.requests.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn what_is_not_this_api_is_said_so() {
    let server = start(vec![answer("404 Not Found", "<html>nginx</html>"), answer("200 OK", "[]")]).await;
    let client = client(&server.url);
    let error = client.get_session(Uuid::nil()).await.unwrap_err();
    assert!(matches!(error, ClientError::UnexpectedAnswer { status: 404, .. }), "{error:?}");
    assert!(error.to_string().contains("nginx"));
    let error = client.list_sandboxes().await.unwrap_err();
    assert!(matches!(error, ClientError::Malformed { .. }), "{error:?}");
}

#[tokio::test]
async fn path_segments_are_escaped() {
    let server = start(vec![answer("204 No Content", "")]).await;
    let rejected = berth_wire::api::QuestionAnswer { answers: None };
    client(&server.url).answer_question(Uuid::nil(), "que_1/../x?y", &rejected).await.unwrap();
    let requests = server.requests.lock().unwrap();
    assert!(requests[0].contains("/questions/que_1%2F..%2Fx%3Fy "), "{}", requests[0]);
}

#[test]
fn only_http_addresses_are_taken_and_the_token_stays_hidden() {
    for bad in ["", "127.0.0.1:7447", "https://berth.example", "file:///etc/passwd", "http://"] {
        let error = BerthClient::new(bad, SecretString::from("t")).unwrap_err();
        assert!(matches!(error, ClientError::InvalidUrl { .. }), "{bad:?}: {error:?}");
    }
    let client = BerthClient::new("http://127.0.0.1:1", SecretString::from("secret-token")).unwrap();
    assert!(!format!("{client:?}").contains("secret-token"));
}
