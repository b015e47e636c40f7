//! Makes a fixture of a recorded event stream of opencode: what differs from one recording to the next is replaced by
//! what is always the same, and secrets are taken out. Pure.
//!
//! | what | becomes |
//! |---|---|
//! | opencode's ids, such as `msg_22ac8eb89001BnfjGYH1RshWeX` | ids of the same shape and order, whose time is moved like all times, without what is random |
//! | ids of tool calls, UUIDs, hashes, slugs, boots, the door's cursors | numbers in order of first sight |
//! | Unix milliseconds and RFC 3339 times | the same differences, from [`BASE_TIME_MS`] on |
//! | working directories, the home directory | `/work`, `/work-2`, ..., `/home/agent` |
//! | ports of this machine, HTTP dates | always the same |
//! | keys, tokens, passwords, authorisation, by value, by shape and by the name beside them | [`REDACTED`] |
//!
//! Text that was streamed is looked at as a whole and cut again at the same places, since a secret or a path may come
//! in two pieces. Doing it twice changes nothing more.

use std::collections::{BTreeMap, VecDeque};

use berth_wire::sse::{SseEvent, write_event};
use secrecy::SecretString;
use serde_json::Value;

use self::{
    names::Names,
    scan::{Cut, Scanner},
};

mod names;
mod scan;

/// What a secret becomes.
pub const REDACTED: &str = "REDACTED";
/// The time of the first time stamp of every fixture, in Unix milliseconds: 2027-01-15T08:00:00Z.
pub const BASE_TIME_MS: i64 = 1_800_000_000_000;

/// What is known of where a recording was made.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    /// Secrets that must not be in the fixture, whatever they look like.
    pub secrets: Vec<SecretString>,
    /// Home directory of whoever ran opencode.
    pub home: Option<String>,
}

/// Replaces what is volatile or secret in one recording.
#[derive(Debug)]
pub struct Normaliser {
    names: Names,
    scanner: Scanner,
}

impl Normaliser {
    /// Looks at the whole recording first, and at its names in their order.
    pub fn of(frames: &[SseEvent], surroundings: &Surroundings) -> Self {
        let mut names = Names::default();
        let mut streams = Streams::default();
        let values: Vec<Value> = frames.iter().map(|frame| parse(&frame.data)).collect();
        for (frame, value) in frames.iter().zip(&values) {
            names.see_cursor(frame.id.as_deref());
            names.see_places(value);
            streams.see(value);
        }
        let scanner = Scanner::new(names.directories(), surroundings);
        for value in &values {
            names.see(value, &scanner);
        }
        for text in streams.texts() {
            names.see_text(text, &scanner);
        }
        names.name_ids();
        Self { names, scanner }
    }

    /// The recording as a fixture.
    pub fn frames(&self, frames: &[SseEvent]) -> Vec<SseEvent> {
        let mut streams = Streams::default();
        let values: Vec<Value> = frames.iter().map(|frame| parse(&frame.data)).collect();
        for value in &values {
            streams.see(value);
        }
        let mut pieces = streams.normalised(|text| self.scanner.recut(text, &self.names));
        let frames = frames.iter().zip(values);
        frames
            .map(|(frame, value)| {
                let piece = delta(&value).and_then(|delta| pieces.get_mut(&delta.place)?.pop_front());
                let mut value = self.value(value);
                if let Some(piece) = piece {
                    set_delta(&mut value, piece);
                }
                SseEvent {
                    id: frame.id.as_deref().map(|id| self.text(&self.names.cursor(id))),
                    event: frame.event.as_deref().map(|event| self.text(event)),
                    data: if value.is_null() { self.text(&frame.data) } else { value.to_string() },
                }
            })
            .collect()
    }

    /// Any JSON that speaks of the same things as the recording, such as its translation.
    pub fn value(&self, value: Value) -> Value {
        self.inside("", value)
    }

    /// Any text that speaks of the same things.
    pub fn text(&self, text: &str) -> String {
        self.scanner.replace(text, &self.names)
    }

    fn inside(&self, key: &str, value: Value) -> Value {
        match value {
            Value::String(text) => {
                Value::String(self.names.whole(key, &text).unwrap_or_else(|| self.text(&text)))
            }
            Value::Number(number) => self.names.number(key, number),
            Value::Array(list) => list.into_iter().map(|item| self.inside(key, item)).collect(),
            Value::Object(map) => {
                let secret: Vec<bool> = map.keys().map(|name| scan::is_secret(&map, name)).collect();
                let items = map.into_iter().zip(secret).map(|((name, item), secret)| {
                    let item = if secret { self.hidden(item) } else { self.inside(&name, item) };
                    (self.text(&name), item)
                });
                items.collect()
            }
            other => other,
        }
    }

    /// What stands for a secret: the same shape, so that who reads it still can.
    fn hidden(&self, value: Value) -> Value {
        match value {
            Value::String(text) if !text.is_empty() => Value::from(REDACTED),
            Value::Number(_) => Value::from(0),
            Value::Array(list) => list.into_iter().map(|item| self.hidden(item)).collect(),
            Value::Object(map) => {
                map.into_iter().map(|(name, item)| (self.text(&name), self.hidden(item))).collect()
            }
            other => other,
        }
    }
}

