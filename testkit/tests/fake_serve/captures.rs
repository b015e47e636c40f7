//! The fake's plain behaviour against streams that opencode 1.18.33 really sent: the same events in the same order,
//! with the same keys and JSON types at every depth.

use std::{collections::BTreeSet, path::Path};

use berth_testkit::fake_serve::FakeServeConfig;
use serde_json::{Value, json};

use crate::fake::{Events, Fake, kind};

const DIRECTORY: &str = "/lab/proj";
const LIST: &str = r#"tool:bash:{"command":"ls -la","description":"List files"}"#;

/// The events of a captured stream.
fn captured(name: &str) -> Vec<Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../client/opencode/tests/captures");
    let text = std::fs::read_to_string(folder.join(format!("1.18.33-{name}.sse"))).unwrap();
    text.lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|data| serde_json::from_str(data).unwrap())
        .collect()
}

fn payload(event: &Value) -> &Value {
    if event["payload"].is_object() { &event["payload"] } else { event }
}

/// What an event is, in words: its kind and what tells it from others of that kind.
fn name(event: &Value) -> String {
    let payload = payload(event);
    let properties = &payload["properties"];
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let detail = match kind(event) {
        "sync" => word(&payload["syncEvent"]["type"]),
        "session.status" => word(&properties["status"]["type"]),
        "session.error" => word(&properties["error"]["name"]),
        "message.updated" => {
            let info = &properties["info"];
            format!("{} {} {}", word(&info["role"]), word(&info["finish"]), word(&info["error"]["name"]))
        }
        "message.part.updated" => {
            let part = &properties["part"];
            let ended = if part["time"]["end"].is_null() { "" } else { "ended" };
            format!(
                "{} {} {} {ended}",
                word(&part["type"]),
                word(&part["tool"]),
                word(&part["state"]["status"])
            )
        }
        _ => String::new(),
    };
    format!("{} {detail}", kind(event)).trim().to_owned()
}

/// Every path of keys with the JSON type at its end; the elements of a list are one.
fn shape(value: &Value, path: &str, into: &mut BTreeSet<String>) {
    let leaf = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "list",
        Value::Object(_) => "object",
    };
    into.insert(format!("{path}: {leaf}"));
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                shape(value, &format!("{path}.{key}"), into);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| shape(item, &format!("{path}[]"), into)),
        _ => {}
    }
}

fn shape_of(event: &Value) -> BTreeSet<String> {
    let mut shapes = BTreeSet::new();
    shape(event, "", &mut shapes);
    shapes
}

/// The title comes from another model while the turn runs, so its place among the events is chance: its event, and
/// the `sync` of that, are taken out. Returns how many there were.
fn without_title(events: Vec<Value>) -> (Vec<Value>, usize) {
    let title = |event: &Value| match kind(event) {
        "session.created" | "session.updated" => Some(payload(event)["properties"]["info"]["title"].clone()),
        "sync" => Some(payload(event)["syncEvent"]["data"]["info"]["title"].clone())
            .filter(|title| !title.is_null()),
        _ => None,
    };
    let mut told: [Option<Value>; 2] = [None, None];
    let mut count = 0;
    let kept = events.into_iter().filter(|event| {
        let Some(new) = title(event) else { return true };
        let place = &mut told[usize::from(kind(event) == "sync")];
        let changed = place.replace(new.clone()).is_some_and(|old| old != new);
        count += usize::from(changed);
        !changed
    });
    (kept.collect(), count)
}

/// The numbers of the `sync` events: they are dense, and the title has one like any other.
fn numbers(events: &[Value]) -> Vec<u64> {
    events.iter().filter_map(|event| payload(event)["syncEvent"]["seq"].as_u64()).collect()
}

/// Holds what the fake sent against what opencode sent.
fn compare(fake: Vec<Value>, real: Vec<Value>) {
    assert_eq!(numbers(&fake), numbers(&real));
    let ((fake, fake_titles), (real, real_titles)) = (without_title(fake), without_title(real));
    assert_eq!(fake_titles, real_titles);
    let (fake_names, real_names): (Vec<_>, Vec<_>) =
        (fake.iter().map(name).collect(), real.iter().map(name).collect());
    assert_eq!(fake_names, real_names);
    for (number, (fake, real)) in fake.iter().zip(&real).enumerate() {
        let (fake_shape, real_shape) = (shape_of(fake), shape_of(real));
        let extra: Vec<_> = fake_shape.difference(&real_shape).collect();
        let missing: Vec<_> = real_shape.difference(&fake_shape).collect();
        assert!(
            extra.is_empty() && missing.is_empty(),
            "event {number} ({}): extra {extra:?}, missing {missing:?}",
            name(fake)
        );
    }
}

