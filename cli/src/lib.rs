//! The berth command: local mode, and a client for people and scripts.
//!
//! [`args`] is the command line as typed and [`config`] what it means; [`run`] and [`chat`] talk to a server through
//! [`turn`], which shows events by [`render`] and [`output`] and answers requests by [`ask`] and [`input`].

use std::{io::Write, process::ExitCode};

use clap::Parser;

pub mod args;
pub mod ask;
pub mod chat;
pub mod config;
pub mod connect;
pub mod error;
pub mod input;
pub mod interrupts;
pub mod output;
pub mod render;
pub mod run;
pub mod state;
pub mod text;
pub mod turn;

use config::{Config, Environment, Streams};
use error::{CliError, Exit, chain};

/// The whole program: parses the command line, does what it says, and tells how it went.
pub fn main() -> ExitCode {
    let args = args::Args::parse();
    match start(args) {
        Ok(exit) => exit.into(),
        Err(error) => {
            // When standard error is gone too, the exit code still tells.
            let _ = writeln!(std::io::stderr(), "error: {}", chain(&error));
            error.exit().into()
        }
    }
}

fn start(args: args::Args) -> Result<Exit, CliError> {
    let environment = Environment::of_process().map_err(CliError::Environment)?;
    let config = Config::new(args, &environment, Streams::of_process())?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(CliError::Runtime)?;
    let result = runtime.block_on(async {
        match config {
            Config::Run(config) => Box::pin(run::run(config)).await,
            Config::Chat(config) => Box::pin(chat::chat(config)).await,
        }
    });
    // A read from standard input may still be under way, and cannot be called off.
    runtime.shutdown_background();
    result
}
