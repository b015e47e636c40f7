//! The command line, as it is typed. Pure; [`crate::config`] makes sense of it.

use std::path::PathBuf;

use clap::{ArgGroup, Args as ClapArgs, CommandFactory, Parser, Subcommand};

use crate::{choice::SessionChoice, error::EXIT_CODES};

mod debug;
mod local;
mod sessions;
mod shell;

pub use debug::{CaptureArgs, DebugCommand, ReplayArgs};
pub use local::{DoctorArgs, DownArgs, PROVIDER_VARIABLES, StatusArgs, UpArgs};
pub use sessions::{
    CopyArgs, DeleteArgs, DiffArgs, ExportArgs, ExportFormat, ListArgs, RenameArgs, SessionsCommand,
    ShowArgs, StateFilter,
};
pub use shell::{CompletionsArgs, ManArgs, Shell};

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
  berth up --detach               the same, in the background; `berth down` ends it
  berth run \"fix the tests\"       in another: one prompt
  berth chat                      or a conversation
  berth sessions list             what was talked about
  berth doctor                    when something does not work"
)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run sandboxes and their server on this machine, until Ctrl-C or in the background
    Up(UpArgs),
    /// End what `berth up` started
    Down(DownArgs),
    /// Show what is up, and how it stands
    Status(StatusArgs),
    /// Send one prompt, show the answer as it comes, and exit
    Run(RunArgs),
    /// Talk with an agent, prompt after prompt
    Chat(ChatArgs),
    /// List, show, rename, delete and export sessions
    #[command(subcommand, visible_alias = "session")]
    Sessions(SessionsCommand),
    /// Show what the agent changed in a session
    Diff(DiffArgs),
    /// Copy a file or a directory out of a session's working directory
    Cp(CopyArgs),
    /// Find out why something does not work, and what to do about it
    Doctor(DoctorArgs),
    /// Write the completion script of a shell
    Completions(CompletionsArgs),
    /// Show the manual as man pages, or write them to a directory
    Man(ManArgs),
    /// Look into what opencode sends and what Berth makes of it
    #[command(subcommand)]
    Debug(DebugCommand),
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
    /// Go on with this session: its id, the beginning of it, or `last`
    #[arg(long, value_name = "ID")]
    pub session: Option<SessionChoice>,
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
  berth run --session last \"and now the documentation\"
  berth run --file screenshot.png \"why does it look like that?\"
  berth run --model anthropic/claude-sonnet-4-5 --agent plan \"how would you do it?\"
  berth run --timeout 600 \"fix the flaky test\"
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
    /// Model that answers, as PROVIDER/MODEL [default: the agent's own]
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
    /// Agent of opencode that works, such as `build` or `plan` [default: opencode's]
    #[arg(long, value_name = "NAME")]
    pub agent: Option<String>,
    /// Give this file along: a text, an image or a PDF of at most 8 MiB; may be given several times
    #[arg(long, value_name = "FILE")]
    pub file: Vec<PathBuf>,
    /// Cancel the turn when it has not ended after this many seconds, and exit 6
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=604_800))]
    pub timeout: Option<u64>,
    /// How long to wait for a server that goes away meanwhile, and to go on when it is back [default: 600]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=604_800))]
    pub wait: Option<u64>,
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
  berth chat                  a new session in the sandbox `default`
  berth chat --sandbox api    in another sandbox
  berth chat --session last   go on where you were
  berth chat --allow          nobody is asked for permissions
  printf 'hello\\nand again\\n' | berth chat

You can type while the agent works: prompts wait in a queue. Lines that begin with a slash are commands, and /help
lists them and the keys: Ctrl-C ends what the agent does, Ctrl-D leaves, @file gives a file along. With NO_COLOR set
there are no colours; without a terminal, each line of standard input is a prompt.

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
            &["berth", "run", "--timeout", "0", "x"],
            &["berth", "sessions", "delete"],
            &["berth", "sessions", "list", "--state", "bored"],
            &["berth", "completions", "tcsh"],
            &["berth", "cp", "last:a"],
            &["berth", "down", "--timeout", "0"],
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
