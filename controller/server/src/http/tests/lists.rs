//! Lists, pages, retries, races of equal prompts, and what is counted.

use std::collections::BTreeSet;

use berth_wire::api::{HistoryTurn, Page, PostMessage, Session, Turn};
use futures_util::future::join_all;
use serde_json::Value;

use super::*;

impl Api {
    async fn get<T: DeserializeOwned>(&self, path: &str) -> T {
        let response = self.send(Method::GET, path, String::new()).await;
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        json(response).await
    }

    async fn refused(&self, method: Method, path: &str) -> (StatusCode, Problem) {
        let response = self.send(method, path, String::new()).await;
        (response.status(), problem(response).await)
    }

    async fn post_keyed(&self, session: Uuid, key: &str, text: &str) -> Response {
        let path = format!("/v1/sessions/{session}/messages");
        let body = serde_json::to_string(&PostMessage::text(text)).unwrap();
        let request = request(Method::POST, &path).header("content-type", "application/json");
        let request = request.header("idempotency-key", key).body(Body::from(body)).unwrap();
        self.router.clone().oneshot(request).await.unwrap()
    }
}

#[tokio::test]
async fn fifty_equal_prompts_that_race_are_one_turn() {
    let api = Api::new().await;
    let session = api.session().await;
    let posts = (0..50).map(|_| async {
        let response = api.post_keyed(session, "key", "once").await;
        assert_eq!(response.status(), StatusCode::ACCEPTED);
        json::<Turn>(response).await.id
    });
    let turns: BTreeSet<Uuid> = join_all(posts).await.into_iter().collect();
    assert_eq!(turns.len(), 1);
    let listed: Page<Turn> = api.get(&format!("/v1/sessions/{session}/turns")).await;
    assert_eq!(listed.items.len(), 1);
    let other = api.post_keyed(session, "key", "another").await;
    assert_eq!(other.status(), StatusCode::CONFLICT);
    assert_eq!(problem(other).await.problem_type(), Some(ProblemType::IdempotencyConflict));
    let elsewhere = api.post_keyed(api.session().await, "key", "another").await;
    assert_eq!(elsewhere.status(), StatusCode::ACCEPTED, "keys of different sessions do not meet");
}

#[tokio::test]
async fn pages_lead_through_a_list_while_it_changes() {
    let api = Api::new().await;
    let path = "/v1/sandboxes/local/default/sessions";
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(api.session().await);
    }
    let first: Page<Session> = api.get(&format!("{path}?limit=2")).await;
    assert_eq!(first.items.iter().map(|session| session.id).collect::<Vec<_>>(), [ids[4], ids[3]]);
    api.session().await;
    let deleted = api.send(Method::DELETE, &format!("/v1/sessions/{}", ids[3]), String::new()).await;
    assert_eq!(deleted.status(), StatusCode::NO_CONTENT);
    let cursor = first.next_cursor.expect("there is more");
    let second: Page<Session> = api.get(&format!("{path}?limit=3&cursor={cursor}")).await;
    assert_eq!(second.items.iter().map(|session| session.id).collect::<Vec<_>>(), [ids[2], ids[1], ids[0]]);
    assert_eq!(second.next_cursor, None, "the last page says so");
}

#[tokio::test]
async fn turns_and_history_are_paged_from_either_end() {
    let api = Api::new().await;
    let session = api.session().await;
    for number in 1..=3 {
        api.post_keyed(session, &number.to_string(), &number.to_string()).await;
    }
    for route in ["turns", "messages"] {
        let ordinals = |page: &Page<Value>| -> Vec<i64> {
            let turn = |item: &Value| item["ordinal"].as_i64().or_else(|| item["turn"]["ordinal"].as_i64());
            page.items.iter().filter_map(turn).collect()
        };
        let path = format!("/v1/sessions/{session}/{route}?limit=2");
        let first: Page<Value> = api.get(&path).await;
        assert_eq!(ordinals(&first), [1, 2]);
        let cursor = first.next_cursor.unwrap();
        assert_eq!(ordinals(&api.get(&format!("{path}&cursor={cursor}")).await), [3]);
        let newest: Page<Value> = api.get(&format!("{path}&order=newest")).await;
        assert_eq!(ordinals(&newest), [3, 2]);
        let back = newest.next_cursor.unwrap();
        assert_eq!(ordinals(&api.get(&format!("{path}&order=newest&cursor={back}")).await), [1]);
        let (status, refused) = api.refused(Method::GET, &format!("{path}&cursor={back}")).await;
        assert_eq!((status, refused.extensions["field"].as_str()), (StatusCode::BAD_REQUEST, Some("cursor")));
    }
    let history: Page<HistoryTurn> = api.get(&format!("/v1/sessions/{session}/messages")).await;
    assert!(history.items.iter().all(|turn| turn.text.is_empty() && !turn.removed));
}

#[tokio::test]
async fn bad_parameters_are_named() {
    let api = Api::new().await;
    let session = format!("/v1/sessions/{}", api.session().await);
    let list = "/v1/sandboxes/local/default/sessions";
    for path in [
        format!("{list}?limit=0"),
        format!("{list}?limit=201"),
        format!("{list}?title={}", "x".repeat(201)),
        format!("{list}?limit=x"),
        format!("{list}?limit=-1"),
        format!("{list}?cursor=nonsense"),
        format!("{list}?state=sleeping"),
        format!("{list}?updated_after=yesterday"),
        format!("{list}?titel=x"),
        format!("{session}/turns?order=random"),
        format!("{session}/turns?limit=70000"),
        format!("{session}/files?path=/etc"),
        format!("{session}/files/content?path=a/../../b"),
        format!("{session}/diff?turn=7"),
        "/v1/sessions/not-an-id".to_owned(),
    ] {
        let (status, refused) = api.refused(Method::GET, &path).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{path}");
        assert_eq!(refused.problem_type(), Some(ProblemType::InvalidParameter), "{path}");
        assert!(!refused.detail.is_empty(), "{path}");
    }
}

