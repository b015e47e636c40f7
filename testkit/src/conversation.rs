//! What a request asks of the model, read from the body of either wire. Pure.
//!
//! The prompt that decides is the last user message with a marker (`@stub ...` or `scenario: ...`), or the last
//! one without when nothing that was scripted is still going on. The step is the number of rounds of tool calls
//! that the assistant has made since that prompt.

use serde::Deserialize;
use serde_json::Value;

/// How opencode 1.18.33 names the working directory in its system prompt.
const DIRECTORY_MARK: &str = "Working directory:";
/// How opencode 1.18.33 answers a tool call that a person refused, or that was interrupted: with these words in
/// the tool's result the turn may have ended there.
const BROKEN_OFF: [&str; 3] =
    ["rejected permission", "Tool execution aborted", "Tool execution was interrupted"];

/// A request, in the terms of this crate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Conversation {
    /// Model name as sent.
    pub(crate) model: String,
    /// Whether the answer is to be a stream.
    pub(crate) stream: bool,
    /// The agent's working directory, from the system prompt.
    pub(crate) directory: Option<String>,
    /// Names of the tools that the request offers, in order.
    pub(crate) tools: Vec<String>,
    /// Number of messages, the system's included.
    pub(crate) messages: usize,
    /// The prompt that decides.
    pub(crate) prompt: Prompt,
}

/// The prompt that decides what the model does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Prompt {
    /// All its text blocks, joined by newlines.
    pub(crate) text: String,
    /// What the text chooses.
    pub(crate) choice: Choice,
    /// Index of its message.
    pub(crate) position: usize,
    /// Rounds of tool calls since.
    pub(crate) step: usize,
}

/// What a prompt's text chooses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Choice {
    /// No marker.
    #[default]
    Nothing,
    /// `@stub ...` or `@stub2 ...`: a script, in the plain separators.
    Script(String),
    /// `scenario: NAME`.
    Scenario(String),
}

#[derive(Deserialize)]
struct Body {
    #[serde(default)]
    model: String,
    #[serde(default)]
    stream: Option<bool>,
    #[serde(default)]
    system: Value,
    messages: Vec<Message>,
    #[serde(default)]
    tools: Option<Vec<Value>>,
}

#[derive(Deserialize)]
struct Message {
    role: String,
    #[serde(default)]
    content: Value,
    #[serde(default)]
    tool_calls: Option<Vec<Value>>,
}

impl Conversation {
    /// Reads a request body of the OpenAI chat-completions or the Anthropic messages wire.
    pub(crate) fn read(body: &[u8]) -> Result<Self, serde_json::Error> {
        let body: Body = serde_json::from_slice(body)?;
        let tools: Vec<String> = body.tools.iter().flatten().map(tool_name).collect();
        let systems =
            body.messages.iter().filter(|message| message.role == "system").map(|message| &message.content);
        Ok(Self {
            directory: systems.chain([&body.system]).find_map(|content| working_directory(&text_of(content))),
            prompt: deciding_prompt(&body.messages, !tools.is_empty()),
            messages: body.messages.len(),
            stream: body.stream.unwrap_or(false),
            model: body.model,
            tools,
        })
    }

    /// Whether this asks for a title: opencode sends those to its `small_model`.
    pub(crate) fn wants_title(&self) -> bool {
        self.model.starts_with("small")
    }
}

fn tool_name(tool: &Value) -> String {
    let function = tool.get("function").unwrap_or(tool);
    function.get("name").and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// The text blocks of a message's content, joined by newlines; content that is a string is one block.
fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => {
            let texts: Vec<&str> =
                blocks_of(blocks, "text").filter_map(|block| block.get("text")?.as_str()).collect();
            texts.join("\n")
        }
        _ => String::new(),
    }
}

fn blocks_of<'a>(blocks: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    blocks.iter().filter(move |block| block.get("type").and_then(Value::as_str) == Some(kind))
}

fn working_directory(system: &str) -> Option<String> {
    let directory = system.lines().filter_map(|line| line.trim().strip_prefix(DIRECTORY_MARK)).next_back()?;
    Some(directory.trim().to_owned()).filter(|directory| !directory.is_empty())
}

/// Walks the messages in order. A marked user message always decides from then on; an unmarked one decides only
/// when the marked one before it is not in the middle of its tool calls: opencode folds a message that arrives
/// while a turn runs into that turn, as a plain user message after the tool's result, and the script goes on.
fn deciding_prompt(messages: &[Message], offers_tools: bool) -> Prompt {
    let mut prompt = Prompt::default();
    let mut goes_on = false;
    for (position, message) in messages.iter().enumerate() {
        match message.role.as_str() {
            "assistant" => {
                goes_on = calls_tools(message);
                prompt.step += usize::from(goes_on);
            }
            "tool" => goes_on &= !was_broken_off(&text_of(&message.content)),
            "user" => {
                goes_on &= !tool_results(&message.content).any(|result| was_broken_off(&text_of(result)));
                let text = without_quotes(text_of(&message.content));
                let choice = Choice::read(&text);
                let folded_in = goes_on && offers_tools && choice == Choice::Nothing;
                if !folded_in && !text.trim().is_empty() {
                    prompt = Prompt { text, choice, position, step: 0 };
                    goes_on = false;
                }
            }
            _ => {}
        }
    }
    prompt
}

