//! `kubectl berth`: sandboxes in a cluster, for whoever looks after them. Talks to the cluster only, never to Berth's server.
//!
//! - [`args`]: the command line as typed. Pure.
//! - [`cluster`]: the way to the cluster; [`sandboxes`]: the sandboxes there. IO.
//! - [`list`], [`describe`], [`logs`], [`attach`], [`render`], [`doctor`]: one for each command; what they show is made by
//!   pure functions below them.
//! - [`tunnel`]: a port of a pod on this machine. IO.
//! - [`yaml`]: objects as text. Pure.

use std::{
    io::{self, IsTerminal, Write},
    process::ExitCode,
    time::Duration,
};

use berth_command::printer::Shape;
use clap::Parser;
use tracing_subscriber::EnvFilter;

pub mod age;
pub mod args;
pub mod attach;
pub mod cluster;
pub mod describe;
pub mod doctor;
pub mod error;
pub mod list;
pub mod logs;
pub mod render;
pub mod sandboxes;
pub mod tunnel;
pub mod yaml;

use args::{Args, Command};
use error::{Exit, PluginError, error_chain};

/// How long what was left running at the end may take to be dropped.
const LEAVE_LIMIT: Duration = Duration::from_millis(500);

/// The whole program: parses the command line, does what it says, and tells how it went.
pub fn main() -> ExitCode {
    let args = Args::parse();
    log_to_stderr();
    match start(args) {
        Ok(exit) => exit.into(),
        // Whoever read the output wants no more of it: `head` for example.
        Err(PluginError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            Exit::Succeeded.into()
        }
        Err(error) => {
            // When standard error is gone too, the exit code still tells.
            let mut text = format!("error: {}\n", error_chain(&error));
            if let Some(hint) = error.hint() {
                text.extend(["  → ", &hint, "\n"]);
            }
            let _ = io::stderr().write_all(text.as_bytes());
            error.exit().into()
        }
    }
}

fn start(args: Args) -> Result<Exit, PluginError> {
    let shape = shape();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(PluginError::Runtime)?;
    let result = runtime.block_on(async {
        let Args { cluster, command } = args;
        match command {
            Command::List(args) => Box::pin(list::list(&cluster, args, shape)).await,
            Command::Describe(args) => Box::pin(describe::describe(&cluster, args, shape)).await,
            Command::Logs(args) => Box::pin(logs::logs(&cluster, args, shape)).await,
            Command::Attach(args) => Box::pin(attach::attach(&cluster, args)).await,
            Command::Render(args) => Box::pin(render::render(&cluster, args)).await,
            Command::Doctor(args) => Box::pin(doctor::doctor(&cluster, args, shape)).await,
            Command::Completions(args) => args::completions(&args),
        }
    });
    runtime.shutdown_timeout(LEAVE_LIMIT);
    result
}

#[expect(clippy::disallowed_methods, reason = "this is where the program reads its environment")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn shape() -> Shape {
    let out_terminal = io::stdout().is_terminal();
    let dumb = variable("TERM").is_some_and(|kind| kind == "dumb");
    let color = variable("NO_COLOR").is_none() && !dumb;
    Shape { out_terminal, err_terminal: io::stderr().is_terminal(), color }
}

/// Warnings and errors, or what `RUST_LOG` asks for.
fn log_to_stderr() {
    let wanted = variable("RUST_LOG").unwrap_or_else(|| "error".to_owned());
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::builder().parse_lossy(wanted))
        .with_writer(io::stderr)
        .with_ansi(false)
        .init();
}
