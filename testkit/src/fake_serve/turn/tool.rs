//! Tool calls: nothing is really run. `bash` prints what its `echo`s say and sleeps as its `sleep`s say, `question`
//! asks, everything else succeeds at once.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{Player, Stop, text_of};
use crate::{
    conversation::Choice,
    fake_serve::{
        asks::{AskKind, Reply, permission_of},
        now,
        shapes::{self, Place},
        world::{Queued, World},
    },
};

/// How opencode begins the error of a call that a person refused.
const REJECTED: &str = "The user rejected permission to use this specific tool call";
/// Longest sleep of a command, in seconds.
const MAX_SLEEP: f64 = 3600.0;

/// What the tool calls of a step lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The model is asked again.
    GoOn,
    /// The turn ends here.
    Stop,
}

/// A tool call that has begun.
#[derive(Debug)]
pub(super) struct ToolCall {
    part: String,
    call: String,
    name: String,
    input: Value,
    start: i64,
    stage: Stage,
    asked: Option<oneshot::Receiver<Reply>>,
    printed: String,
}

/// How far a tool call has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It waits for the model to end, or for a permission or an answer.
    Waits,
    Runs,
    Ended,
}

impl ToolCall {
    fn put(&self, world: &mut World, place: &Place, state: &Value) {
        world.put_part(&shapes::part(place, &self.part, shapes::tool(&self.name, &self.call, state)), now());
    }

    fn command(&self) -> &str {
        self.input["command"].as_str().unwrap_or_default()
    }

    fn put_running(&self, world: &mut World, place: &Place, output: Option<&str>) {
        let mut state = json!({ "status": "running", "input": self.input, "time": { "start": self.start } });
        if let Some(output) = output {
            state["metadata"] = json!({ "output": output });
        }
        self.put(world, place, &state);
    }

    fn put_completed(&self, world: &mut World, place: &Place, output: &str, metadata: &Value, title: &str) {
        let time = json!({ "start": self.start, "end": now() });
        let state = json!({
            "status": "completed", "input": self.input, "output": output, "metadata": metadata, "title": title,
            "time": time,
        });
        self.put(world, place, &state);
    }

    fn put_error(&self, world: &mut World, place: &Place, error: &str, metadata: Option<Value>) {
        let time = json!({ "start": self.start, "end": now() });
        let mut state = json!({ "status": "error", "input": self.input, "error": error, "time": time });
        if let Some(metadata) = metadata {
            state["metadata"] = metadata;
        }
        self.put(world, place, &state);
    }

    fn put_answered(&self, world: &mut World, place: &Place, answers: &Value) {
        let questions = self.input["questions"].as_array().map(Vec::as_slice).unwrap_or_default();
        let said: Vec<String> = questions
            .iter()
            .enumerate()
            .map(|(index, question)| {
                let labels = answers[index].as_array().map(Vec::as_slice).unwrap_or_default();
                let labels: Vec<&str> = labels.iter().filter_map(Value::as_str).collect();
                format!("\"{}\"=\"{}\"", question["question"].as_str().unwrap_or_default(), labels.join(", "))
            })
            .collect();
        let output = format!(
            "User has answered your questions: {}. You can now continue with the user's answers in mind.",
            said.join(", ")
        );
        let title = format!("Asked {} question{}", said.len(), if said.len() == 1 { "" } else { "s" });
        let metadata = json!({ "answers": answers, "truncated": false });
        self.put_completed(world, place, &output, &metadata, &title);
    }

    /// Asks for what it needs before it may run, if anything.
    fn ask(
        &self,
        world: &mut World,
        session: &str,
        place: &Place,
        by_default: bool,
    ) -> Option<oneshot::Receiver<Reply>> {
        let tool = json!({ "messageID": place.message, "callID": self.call });
        if self.name == "question" {
            let request = json!({ "questions": self.input["questions"], "tool": tool });
            return Some(world.ask(AskKind::Question, session, request, now()));
        }
        let permission = permission_of(&self.name);
        if !world.must_ask(session, permission, by_default) {
            return None;
        }
        let command = self.command();
        let (patterns, metadata, always) = if self.name == "bash" {
            let program = command.split(' ').next().unwrap_or_default();
            (json!([command]), json!({ "command": command }), json!([format!("{program} *")]))
        } else {
            (json!(["*"]), json!({}), json!(["*"]))
        };
        let request = json!({
            "permission": permission, "patterns": patterns, "metadata": metadata, "always": always, "tool": tool,
        });
        Some(world.ask(AskKind::Permission, session, request, now()))
    }

    /// The end by an abort: a command that ran says so, anything else failed.
    pub(super) fn break_off(&self, world: &mut World, place: &Place) {
        if self.stage == Stage::Ended {
            return;
        }
        if self.name == "bash" && self.stage == Stage::Runs {
            let printed = &self.printed;
            let output =
                format!("{printed}\n\n<shell_metadata>\nUser aborted the command\n</shell_metadata>");
            let metadata = json!({ "output": printed, "exit": null, "truncated": false });
            return self.put_completed(world, place, &output, &metadata, self.command());
        }
        self.put_error(world, place, "Tool execution aborted", Some(json!({ "interrupted": true })));
    }
}

