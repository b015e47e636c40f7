//! The fake's routes: paging, passwords, refusals, and that a new start leaves what a kill leaves.

use berth_testkit::fake_serve::{AnswerFault, FakeServeConfig, Fault, StreamFault, TurnFault};
use serde_json::{Value, json};

use crate::fake::{Fake, bounded, kind};

async fn turn(fake: &Fake, session: &str, text: &str) {
    let mut events = fake.events("/global/event").await;
    fake.prompt(session, text).await;
    events.until(|event| kind(event) == "session.idle").await;
}

#[tokio::test]
async fn messages_come_in_pages_from_the_newest_on() {
    let fake = Fake::start(FakeServeConfig::default()).await;
    let session = fake.session("/w", &json!({})).await;
    for number in 0..3 {
        turn(&fake, &session, &format!("@stub say:answer {number}")).await;
    }
    let all = fake.get_json(&format!("/session/{session}/message")).await;
    let all = all.as_array().unwrap();
    assert_eq!(all.len(), 6);
    assert_eq!(all[5]["parts"][1]["text"], "answer 2");
    let mut pages = Vec::new();
    let mut before = String::new();
    loop {
        let answer = fake.get(&format!("/session/{session}/message?limit=4{before}")).await;
        let cursor = answer.headers().get("x-next-cursor").map(|value| value.to_str().unwrap().to_owned());
        let page: Vec<Value> = answer.json().await.unwrap();
        pages.splice(0..0, page);
        let Some(cursor) = cursor else { break };
        before = format!("&before={cursor}");
    }
    assert_eq!(&pages, all);
    for query in ["limit=2&before=nonsense", "before=eyJpZCI6Im1zZ18xIiwidGltZSI6MX0"] {
        assert_eq!(fake.get(&format!("/session/{session}/message?{query}")).await.status(), 400, "{query}");
    }
    let unbounded = fake.get_json(&format!("/session/{session}/message?limit=0")).await;
    assert_eq!(unbounded.as_array().unwrap().len(), 6);
}

#[tokio::test]
async fn the_password_is_asked_for_on_every_path() {
    let config = FakeServeConfig { password: Some("secret".into()), ..FakeServeConfig::default() };
    let fake = Fake::start(config).await;
    for path in ["/global/health", "/doc", "/", "/session"] {
        let answer = fake.get(path).await;
        assert_eq!(answer.status(), 401, "{path}");
        assert!(answer.headers().contains_key("www-authenticate"));
    }
    let url = format!("{}/global/health", fake.base);
    let answer = fake.client.get(url).basic_auth("opencode", Some("secret")).send().await.unwrap();
    assert_eq!(answer.json::<Value>().await.unwrap(), json!({ "healthy": true, "version": "1.18.33" }));
    assert_eq!(fake.get("/global/health?auth_token=b3BlbmNvZGU6c2VjcmV0").await.status(), 200);
}

#[tokio::test]
async fn refusals_are_those_of_opencode() {
    let fake = Fake::start(FakeServeConfig::default()).await;
    let session = fake.session("/w", &json!({})).await;
    let prompt = |id: &str| format!("/session/{id}/prompt_async");
    let parts = json!({ "parts": [{ "type": "text", "text": "@stub say:x" }] });
    let bad_id = json!({ "messageID": "bad", "parts": [] });
    let cases = [
        (prompt("ses_gone"), &parts, 404, "NotFoundError"),
        (prompt("notaprefix"), &parts, 500, "UnknownError"),
        (prompt(&session), &json!({}), 400, "BadRequest"),
        (prompt(&session), &json!({ "parts": [{ "type": "nope" }] }), 400, "BadRequest"),
        (prompt(&session), &bad_id, 400, "BadRequest"),
        (prompt(&session), &json!(7), 500, "UnknownError"),
        ("/permission/per_x/reply".to_owned(), &json!({ "reply": "zzz" }), 400, "BadRequest"),
    ];
    for (path, body, status, name) in cases {
        let answer = fake.post(&path, body).await;
        assert_eq!(answer.status(), status, "{path} {body}");
        assert_eq!(answer.json::<Value>().await.unwrap()["name"], name, "{path} {body}");
    }
    let answer = fake.post("/permission/per_x/reply", &json!({ "reply": "once" })).await;
    assert_eq!(answer.json::<Value>().await.unwrap()["_tag"], "PermissionNotFoundError");
    let page = fake.get("/no/such/path").await;
    assert_eq!(
        (page.status().as_u16(), page.headers()["content-type"].to_str().unwrap()),
        (200, "text/html; charset=utf-8")
    );
    assert_eq!(fake.post("/no/such/path", &json!({})).await.status(), 500);
    assert_eq!(fake.post("/session/ses_gone/abort", &json!({})).await.json::<Value>().await.unwrap(), true);
}

