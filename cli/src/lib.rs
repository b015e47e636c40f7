//! The berth command: local mode, and a client for people and scripts.
//!
//! [`args`] is the command line as typed and [`config`] what it means; [`run`] and [`chat`] talk to a server through
//! [`turn`], which shows events by [`render`] and [`output`] and answers requests by [`ask`] and [`input`]; [`up`] is
//! that server and its sandboxes on this machine. [`debug`] is for whoever works on Berth.

use std::{
    io::{IsTerminal, Write},
    process::ExitCode,
    time::Duration,
};

use clap::Parser;
use tracing_subscriber::EnvFilter;

use berth_command::{printer, replacement, table, text};

pub mod args;
pub mod ask;
pub mod attachment;
pub mod chat;
pub mod choice;
pub mod config;
pub mod connect;
pub mod copy;
pub mod debug;
pub mod diff;
pub mod directories;
pub mod doctor;
pub mod down;
pub mod error;
pub mod input;
pub mod interrupts;
pub mod output;
pub mod process;
pub mod render;
pub mod run;
pub mod sessions;
pub mod shell;
pub mod state;
pub mod status;
pub mod turn;
pub mod up;

use config::{Config, Environment, Streams};
use error::{CliError, Exit, error_chain};

/// How long what was left running at the end may take to be dropped.
const LEAVE_LIMIT: Duration = Duration::from_millis(500);

/// What is logged unless `RUST_LOG` says otherwise; of opencode's exits `berth up` tells by itself.
const LOGGED: &str = "warn,berth_serve=error";

/// The whole program: parses the command line, does what it says, and tells how it went.
pub fn main() -> ExitCode {
    let args = args::Args::parse();
    match start(args) {
        Ok(exit) => exit.into(),
        // Whoever read the output wants no more of it: `head` for example.
        Err(CliError::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => Exit::Failed.into(),
        Err(error) => {
            // When standard error is gone too, the exit code still tells.
            let mut text = format!("error: {}\n", error_chain(&error));
            if let Some(hint) = error.hint() {
                text.extend(["  → ", hint, "\n"]);
            }
            let _ = std::io::stderr().write_all(text.as_bytes());
            error.exit().into()
        }
    }
}

fn start(args: args::Args) -> Result<Exit, CliError> {
    let environment = Environment::of_process().map_err(CliError::Environment)?;
    log_to_stderr(&environment);
    let config = Config::new(args, &environment, Streams::of_process())?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(CliError::Runtime)?;
    let result = runtime.block_on(async {
        match config {
            Config::Run(config) => Box::pin(run::run(config)).await,
            Config::Chat(config) => Box::pin(chat::chat(config)).await,
            Config::Up(config) => Box::pin(up::up(*config)).await,
            Config::Detach(config) => Box::pin(up::detach::detach(config)).await,
            Config::Down(config) => Box::pin(down::down(config)).await,
            Config::Status(config) => Box::pin(status::status(config)).await,
            Config::Sessions(config) => Box::pin(sessions::sessions(config)).await,
            Config::Diff(config) => Box::pin(diff::diff(config)).await,
            Config::Copy(config) => Box::pin(copy::copy(config)).await,
            Config::Doctor(config) => Box::pin(doctor::doctor(*config)).await,
            Config::Completions(config) => shell::completions(config),
            Config::Man(config) => shell::man(config),
            Config::Replay(config) => debug::replay::replay(&config),
            Config::Capture(config) => Box::pin(debug::capture::capture(*config)).await,
        }
    });
    // A read from standard input may still be under way, and cannot be called off; opencode's process ends when the
    // task that owns it is dropped, which takes no time worth mentioning.
    runtime.shutdown_timeout(LEAVE_LIMIT);
    result
}

/// Logs go to standard error: warnings and errors, or what `RUST_LOG` asks for.
fn log_to_stderr(environment: &Environment) {
    let wanted = environment.get("RUST_LOG").and_then(|value| value.to_str()).unwrap_or(LOGGED);
    let color = environment.get("NO_COLOR").is_none() && std::io::stderr().is_terminal();
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::builder().parse_lossy(wanted))
        .with_writer(std::io::stderr)
        .with_ansi(color)
        .init();
}
