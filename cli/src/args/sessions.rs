//! `berth sessions`, `berth diff` and `berth cp`, as they are typed. Pure.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand, ValueEnum};

use super::ServerArgs;
use crate::{choice::SessionChoice, error::EXIT_CODES};

/// `berth sessions`
#[derive(Debug, Subcommand)]
pub enum SessionsCommand {
    /// List sessions, those that changed last first
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Show what was said and done in a session
    Show(ShowArgs),
    /// Give a session a title
    Rename(RenameArgs),
    /// Delete sessions, and cut off what runs in them
    #[command(visible_alias = "rm")]
    Delete(DeleteArgs),
    /// Write the whole log of a session, as JSON lines or as Markdown
    Export(ExportArgs),
}

/// Which sessions are meant by their state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StateFilter {
    /// Nothing to do
    Idle,
    /// A prompt waits
    Queued,
    /// The agent works
    Running,
    /// The agent waits for an answer
    Waiting,
}

/// `berth sessions list`
#[derive(Debug, ClapArgs)]
#[command(after_help = format!("\
Examples:
  berth sessions list
  berth sessions list --title login --state waiting
  berth sessions list --directory .             those whose agent works here, through whichever link
  berth sessions list --json | jq -r .id

Wherever a session is named, the beginning of its id will do when no other session's begins like that, and `last` is the
one that changed last.

{EXIT_CODES}"))]
pub struct ListArgs {
    /// Only sessions of this sandbox, NAME or NAMESPACE/NAME [default: those of all]
    #[arg(long, value_name = "NAME")]
    pub sandbox: Option<String>,
    /// Only sessions whose title contains this
    #[arg(long, value_name = "TEXT")]
    pub title: Option<String>,
    /// Only sessions in this state
    #[arg(long, value_name = "STATE")]
    pub state: Option<StateFilter>,
    /// Only sessions whose agent works in this directory
    #[arg(long, value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// At most this many
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub limit: u32,
    /// Write one JSON object a line for each session
    #[arg(long)]
    pub json: bool,
    /// Server.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// `berth sessions show`
#[derive(Debug, ClapArgs)]
#[command(after_help = format!("\
Examples:
  berth sessions show last
  berth sessions show 0198f2c4 | less
  berth sessions show last --json | jq -r .text

{EXIT_CODES}"))]
pub struct ShowArgs {
    /// The session: its id, the beginning of it, or `last`
    #[arg(value_name = "SESSION", default_value = "last")]
    pub session: SessionChoice,
    /// Write one JSON object a line for each turn
    #[arg(long)]
    pub json: bool,
    /// Server.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// `berth sessions rename`
#[derive(Debug, ClapArgs)]
#[command(after_help = format!("\
Examples:
  berth sessions rename last \"the login form\"

{EXIT_CODES}"))]
pub struct RenameArgs {
    /// The session: its id, the beginning of it, or `last`
    #[arg(value_name = "SESSION")]
    pub session: SessionChoice,
    /// The title; several words are joined by blanks
    #[arg(value_name = "TITLE", required = true)]
    pub title: Vec<String>,
    /// Server.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// `berth sessions delete`
#[derive(Debug, ClapArgs)]
#[command(after_help = format!("\
Examples:
  berth sessions delete 0198f2c4
  berth sessions delete --yes 0198f2c4 0198f2d1

What the agent did to files stays; the conversation is gone.

{EXIT_CODES}"))]
pub struct DeleteArgs {
    /// The sessions: their ids, or the beginnings of them
    #[arg(value_name = "SESSION", required = true)]
    pub sessions: Vec<SessionChoice>,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
    /// Server.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// What a session is exported as.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// Every event of the log, one JSON object a line
    #[default]
    Jsonl,
    /// The conversation, for people
    Markdown,
}

/// `berth sessions export`
#[derive(Debug, ClapArgs)]
#[command(after_help = format!("\
Examples:
  berth sessions export last > session.jsonl
  berth sessions export 0198f2c4 --format markdown -o session.md

{EXIT_CODES}"))]
pub struct ExportArgs {
    /// The session: its id, the beginning of it, or `last`
    #[arg(value_name = "SESSION")]
    pub session: SessionChoice,
    /// What to write
    #[arg(long, value_enum, default_value_t)]
    pub format: ExportFormat,
    /// The file [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Server.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// `berth diff`
#[derive(Debug, ClapArgs)]
#[command(after_help = format!("\
Examples:
  berth diff                       what the session that changed last changed
  berth diff 0198f2c4 --stat
  berth diff > agent.patch

It goes through no pager; in a pipe or a file it is a patch without colours.

{EXIT_CODES}"))]
pub struct DiffArgs {
    /// The session: its id, the beginning of it, or `last`
    #[arg(value_name = "SESSION", default_value = "last")]
    pub session: SessionChoice,
    /// Only what changed in this turn: its number in the session, from 1, or its id
    #[arg(long, value_name = "TURN")]
    pub turn: Option<String>,
    /// Only the names of files, and how many lines changed
    #[arg(long)]
    pub stat: bool,
    /// Write one JSON object
    #[arg(long, conflicts_with = "stat")]
    pub json: bool,
    /// Server.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// `berth cp`
#[derive(Debug, ClapArgs)]
#[command(after_help = format!("\
Examples:
  berth cp last:report.md .
  berth cp 0198f2c4:src/main.rs main.rs
  berth cp last:notes.txt -              to standard output
  berth cp last:docs docs-of-the-agent   a directory, with everything in it

Paths are relative to the session's working directory; nothing outside of it can be copied. Files that are there already
are only replaced with --force.

{EXIT_CODES}"))]
pub struct CopyArgs {
    /// The session, and a path in its working directory
    #[arg(value_name = "SESSION:PATH")]
    pub from: String,
    /// Where to: a file, a directory, or `-` for standard output
    #[arg(value_name = "LOCAL")]
    pub to: PathBuf,
    /// Replace files that are there already
    #[arg(short, long)]
    pub force: bool,
    /// Server.
    #[command(flatten)]
    pub server: ServerArgs,
}
