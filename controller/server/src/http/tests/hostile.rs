//! Bodies that nobody should send: each is refused with its reason, and none breaks anything.

use proptest::{prelude::*, test_runner::TestRunner};
use serde_json::{Value, json};

use super::*;

/// JSON of any shape.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
        Just(json!("\u{0}")),
        Just(json!("text")),
        Just(json!("data:text/plain;base64,AA==")),
    ];
    leaf.prop_recursive(6, 48, 6, |inner| {
        let name = prop_oneof![
            Just("parts".to_owned()),
            Just("type".to_owned()),
            Just("text".to_owned()),
            Just("url".to_owned()),
            Just("mime".to_owned()),
            Just("model".to_owned()),
            Just("title".to_owned()),
            Just("decision".to_owned()),
            Just("answers".to_owned()),
            Just("queued".to_owned()),
            Just("turn".to_owned()),
            "\\PC{0,6}",
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((name, inner), 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// Bytes that begin as JSON, or not.
fn any_body() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => any_json().prop_map(|value| value.to_string().into_bytes()),
        1 => prop::collection::vec(any::<u8>(), 0..64),
        1 => (any_json(), any::<prop::sample::Index>()).prop_map(|(value, at)| {
            let mut bytes = value.to_string().into_bytes();
            bytes.truncate(at.index(bytes.len()));
            bytes
        }),
        1 => (1_usize..5000).prop_map(|depth| format!("{{\"parts\":{}", "[".repeat(depth)).into_bytes()),
        1 => (1_usize..5000).prop_map(|depth| "{\"a\":".repeat(depth).into_bytes()),
        1 => "[0-9]{1,400}".prop_map(|digits| format!("{{\"parts\":{digits}}}").into_bytes()),
        1 => Just(b"{\"parts\":[{\"type\":\"text\",\"text\":\"\xff\xfe\"}]}".to_vec()),
    ]
}

async fn check(api: &Api, method: &Method, path: &str, body: Vec<u8>) {
    let sent = String::from_utf8_lossy(&body).into_owned();
    let request = request(method.clone(), path).header("content-type", "application/json");
    let response = api.router.clone().oneshot(request.body(Body::from(body)).unwrap()).await.unwrap();
    let status = response.status();
    if status.is_success() {
        return;
    }
    assert!(status.is_client_error(), "{status} {path}: {sent}");
    assert_eq!(response.headers()["content-type"], berth_wire::problem::PROBLEM_JSON, "{path}: {sent}");
    let refused = problem(response).await;
    assert!(refused.problem_type().is_some() && !refused.detail.is_empty(), "{path}: {sent}: {refused:?}");
    assert_eq!(refused.status, status.as_u16());
}

#[test]
fn hostile_bodies_are_refused_with_a_reason() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (api, session) = runtime.block_on(async {
        let api = Api::new().await;
        let session = api.session().await;
        (api, session)
    });
    let routes = [
        (Method::POST, "/v1/sandboxes/local/default/sessions".to_owned()),
        (Method::PATCH, format!("/v1/sessions/{session}")),
        (Method::POST, format!("/v1/sessions/{session}/messages")),
        (Method::POST, format!("/v1/sessions/{session}/cancel")),
        (Method::POST, format!("/v1/sessions/{session}/permissions/per_1")),
        (Method::POST, format!("/v1/sessions/{session}/questions/que_1")),
    ];
    let cases = 64;
    let mut runner = TestRunner::new(ProptestConfig::with_cases(cases));
    runner
        .run(&any_body(), |body| {
            runtime.block_on(async {
                for (method, path) in &routes {
                    check(&api, method, path, body.clone()).await;
                }
            });
            Ok(())
        })
        .unwrap();
}

#[tokio::test]
async fn a_wrong_field_is_named() {
    let api = Api::new().await;
    let path = format!("/v1/sessions/{}/messages", api.session().await);
    for (body, word) in [
        (json!({ "parts": [{ "type": "text", "text": 7 }] }), "parts[0]"),
        (json!({ "parts": [{ "type": "video", "url": "x" }] }), "video"),
        (json!({ "parts": [{ "type": "text", "text": "x", "extra": 1 }] }), "extra"),
        (json!({ "parts": [], "modle": {} }), "modle"),
        (json!({ "parts": {} }), "parts"),
        (json!({ "parts": [{ "type": "file", "mime": "image/png" }] }), "url"),
        (json!({ "parts": [{ "type": "text", "text": "x" }], "model": "acme/a" }), "model"),
        (json!({ "parts": [{ "type": "text", "text": "x" }], "model": { "provider_id": "a" } }), "model_id"),
        (json!({ "parts": [{ "type": "text", "text": "x" }], "agent": "" }), "agent"),
        (
            json!({ "parts": [{ "type": "text", "text": "x" }, { "type": "agent", "name": "" }] }),
            "parts[1].name",
        ),
    ] {
        let response = api.send(Method::POST, &path, body.to_string()).await;
        assert!(response.status().is_client_error(), "{body}");
        let refused = problem(response).await;
        assert!(refused.detail.contains(word), "{body}: {refused}");
    }
}
