//! The command line, as it is typed. Pure; [`crate::config`] makes sense of it.

use std::path::PathBuf;

use clap::{ArgGroup, Args as ClapArgs, CommandFactory, Parser, Subcommand};
use uuid::Uuid;

use crate::error::EXIT_CODES;

/// Coding agents, each in a berth of its own.
#[derive(Debug, Parser)]
#[command(
    name = "berth",
    version,
    about = "Coding agents, each in a berth of its own",
    after_help = "\
Examples:
  berth up                        in one terminal: a sandbox in the current directory
  berth up --scripted             the same, without a model's key
  berth run \"fix the tests\"       in another: one prompt
  berth chat                      or a conversation"
)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run sandboxes and their server on this machine, until Ctrl-C
    Up(UpArgs),
    /// Send one prompt, show the answer as it comes, and exit
    Run(RunArgs),
    /// Talk with an agent, prompt after prompt
    Chat(ChatArgs),
}

/// Which server is talked to.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Server")]
pub struct ServerArgs {
    /// Address of the server [default: the one that `berth up` started here]
    #[arg(long, value_name = "URL", env = "BERTH_SERVER", hide_env_values = true)]
    pub server: Option<String>,
    /// File with the token for it
    #[arg(long, value_name = "FILE", env = "BERTH_TOKEN_FILE", hide_env_values = true)]
    pub token_file: Option<PathBuf>,
    /// Data directory of local mode [default: berth in the user's state directory, ~/.local/state]
    #[arg(long, value_name = "DIR", env = "BERTH_DATA", hide_env_values = true)]
    pub data: Option<PathBuf>,
}

/// Which conversation is had, and with whom.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Session")]
pub struct SessionArgs {
    /// Sandbox of a new session, as NAME or NAMESPACE/NAME [default: local/default]
    #[arg(long, value_name = "NAME", conflicts_with = "session")]
    pub sandbox: Option<String>,
    /// Go on with this session
    #[arg(long, value_name = "ID")]
    pub session: Option<Uuid>,
}

/// What is answered when the agent asks for a permission.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Permissions", group = ArgGroup::new("answer"))]
pub struct AnswerArgs {
    /// Allow everything that the agent asks for, each time once
    #[arg(long, group = "answer")]
    pub allow: bool,
    /// Reject everything that the agent asks for
    ///
    /// Without either, a person at the terminal is asked; where there is none, requests are rejected.
    #[arg(long, group = "answer")]
    pub deny: bool,
}