async fn turn_to_its_end(events: &mut Events) -> Vec<Value> {
    let mut all = events.until(|event| kind(event) == "session.idle").await;
    all.extend(events.rest().await);
    all
}

#[tokio::test]
async fn a_text_turn_is_as_captured() {
    let fake = Fake::start(FakeServeConfig::default()).await;
    let mut events = fake.events("/global/event").await;
    let session = fake.session(DIRECTORY, &json!({})).await;
    fake.prompt(&session, "hi @stub text:n=6").await;
    let mut sent = turn_to_its_end(&mut events).await;
    // The real subscription began too late for the session's creation.
    sent.retain(|event| !["session.created", "sync session.created.1"].contains(&name(event).as_str()));
    compare(sent, captured("text.global"));
}

#[tokio::test]
async fn a_text_turn_of_one_directory_is_as_captured() {
    let fake = Fake::start(FakeServeConfig::default()).await;
    let mut events = fake.events(&format!("/event?directory={DIRECTORY}")).await;
    let elsewhere = fake.session("/elsewhere", &json!({})).await;
    fake.prompt(&elsewhere, "@stub say:not for here").await;
    let session = fake.session(DIRECTORY, &json!({})).await;
    fake.prompt(&session, "hi @stub text:n=6").await;
    compare(turn_to_its_end(&mut events).await, captured("text"));
}

#[tokio::test]
async fn a_tool_turn_is_as_captured() {
    for (path, capture) in [
        ("/global/event".to_owned(), "bash-allow.global"),
        (format!("/event?directory={DIRECTORY}"), "bash-allow"),
    ] {
        let fake = Fake::start(FakeServeConfig::default()).await;
        let mut events = fake.events(&path).await;
        let session = fake.session(DIRECTORY, &json!({})).await;
        fake.prompt(&session, &format!("@stub say:I will list | {LIST} >> text:n=3")).await;
        compare(turn_to_its_end(&mut events).await, captured(capture));
    }
}

