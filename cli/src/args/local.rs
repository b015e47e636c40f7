//! `berth up`, `down`, `status` and `doctor`, as they are typed. Pure.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use super::ServerArgs;
use crate::error::EXIT_CODES;

/// `berth up`
#[derive(Debug, ClapArgs)]
#[command(
    after_help = format!("\
Examples:
  berth up                                  one sandbox, `default`, in the current directory
  berth up ~/src/shop                       the same, in another directory
  berth up --sandbox api=./api --sandbox web=./web
  berth up --scripted                       with a scripted model: no key, no network
  berth up --detach                         in the background; `berth status` and `berth down` go with it

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
    /// Start in the background, return when it answers, and log to berth.log in the data directory
    #[arg(long)]
    pub detach: bool,
    /// This is the process in the background
    #[arg(long, hide = true, conflicts_with = "detach")]
    pub detached: bool,
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

/// `berth down`
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  berth down
  berth down --timeout 5          if it does not end by itself within 5 s, kill it

Sessions stay: the next `berth up` has them again. Turns that run are cut off, and end as failed.

Exit codes:
  0  nothing is up any more, or nothing was
  1  it does not end
  2  the command line is wrong")]
pub struct DownArgs {
    /// How long it may take to end by itself, in seconds; then it is killed
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub timeout: u64,
    /// Data directory [default: berth in the user's state directory, ~/.local/state]
    #[arg(long, value_name = "DIR", env = "BERTH_DATA", hide_env_values = true)]
    pub data: Option<PathBuf>,
}

/// `berth status`
#[derive(Debug, ClapArgs)]
#[command(after_help = format!("\
Examples:
  berth status
  berth status --json | jq -r '.sandboxes[] | select(.phase != \"ready\").name'

{EXIT_CODES}"))]
pub struct StatusArgs {
    /// Write one JSON object
    #[arg(long)]
    pub json: bool,
    /// Server.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// `berth doctor`
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  berth doctor
  berth doctor --json | jq -r '.checks[] | select(.verdict == \"bad\").fix'
  berth doctor --bundle berth-diagnostics.tar.gz

It only looks, and changes nothing. The bundle holds what doctor found, versions, the configuration without secrets, the
ends of the logs, and how opencode ended: no file of yours, and no conversation but for what is in opencode's log. Keys,
tokens and passwords are replaced by REDACTED: those that are known here, and whatever looks like one. Look into it
before you share it all the same.

Exit codes:
  0  nothing is in the way
  1  something is: see the lines that say how to mend it
  2  the command line is wrong")]
pub struct DoctorArgs {
    /// Write one JSON object
    #[arg(long)]
    pub json: bool,
    /// Also write a diagnostics archive (tar.gz) without secrets
    #[arg(long, value_name = "FILE")]
    pub bundle: Option<PathBuf>,
    /// opencode's binary [default: the pinned one in Berth's cache, then `opencode` on PATH]
    #[arg(long, value_name = "FILE", env = "BERTH_OPENCODE", hide_env_values = true)]
    pub opencode: Option<PathBuf>,
    /// Port that `berth up` would take
    #[arg(long, default_value_t = 7447)]
    pub port: u16,
    /// Server.
    #[command(flatten)]
    pub server: ServerArgs,
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