impl Player {
    /// The model's call: it is shown, and asks for its permission; it runs when the model has ended.
    pub(super) fn call_tool(&mut self, queued: &Queued, name: &str, arguments: &str) {
        let by_default = self.asks_by_default(queued, permission_of(name));
        let (session, place) = (self.session.clone(), self.step().place.clone());
        let number = self.step().tools.len();
        let tool = self.with(|world| {
            let part = world.new_id("prt", now());
            let call = format!("call_{}_{number}", part.get(4..16).unwrap_or_default());
            let pending = json!({ "status": "pending", "input": {}, "raw": "" });
            world.put_part(&shapes::part(&place, &part, shapes::tool(name, &call, &pending)), now());
            let mut tool = ToolCall {
                part,
                call,
                name: name.to_owned(),
                input: serde_json::from_str(arguments).unwrap_or_default(),
                start: now(),
                stage: Stage::Waits,
                asked: None,
                printed: String::new(),
            };
            if !tool.input.is_object() {
                tool.input = json!({ "tool": name, "error": format!("Invalid input for tool {name}") });
                "invalid".clone_into(&mut tool.name);
            }
            tool.asked = tool.ask(world, &session, &place, by_default);
            tool.put_running(world, &place, None);
            tool
        });
        self.step().tools.push(tool);
    }

    fn asks_by_default(&self, queued: &Queued, permission: &str) -> bool {
        let text = text_of(&queued.parts);
        let in_prompt = text.split_whitespace().any(|word| word.strip_prefix("ask:") == Some(permission));
        let by_scenario =
            permission == "bash" && Choice::read(&text) == Choice::Scenario("permission".to_owned());
        in_prompt || by_scenario || self.shared.config.ask.iter().any(|asked| asked == permission)
    }

    /// Runs the step's tool calls one after another.
    pub(super) async fn run_tools(&mut self) -> Result<Verdict, Stop> {
        let mut verdict = Verdict::GoOn;
        for index in 0..self.step().tools.len() {
            let reply = match self.step().tools[index].asked.take() {
                Some(asked) => self.wait(asked).await?.unwrap_or(Reply::Dismiss),
                None => Reply::Allow,
            };
            if self.run_tool(index, reply).await? == Verdict::Stop {
                verdict = Verdict::Stop;
            }
        }
        Ok(verdict)
    }

    async fn run_tool(&mut self, index: usize, reply: Reply) -> Result<Verdict, Stop> {
        let place = self.step().place.clone();
        let shared = Arc::clone(&self.shared);
        let tool = &mut self.step().tools[index];
        tool.stage = Stage::Runs;
        if reply == Reply::Allow && tool.name == "bash" {
            return self.run_command(index, &place).await.map(|()| Verdict::GoOn);
        }
        tool.stage = Stage::Ended;
        let world = &mut shared.world();
        match reply {
            Reply::Allow => {
                let title = if tool.name == "invalid" { "Invalid Tool" } else { &tool.name };
                tool.put_completed(world, &place, "", &json!({ "truncated": false }), title);
            }
            Reply::Answers(answers) => tool.put_answered(world, &place, &answers),
            Reply::Reject { message: Some(message) } => {
                let error = format!("{REJECTED} with the following feedback: {message}");
                tool.put_error(world, &place, &error, None);
            }
            Reply::Reject { message: None } => {
                tool.put_error(world, &place, &format!("{REJECTED}."), None);
                return Ok(Verdict::Stop);
            }
            Reply::Dismiss => {
                tool.put_error(world, &place, "The user dismissed this question", None);
                return Ok(Verdict::Stop);
            }
        }
        Ok(Verdict::GoOn)
    }

    async fn run_command(&mut self, index: usize, place: &Place) -> Result<(), Stop> {
        let shared = Arc::clone(&self.shared);
        let tool = &mut self.step().tools[index];
        tool.put_running(&mut shared.world(), place, Some(""));
        for act in acts_of(tool.command()) {
            match act {
                Act::Print(line) => {
                    let tool = &mut self.step().tools[index];
                    tool.printed.push_str(&line);
                    tool.put_running(&mut shared.world(), place, Some(&tool.printed));
                }
                Act::Sleep(time) => self.pause(time).await?,
            }
        }
        let tool = &mut self.step().tools[index];
        tool.stage = Stage::Ended;
        let metadata = json!({ "output": tool.printed, "exit": 0, "truncated": false });
        tool.put_completed(&mut shared.world(), place, &tool.printed, &metadata, tool.command());
        Ok(())
    }
}

/// What a command does in the fake.
#[derive(Debug, PartialEq)]
enum Act {
    Print(String),
    Sleep(Duration),
}

fn acts_of(command: &str) -> Vec<Act> {
    let act = |part: &str| {
        let (name, rest) = part.split_once(' ').unwrap_or((part, ""));
        match (name, rest.parse::<f64>()) {
            ("echo", _) => Act::Print(format!("{rest}\n")),
            ("sleep", Ok(seconds)) if (0.0..=MAX_SLEEP).contains(&seconds) => {
                Act::Sleep(Duration::from_secs_f64(seconds))
            }
            _ => Act::Print("The fake runs no command.\n".to_owned()),
        }
    };
    command.split(';').flat_map(|part| part.split("&&")).map(|part| act(part.trim())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_prints_and_sleeps_and_nothing_else() {
        let acts = acts_of("echo a b; sleep 0.5 && rm -rf /");
        let refused = Act::Print("The fake runs no command.\n".to_owned());
        assert_eq!(acts, [Act::Print("a b\n".to_owned()), Act::Sleep(Duration::from_millis(500)), refused]);
        assert!(matches!(acts_of("sleep inf")[..], [Act::Print(_)]));
        assert!(matches!(acts_of("sleep -1")[..], [Act::Print(_)]));
    }
}
