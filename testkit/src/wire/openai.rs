//! OpenAI chat completions. Pure.

use serde_json::{Value, json};

use super::{Collected, Finish, Heading, INPUT_TOKENS, fragments, output_tokens};

/// Time of creation that every answer carries, in seconds since 1970: the same request gets the same bytes.
const CREATED: u64 = 1_767_225_600;

/// One stream of chunks.
#[derive(Debug)]
pub(crate) struct Stream {
    heading: Heading,
    tools: usize,
    pieces: u64,
}

impl Stream {
    pub(super) fn new(heading: Heading) -> Self {
        Self { heading, tools: 0, pieces: 0 }
    }

    pub(super) fn open(&self) -> String {
        self.delta(&json!({"role": "assistant", "content": ""}))
    }

    pub(super) fn text(&mut self, text: &str) -> String {
        self.pieces += 1;
        self.delta(&json!({"content": text}))
    }

    pub(super) fn thought(&mut self, text: &str) -> String {
        self.pieces += 1;
        self.delta(&json!({"reasoning_content": text}))
    }

    pub(super) fn tool(&mut self, name: &str, arguments: &str) -> Vec<String> {
        let index = self.tools;
        self.tools += 1;
        let start = json!({
            "index": index, "id": self.heading.call_id(index), "type": "function",
            "function": {"name": name, "arguments": ""},
        });
        let rest = fragments(arguments)
            .into_iter()
            .map(|text| json!({"index": index, "function": {"arguments": text}}));
        std::iter::once(start).chain(rest).map(|call| self.delta(&json!({"tool_calls": [call]}))).collect()
    }

    pub(super) fn finish(&self, length: bool) -> String {
        let reason = reason(Finish::of(self.tools, length));
        let last = self.chunk(&json!([{"index": 0, "delta": {}, "finish_reason": reason}]), None);
        let usage = self.chunk(&json!([]), Some(usage(self.pieces)));
        format!("{last}{usage}data: [DONE]\n\n")
    }

    fn delta(&self, delta: &Value) -> String {
        self.chunk(&json!([{"index": 0, "delta": delta, "finish_reason": null}]), None)
    }

    fn chunk(&self, choices: &Value, usage: Option<Value>) -> String {
        let mut chunk = json!({
            "id": self.heading.id(), "object": "chat.completion.chunk", "created": CREATED,
            "model": self.heading.model, "choices": choices,
        });
        if let Some(usage) = usage {
            chunk["usage"] = usage;
        }
        format!("data: {chunk}\n\n")
    }
}

pub(super) fn whole(heading: &Heading, collected: &Collected) -> Value {
    let mut message = json!({"role": "assistant", "content": collected.text});
    if !collected.thought.is_empty() {
        message["reasoning_content"] = json!(collected.thought);
    }
    let call = |(index, (name, arguments)): (usize, &(String, String))| json!({"id": heading.call_id(index), "type": "function", "function": {"name": name, "arguments": arguments}});
    if !collected.tools.is_empty() {
        message["tool_calls"] = collected.tools.iter().enumerate().map(call).collect();
    }
    json!({
        "id": heading.id(), "object": "chat.completion", "created": CREATED, "model": heading.model,
        "choices": [{"index": 0, "message": message, "finish_reason": collected.finish().map(reason)}],
        "usage": usage(collected.pieces),
    })
}

fn reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::Tools => "tool_calls",
        Finish::Length => "length",
    }
}

fn usage(pieces: u64) -> Value {
    let output = output_tokens(pieces);
    json!({"prompt_tokens": INPUT_TOKENS, "completion_tokens": output, "total_tokens": INPUT_TOKENS + output})
}
