//! Anthropic messages. Pure.

use serde_json::{Map, Value, json};

use super::{Collected, Finish, Heading, INPUT_TOKENS, fragments, output_tokens};

/// Signature that closes a block of thinking.
const SIGNATURE: &str = "c2ln";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Block {
    Text,
    Thinking,
    Tool,
}

/// One stream of events.
#[derive(Debug)]
pub(crate) struct Stream {
    heading: Heading,
    open: Option<Block>,
    /// Number of blocks started so far.
    blocks: usize,
    tools: usize,
    pieces: u64,
}

impl Stream {
    pub(super) fn new(heading: Heading) -> Self {
        Self { heading, open: None, blocks: 0, tools: 0, pieces: 0 }
    }

    pub(super) fn open(&self) -> String {
        let message = json!({
            "id": self.heading.id(), "type": "message", "role": "assistant", "model": self.heading.model,
            "content": [], "stop_reason": null, "stop_sequence": null,
            "usage": {"input_tokens": INPUT_TOKENS, "output_tokens": 1},
        });
        event("message_start", json!({"message": message}))
    }

    pub(super) fn text(&mut self, text: &str) -> String {
        self.pieces += 1;
        let start = self.continue_block(Block::Text, &json!({"type": "text", "text": ""}));
        start + &self.delta(&json!({"type": "text_delta", "text": text}))
    }

    pub(super) fn thought(&mut self, text: &str) -> String {
        self.pieces += 1;
        let start = self
            .continue_block(Block::Thinking, &json!({"type": "thinking", "thinking": "", "signature": ""}));
        start + &self.delta(&json!({"type": "thinking_delta", "thinking": text}))
    }

    pub(super) fn tool(&mut self, name: &str, arguments: &str) -> Vec<String> {
        let id = self.heading.call_id(self.tools);
        self.tools += 1;
        let start =
            self.start_block(Block::Tool, &json!({"type": "tool_use", "id": id, "name": name, "input": {}}));
        let rest = fragments(arguments).into_iter();
        let rest = rest.map(|text| self.delta(&json!({"type": "input_json_delta", "partial_json": text})));
        std::iter::once(start).chain(rest).collect()
    }

    pub(super) fn finish(&mut self, length: bool) -> String {
        let end = self.end_block();
        let reason = reason(Finish::of(self.tools, length));
        let delta = json!({
            "delta": {"stop_reason": reason, "stop_sequence": null},
            "usage": {"output_tokens": output_tokens(self.pieces)},
        });
        end + &event("message_delta", delta) + &event("message_stop", json!({}))
    }

    /// Starts a block unless one of this kind is open.
    fn continue_block(&mut self, kind: Block, start: &Value) -> String {
        if self.open == Some(kind) { String::new() } else { self.start_block(kind, start) }
    }

    fn start_block(&mut self, kind: Block, start: &Value) -> String {
        let end = self.end_block();
        self.open = Some(kind);
        self.blocks += 1;
        end + &event("content_block_start", json!({"index": self.index(), "content_block": start}))
    }

    fn end_block(&mut self) -> String {
        let signature = match self.open {
            None => return String::new(),
            Some(Block::Thinking) => self.delta(&json!({"type": "signature_delta", "signature": SIGNATURE})),
            Some(Block::Text | Block::Tool) => String::new(),
        };
        self.open = None;
        signature + &event("content_block_stop", json!({"index": self.index()}))
    }

    fn delta(&self, delta: &Value) -> String {
        event("content_block_delta", json!({"index": self.index(), "delta": delta}))
    }

    /// Index of the newest block.
    fn index(&self) -> usize {
        self.blocks.saturating_sub(1)
    }
}

fn event(kind: &str, fields: Value) -> String {
    let mut data = Map::new();
    data.insert("type".to_owned(), Value::from(kind));
    if let Value::Object(fields) = fields {
        data.extend(fields);
    }
    format!("event: {kind}\ndata: {}\n\n", Value::Object(data))
}

pub(super) fn whole(heading: &Heading, collected: &Collected) -> Value {
    let mut content = Vec::new();
    if !collected.thought.is_empty() {
        content.push(json!({"type": "thinking", "thinking": collected.thought, "signature": SIGNATURE}));
    }
    if !collected.text.is_empty() {
        content.push(json!({"type": "text", "text": collected.text}));
    }
    for (index, (name, arguments)) in collected.tools.iter().enumerate() {
        // A document has no room for arguments that are not JSON: they are sent as the string that they are.
        let input = serde_json::from_str(arguments).unwrap_or_else(|_| Value::from(arguments.as_str()));
        content.push(json!({"type": "tool_use", "id": heading.call_id(index), "name": name, "input": input}));
    }
    json!({
        "id": heading.id(), "type": "message", "role": "assistant", "model": heading.model, "content": content,
        "stop_reason": collected.finish().map(reason), "stop_sequence": null,
        "usage": {"input_tokens": INPUT_TOKENS, "output_tokens": output_tokens(collected.pieces)},
    })
}

fn reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "end_turn",
        Finish::Tools => "tool_use",
        Finish::Length => "max_tokens",
    }
}
