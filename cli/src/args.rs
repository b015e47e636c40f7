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
    /// Look into what opencode sends and what Berth makes of it
    #[command(subcommand)]
    Debug(DebugCommand),
}

/// `berth debug`
#[derive(Debug, Subcommand)]
pub enum DebugCommand {
    /// Translate recordings of opencode's event stream, and judge them
    Replay(ReplayArgs),
    /// Record opencode's event stream as a fixture, without secrets and volatile values
    Capture(CaptureArgs),
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

/// `berth debug replay`
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  berth debug replay stream.sse
  berth debug replay --manifest client/opencode/tests/captures/manifest.json client/opencode/tests/captures/*.sse
  gunzip -c stream.sse.gz | berth debug replay - | jq -r 'select(.kind == \"turn_ended\").payload.state'
  diff <(berth debug replay --plain old.sse) <(berth debug replay --plain new.sse)

Any recorded stream of /event or /global/event will do, of opencode or of a door, with comments and ids. Standard output
gets one JSON object a line: file, session, turn, number of the event, kind, payload. Standard error gets a verdict:

  complete             every turn came to its end, and no rule of the log is broken
  incomplete           a turn did not end, or events are missing
  faulty               something cannot be read, or a rule of the log is broken
  not-a-turn-stream    no turn is in it

Exit codes:
  0  every recording is complete; with --manifest, every one is what that says
  1  one is not, or something cannot be read
  2  the command line is wrong")]
pub struct ReplayArgs {
    /// Recordings; `-` is standard input
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// What the recordings are expected to come to, by file name
    #[arg(long, value_name = "FILE")]
    pub manifest: Option<PathBuf>,
    /// Write only what two recordings of the same doings have in common: ids are counted, times and numbers left out
    #[arg(long)]
    pub plain: bool,
}

/// `berth debug capture`
#[derive(Debug, ClapArgs)]
#[command(
    group = ArgGroup::new("source").required(true),
    after_help = "\
Examples:
  berth debug capture --url http://127.0.0.1:4096 --password-file password -o 1.18.34-text.global.sse
  berth debug capture --url http://127.0.0.1:4096 --password-file password --directory . -o 1.18.34-text.sse
  berth debug capture --from stream.sse -o 1.18.34-text.sse

Ids, times, working directories and the like are replaced by what is the same in every recording, in the same order and
with the same differences. Passwords, keys and tokens are replaced by REDACTED: the password itself, the providers' keys
in the environment, and whatever looks like one. Look at the file before you share it all the same. Nothing is written
before the end, and then no secret.

Exit codes:
  0  the fixture is written
  1  the stream broke, and what came before is written; or nothing is, for the reason that is given
  2  the command line is wrong
  4  the password was refused
  5  nothing can be reached there"
)]
pub struct CaptureArgs {
    /// Address of an opencode or of a door
    #[arg(long, value_name = "URL", group = "source", requires = "password_file")]
    pub url: Option<String>,
    /// File with the password for it
    #[arg(long, value_name = "FILE", requires = "url")]
    pub password_file: Option<PathBuf>,
    /// Record the events of this directory only [default: those of all directories]
    #[arg(long, value_name = "DIR", requires = "url")]
    pub directory: Option<PathBuf>,
    /// How long to record
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: u64,
    /// Take an existing recording instead; `-` is standard input
    #[arg(long, value_name = "FILE", group = "source")]
    pub from: Option<PathBuf>,
    /// The fixture to write
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
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
            &["berth", "debug", "replay"],
            &["berth", "debug", "capture", "-o", "x.sse"],
            &["berth", "debug", "capture", "--url", "http://127.0.0.1:1", "-o", "x.sse"],
            &["berth", "debug", "capture", "--from", "y.sse", "--url", "http://127.0.0.1:1", "-o", "x.sse"],
            &["berth", "debug", "capture", "--from", "y.sse", "--directory", ".", "-o", "x.sse"],
            &["berth"],
        ];
        for line in bad {
            assert!(Args::try_parse_from(line).is_err(), "{line:?}");
        }
    }
}