/// Takes secrets out of texts, and leaves everything else as it is. Doing it twice changes nothing more.
#[derive(Debug)]
pub struct Redactor {
    scanner: Scanner,
}

impl Redactor {
    /// One that knows these secrets, in each form in which they are sent, and what secrets look like.
    pub fn new(secrets: Vec<SecretString>) -> Self {
        Self { scanner: Scanner::new(Vec::new(), &Surroundings { secrets, home: None }) }
    }

    /// The text without secrets.
    pub fn text(&self, text: &str) -> String {
        self.scanner.redacted(text)
    }

    /// JSON without secrets, those included that only their name tells.
    pub fn value(&self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(&text)),
            Value::Array(list) => list.into_iter().map(|item| self.value(item)).collect(),
            Value::Object(map) => {
                let secret: Vec<bool> = map.keys().map(|name| scan::is_secret(&map, name)).collect();
                let items = map.into_iter().zip(secret).map(|((name, item), secret)| {
                    (self.text(&name), if secret { without_values(item) } else { self.value(item) })
                });
                items.collect()
            }
            other => other,
        }
    }
}

/// The same shape with nothing in it.
fn without_values(value: Value) -> Value {
    match value {
        Value::Array(list) => list.into_iter().map(without_values).collect(),
        Value::Object(map) => map.into_iter().map(|(name, item)| (name, without_values(item))).collect(),
        Value::Null | Value::Bool(_) => value,
        Value::String(_) | Value::Number(_) => Value::from(REDACTED),
    }
}

/// Counts ids and leaves times out, so that what two recordings came to can be compared line by line, however long each
/// took.
#[derive(Debug, Default)]
pub struct Plain {
    ids: BTreeMap<String, String>,
    counts: BTreeMap<String, usize>,
}

impl Plain {
    /// The next value; what was seen before keeps its number.
    pub fn value(&mut self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(&text)),
            Value::Array(list) => list.into_iter().map(|item| self.value(item)).collect(),
            Value::Object(map) => map.into_iter().map(|(key, item)| (key, self.value(item))).collect(),
            other => other,
        }
    }

    fn text(&mut self, text: &str) -> String {
        scan::replace_names(text, |found| match found {
            scan::Name::Id(id) => self.id(id),
            scan::Name::Time => "(time)".to_owned(),
        })
    }

    fn id(&mut self, id: &str) -> String {
        if let Some(known) = self.ids.get(id) {
            return known.clone();
        }
        let prefix = id.split_once('_').map_or("", |(prefix, _)| prefix);
        let count = self.counts.entry(prefix.to_owned()).or_default();
        *count += 1;
        self.ids.entry(id.to_owned()).or_insert_with(|| format!("{prefix}_{count}")).clone()
    }
}

/// A fixture of a recording.
pub fn normalise(frames: &[SseEvent], surroundings: &Surroundings) -> Vec<SseEvent> {
    Normaliser::of(frames, surroundings).frames(frames)
}

/// The bytes of an event stream with these frames.
pub fn to_bytes(frames: &[SseEvent]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for frame in frames {
        write_event(&mut bytes, frame.id.as_deref(), frame.event.as_deref(), &frame.data);
    }
    bytes
}

/// A frame's JSON; null when it is none.
fn parse(data: &str) -> Value {
    serde_json::from_str(data).unwrap_or_default()
}

/// Part and field that grow.
type Place = (String, String);

/// A piece of streamed text.
struct Delta<'a> {
    place: Place,
    text: &'a str,
}

fn delta(frame: &Value) -> Option<Delta<'_>> {
    let payload = frame.get("payload").unwrap_or(frame);
    if payload["type"] != "message.part.delta" {
        return None;
    }
    let properties = &payload["properties"];
    let place = (properties["partID"].as_str()?.to_owned(), properties["field"].as_str()?.to_owned());
    Some(Delta { place, text: properties["delta"].as_str()? })
}

fn set_delta(frame: &mut Value, text: String) {
    let place =
        if frame.get("payload").is_some() { "/payload/properties/delta" } else { "/properties/delta" };
    if let Some(delta) = frame.pointer_mut(place) {
        *delta = Value::String(text);
    }
}

/// The streamed texts of a recording, and where their pieces end.
#[derive(Default)]
struct Streams {
    texts: BTreeMap<Place, Cut>,
}

impl Streams {
    fn see(&mut self, frame: &Value) {
        if let Some(Delta { place, text }) = delta(frame) {
            let cut = self.texts.entry(place).or_default();
            cut.text.push_str(text);
            cut.ends.push(cut.text.len());
        }
    }

    fn texts(&self) -> impl Iterator<Item = &str> {
        self.texts.values().map(|cut| cut.text.as_str())
    }

    /// The pieces of each text, after `recut`.
    fn normalised(self, recut: impl Fn(Cut) -> Cut) -> BTreeMap<Place, VecDeque<String>> {
        let pieces = |cut: Cut| {
            let Cut { text, ends } = recut(cut);
            let starts = std::iter::once(0).chain(ends.iter().copied());
            starts.zip(&ends).map(|(start, end)| text[start..*end].to_owned()).collect()
        };
        self.texts.into_iter().map(|(place, cut)| (place, pieces(cut))).collect()
    }
}