#[tokio::test]
async fn the_same_ids_run_no_second_turn() {
    let fake = Fake::start(FakeServeConfig::default()).await;
    let session = fake.session("/w", &json!({})).await;
    let part = json!({ "id": "prt_1", "type": "text", "text": "@stub say:once" });
    let body = json!({ "messageID": "msg_1", "parts": [part] });
    for _ in 0..2 {
        let mut events = fake.events("/global/event").await;
        fake.post(&format!("/session/{session}/prompt_async"), &body).await;
        events.until(|event| kind(event) == "session.idle").await;
    }
    let messages = fake.get_json(&format!("/session/{session}/message")).await;
    assert_eq!(messages.as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_prompt_that_comes_while_busy_is_answered_after_with_one_idle() {
    let fake = Fake::start(FakeServeConfig::default()).await;
    let session = fake.session("/w", &json!({})).await;
    let mut events = fake.events("/global/event").await;
    fake.prompt(&session, "@stub say:first | sleep:50").await;
    fake.prompt(&session, "@stub say:second").await;
    let sent = events.until(|event| kind(event) == "session.idle").await;
    assert!(events.rest().await.iter().all(|event| kind(event) != "session.idle"));
    assert_eq!(sent.iter().filter(|event| event["payload"]["properties"]["delta"].is_string()).count(), 2);
    let messages = fake.get_json(&format!("/session/{session}/message")).await;
    assert_eq!(messages[3]["info"]["parentID"], messages[2]["info"]["id"]);
}

#[tokio::test]
async fn death_leaves_what_a_kill_leaves() {
    let fake = Fake::start(FakeServeConfig::default()).await;
    let session = fake.session("/w", &json!({})).await;
    let mut events = fake.events("/global/event").await;
    fake.prompt(&session, "@stub say:half a | hang").await;
    events.until(|event| kind(event) == "message.part.delta").await;
    fake.control.die();
    assert!(fake.client.get(format!("{}/global/health", fake.base)).send().await.is_err());
    assert!(fake.control.is_dead());
    fake.control.mend();
    assert_eq!(fake.get_json("/session/status?directory=/w").await, json!({}));
    let messages = fake.get_json(&format!("/session/{session}/message")).await;
    assert!(messages[1]["info"]["time"]["completed"].is_null(), "open for ever: {messages}");
    assert_eq!(messages[1]["parts"][1]["text"], "");
    turn(&fake, &session, "@stub say:it works").await;
}

#[tokio::test]
async fn a_stream_is_cut_at_exactly_the_byte_that_was_chosen() {
    let fake = Fake::start(FakeServeConfig::default()).await;
    for bytes in [0, 1, 7, 50] {
        fake.control.spoil(StreamFault::Cut(bytes));
        let answer = fake.get("/global/event").await;
        let mut seen = 0;
        let mut body = answer.bytes_stream();
        let end = loop {
            match futures_util::StreamExt::next(&mut body).await {
                Some(Ok(chunk)) => seen += chunk.len() as u64,
                end => break end,
            }
        };
        assert!(matches!(end, Some(Err(_))), "cut, not ended");
        assert_eq!(seen, bytes);
    }
}

#[tokio::test]
async fn a_fault_that_is_to_happen_once_happens_once() {
    for fault in [AnswerFault::Closed, AnswerFault::NotHttp, AnswerFault::OtherLine, AnswerFault::Html] {
        let fake = Fake::start(FakeServeConfig::default()).await;
        fake.control.spoil_once(fault);
        let health = async || {
            // Each on a connection of its own, since a library may try again on one that was kept.
            let client =
                reqwest::Client::builder().no_proxy().retry(reqwest::retry::never()).build().unwrap();
            let answer = bounded(client.get(format!("{}/global/health", fake.base)).send()).await.ok()?;
            answer.json::<Value>().await.ok()?["version"].as_str().map(str::to_owned)
        };
        let first = health().await;
        assert_ne!(first.as_deref(), Some("1.18.33"), "{}", Fault::from(fault));
        assert_eq!(health().await.as_deref(), Some("1.18.33"), "after {}", Fault::from(fault));
    }
}

#[tokio::test]
async fn an_abort_before_a_late_start_is_answered_at_once_and_lost() {
    let fake = Fake::start(FakeServeConfig::default()).await;
    let session = fake.session("/w", &json!({})).await;
    let mut events = fake.events("/global/event").await;
    fake.control.spoil_once(TurnFault::StartsLate(2000));
    fake.prompt(&session, "@stub say:x | hang").await;
    assert!(fake.post(&format!("/session/{session}/abort"), &json!({})).await.json::<bool>().await.unwrap());
    let aborted = events.until(|event| kind(event) == "session.idle").await;
    assert!(aborted.iter().all(|event| kind(event) != "message.updated"), "it has not started");
    let idle = fake.get_json("/session/status?directory=/w").await;
    assert_eq!(idle, json!({}), "answered before the start");
    events.until(|event| kind(event) == "message.part.delta").await;
}

#[test]
fn every_fault_is_in_the_readme() {
    let readme = include_str!("../../README.md");
    for fault in Fault::all(5) {
        let name = fault.to_string();
        let name = name.split('=').next().unwrap();
        let listed = readme.contains(&format!("`{name}`")) || readme.contains(&format!("`{name}="));
        assert!(listed, "{name}");
    }
}
