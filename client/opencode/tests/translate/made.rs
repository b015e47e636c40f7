//! Events made by hand, and what came out of them.

use berth_opencode::{Event, GlobalEvent, SessionTranslator, Translation, model::MessageWithParts};
use berth_wire::{
    event::{EventPayload, Fold, Resolution, Voice},
    turn::TurnOutcome,
};
use serde_json::{Value, json};

pub(crate) const ROOT: &str = "ses_root";

pub(crate) fn event(kind: &str, properties: &Value) -> GlobalEvent {
    GlobalEvent::from_value(json!({ "payload": { "type": kind, "properties": properties } })).unwrap()
}

pub(crate) fn status(kind: &str) -> GlobalEvent {
    event("session.status", &json!({ "sessionID": ROOT, "status": { "type": kind } }))
}

pub(crate) fn idle() -> GlobalEvent {
    event("session.idle", &json!({ "sessionID": ROOT }))
}

pub(crate) fn error(name: &str, message: &str) -> GlobalEvent {
    let error = json!({ "name": name, "data": { "message": message } });
    event("session.error", &json!({ "sessionID": ROOT, "error": error }))
}

pub(crate) fn user(id: &str, created: i64) -> GlobalEvent {
    let info = json!({ "id": id, "sessionID": ROOT, "role": "user", "time": { "created": created } });
    event("message.updated", &json!({ "info": info }))
}

pub(crate) fn assistant_json(id: &str, parent: &str, created: i64) -> Value {
    json!({ "id": id, "sessionID": ROOT, "role": "assistant", "parentID": parent, "time": { "created": created } })
}

pub(crate) fn assistant(id: &str, parent: &str, created: i64) -> GlobalEvent {
    event("message.updated", &json!({ "info": assistant_json(id, parent, created) }))
}

pub(crate) fn finished_json(id: &str, parent: &str, created: i64, finish: &str) -> Value {
    let mut info = assistant_json(id, parent, created);
    info["time"]["completed"] = json!(created + 1);
    info["finish"] = json!(finish);
    info["tokens"] = json!({ "input": 10, "output": 2, "reasoning": 1, "cache": { "read": 3, "write": 4 } });
    info["cost"] = json!(0.25);
    info
}

pub(crate) fn finished(id: &str, parent: &str, created: i64, finish: &str) -> GlobalEvent {
    event("message.updated", &json!({ "info": finished_json(id, parent, created, finish) }))
}

pub(crate) fn failed(id: &str, parent: &str, created: i64, name: &str) -> GlobalEvent {
    let mut info = assistant_json(id, parent, created);
    info["time"]["completed"] = json!(created + 1);
    info["error"] = json!({ "name": name, "data": { "message": "why" } });
    event("message.updated", &json!({ "info": info }))
}

pub(crate) fn text_json(part: &str, message: &str, text: &str, ended: bool) -> Value {
    let time = if ended { json!({ "start": 1, "end": 2 }) } else { json!({ "start": 1 }) };
    json!({ "id": part, "messageID": message, "sessionID": ROOT, "type": "text", "text": text, "time": time })
}

pub(crate) fn text(part: &str, message: &str, text: &str, ended: bool) -> GlobalEvent {
    event("message.part.updated", &json!({ "part": text_json(part, message, text, ended) }))
}

pub(crate) fn delta(part: &str, message: &str, text: &str) -> GlobalEvent {
    let properties =
        json!({ "sessionID": ROOT, "messageID": message, "partID": part, "field": "text", "delta": text });
    event("message.part.delta", &properties)
}

pub(crate) fn tool(part: &str, message: &str, state: &Value) -> GlobalEvent {
    let part = json!({
        "id": part, "messageID": message, "sessionID": ROOT, "type": "tool", "tool": "bash", "callID": "call_1",
        "state": state,
    });
    event("message.part.updated", &json!({ "part": part }))
}

pub(crate) fn asked(id: &str, session: &str, message: &str) -> GlobalEvent {
    let tool = json!({ "messageID": message, "callID": "call_1" });
    let request =
        json!({ "id": id, "sessionID": session, "permission": "bash", "patterns": ["ls"], "tool": tool });
    event("permission.asked", &request)
}

/// A turn that has begun: our prompt `msg_u1`, and `msg_a1` open.
pub(crate) fn started() -> SessionTranslator {
    let mut translator = SessionTranslator::new(ROOT);
    translator.begin_turn("msg_u1");
    let out =
        apply(&mut translator, &[user("msg_u1", 100), status("busy"), assistant("msg_a1", "msg_u1", 101)]);
    assert_eq!(out, [Translation::Started]);
    translator
}

/// Applies the events, before each message that ended by itself the part that says so, as opencode sends it.
pub(crate) fn apply(translator: &mut SessionTranslator, events: &[GlobalEvent]) -> Vec<Translation> {
    let with_finish = events.iter().flat_map(|event| [finish_of(event), Some(event.clone())]);
    with_finish.flatten().flat_map(|event| translator.apply(&event)).collect()
}

fn finish_of(event: &GlobalEvent) -> Option<GlobalEvent> {
    let Event::MessageUpdated(info) = &event.event else { return None };
    info.finish.is_some().then(|| step_finish(&info.id))
}

/// The end of a step, after everything that the model said in it.
pub(crate) fn step_finish(message: &str) -> GlobalEvent {
    let part = json!({
        "id": format!("prt_{message}_finish"), "messageID": message, "sessionID": ROOT, "type": "step-finish",
        "reason": "stop", "tokens": {}, "cost": 0,
    });
    event("message.part.updated", &json!({ "part": part }))
}

pub(crate) fn outcome(out: &[Translation]) -> &TurnOutcome {
    let outcomes: Vec<_> = out
        .iter()
        .filter_map(|item| match item {
            Translation::Ended(outcome) => Some(outcome),
            _ => None,
        })
        .collect();
    assert_eq!(outcomes.len(), 1, "one end in {out:?}");
    outcomes[0]
}

pub(crate) fn said(out: &[Translation]) -> String {
    let mut fold = Fold::default();
    for item in out {
        if let Translation::Update(payload) = item {
            fold.apply(payload).unwrap();
        }
    }
    fold.text(Voice::Message)
}

pub(crate) fn messages(messages: &[(Value, Vec<Value>)]) -> Vec<MessageWithParts> {
    let one = |(info, parts): &(Value, Vec<Value>)| {
        serde_json::from_value(json!({ "info": info, "parts": parts })).unwrap()
    };
    messages.iter().map(one).collect()
}

pub(crate) fn resolutions(out: &[Translation]) -> Vec<Resolution> {
    out.iter()
        .filter_map(|item| match item {
            Translation::Update(EventPayload::PermissionResolved(settled)) => Some(settled.resolution),
            _ => None,
        })
        .collect()
}