/// `berth run`
#[derive(Debug, ClapArgs)]
#[command(
    after_help = format!("\
Examples:
  berth run \"explain what this repository does\"
  berth run --allow \"make the tests pass\"
  (echo \"review this:\"; git diff) | berth run - > review.txt
  berth run --session 0198f2c4-... \"and now the documentation\"
  berth run --json \"list the files\" | jq -r 'select(.kind == \"turn_ended\").payload.state'

On a terminal everything is shown as it comes. When standard output is a pipe or a file, it gets the agent's text \
and nothing else, piece by piece as each is complete; thoughts, tools and notes go to standard error.

Ctrl-C cancels the turn and waits for its end; a second Ctrl-C leaves at once.

{EXIT_CODES}")
)]
pub struct RunArgs {
    /// The prompt; several words are joined by blanks, `-` or nothing reads standard input
    #[arg(value_name = "PROMPT")]
    pub prompt: Vec<String>,
    /// Write the turn's events to standard output, one JSON object a line, and nothing else
    #[arg(long)]
    pub json: bool,
    /// Session.
    #[command(flatten)]
    pub session: SessionArgs,
    /// Permissions.
    #[command(flatten)]
    pub answers: AnswerArgs,
    /// Server.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// `berth chat`
#[derive(Debug, ClapArgs)]
#[command(
    after_help = format!("\
Examples:
  berth chat
  berth chat --sandbox api
  berth chat --session 0198f2c4-...
  printf 'hello\\nand again\\n' | berth chat

Ctrl-C while the agent works cancels its turn; at the prompt, pressed twice, it leaves. Ctrl-D leaves.
Lines that begin with a slash are commands: /help lists them.

{EXIT_CODES}")
)]
pub struct ChatArgs {
    /// Session.
    #[command(flatten)]
    pub session: SessionArgs,
    /// Permissions.
    #[command(flatten)]
    pub answers: AnswerArgs,
    /// Server.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// `berth up`
#[derive(Debug, ClapArgs)]
#[command(
    after_help = format!("\
Examples:
  berth up                                  one sandbox, `default`, in the current directory
  berth up ~/src/shop                       the same, in another directory
  berth up --sandbox api=./api --sandbox web=./web
  berth up --scripted                       with a scripted model: no key, no network

The agent works with your own opencode settings: your configuration directory, your auth.json, and these variables, \
where they are set: {}. Others are passed on with --pass-env. An agent can read what it is given: prefer keys with a \
limit.

{EXIT_CODES}", PROVIDER_VARIABLES.join(", "))
)]
pub struct UpArgs {
    /// Working directory of the sandbox `default` [default: the current directory]
    #[arg(value_name = "DIR", conflicts_with = "sandbox")]
    pub directory: Option<PathBuf>,
    /// A sandbox and its working directory; may be given several times
    #[arg(long, value_name = "NAME=DIR")]
    pub sandbox: Vec<String>,
    /// Use a built-in scripted model instead of a real one
    #[arg(long)]
    pub scripted: bool,
    /// Port of the server on 127.0.0.1; 0 takes any that is free
    #[arg(long, default_value_t = 7447)]
    pub port: u16,
    /// opencode's binary [default: the pinned one in Berth's cache, then `opencode` on PATH]
    #[arg(long, value_name = "FILE", env = "BERTH_OPENCODE", hide_env_values = true)]
    pub opencode: Option<PathBuf>,
    /// Pass this variable of the environment on to opencode; may be given several times
    #[arg(long, value_name = "NAME", conflicts_with = "scripted")]
    pub pass_env: Vec<String>,
    /// Data directory [default: berth in the user's state directory, ~/.local/state]
    #[arg(long, value_name = "DIR", env = "BERTH_DATA", hide_env_values = true)]
    pub data: Option<PathBuf>,
}

/// Variables with which opencode finds its providers; `berth up` passes them on where they are set.
pub const PROVIDER_VARIABLES: [&str; 19] = [
    "ANTHROPIC_API_KEY",
    "OPENAI_API_KEY",
    "OPENROUTER_API_KEY",
    "GEMINI_API_KEY",
    "GOOGLE_GENERATIVE_AI_API_KEY",
    "GROQ_API_KEY",
    "MISTRAL_API_KEY",
    "DEEPSEEK_API_KEY",
    "XAI_API_KEY",
    "CEREBRAS_API_KEY",
    "TOGETHER_API_KEY",
    "FIREWORKS_API_KEY",
    "MOONSHOT_API_KEY",
    "ZHIPU_API_KEY",
    "OPENCODE_API_KEY",
    "AZURE_API_KEY",
    "AZURE_RESOURCE_NAME",
    "AWS_BEARER_TOKEN_BEDROCK",
    "AWS_REGION",
];

/// The whole command line as clap knows it, for the reference in the documentation.
pub fn command() -> clap::Command {
    Args::command()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn conflicts_are_refused() {
        let bad = [
            &["berth", "run", "--allow", "--deny", "x"][..],
            &["berth", "run", "--sandbox", "a", "--session", "0198f2c4-0000-7000-8000-000000000000", "x"],
            &["berth", "run", "--session", "not-an-id", "x"],
            &["berth", "up", "dir", "--sandbox", "a=b"],
            &["berth", "up", "--port", "70000"],
            &["berth"],
        ];
        for line in bad {
            assert!(Args::try_parse_from(line).is_err(), "{line:?}");
        }
    }
}
