//! What the translation makes of a stream with holes: recorded streams of opencode, read live, late, and from the middle.

use std::{collections::BTreeMap, fs, path::PathBuf};

use berth_opencode::{
    GlobalEvent, Translation,
    replay::{Recording, SessionReplay},
};
use berth_wire::event::{EventPayload, Fold};
use serde_json::Value;

use super::*;

/// The frames of each recording as they come from `/global/event`; a recording of `/event` gets envelopes.
fn recordings() -> Vec<(String, Vec<Value>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../client/opencode/tests/captures");
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files = entries.filter(|path| path.extension().is_some_and(|extension| extension == "sse"));
    files
        .map(|path| {
            let text = fs::read_to_string(&path).unwrap();
            let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
            let frames = data.map(|data| {
                let frame: Value = serde_json::from_str(data).unwrap();
                if frame["payload"].is_object() { frame } else { json!({ "payload": frame }) }
            });
            (path.display().to_string(), frames.collect())
        })
        .collect()
}

/// As when commands are chatty: updates are told again and again, those of tools with more and more output.
fn chatty(frames: Vec<Value>) -> Vec<Value> {
    let mut all = Vec::new();
    for frame in frames {
        let kind = frame["payload"]["type"].as_str().unwrap_or_default().to_owned();
        let times = if kind.ends_with(".updated") || kind == "session.diff" { 4 } else { 1 };
        for time in 0..times {
            let mut frame = frame.clone();
            let state = &mut frame["payload"]["properties"]["part"]["state"];
            if kind == "message.part.updated" && state["status"] == "running" {
                state["metadata"]["output"] = "line\n".repeat(time).into();
            }
            all.push(frame);
        }
    }
    all
}

/// What a person sees in the end.
#[derive(Debug, PartialEq)]
struct Outcome {
    texts: Vec<(String, String, bool)>,
    /// Everything that was last told of each tool call.
    tools: BTreeMap<String, BTreeMap<String, Value>>,
    /// The title that was told last: it may be told later, and those before it not at all.
    title: Value,
    /// Requests and their answers, plans but for those that were replaced, and how turns ended, in order.
    rest: Vec<Value>,
}

fn outcomes(events: Vec<GlobalEvent>) -> Vec<Outcome> {
    let recording = Recording { events, unreadable: Vec::new() };
    let roots = recording.roots().into_iter();
    roots.map(|root| outcome(&SessionReplay::whole(&root, &recording.events))).collect()
}

fn outcome(replay: &SessionReplay) -> Outcome {
    let mut tools = BTreeMap::<String, BTreeMap<_, _>>::new();
    let (mut fold, mut title, mut rest) = (Fold::default(), Value::Null, Vec::new());
    for told in &replay.told {
        let payload = match &told.item {
            Translation::Update(payload) => payload,
            other => {
                rest.push(format!("{other:?}").into());
                continue;
            }
        };
        fold.apply(payload).unwrap();
        let (kind, value) = payload.to_parts();
        match (kind.as_str(), payload) {
            ("tool_call" | "tool_call_update", _) => {
                let fields = value.as_object().unwrap().clone();
                let call = tools.entry(value["toolCallId"].as_str().unwrap().to_owned()).or_default();
                call.extend(fields.into_iter().filter(|(name, _)| name != "sessionUpdate"));
            }
            ("session_info_update", _) => title = value,
            ("plan", _) => {
                if rest.last().is_some_and(|last: &Value| last["sessionUpdate"] == "plan") {
                    rest.pop();
                }
                rest.push(value);
            }
            (_, EventPayload::PartVoided(_) | EventPayload::PartReplaced(_)) => {}
            _ if payload.as_chunk().is_some() => {}
            _ => rest.push(value),
        }
    }
    let texts = fold.parts().iter().map(|part| (part.id.clone(), part.text.clone(), part.voided)).collect();
    Outcome { texts, tools, title, rest }
}

#[test]
fn reading_late_comes_to_the_same_as_reading_live() {
    let (mut sessions, mut holes) = (0, 0);
    for (file, frames) in recordings() {
        let mut ring = Ring::new(1 << 30, "e");
        let mut live = Vec::new();
        for frame in chatty(frames) {
            if let Some(frame) = Frame::parse(frame.to_string()).unwrap() {
                ring.push(frame);
                live.extend(ring.slots.back().cloned().flatten());
            }
        }
        let read = |entries: &[Arc<Entry>]| -> Vec<GlobalEvent> {
            let texts = entries.iter().map(|entry| entry.envelope());
            texts.filter_map(|text| GlobalEvent::parse(&text).ok()).collect()
        };
        let expected = outcomes(read(&live));
        sessions += expected.len();
        holes += ring.slots.iter().filter(|slot| slot.is_none()).count();
        for third in 0..3 {
            let known = live.len() * third / 3;
            let mut entries = live[..known].to_vec();
            entries.extend(read_all(&ring, known as u64).unwrap());
            assert_eq!(outcomes(read(&entries)), expected, "{file}, late from event {known} on");
        }
    }
    assert!(sessions > 90, "{sessions} sessions");
    assert!(holes > 1000, "{holes} holes");
}
