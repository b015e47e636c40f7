//! The JSON of opencode 1.18.33's sessions, messages and parts, with the keys that were captured. Pure.

use serde_json::{Map, Value, json};

/// Names that new sessions get in turn.
const SLUGS: [&str; 4] = ["witty-pixel", "jolly-engine", "quiet-cabin", "swift-wolf"];

/// Where a message or part belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) session: String,
    pub(super) message: String,
}

/// Which agent and model answer a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Voice {
    pub(super) agent: String,
    pub(super) provider: String,
    pub(super) model: String,
}

pub(super) fn no_tokens() -> Value {
    json!({ "input": 0, "output": 0, "reasoning": 0, "cache": { "read": 0, "write": 0 } })
}

/// Tokens of a step: eleven in, one out for each piece.
pub(super) fn tokens(pieces: u64) -> Value {
    json!({
        "total": 11 + pieces, "input": 11, "output": pieces, "reasoning": 0, "cache": { "write": 0, "read": 0 },
    })
}

/// A new session: `body` is that of the request.
pub(super) fn session(
    id: &str,
    number: usize,
    directory: &str,
    version: &str,
    body: &Value,
    now: i64,
) -> Value {
    let started = jiff::Timestamp::from_millisecond(now).unwrap_or_default();
    let child = body["parentID"].is_string();
    let placeholder = if child { "Child session" } else { "New session" };
    let mut info = json!({
        "id": id, "slug": SLUGS[number % SLUGS.len()], "version": version, "projectID": "global",
        "directory": directory, "path": directory.trim_start_matches('/'),
        "title": format!("{placeholder} - {started:.3}"), "cost": 0, "tokens": no_tokens(),
        "time": { "created": now, "updated": now },
    });
    for key in ["parentID", "title", "agent", "model", "permission", "metadata"] {
        if !body[key].is_null() {
            info[key] = body[key].clone();
        }
    }
    info
}

pub(super) fn user_message(place: &Place, voice: &Voice, now: i64) -> Value {
    json!({
        "id": place.message, "role": "user", "sessionID": place.session, "time": { "created": now },
        "agent": voice.agent, "model": { "providerID": voice.provider, "modelID": voice.model },
    })
}

pub(super) fn assistant_message(
    place: &Place,
    parent: &str,
    voice: &Voice,
    directory: &str,
    now: i64,
) -> Value {
    json!({
        "id": place.message, "parentID": parent, "role": "assistant", "mode": voice.agent, "agent": voice.agent,
        "path": { "cwd": directory, "root": "/" }, "cost": 0, "tokens": no_tokens(), "modelID": voice.model,
        "providerID": voice.provider, "time": { "created": now }, "sessionID": place.session,
    })
}

/// A part with its ids and `fields`, which name its type.
pub(super) fn part(place: &Place, id: &str, fields: Value) -> Value {
    let mut part = Map::new();
    part.insert("id".to_owned(), json!(id));
    part.insert("messageID".to_owned(), json!(place.message));
    part.insert("sessionID".to_owned(), json!(place.session));
    if let Value::Object(fields) = fields {
        part.extend(fields);
    }
    Value::Object(part)
}

/// A text or reasoning part: empty while it is open.
pub(super) fn text(kind: &str, text: &str, start: i64, end: Option<i64>) -> Value {
    match end {
        Some(end) => json!({ "type": kind, "text": text, "time": { "start": start, "end": end } }),
        None => json!({ "type": kind, "text": "", "time": { "start": start } }),
    }
}

pub(super) fn step_finish(reason: &str, pieces: u64) -> Value {
    json!({ "type": "step-finish", "reason": reason, "tokens": tokens(pieces), "cost": 0 })
}

pub(super) fn tool(name: &str, call: &str, state: &Value) -> Value {
    json!({ "type": "tool", "tool": name, "callID": call, "state": state })
}

pub(super) fn aborted() -> Value {
    json!({ "name": "MessageAbortedError", "data": { "message": "Aborted" } })
}

/// What a provider's refusal becomes.
pub(super) fn provider_error(status: u16) -> Value {
    let body =
        json!({ "error": { "message": said(status), "type": "stub_error", "code": status } }).to_string();
    let headers = json!({ "connection": "close", "content-length": body.len().to_string(), "content-type": "application/json" });
    json!({ "name": "APIError", "data": {
        "message": said(status), "statusCode": status, "isRetryable": is_retried(status),
        "responseHeaders": headers, "responseBody": body,
        "metadata": { "url": "http://127.0.0.1:9100/v1/chat/completions" },
    } })
}

/// The words of a provider that refuses.
pub(super) fn said(status: u16) -> String {
    format!("stub says {status}")
}

/// Whether opencode asks the provider again after this status.
pub(super) fn is_retried(status: u16) -> bool {
    status == 429 || status >= 500
}

pub(super) fn garbage_error() -> Value {
    let message = "JSON parsing failed: Text: {not json.\nError message: JSON Parse error: Expected '}'";
    json!({ "name": "UnknownError", "data": { "message": message } })
}
