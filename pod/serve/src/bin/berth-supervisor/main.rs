//! `berth-supervisor`: process 1 of the agent's container, which keeps one opencode running.
//!
//! [`berth_serve::args`] is what was typed, `program` runs it, `termination` tells Kubernetes how it went. It is also the one place
//! where the environment is read.
#![expect(clippy::print_stderr, reason = "a command line that is wrong is told to who typed it")]

mod program;
mod termination;

use std::process::ExitCode;

use clap::Parser;

use berth_program::{not_parsed, start_log};
use berth_serve::args::Args;
use program::{Failure, Program};

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return not_parsed(&error, program::USAGE),
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

fn log(args: &Args) {
    if let Err(error) = start_log(args.log, &args.log_level) {
        eprintln!("--log-level {}: {error}; it is info instead", args.log_level);
        start_log(args.log, "info").expect("info is a level");
    }
}