async fn asked(fake: &Fake, events: &mut Events) -> (Vec<Value>, String) {
    let rules = json!({ "permission": [{ "permission": "bash", "pattern": "*", "action": "ask" }] });
    let session = fake.session(DIRECTORY, &rules).await;
    fake.prompt(&session, &format!("@stub say:I will list | {LIST} >> say:after tool")).await;
    // The text ends after the request, when the model has.
    let sent = events.until(|event| name(event) == "message.part.updated text   ended").await;
    let listed = fake.get_json(&format!("/permission?directory={DIRECTORY}")).await;
    assert_eq!(
        fake.get_json(&format!("/session/status?directory={DIRECTORY}")).await[&session]["type"],
        "busy"
    );
    let request = sent.iter().find(|event| kind(event) == "permission.asked").unwrap();
    assert_eq!(listed, json!([request["properties"]]));
    (sent, listed[0]["id"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn a_permission_turn_is_as_captured() {
    for (reply, message, capture) in [
        ("once", None, "perm-new-once"),
        ("reject", None, "perm-new-reject"),
        ("reject", Some("not this one"), "perm-new-reject-msg"),
    ] {
        let fake = Fake::start(FakeServeConfig::default()).await;
        let mut events = fake.events(&format!("/event?directory={DIRECTORY}")).await;
        let (mut sent, request) = asked(&fake, &mut events).await;
        let mut body = json!({ "reply": reply });
        if let Some(message) = message {
            body["message"] = json!(message);
        }
        let path = format!("/permission/{request}/reply?directory={DIRECTORY}");
        assert!(fake.post(&path, &body).await.json::<bool>().await.unwrap());
        assert_eq!(fake.post(&path, &body).await.status(), 404, "once settled it is gone");
        sent.extend(turn_to_its_end(&mut events).await);
        compare(sent, captured(capture));
    }
}

#[tokio::test]
async fn an_abort_is_as_captured() {
    let fake = Fake::start(FakeServeConfig::default()).await;
    let mut events = fake.events(&format!("/event?directory={DIRECTORY}")).await;
    let session = fake.session(DIRECTORY, &json!({})).await;
    fake.prompt(&session, "@stub think:n=3 | text:n=4 | hang").await;
    let mut sent = events.until(|event| event["properties"]["delta"] == "word3 ").await;
    // Seven deltas: three of the thought and four of the text.
    if sent.iter().filter(|event| kind(event) == "message.part.delta").count() < 7 {
        sent.extend(events.until(|event| event["properties"]["delta"] == "word3 ").await);
    }
    let path = format!("/session/{session}/abort?directory={DIRECTORY}");
    assert!(fake.post(&path, &json!({})).await.json::<bool>().await.unwrap());
    sent.extend(turn_to_its_end(&mut events).await);
    compare(sent, captured("abort-stream"));
    assert_eq!(fake.get_json(&format!("/session/status?directory={DIRECTORY}")).await, json!({}));
}

#[tokio::test]
async fn an_abort_with_a_permission_open_is_as_captured_and_leaves_it_listed() {
    let fake = Fake::start(FakeServeConfig::default()).await;
    let mut events = fake.events(&format!("/event?directory={DIRECTORY}")).await;
    let (mut sent, _) = asked(&fake, &mut events).await;
    let session = sent[1]["properties"]["sessionID"].as_str().unwrap().to_owned();
    fake.post(&format!("/session/{session}/abort"), &json!({})).await;
    sent.extend(turn_to_its_end(&mut events).await);
    compare(sent, captured("perm-abort"));
    assert_eq!(
        fake.get_json(&format!("/permission?directory={DIRECTORY}")).await.as_array().unwrap().len(),
        1
    );
}

#[tokio::test]
async fn a_provider_error_is_as_captured() {
    let fake = Fake::start(FakeServeConfig::default()).await;
    let mut events = fake.events(&format!("/event?directory={DIRECTORY}")).await;
    let session = fake.session(DIRECTORY, &json!({})).await;
    fake.prompt(&session, "@stub status:400").await;
    compare(turn_to_its_end(&mut events).await, captured("prov-400"));
}

#[tokio::test]
async fn a_provider_that_fails_twice_is_as_captured() {
    let fake = Fake::start(FakeServeConfig::default()).await;
    let mut events = fake.events(&format!("/event?directory={DIRECTORY}")).await;
    let session = fake.session(DIRECTORY, &json!({})).await;
    fake.prompt(&session, "@stub status:500,times=2 | text:n=3").await;
    compare(turn_to_its_end(&mut events).await, captured("prov-500-retry"));
}

#[tokio::test]
async fn a_connection_lost_in_mid_text_is_as_captured() {
    let fake = Fake::start(FakeServeConfig::default()).await;
    let mut events = fake.events(&format!("/event?directory={DIRECTORY}")).await;
    let session = fake.session(DIRECTORY, &json!({})).await;
    fake.prompt(&session, "@stub text:n=3 | dropn:1 | text:n=2,w=tail").await;
    compare(turn_to_its_end(&mut events).await, captured("prov-drop-partial"));
}

#[tokio::test]
async fn questions_are_as_captured() {
    for (answer, capture) in [(Some("Blue"), "question-reply"), (None, "question-reject")] {
        let fake = Fake::start(FakeServeConfig::default()).await;
        let mut events = fake.events(&format!("/event?directory={DIRECTORY}")).await;
        let session = fake.session(DIRECTORY, &json!({})).await;
        let question = r#"{"questions":[{"question":"Which colour?","header":"Colour","options":[{"label":"Red","description":"r"},{"label":"Blue","description":"b"}]}]}"#;
        fake.prompt(&session, &format!("@stub say:ask | tool:question:{question} >> say:thanks")).await;
        let mut sent = events.until(|event| name(event) == "message.part.updated text   ended").await;
        let listed = fake.get_json(&format!("/question?directory={DIRECTORY}")).await;
        let id = listed[0]["id"].as_str().unwrap();
        match answer {
            Some(answer) => {
                let body = json!({ "answers": [[answer]] });
                fake.post(&format!("/question/{id}/reply?directory={DIRECTORY}"), &body).await;
            }
            None => {
                fake.post(&format!("/question/{id}/reject?directory={DIRECTORY}"), &json!({})).await;
            }
        }
        sent.extend(turn_to_its_end(&mut events).await);
        compare(sent, captured(capture));
    }
}
