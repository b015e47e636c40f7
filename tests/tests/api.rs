//! Bad input: a typed problem that names field and reason, and nothing changed. Raw HTTP, on a real stack.

use berth_tests::Stack;
use berth_wire::{
    api::SessionFilter,
    problem::{PROBLEM_JSON, Problem, ProblemType},
};
use reqwest::{Method, RequestBuilder, StatusCode};
use secrecy::ExposeSecret;
use serde_json::json;
use uuid::Uuid;

struct Caller<'a> {
    stack: &'a Stack,
    http: reqwest::Client,
}

impl Caller<'_> {
    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let url = format!("http://{}{path}", self.stack.server);
        self.http.request(method, url).bearer_auth(self.stack.token.expose_secret())
    }

    fn post(&self, path: &str, body: impl Into<reqwest::Body>) -> RequestBuilder {
        self.request(Method::POST, path).header("content-type", "application/json").body(body)
    }
}

async fn problem(request: RequestBuilder) -> Problem {
    let response = request.send().await.expect("the server answers");
    let status = response.status().as_u16();
    assert_eq!(response.headers()["content-type"], PROBLEM_JSON);
    assert!(response.headers().contains_key("x-request-id"));
    let problem: Problem = response.json().await.expect("the body is a problem");
    assert_eq!(problem.status, status);
    assert!(problem.extensions.contains_key("request_id"), "{problem:?}");
    problem
}

