//! The two wires that the scripted model speaks, as bytes. Pure.
//!
//! [`Encoder`] writes a stream frame by frame; [`whole`] makes the one JSON document of an answer that is not a
//! stream. Both are a function of the request's number, the model's name and the beats, so the same request gets
//! the same bytes but for the ids.

use serde_json::Value;

mod anthropic;
mod openai;

/// A wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelWire {
    /// OpenAI chat completions: `POST /v1/chat/completions`.
    OpenAi,
    /// Anthropic messages: `POST /v1/messages`.
    Anthropic,
}

/// Tokens that every request is said to have had.
const INPUT_TOKENS: u64 = 11;
/// Longest fragment of a tool call's arguments, in characters.
const FRAGMENT: usize = 40;

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Finish {
    Stop,
    Tools,
    Length,
}

impl Finish {
    fn of(tools: usize, length: bool) -> Self {
        match (length, tools) {
            (true, _) => Self::Length,
            (false, 0) => Self::Stop,
            (false, _) => Self::Tools,
        }
    }
}

/// Ids and names that an answer repeats.
#[derive(Debug, Clone)]
pub(crate) struct Heading {
    /// Number of the request, which makes the ids.
    pub(crate) number: u64,
    /// Model name as the request had it.
    pub(crate) model: String,
}

impl Heading {
    fn id(&self) -> String {
        format!("scripted-{:06}", self.number)
    }

    fn call_id(&self, index: usize) -> String {
        format!("call_{:06}_{index}", self.number)
    }
}

/// Writes one stream. Each string is a whole number of frames, to be sent as one piece.
#[derive(Debug)]
pub(crate) enum Encoder {
    OpenAi(openai::Stream),
    Anthropic(anthropic::Stream),
}

impl Encoder {
    pub(crate) fn new(wire: ModelWire, heading: Heading) -> Self {
        match wire {
            ModelWire::OpenAi => Self::OpenAi(openai::Stream::new(heading)),
            ModelWire::Anthropic => Self::Anthropic(anthropic::Stream::new(heading)),
        }
    }

    /// What comes before everything else.
    pub(crate) fn open(&mut self) -> String {
        match self {
            Self::OpenAi(stream) => stream.open(),
            Self::Anthropic(stream) => stream.open(),
        }
    }

    pub(crate) fn text(&mut self, text: &str) -> String {
        match self {
            Self::OpenAi(stream) => stream.text(text),
            Self::Anthropic(stream) => stream.text(text),
        }
    }

    pub(crate) fn thought(&mut self, text: &str) -> String {
        match self {
            Self::OpenAi(stream) => stream.thought(text),
            Self::Anthropic(stream) => stream.thought(text),
        }
    }

    /// A tool call: its start, then its arguments in fragments.
    pub(crate) fn tool(&mut self, name: &str, arguments: &str) -> Vec<String> {
        match self {
            Self::OpenAi(stream) => stream.tool(name, arguments),
            Self::Anthropic(stream) => stream.tool(name, arguments),
        }
    }

    /// The proper end.
    pub(crate) fn finish(&mut self, length: bool) -> String {
        match self {
            Self::OpenAi(stream) => stream.finish(length),
            Self::Anthropic(stream) => stream.finish(length),
        }
    }
}

/// A data line that is not JSON.
pub(crate) const GARBAGE: &str = "data: {not json\n\n";

/// An answer that is not a stream, before it is written.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Collected {
    /// All text.
    pub(crate) text: String,
    /// All reasoning.
    pub(crate) thought: String,
    /// Tool calls, as name and arguments.
    pub(crate) tools: Vec<(String, String)>,
    /// Number of pieces of text and reasoning, which counts as tokens.
    pub(crate) pieces: u64,
    /// How it ends; `None` when it does not say.
    pub(crate) length: Option<bool>,
}

impl Collected {
    pub(crate) fn add_text(&mut self, text: &str) {
        self.text.push_str(text);
        self.pieces += 1;
    }

    pub(crate) fn add_thought(&mut self, thought: &str) {
        self.thought.push_str(thought);
        self.pieces += 1;
    }

    fn finish(&self) -> Option<Finish> {
        self.length.map(|length| Finish::of(self.tools.len(), length))
    }
}

/// The document of an answer that is not a stream.
pub(crate) fn whole(wire: ModelWire, heading: &Heading, collected: &Collected) -> Value {
    match wire {
        ModelWire::OpenAi => openai::whole(heading, collected),
        ModelWire::Anthropic => anthropic::whole(heading, collected),
    }
}

/// The document of an error.
pub(crate) fn error(wire: ModelWire, code: u16, message: &str) -> Value {
    let error = serde_json::json!({"message": message, "type": "scripted_error", "code": code});
    match wire {
        ModelWire::OpenAi => serde_json::json!({"error": error}),
        ModelWire::Anthropic => serde_json::json!({"type": "error", "error": error}),
    }
}

/// Tokens of an answer: one for each piece of text or reasoning, and never none.
fn output_tokens(pieces: u64) -> u64 {
    pieces.max(1)
}

fn fragments(arguments: &str) -> Vec<String> {
    let letters: Vec<char> = arguments.chars().collect();
    if letters.is_empty() {
        return vec![String::new()];
    }
    letters.chunks(FRAGMENT).map(|chunk| chunk.iter().collect()).collect()
}

#[cfg(test)]
mod tests;