/// `opencode run` puts a prompt that has blanks into quotes, and a backslash before each quote in it.
fn without_quotes(text: String) -> String {
    match text.trim().strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        Some(quoted) => quoted.replace("\\\"", "\""),
        None => text,
    }
}

fn calls_tools(message: &Message) -> bool {
    let openai = message.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty());
    let anthropic =
        message.content.as_array().is_some_and(|blocks| blocks_of(blocks, "tool_use").next().is_some());
    openai || anthropic
}

fn tool_results(content: &Value) -> impl Iterator<Item = &Value> {
    let blocks = content.as_array().map_or(&[][..], Vec::as_slice);
    blocks_of(blocks, "tool_result").filter_map(|block| block.get("content"))
}

fn was_broken_off(result: &str) -> bool {
    BROKEN_OFF.iter().any(|words| result.contains(words))
}

impl Choice {
    /// Reads a prompt's text. The last line with `@stub ` wins, then the last with `@stub2 `, then the last line
    /// that starts with `scenario:`.
    pub(crate) fn read(text: &str) -> Self {
        let after =
            |mark: &str| text.lines().rev().find_map(|line| Some(line.split_once(mark)?.1.trim().to_owned()));
        if let Some(script) = after("@stub ") {
            return Self::Script(script);
        }
        if let Some(nested) = after("@stub2 ") {
            return Self::Script(nested.replace("~|~", " | ").replace("~>>~", " >> "));
        }
        text.lines().rev().find_map(scenario_name).map_or(Self::Nothing, Self::Scenario)
    }
}

