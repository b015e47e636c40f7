//! `berth debug`, as it is typed. Pure.

use std::path::PathBuf;

use clap::{ArgGroup, Args as ClapArgs, Subcommand};

/// `berth debug`
#[derive(Debug, Subcommand)]
pub enum DebugCommand {
    /// Translate recordings of opencode's event stream, and judge them
    Replay(ReplayArgs),
    /// Record opencode's event stream as a fixture, without secrets and volatile values
    Capture(CaptureArgs),
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
