//! The named scenarios: short names for scripts that a person or a test would want to see. Pure.
//!
//! `{cwd}` in a script stands for the agent's working directory. Tool names and arguments are those that
//! opencode 1.18.33 offers in its requests.

use crate::script::Script;

/// A script with a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scenario {
    /// What a prompt says after `scenario:`.
    pub name: &'static str,
    /// What it shows, in one line.
    pub summary: &'static str,
    /// The script that it plays; `{cwd}` stands for the agent's working directory.
    pub script: &'static str,
}

impl Scenario {
    /// The parsed script.
    pub fn parse(&self) -> Script {
        self.script.parse().expect("a test parses every scenario's script")
    }
}

/// Every scenario, in the order in which they are worth trying.
pub fn scenarios() -> &'static [Scenario] {
    &SCENARIOS
}

/// The scenario of this name.
pub fn scenario(name: &str) -> Option<&'static Scenario> {
    SCENARIOS.iter().find(|scenario| scenario.name == name)
}

const SCENARIOS: [Scenario; 17] = [
    Scenario {
        name: "demo",
        summary: "a thought, text, a shell command, a file written, and a closing text",
        script: concat!(
            "reason:The user wants to see what an agent does. | sleep:60 | reason: I look around first, | sleep:60 | reason: then I write a file.",
            " | say:I look at | sleep:60 | say: where I am | sleep:60 | say: and then I write a file.",
            r#" | tool:bash:{"command":"pwd && uname -s","description":"Show the directory and the system"}"#,
            " >> say:The shell answered. | sleep:60 | say: Now the file.",
            r#" | tool:write:{"filePath":"{cwd}/hello-from-berth.md","content":"Hello from a scripted model.\n"}"#,
            " >> say:Done: | sleep:60 | say: the file is | sleep:60 | say: {cwd}/hello-from-berth.md",
        ),
    },
    Scenario {
        name: "text",
        summary: "text in four pieces",
        script: "say:This answer | sleep:30 | say: comes in | sleep:30 | say: four pieces | sleep:30 | say: and uses no tool.",
    },
    Scenario {
        name: "thought",
        summary: "reasoning, then text",
        script: "reason:First I think, | sleep:30 | reason: in three | sleep:30 | reason: pieces. | say:Then I answer.",
    },
    Scenario {
        name: "tool",
        summary: "one shell command, then text",
        script: r#"say:I run one command. | tool:bash:{"command":"echo one tool call","description":"Say one line"} >> say:The command has run."#,
    },
    Scenario {
        name: "parallel",
        summary: "three tool calls in one step",
        script: concat!(
            "say:I run three commands at once.",
            r#" | tool:bash:{"command":"sleep 0.3; echo first","description":"Say the first line"}"#,
            r#" | tool:bash:{"command":"sleep 0.2; echo second","description":"Say the second line"}"#,
            r#" | tool:bash:{"command":"sleep 0.1; echo third","description":"Say the third line"}"#,
            " >> say:All three have run.",
        ),
    },
    Scenario {
        name: "edit",
        summary: "a file made, read and edited",
        script: concat!(
            r#"tool:bash:{"command":"printf 'one\\ntwo\\nthree\\n' > edited-by-berth.txt","description":"Make a file"}"#,
            r#" >> tool:read:{"filePath":"{cwd}/edited-by-berth.txt"}"#,
            r#" >> tool:edit:{"filePath":"{cwd}/edited-by-berth.txt","oldString":"two","newString":"TWO"}"#,
            " >> say:The second line of {cwd}/edited-by-berth.txt is now in capitals.",
        ),
    },
    Scenario {
        name: "subagent",
        summary: "a task given to a subagent, which runs a command of its own",
        script: concat!(
            "say:I give a task away.",
            r#" | tool:task:{"description":"Say one line","subagent_type":"general","prompt":"@stub2 tool:bash:{\"command\":\"echo from the subagent\",\"description\":\"Say one line\"}~>>~say:The subagent has run its command."}"#,
            " >> say:The subagent is done.",
        ),
    },
    Scenario {
        name: "question",
        summary: "a question to the person, with two answers to choose from",
        script: concat!(
            r#"tool:question:{"questions":[{"question":"Which colour shall it be?","header":"Colour","options":[{"label":"Red","description":"A warm one"},{"label":"Blue","description":"A cold one"}]}]}"#,
            " >> say:Thank you for the answer.",
        ),
    },
    Scenario {
        name: "permission",
        summary: "a shell command that asks for permission, where the configuration says so",
        script: r#"say:I would like to make a file. | tool:bash:{"command":"touch permission-was-given","description":"Make an empty file"} >> say:The command has run."#,
    },
    Scenario {
        name: "slow",
        summary: "forty words in ten seconds: time to cancel",
        script: "text:n=40,d=250,w=tick",
    },
    Scenario {
        name: "long",
        summary: "five thousand words as fast as they go",
        script: "text:n=5000,w=word | say:and that was all",
    },
    Scenario {
        name: "error-400",
        summary: "the provider refuses the request: the turn fails at once",
        script: "status:400",
    },
    Scenario {
        name: "error-429",
        summary: "the provider says \"not so fast\" once and wants a second's wait: the turn is retried",
        script: "status:429,times=1,ra=1 | say:The second try was let in.",
    },
    Scenario {
        name: "error-500",
        summary: "the provider fails twice: the turn is retried, which takes some seconds",
        script: "status:500,times=2 | say:The third try went well.",
    },
    Scenario {
        name: "cut",
        summary: "the connection breaks in mid-sentence, once: the answer starts again",
        script: "say:This sentence | sleep:50 | say: breaks off | sleep:50 | dropn:1 | say: and is whole the second time.",
    },
    Scenario {
        name: "garbage",
        summary: "a line that is not JSON in mid-stream: the turn fails",
        script: "say:What follows | sleep:50 | say: is not JSON. | sleep:50 | badjson",
    },
    Scenario {
        name: "no-finish",
        summary: "a stream that ends without saying so: opencode asks again and again until it is cancelled",
        script: "say:This answer has no end. | sleep:250 | eof",
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::Op;

    #[test]
    fn every_scenario_parses_and_prints_as_it_is_written() {
        for scenario in scenarios() {
            assert_eq!(
                scenario.parse().to_string().parse::<Script>().unwrap(),
                scenario.parse(),
                "{}",
                scenario.name
            );
            assert!(!scenario.script.contains('\n'), "{}: a prompt's script is one line", scenario.name);
        }
    }

    #[test]
    fn names_are_unique_and_lower_case() {
        for (index, scenario) in scenarios().iter().enumerate() {
            assert_eq!(scenario.name, scenario.name.to_ascii_lowercase());
            assert!(
                scenarios()[index + 1..].iter().all(|other| other.name != scenario.name),
                "{}",
                scenario.name
            );
        }
    }

    #[test]
    fn the_readme_lists_every_scenario_with_its_summary() {
        let readme = include_str!("../README.md");
        for scenario in scenarios() {
            let row = format!("| `{}` | {} |", scenario.name, scenario.summary);
            assert!(readme.contains(&row), "README.md lacks {row}");
        }
    }

    #[test]
    fn every_tool_call_has_json_arguments() {
        let ops = scenarios().iter().flat_map(|scenario| scenario.parse().steps).flatten();
        for op in ops {
            if let Op::Tool { name, arguments } = op {
                assert!(serde_json::from_str::<serde_json::Value>(&arguments).is_ok(), "{name}: {arguments}");
            }
        }
    }
}