#[tokio::test]
async fn only_what_did_not_succeed_is_retried() {
    let api = Api::new().await;
    let session = api.session().await;
    let turn: Turn = json(api.post_keyed(session, "one", "again").await).await;
    let retry = format!("/v1/turns/{}/retry", turn.id);
    let (status, refused) = api.refused(Method::POST, &retry).await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert_eq!(refused.problem_type(), Some(ProblemType::TurnNotRetryable));
    assert_eq!(refused.extensions["state"], "queued");
    let cancel = format!("/v1/sessions/{session}/cancel");
    assert_eq!(api.send(Method::POST, &cancel, String::new()).await.status(), StatusCode::ACCEPTED);
    let again = api.send(Method::POST, &retry, String::new()).await;
    assert_eq!(again.status(), StatusCode::ACCEPTED);
    let again: Turn = json(again).await;
    assert_eq!((again.retry_of, again.ordinal, &again.prompt), (Some(turn.id), 2, &turn.prompt));
    let (status, _) = api.refused(Method::POST, &format!("/v1/turns/{}/retry", Uuid::now_v7())).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_file_of_a_prompt_is_handed_out_and_shown_nowhere_else() {
    let api = Api::new().await;
    let path = format!("/v1/sessions/{}/messages", api.session().await);
    let body = json!({ "parts": [
        { "type": "text", "text": "see" },
        { "type": "file", "mime": "text/html", "filename": "a.html", "url": "data:text/html;base64,PGI+eDwvYj4=" },
    ] });
    let turn: Turn = json(api.send(Method::POST, &path, body.to_string()).await).await;
    let shown = serde_json::to_string(&turn).unwrap();
    assert!(!shown.contains("PGI+") && shown.contains(&format!("/v1/turns/{}/parts/1", turn.id)), "{shown}");
    let file = api.send(Method::GET, &format!("/v1/turns/{}/parts/1", turn.id), String::new()).await;
    assert_eq!(file.headers()["content-type"], "text/html");
    assert_eq!(file.headers()["x-content-type-options"], "nosniff");
    assert_eq!(file.headers()["content-disposition"], "attachment");
    assert_eq!(to_bytes(file.into_body(), 100).await.unwrap(), "<b>x</b>");
    for index in ["0", "2", "4294967295"] {
        let (status, _) = api.refused(Method::GET, &format!("/v1/turns/{}/parts/{index}", turn.id)).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{index}");
    }
    let large = json!({ "parts": [{ "type": "text", "text": "x".repeat(2 * 1024 * 1024) }] }).to_string();
    assert_eq!(api.send(Method::POST, &path, large).await.status(), StatusCode::ACCEPTED);
    let rename = json!({ "title": "x".repeat(2 * 1024 * 1024) }).to_string();
    let refused = api.send(Method::PATCH, path.strip_suffix("/messages").unwrap(), rename).await;
    assert_eq!(refused.status(), StatusCode::PAYLOAD_TOO_LARGE, "only prompts hold files");
}

#[tokio::test]
async fn a_sandbox_that_is_away_is_told_as_such() {
    let api = Api::new().await;
    let session = format!("/v1/sessions/{}", api.session().await);
    for path in [format!("{session}/files"), "/v1/sandboxes/local/default/models".to_owned()] {
        let (status, refused) = api.refused(Method::GET, &path).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{path}: {refused}");
        assert_eq!(refused.problem_type(), Some(ProblemType::SandboxUnavailable));
    }
    let nothing: Page<Value> = api.get(&format!("{session}/diff")).await;
    assert!(nothing.items.is_empty(), "before its first prompt a session has done nothing");
}

#[tokio::test]
async fn requests_and_streams_are_counted() {
    let api = Api::new().await;
    let session = api.session().await;
    api.send(Method::GET, &format!("/v1/sessions/{session}"), String::new()).await;
    api.send(Method::GET, "/no/such/route", String::new()).await;
    api.post_keyed(session, "k", "x").await;
    let stream = api.send(Method::GET, &format!("/v1/sessions/{session}/events"), String::new()).await;
    let metrics = Request::builder().uri("/metrics").header("host", "localhost").body(Body::empty()).unwrap();
    let metrics = api.router.clone().oneshot(metrics).await.unwrap();
    assert_eq!(metrics.status(), StatusCode::OK, "no token is needed");
    let text = to_bytes(metrics.into_body(), usize::MAX).await.unwrap();
    let text = std::str::from_utf8(&text).unwrap();
    for line in [
        "berth_server_requests_total{route=\"/v1/sessions/{id}\",method=\"GET\",status=\"200\"} 1",
        "berth_server_requests_total{route=\"none\",method=\"GET\",status=\"404\"} 1",
        "berth_server_open_turns{state=\"queued\"} 1",
        "berth_server_event_streams 1",
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line}\n{text}");
    }
    assert!(!text.contains(&session.to_string()), "ids are no labels");
    drop(stream);
}
