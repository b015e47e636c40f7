//! Every recorded stream: each turn ends where the manifest says that it did, and the agent does nothing after that.

use std::{
    collections::{BTreeSet, HashSet},
    path::PathBuf,
};

use super::*;

/// A recorded stream, as the door would have taken it.
struct Capture {
    name: String,
    events: Vec<(Option<String>, Value)>,
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../client/opencode/tests/captures")
}

fn manifest() -> serde_json::Map<String, Value> {
    let text = std::fs::read_to_string(folder().join("manifest.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

impl Capture {
    fn read(name: &str) -> Self {
        let text = std::fs::read_to_string(folder().join(name)).unwrap();
        let frames = text.lines().filter_map(|line| line.strip_prefix("data:"));
        let events =
            frames.filter_map(|frame| serde_json::from_str::<Value>(frame).ok()).map(|mut frame| match frame
                .get_mut("payload")
                .map(Value::take)
            {
                Some(payload) => (frame["directory"].as_str().map(str::to_owned), payload),
                None => (Some("/w".to_owned()), frame),
            });
        Self { name: name.to_owned(), events: events.collect() }
    }

    fn children(&self) -> BTreeSet<String> {
        let with_parent = self.events.iter().filter_map(|(_, event)| {
            let info = &event["properties"]["info"];
            let session = event["type"].as_str()?.starts_with("session.");
            (session && info["parentID"].is_string()).then(|| info["id"].as_str().map(str::to_owned))?
        });
        with_parent.collect()
    }
}

/// What the agent does, as opposed to what is told of it later.
fn is_work(event: &Value) -> bool {
    let properties = &event["properties"];
    match event["type"].as_str() {
        Some("message.part.delta" | "permission.asked" | "question.asked") => true,
        Some("message.part.updated") => {
            matches!(properties["part"]["state"]["status"].as_str(), Some("pending" | "running"))
                || properties["part"]["type"] == "step-start"
        }
        _ => false,
    }
}

fn session_of(event: &Value) -> Option<&str> {
    let properties = &event["properties"];
    properties["sessionID"].as_str().or_else(|| properties["part"]["sessionID"].as_str())
}

/// Plays a recording, with a prompt before each user message of a root session, or without any prompts. Gives the
/// number of turns that ended.
fn play(capture: &Capture, prompts: bool) -> (Rig, usize) {
    let mut rig = Rig::new();
    let children = capture.children();
    let mut users = HashSet::new();
    let mut ended = 0;
    for (directory, event) in &capture.events {
        let kind = event["type"].as_str().unwrap_or_default();
        let info = &event["properties"]["info"];
        rig.elapsed += Duration::from_millis(5);
        if is_work(event)
            && let Some(session) = session_of(event)
        {
            let active = rig.table.view().sessions.iter().any(|known| known.session_id == session);
            assert!(active, "{}: {session} works and is called idle: {event}", capture.name);
        }
        if kind == "message.updated" && info["role"] == "user" {
            let session = info["sessionID"].as_str().unwrap();
            let id = info["id"].as_str().unwrap();
            if prompts && users.insert(id.to_owned()) && !children.contains(session) {
                let ticket = rig.prompt(session, Some(id));
                rig.accepted(&ticket);
            }
        }
        if let Some(seen) = Seen::read(kind, &event.to_string()) {
            rig.change(|table, now, out| table.observe(directory.as_deref(), &seen, now, out));
        }
        ended += rig
            .told()
            .iter()
            .filter(|told| !told.ends_with("Admitted") && !told.ends_with("Started"))
            .count();
    }
    (rig, ended)
}

#[test]
fn every_capture_ends_idle_where_its_turns_ended() {
    let mut played = 0;
    for (name, entry) in manifest() {
        let capture = Capture::read(&name);
        let turns = entry["turns"].as_array().unwrap();
        let verdict = entry["verdict"].as_str().unwrap();
        // A turn may lack its end because what was heard of it is not whole, in a session that is said to be idle.
        let is_idle = |event: &Value| event["type"] == "session.idle";
        let over = capture.events.iter().any(|(_, event)| is_idle(event))
            || turns.iter().all(|turn| !matches!(turn["end"].as_str(), Some("not_started" | "not_ended")));
        let is_user = |event: &Value| event["properties"]["info"]["role"] == "user";
        // 1.15.4 loses events right after a subscription.
        let shown = capture.events.iter().any(|(_, event)| is_user(event));
        for prompts in [true, false] {
            let (rig, ended) = play(&capture, prompts);
            if verdict == "complete" {
                assert!(rig.is_idle(), "{name} ({prompts}): {:?}", rig.table.view());
            }
            if verdict == "complete" && prompts && shown {
                assert!(ended >= turns.len(), "{name}: {ended} of {} turns ended", turns.len());
            }
            if prompts && !over {
                assert!(!rig.is_idle(), "{name} ended early");
            }
            if verdict == "not-a-turn-stream" {
                assert!(rig.is_idle(), "{name}");
            }
        }
        played += 1;
    }
    assert!(played > 80, "only {played}");
}

#[test]
fn the_second_prompt_of_a_run_ends_with_the_first() {
    for version in ["1.15.4", "1.18.33"] {
        let (rig, ended) = play(&Capture::read(&format!("{version}-busy-queue.sse")), true);
        assert!(rig.is_idle());
        assert_eq!(ended, 2, "{version}");
    }
}
