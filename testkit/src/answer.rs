//! From a conversation to the operations of this one answer. Pure.
//!
//! A script's step, a title, or an explanation for a person who does not know what this is. A script that cannot
//! be played is answered by a text that names the fault.

use crate::{
    conversation::{Choice, Conversation},
    scenario::{scenario, scenarios},
    script::{Op, Script},
};

/// Placeholder for the agent's working directory.
const DIRECTORY: &str = "{cwd}";
/// Longest title, in characters, and words.
const TITLE: (usize, usize) = (50, 6);
/// Longest quotation of a prompt, in characters.
const QUOTED: usize = 200;
/// Milliseconds between two pieces of an explanation.
const EXPLANATION_PAUSE_MS: u64 = 10;

/// What to answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The script that is played, if any, as it was written or as its scenario is.
    pub(crate) script: Option<String>,
    /// The operations of this answer.
    pub(crate) ops: Vec<Op>,
}

impl Answer {
    /// The answer to this request.
    pub(crate) fn to(conversation: &Conversation) -> Self {
        if conversation.wants_title() {
            return Self { script: None, ops: vec![Op::Say(title(&conversation.prompt.text))] };
        }
        match &conversation.prompt.choice {
            Choice::Script(source) => Self::play(source, conversation),
            Choice::Scenario(name) => match scenario(name) {
                Some(scenario) => Self::play(scenario.script, conversation),
                None => Self { script: None, ops: explain(&format!("There is no scenario \"{name}\".")) },
            },
            Choice::Nothing => Self { script: None, ops: explain(&quote(&conversation.prompt.text)) },
        }
    }

    fn play(source: &str, conversation: &Conversation) -> Self {
        let ops = match source.parse::<Script>() {
            Err(error) => vec![Op::Say(format!("This script cannot be played: {}.", error.explain()))],
            Ok(mut script) if conversation.prompt.step < script.steps.len() => {
                let ops = script.steps.swap_remove(conversation.prompt.step);
                place_directory(ops, conversation.directory.as_deref())
            }
            Ok(_) => vec![Op::Say("done".to_owned())],
        };
        Self { script: Some(source.to_owned()), ops }
    }
}

/// Puts the working directory where the placeholder stands; in a tool's arguments as the inside of a JSON string.
fn place_directory(mut ops: Vec<Op>, directory: Option<&str>) -> Vec<Op> {
    let needs_it = |op: &Op| matches!(op, Op::Say(text) | Op::Reason(text) | Op::Tool { arguments: text, .. } if text.contains(DIRECTORY));
    if !ops.iter().any(needs_it) {
        return ops;
    }
    let Some(directory) = directory else {
        return vec![Op::Say(format!(
            "This script cannot be played: it uses {DIRECTORY} and the request names no working directory."
        ))];
    };
    let quoted = serde_json::Value::from(directory).to_string();
    let in_json = quoted.get(1..quoted.len() - 1).expect("a JSON string has its quotes");
    for op in &mut ops {
        match op {
            Op::Say(text) | Op::Reason(text) => *text = text.replace(DIRECTORY, directory),
            Op::Tool { arguments, .. } => *arguments = arguments.replace(DIRECTORY, in_json),
            _ => {}
        }
    }
    ops
}

/// A title from the first words of a prompt. On the Anthropic wire opencode's request for a title comes in one
/// message with the prompt, as its first block.
fn title(prompt: &str) -> String {
    let (longest, words) = TITLE;
    let text = prompt.trim_start().strip_prefix("Generate a title for this conversation:").unwrap_or(prompt);
    let first: Vec<&str> = text.split_whitespace().take(words).collect();
    let title: String = first.join(" ").chars().take(longest).collect();
    if title.is_empty() { "Untitled".to_owned() } else { title.trim_end().to_owned() }
}

fn quote(prompt: &str) -> String {
    let prompt = prompt.trim();
    if prompt.is_empty() {
        return "Your prompt has no text.".to_owned();
    }
    let shown: String = prompt.chars().take(QUOTED).collect();
    let more = if shown.len() < prompt.len() { "..." } else { "" };
    format!("You wrote: \"{shown}{more}\".")
}