fn scenario_name(line: &str) -> Option<String> {
    let (mark, rest) = line.trim_start().split_once(':')?;
    let name = rest.split_whitespace().next()?.trim_matches(|letter: char| !letter.is_alphanumeric());
    (mark.eq_ignore_ascii_case("scenario") && !name.is_empty()).then(|| name.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn read(messages: &Value) -> Conversation {
        let body = json!({"model": "m", "stream": true, "messages": messages, "tools": [{"function": {"name": "bash"}}]});
        Conversation::read(body.to_string().as_bytes()).unwrap()
    }

    fn script(text: &str) -> Choice {
        Choice::Script(text.to_owned())
    }

    fn scenario(name: &str) -> Choice {
        Choice::Scenario(name.to_owned())
    }

    #[test]
    fn a_prompts_text_chooses() {
        assert_eq!(Choice::read("please @stub say:a >> say:b  \nand more"), script("say:a >> say:b"));
        assert_eq!(Choice::read("@stub say:a\n@stub say:b"), script("say:b"));
        assert_eq!(Choice::read("@stub2 say:a~|~hang~>>~say:b"), script("say:a | hang >> say:b"));
        assert_eq!(
            Choice::read(r#"@stub tool:task:{"prompt":"@stub2 say:x"}"#),
            script(r#"tool:task:{"prompt":"@stub2 say:x"}"#)
        );
        assert_eq!(Choice::read("scenario: tool"), scenario("tool"));
        assert_eq!(Choice::read("Hello.\n  Scenario:Error-500, please"), scenario("error-500"));
        assert_eq!(Choice::read("hello"), Choice::Nothing);
        assert_eq!(Choice::read("a scenario: tool"), Choice::Nothing);
        assert_eq!(Choice::read("scenario:"), Choice::Nothing);
        assert_eq!(Choice::read("@stubborn"), Choice::Nothing);
    }

    #[test]
    fn the_quotes_of_opencode_run_do_not_matter() {
        let prompt = |content: &str| read(&json!([{"role": "user", "content": content}])).prompt;
        assert_eq!(prompt(r#""scenario: tool""#).choice, scenario("tool"));
        let quoted = prompt(r#""@stub tool:bash:{\"command\":\"echo \\"x\\"\"} >> say:done""#);
        assert_eq!(quoted.choice, script(r#"tool:bash:{"command":"echo \"x\""} >> say:done"#));
        assert_eq!(prompt(r#"say "hello""#).text, r#"say "hello""#);
        assert_eq!(prompt("\"").text, "\"");
    }

    #[test]
    fn both_wires_name_the_working_directory() {
        let env = "You are opencode\n<env>\n  Working directory: /srv/a b\n  Platform: linux\n</env>";
        let openai = read(&json!([{"role": "system", "content": env}, {"role": "user", "content": "x"}]));
        assert_eq!(openai.directory.as_deref(), Some("/srv/a b"));
        let body = json!({"model": "m", "system": [{"type": "text", "text": env}], "messages": [{"role": "user", "content": "x"}]});
        let anthropic = Conversation::read(body.to_string().as_bytes()).unwrap();
        assert_eq!(anthropic.directory.as_deref(), Some("/srv/a b"));
        assert!(!anthropic.stream);
    }

    #[test]
    fn rounds_of_tool_calls_are_steps_on_both_wires() {
        let openai = read(&json!([
            {"role": "user", "content": [{"type": "text", "text": "@stub a >> b"}, {"type": "text", "text": "more"}]},
            {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}, {"id": "2"}]},
            {"role": "tool", "content": "one"},
            {"role": "tool", "content": "two"},
        ]));
        let anthropic = read(&json!([
            {"role": "user", "content": [{"type": "text", "text": "@stub a >> b"}, {"type": "text", "text": "more"}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "1"}, {"type": "tool_use", "id": "2"}]},
            {"role": "user", "content": [{"type": "tool_result", "content": "one"}, {"type": "tool_result", "content": "two"}]},
        ]));
        for conversation in [openai, anthropic] {
            assert_eq!(conversation.prompt.choice, script("a >> b"));
            assert_eq!((conversation.prompt.step, conversation.prompt.position), (1, 0));
        }
    }

    #[test]
    fn a_message_folded_into_a_running_turn_does_not_end_the_script() {
        let openai = read(&json!([
            {"role": "user", "content": "@stub a >> b >> c"},
            {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]},
            {"role": "tool", "content": "(no output)"},
            {"role": "user", "content": "a note"},
            {"role": "user", "content": "another"},
        ]));
        let anthropic = read(&json!([
            {"role": "user", "content": "@stub a >> b >> c"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "1"}]},
            {"role": "user", "content": [{"type": "tool_result", "content": "(no output)"}, {"type": "text", "text": "a note"}]},
        ]));
        for conversation in [openai, anthropic] {
            assert_eq!(conversation.prompt.choice, script("a >> b >> c"));
            assert_eq!(conversation.prompt.step, 1);
        }
    }

    #[test]
    fn a_plain_prompt_after_the_end_of_a_turn_decides() {
        let ended = json!([
            {"role": "user", "content": "@stub a >> b"},
            {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]},
            {"role": "tool", "content": "(no output)"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "hello"},
        ]);
        let rejected = json!([
            {"role": "user", "content": "@stub a >> b"},
            {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]},
            {"role": "tool", "content": "The user rejected permission to use this specific tool call."},
            {"role": "user", "content": "hello"},
        ]);
        let rejected_anthropic = json!([
            {"role": "user", "content": "@stub a >> b"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "1"}]},
            {"role": "user", "content": [
                {"type": "tool_result", "content": [{"type": "text", "text": "Tool execution aborted"}]},
                {"type": "text", "text": "hello"},
            ]},
        ]);
        let unanswered =
            json!([{"role": "user", "content": "@stub a"}, {"role": "user", "content": "hello"}]);
        for messages in [ended, rejected, rejected_anthropic, unanswered] {
            let prompt = read(&messages).prompt;
            assert_eq!(
                (prompt.text.as_str(), prompt.choice, prompt.step),
                ("hello", Choice::Nothing, 0),
                "{messages}"
            );
        }
    }

    #[test]
    fn a_body_without_messages_is_refused_by_name() {
        let error = Conversation::read(br#"{"model":"m"}"#).unwrap_err();
        assert!(error.to_string().contains("messages"), "{error}");
    }

    proptest! {
        #[test]
        fn no_text_makes_the_choice_panic(text in "(.|\n|@stub |@stub2 |scenario:){0,60}") {
            let _ = Choice::read(&text);
        }

        #[test]
        fn no_body_makes_it_panic(
            contents in prop::collection::vec("(\"x\"|null|7|\\[\\]|\\[\\{\\}\\]|\\[\\{\"type\":\"text\"\\}\\]|\\{\"type\":\"text\",\"text\":3\\})", 0..6),
            roles in prop::collection::vec("(user|assistant|tool|system|other)", 6),
        ) {
            let messages: Vec<String> = contents.iter().zip(&roles)
                .map(|(content, role)| format!(r#"{{"role":"{role}","content":{content},"tool_calls":null}}"#)).collect();
            let body = format!(r#"{{"messages":[{}],"tools":[null,{{"name":7}}]}}"#, messages.join(","));
            prop_assert!(Conversation::read(body.as_bytes()).is_ok(), "{}", body);
        }
    }
}
