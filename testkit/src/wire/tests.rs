use proptest::prelude::*;
use serde_json::json;

use super::*;

fn encoder(wire: ModelWire) -> Encoder {
    Encoder::new(wire, heading())
}

fn heading() -> Heading {
    Heading { number: 7, model: "m".to_owned() }
}

/// Frames as event and data; data that is not JSON is a string.
fn frames(bytes: &str) -> Vec<(Option<&str>, Value)> {
    assert!(bytes.is_empty() || bytes.ends_with("\n\n"), "whole frames only: {bytes:?}");
    bytes.split_terminator("\n\n").map(frame).collect()
}

fn frame(frame: &str) -> (Option<&str>, Value) {
    let (event, data) = match frame.split_once('\n') {
        Some((event, data)) => (Some(event.strip_prefix("event: ").expect("an event line")), data),
        None => (None, frame),
    };
    let data = data.strip_prefix("data: ").expect("a data line");
    (event, serde_json::from_str(data).unwrap_or_else(|_| data.into()))
}

/// An OpenAI chunk with one choice.
fn chunk(delta: &Value, finish: Option<&str>) -> (Option<&'static str>, Value) {
    let chunk = json!({
        "id": "scripted-000007", "object": "chat.completion.chunk", "created": 1_767_225_600, "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    });
    (None, chunk)
}

/// An Anthropic event.
fn event(kind: &'static str, mut data: Value) -> (Option<&'static str>, Value) {
    data["type"] = kind.into();
    (Some(kind), data)
}

#[test]
fn openai_text_thought_and_end() {
    let mut encoder = encoder(ModelWire::OpenAi);
    assert_eq!(frames(&encoder.open()), [chunk(&json!({"role": "assistant", "content": ""}), None)]);
    assert_eq!(frames(&encoder.thought("so")), [chunk(&json!({"reasoning_content": "so"}), None)]);
    assert_eq!(frames(&encoder.text("a \"b\"\n")), [chunk(&json!({"content": "a \"b\"\n"}), None)]);
    let usage = json!({
        "id": "scripted-000007", "object": "chat.completion.chunk", "created": 1_767_225_600, "model": "m",
        "choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 2, "total_tokens": 13},
    });
    assert_eq!(
        frames(&encoder.finish(false)),
        [chunk(&json!({}), Some("stop")), (None, usage), (None, "[DONE]".into())]
    );
}

#[test]
fn openai_tools_come_in_fragments_under_their_own_index() {
    let mut encoder = encoder(ModelWire::OpenAi);
    let arguments = "é".repeat(41);
    let first: Vec<_> = encoder.tool("bash", &arguments).iter().flat_map(|text| owned(text)).collect();
    let call = |call: Value| owned_chunk(&json!({"tool_calls": [call]}));
    let start = |index: usize, name: &str| {
        call(json!({
            "index": index, "id": format!("call_000007_{index}"), "type": "function",
            "function": {"name": name, "arguments": ""},
        }))
    };
    let fragment = |index: usize, text: &str| call(json!({"index": index, "function": {"arguments": text}}));
    assert_eq!(first, [start(0, "bash"), fragment(0, &"é".repeat(40)), fragment(0, "é")]);
    let second: Vec<_> = encoder.tool("read", "").iter().flat_map(|text| owned(text)).collect();
    assert_eq!(second, [start(1, "read"), fragment(1, "")]);
    assert_eq!(frames(&encoder.finish(false))[0], chunk(&json!({}), Some("tool_calls")));
    assert_eq!(frames(&encoder.finish(true))[0], chunk(&json!({}), Some("length")));
}

fn owned(text: &str) -> Vec<Value> {
    frames(text).into_iter().map(|(_, data)| data).collect()
}

fn owned_chunk(delta: &Value) -> Value {
    chunk(delta, None).1
}

#[test]
fn anthropic_blocks_open_and_close_one_at_a_time() {
    let mut encoder = encoder(ModelWire::Anthropic);
    let start = |index: usize, block: Value| {
        event("content_block_start", json!({"index": index, "content_block": block}))
    };
    let delta =
        |index: usize, delta: Value| event("content_block_delta", json!({"index": index, "delta": delta}));
    let stop = |index: usize| event("content_block_stop", json!({"index": index}));
    let message = json!({
        "id": "scripted-000007", "type": "message", "role": "assistant", "model": "m", "content": [],
        "stop_reason": null, "stop_sequence": null, "usage": {"input_tokens": 11, "output_tokens": 1},
    });
    assert_eq!(frames(&encoder.open()), [event("message_start", json!({"message": message}))]);
    assert_eq!(
        frames(&(encoder.thought("so") + &encoder.thought(" on"))),
        [
            start(0, json!({"type": "thinking", "thinking": "", "signature": ""})),
            delta(0, json!({"type": "thinking_delta", "thinking": "so"})),
            delta(0, json!({"type": "thinking_delta", "thinking": " on"})),
        ]
    );
    assert_eq!(
        frames(&encoder.text("a")),
        [
            delta(0, json!({"type": "signature_delta", "signature": "c2ln"})),
            stop(0),
            start(1, json!({"type": "text", "text": ""})),
            delta(1, json!({"type": "text_delta", "text": "a"})),
        ]
    );
    let tool = |index: usize, name: &str| json!({"type": "tool_use", "id": format!("call_000007_{index}"), "name": name, "input": {}});
    assert_eq!(
        frames(&(encoder.tool("bash", "{\"a\":1}").concat() + &encoder.tool("read", "{}").concat())),
        [
            stop(1),
            start(2, tool(0, "bash")),
            delta(2, json!({"type": "input_json_delta", "partial_json": "{\"a\":1}"})),
            stop(2),
            start(3, tool(1, "read")),
            delta(3, json!({"type": "input_json_delta", "partial_json": "{}"})),
        ]
    );
    let end =
        json!({"delta": {"stop_reason": "tool_use", "stop_sequence": null}, "usage": {"output_tokens": 3}});
    assert_eq!(
        frames(&encoder.finish(false)),
        [stop(3), event("message_delta", end), event("message_stop", json!({}))]
    );
}

#[test]
fn anthropic_ends_with_its_own_reasons() {
    let reason = |length: bool| {
        let end = encoder(ModelWire::Anthropic).finish(length);
        frames(&end)[0].1["delta"]["stop_reason"].clone()
    };
    assert_eq!((reason(false), reason(true)), ("end_turn".into(), "max_tokens".into()));
}

#[test]
fn a_whole_answer_has_everything_in_one_document() {
    let mut collected = Collected { length: Some(false), ..Collected::default() };
    collected.add_thought("so");
    collected.add_text("a");
    collected.add_text("b");
    collected.tools.push(("bash".to_owned(), "{\"c\":1}".to_owned()));
    let openai = whole(ModelWire::OpenAi, &heading(), &collected);
    let call = json!({"id": "call_000007_0", "type": "function", "function": {"name": "bash", "arguments": "{\"c\":1}"}});
    let message =
        json!({"role": "assistant", "content": "ab", "reasoning_content": "so", "tool_calls": [call]});
    assert_eq!(openai["choices"], json!([{"index": 0, "message": message, "finish_reason": "tool_calls"}]));
    assert_eq!(openai["usage"]["completion_tokens"], 3);
    let anthropic = whole(ModelWire::Anthropic, &heading(), &collected);
    assert_eq!(
        anthropic["content"],
        json!([
            {"type": "thinking", "thinking": "so", "signature": "c2ln"},
            {"type": "text", "text": "ab"},
            {"type": "tool_use", "id": "call_000007_0", "name": "bash", "input": {"c": 1}},
        ])
    );
    assert_eq!(anthropic["stop_reason"], "tool_use");
    let unfinished = Collected::default();
    assert_eq!(whole(ModelWire::OpenAi, &heading(), &unfinished)["choices"][0]["finish_reason"], Value::Null);
    assert_eq!(whole(ModelWire::Anthropic, &heading(), &unfinished)["stop_reason"], Value::Null);
}

proptest! {
    #[test]
    fn fragments_are_short_and_add_up(arguments in "(.|\n){0,200}") {
        let fragments = fragments(&arguments);
        prop_assert!(fragments.iter().all(|fragment| fragment.chars().count() <= FRAGMENT));
        prop_assert_eq!(fragments.concat(), arguments);
    }

    /// Whatever the order of pieces: each block of the Anthropic stream starts once, stops once, and only the
    /// newest one gets deltas.
    #[test]
    fn anthropic_blocks_are_dense_and_well_formed(pieces in prop::collection::vec(0..3_u8, 0..20)) {
        let mut encoder = encoder(ModelWire::Anthropic);
        let mut bytes = String::new();
        for piece in pieces {
            match piece {
                0 => bytes.push_str(&encoder.text("x")),
                1 => bytes.push_str(&encoder.thought("y")),
                _ => bytes.push_str(&encoder.tool("bash", "{}").concat()),
            }
        }
        bytes.push_str(&encoder.finish(false));
        let (mut open, mut blocks) = (None, 0_u64);
        for (event, data) in frames(&bytes) {
            let index = data["index"].as_u64();
            match event.unwrap() {
                "content_block_start" => {
                    prop_assert_eq!((open, index), (None, Some(blocks)));
                    open = index;
                    blocks += 1;
                }
                "content_block_delta" => prop_assert_eq!(index, open),
                "content_block_stop" => prop_assert_eq!((index, open.take().is_some()), (Some(blocks - 1), true)),
                _ => prop_assert_eq!(open, None),
            }
        }
    }
}