#[tokio::test]
async fn problems_are_typed_and_change_nothing() {
    let stack = Stack::start().await;
    let session = stack.session().await.id;
    let caller = Caller { stack: &stack, http: reqwest::Client::builder().build().expect("a client") };
    let (sessions, messages) =
        ("/v1/sandboxes/local/default/sessions", format!("/v1/sessions/{session}/messages"));
    let big = json!({ "parts": [{ "type": "text", "text": "x".repeat(2 * 1024 * 1024) }] }).to_string();
    let nobody = Uuid::now_v7();
    let get = |path: &str| caller.request(Method::GET, path);
    let long_key = caller
        .post(&messages, r#"{"parts":[{"type":"text","text":"x"}]}"#)
        .header("idempotency-key", "k".repeat(300));
    let cases = [
        (caller.post(&messages, "{"), ProblemType::InvalidBody, "EOF"),
        (caller.post(&messages, r#"{"parts":[{"type":"picture"}]}"#), ProblemType::InvalidBody, "parts[0]"),
        (caller.post(&messages, r#"{"parts":[],"mode":"x"}"#), ProblemType::InvalidBody, "mode"),
        (caller.post(&messages, r#"{"parts":[]}"#), ProblemType::Invalid, "parts"),
        (
            caller.post(&messages, r#"{"parts":[{"type":"text","text":"  "}]}"#),
            ProblemType::Invalid,
            "parts[0].text",
        ),
        (caller.post(sessions, big), ProblemType::BodyTooLarge, "1048576"),
        (
            caller.request(Method::POST, &messages).body("{}"),
            ProblemType::UnsupportedMediaType,
            "content-type",
        ),
        (long_key, ProblemType::InvalidHeader, "Idempotency-Key"),
        (caller.post(sessions, r#"{"title":""}"#), ProblemType::Invalid, "title"),
        (caller.post("/v1/sandboxes/local/nobody/sessions", "{}"), ProblemType::NotFound, "local/nobody"),
        (get(&format!("/v1/sessions/{nobody}")), ProblemType::NotFound, "session"),
        (get(&format!("/v1/sessions/{nobody}/events")), ProblemType::NotFound, "session"),
        (get("/v1/sessions/not-a-uuid"), ProblemType::InvalidParameter, "UUID"),
        (get(&format!("/v1/sessions/{session}/events?after=x")), ProblemType::InvalidParameter, "after"),
        (get(&format!("/v1/sessions/{session}/events?after=7")), ProblemType::InvalidParameter, "ends at 0"),
        (
            get(&format!("/v1/sessions/{session}/events")).header("last-event-id", "-1"),
            ProblemType::InvalidHeader,
            "Last-Event-ID",
        ),
        (get(&format!("/v1/turns/{nobody}")), ProblemType::NotFound, "turn"),
        (caller.post(&format!("/v1/sessions/{session}/cancel"), "[]"), ProblemType::InvalidBody, "object"),
        (caller.post(&messages, r#"[[{"type":"text","text":"x"}]]"#), ProblemType::InvalidBody, "object"),
        (
            caller.post(&format!("/v1/sessions/{session}/permissions/per_x"), r#"{"decision":"once"}"#),
            ProblemType::NotFound,
            "per_x",
        ),
        (
            caller.post(&format!("/v1/sessions/{session}/permissions/per_x"), r#"{"decision":"maybe"}"#),
            ProblemType::InvalidBody,
            "decision",
        ),
        (
            caller.post(
                &format!("/v1/sessions/{session}/cancel"),
                format!(r#"{{"queued":true,"turn":"{nobody}"}}"#),
            ),
            ProblemType::Invalid,
            "queued",
        ),
        (get("/v2/sessions"), ProblemType::NotFound, "openapi.json"),
        (caller.request(Method::PUT, sessions), ProblemType::MethodNotAllowed, "openapi.json"),
    ];
    for (request, kind, words) in cases {
        let problem = problem(request).await;
        assert_eq!(problem.problem_type(), Some(kind), "{problem:?}");
        assert!(problem.detail.contains(words), "{words:?} is not in {:?}", problem.detail);
    }
    assert!(stack.client.list_turns(session).await.expect("turns are there").is_empty());
    assert_eq!(stack.client.get_session(session).await.expect("it is there").last_seq, 0);
    stack.stop().await;
}

#[tokio::test]
async fn strangers_are_refused_at_server_and_door() {
    let stack = Stack::start().await;
    let http = reqwest::Client::builder().build().expect("a client");
    let url = format!("http://{}/v1/sandboxes", stack.server);
    for request in [
        http.get(&url),
        http.get(&url).bearer_auth("wrong"),
        http.get(&url).basic_auth("opencode", Some("x")),
    ] {
        let problem = problem(request).await;
        assert_eq!(problem.problem_type(), Some(ProblemType::Unauthorized));
        assert!(!problem.detail.contains(stack.token.expose_secret()));
    }
    for (name, value) in [("host", "evil.example"), ("origin", "https://evil.example")] {
        let request = http.get(&url).bearer_auth(stack.token.expose_secret()).header(name, value);
        assert_eq!(problem(request).await.problem_type(), Some(ProblemType::ForbiddenOrigin), "{name}");
    }
    let door = http.get(format!("http://{}/session", stack.door)).basic_auth("opencode", Some("wrong"));
    let response = door.send().await.expect("the door answers");
    assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(response.headers()["content-type"], PROBLEM_JSON);
    let open = http.get(format!("http://{}/healthz", stack.server)).send().await.expect("the server answers");
    assert_eq!(open.status(), StatusCode::OK);
    stack.stop().await;
}

#[tokio::test]
async fn sessions_can_be_listed_renamed_and_deleted() {
    let stack = Stack::start().await;
    let (first, second) = (stack.session().await.id, stack.session().await.id);
    let renamed = stack.client.rename_session(first, "  My title ").await.expect("it is taken");
    assert_eq!(renamed.title.as_deref(), Some("My title"));
    let listed =
        stack.client.list_sessions("local", "default", &SessionFilter::default()).await.expect("a list");
    assert_eq!(listed.iter().map(|session| session.id).collect::<Vec<_>>(), [second, first]);
    stack.client.delete_session(second).await.expect("it is taken");
    let again = stack.client.delete_session(second).await.expect_err("it is gone");
    assert_eq!(again.problem().and_then(Problem::problem_type), Some(ProblemType::NotFound));
    let sandboxes = stack.client.list_sandboxes().await.expect("a list");
    assert_eq!((sandboxes.len(), sandboxes[0].name.as_str()), (1, "default"));
    stack.stop().await;
}