/// The explanation that a newcomer gets, in pieces of one line.
fn explain(understood: &str) -> Vec<Op> {
    let list: Vec<String> = scenarios()
        .iter()
        .map(|scenario| format!("- `scenario: {}`: {}\n", scenario.name, scenario.summary))
        .collect();
    let text = format!(
        "This is Berth's scripted model. There is no AI behind it: it plays what the prompt tells it to. \
         {understood} That names nothing that I can play.\n\nTry one of these prompts:\n\n{}\n\
         Or write a script of your own: `@stub say:hello | tool:bash:{{\"command\":\"ls\"}} >> say:done`\n",
        list.concat()
    );
    let pieces = text.split_inclusive('\n').map(|line| Op::Say(line.to_owned()));
    pieces.flat_map(|piece| [piece, Op::Sleep(EXPLANATION_PAUSE_MS)]).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn ask_of(model: &str, prompt: &str, directory: Option<&str>) -> Answer {
        let system = directory.map_or_else(
            || "You are opencode".to_owned(),
            |directory| format!("Working directory: {directory}"),
        );
        let messages = json!([{"role": "system", "content": system}, {"role": "user", "content": prompt}]);
        let body = json!({"model": model, "messages": messages});
        Answer::to(&Conversation::read(body.to_string().as_bytes()).unwrap())
    }

    fn ask(prompt: &str) -> Answer {
        ask_of("m", prompt, Some("/w"))
    }

    fn text(answer: &Answer) -> String {
        let said = answer
            .ops
            .iter()
            .filter_map(|op| if let Op::Say(text) = op { Some(text.as_str()) } else { None });
        said.collect()
    }

    #[test]
    fn a_script_is_played_and_a_faulty_one_is_explained() {
        assert_eq!(ask("@stub say:a | hang").ops, [Op::Say("a".to_owned()), Op::Hang]);
        let faulty = ask("@stub say:a | jump");
        assert!(
            text(&faulty).starts_with("This script cannot be played: step 1, operation 2 `jump`: no such"),
            "{faulty:?}"
        );
        assert_eq!(faulty.script.as_deref(), Some("say:a | jump"));
    }

    #[test]
    fn past_the_last_step_the_answer_is_done() {
        let messages = json!([
            {"role": "user", "content": "@stub say:a"},
            {"role": "assistant", "tool_calls": [{}]},
            {"role": "tool", "content": ""},
        ]);
        let conversation = Conversation::read(json!({"messages": messages}).to_string().as_bytes()).unwrap();
        assert_eq!(Answer::to(&conversation).ops, [Op::Say("done".to_owned())]);
    }

    #[test]
    fn the_working_directory_is_put_in_its_place() {
        let directory = r#"/a "quoted" \ place"#;
        let answer =
            ask_of("m", r#"@stub say:in {cwd} | tool:write:{"filePath":"{cwd}/x"}"#, Some(directory));
        assert_eq!(answer.ops[0], Op::Say(format!("in {directory}")));
        let Op::Tool { arguments, .. } = &answer.ops[1] else { panic!("{answer:?}") };
        let arguments: Value = serde_json::from_str(arguments).unwrap();
        assert_eq!(arguments["filePath"], format!("{directory}/x"));
        assert!(text(&ask_of("m", "@stub say:{cwd}", None)).contains("names no working directory"));
    }

    #[test]
    fn a_newcomer_gets_every_scenario() {
        let answer = ask("hello\nthere");
        assert!(text(&answer).contains("You wrote: \"hello\nthere\"."), "{}", text(&answer));
        for scenario in scenarios() {
            assert!(
                text(&answer).contains(&format!("- `scenario: {}`: {}\n", scenario.name, scenario.summary))
            );
        }
        assert!(text(&ask("scenario: nosuch")).contains("There is no scenario \"nosuch\"."));
        assert_eq!(answer.script, None);
    }

    #[test]
    fn titles_come_from_the_first_words() {
        let title = |prompt: &str| text(&ask_of("small", prompt, None));
        assert_eq!(title("Fix the   login\npage of the shop please"), "Fix the login page of the");
        assert_eq!(title("Generate a title for this conversation:\n\nscenario: demo"), "scenario: demo");
        assert_eq!(title(&"x".repeat(80)), "x".repeat(50));
        assert_eq!(title("  "), "Untitled");
    }

    proptest! {
        #[test]
        fn a_title_is_one_short_line(prompt in "(.|\n){0,200}") {
            let title = title(&prompt);
            prop_assert!(!title.is_empty() && title.chars().count() <= 50 && !title.contains('\n'), "{:?}", title);
        }
    }
}
