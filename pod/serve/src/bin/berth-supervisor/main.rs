//! `berth-supervisor`: process 1 of the agent's container, which keeps one opencode running.
//!
//! [`berth_serve::args`] is what was typed, `program` runs it, `termination` tells Kubernetes how it went. It is also the one place
//! where the environment is read.
#![expect(clippy::print_stderr, reason = "a command line that is wrong is told to who typed it")]

mod program;
mod termination;

use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::{
    Layer as _, filter::Targets, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

use berth_serve::args::{Args, LogFormat};
use program::{Failure, Program};

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return not_parsed(&error),
    };
    log(&args);
    let termination_log = args.termination_log();
    let result = Program::new(args, std::env::vars_os()).and_then(|program| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(Failure::Runtime)?.block_on(program.run())
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let message = failure.chain();
            tracing::error!(reason = failure.reason(), message, "the supervisor cannot run");
            termination::write(termination_log.as_deref(), &failure.termination());
            failure.code().into()
        }
    }
}

/// Help and version go to standard output and are no failure.
fn not_parsed(error: &clap::Error) -> ExitCode {
    // Nobody may read it: then the exit code still tells.
    let _ = error.print();
    if error.use_stderr() { ExitCode::from(program::USAGE) } else { ExitCode::SUCCESS }
}

fn log(args: &Args) {
    let filter = args.log_level.parse().unwrap_or_else(|error| {
        eprintln!("--log-level {}: {error}; it is info instead", args.log_level);
        Targets::new().with_default(tracing::Level::INFO)
    });
    let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(std::io::stderr);
    let lines = match args.log {
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
        LogFormat::Text => lines.boxed(),
    };
    tracing_subscriber::registry().with(lines.with_filter(filter)).init();
}
