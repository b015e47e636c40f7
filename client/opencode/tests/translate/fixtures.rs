//! Recordings that became fixtures: their translation is that of the recording, but for what was replaced.

use berth_opencode::{
    Translation,
    replay::{Recording, Replay},
};
use berth_testkit::fixture::{Normaliser, REDACTED, Surroundings, to_bytes};
use berth_wire::sse::{SseEvent, SseReader};
use futures_util::FutureExt;
use jiff::Timestamp;
use proptest::{prelude::*, sample::Index};
use serde_json::{Value, json};

use crate::replay::{Look, bytes, files};

fn frames(file: &str) -> Vec<SseEvent> {
    let chunk = Ok::<_, std::convert::Infallible>(bytes(file).into());
    let mut reader = SseReader::new(futures_util::stream::iter([chunk]));
    std::iter::from_fn(|| reader.next().now_or_never().flatten()).map(Result::unwrap).collect()
}

fn surroundings() -> Surroundings {
    Surroundings { secrets: vec!["word2".to_owned().into()], home: Some("/root".to_owned()) }
}

/// Times as numbers, since the same moment may be written with more digits or fewer.
fn with_plain_times(value: Value) -> Value {
    match value {
        Value::String(text) => match text.parse::<Timestamp>() {
            Ok(time) => json!(time.as_millisecond()),
            Err(_) => Value::String(text),
        },
        Value::Array(list) => list.into_iter().map(with_plain_times).collect(),
        Value::Object(map) => map.into_iter().map(|(key, value)| (key, with_plain_times(value))).collect(),
        other => other,
    }
}

/// What a recording comes to. Chunks of text are folded: what was replaced may be cut at other places.
fn told(frames: &[SseEvent], change: impl Fn(Value) -> Value) -> Vec<Value> {
    let mut told = Vec::new();
    for session in Replay::of(Recording::read(to_bytes(frames))).sessions {
        for item in &session.told {
            let value = match &item.item {
                Translation::Update(payload) if payload.as_chunk().is_some() => continue,
                Translation::Update(payload) => json!(payload.to_parts()),
                Translation::Started => json!("started"),
                Translation::Abort(error) => json!(error),
                Translation::Swallowed => json!("swallowed"),
                Translation::Ended(outcome) => json!(outcome),
            };
            told.push(with_plain_times(change(json!({ "turn": item.turn, "told": value }))));
        }
        for part in session.fold().parts() {
            told.push(change(json!([part.id, part.voice, part.text, part.voided])));
        }
    }
    told
}

fn check(file: &str, frames: &[SseEvent]) {
    let normaliser = Normaliser::of(frames, &surroundings());
    let once = normaliser.frames(frames);
    let (seen, wanted) = (told(&once, |value| value), told(frames, |value| normaliser.value(value)));
    for (seen, wanted) in seen.iter().zip(&wanted) {
        assert_eq!(seen, wanted, "{file}");
    }
    assert_eq!(seen.len(), wanted.len());
    let twice = Normaliser::of(&once, &surroundings()).frames(&once);
    assert_eq!(twice, once, "twice is as good as once");
}

#[test]
fn every_capture_keeps_its_translation_as_a_fixture() {
    for file in files() {
        check(&file, &frames(&file));
    }
}

#[test]
fn no_id_time_or_path_of_a_capture_is_left() {
    for file in files() {
        let raw = frames(&file);
        let fixture =
            String::from_utf8(to_bytes(&Normaliser::of(&raw, &surroundings()).frames(&raw))).unwrap();
        for mark in ["/lab/", "_22a", "_dd5", "\"1796", "2026-11-30"] {
            assert!(!fixture.contains(mark), "{file} still has {mark}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(20) })]
    #[test]
    fn any_piece_of_a_capture_keeps_its_translation(file: Index, from: Index, to: Index) {
        let files = files();
        let file = &files[file.index(files.len())];
        let frames = frames(file);
        let (a, b) = (from.index(frames.len() + 1), to.index(frames.len() + 1));
        check(file, &frames[a.min(b)..a.max(b)]);
    }
}

#[test]
fn a_secret_of_the_surroundings_is_taken_out_of_what_was_streamed() {
    let raw = frames("1.18.33-text.sse");
    let lines = told(&Normaliser::of(&raw, &surroundings()).frames(&raw), |value| value);
    let text = lines.iter().map(ToString::to_string).collect::<String>();
    assert!(text.contains(REDACTED) && text.contains("word1") && !text.contains("word2"), "{text}");
}
