//! The control plane's program. `serve` is the session server with a static list of sandboxes and an SQLite file: the same
//! server as in local mode, on its own, beside others on the same file.
//!
//! [`args`] is the command line as typed, [`config`] what it means; the server itself is [`berth_server`]. IO.

use std::{io, io::Write, process::ExitCode, sync::Arc, time::Duration};

use berth_program::{chain, start_log};
use berth_server::Server;
use clap::Parser;
use tokio::{
    net::TcpListener,
    signal::unix::{Signal, SignalKind, signal},
};
use tokio_util::sync::CancellationToken;

pub mod args;
pub mod config;
pub mod exit;
mod sandboxes;

use args::Command;
use config::Config;
use exit::ControllerError;

/// How long blocking work may go on after everything else has ended.
const LEFT: Duration = Duration::from_secs(1);

/// The whole program: parses the command line, serves until it is asked to stop, and tells how it went.
pub fn main() -> ExitCode {
    let args = match args::Args::try_parse() {
        Ok(args) => args,
        Err(error) => return berth_program::not_parsed(&error, exit::USAGE),
    };
    let Command::Serve(args) = args.command;
    match start(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // When standard error is gone too, the exit code still tells.
            let _ = writeln!(io::stderr(), "berth-controller: {}", chain(&error));
            error.code().into()
        }
    }
}

fn internal(what: &'static str) -> impl FnOnce(io::Error) -> ControllerError {
    move |source| ControllerError::Internal { what, source }
}

fn start(args: args::ServeArgs) -> Result<(), ControllerError> {
    start_log(args.log.log, &args.log.log_level).map_err(|error| ControllerError::Configuration {
        field: "--log-level",
        reason: error.to_string(),
    })?;
    let config = Config::new(args)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(internal("the program cannot begin"))?;
    let result = runtime.block_on(serve(config));
    runtime.shutdown_timeout(LEFT);
    result
}

/// Serves until the first SIGTERM or SIGINT, and ends in order; at the second one it ends at once.
async fn serve(config: Config) -> Result<(), ControllerError> {
    let mut stop = Stop::new().map_err(internal("signals cannot be heard"))?;
    let address = config.listen;
    let listen = |source| ControllerError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(listen)?;
    let address = listener.local_addr().map_err(listen)?;
    let database = config.server.database.display().to_string();
    let server = Server::open(config.server, Arc::new(config.directory)).await?;
    tracing::info!(%address, database, "serving");
    let shutdown = CancellationToken::new();
    let mut running = Box::pin(server.run(listener, shutdown.clone()));
    tokio::select! {
        result = &mut running => return Ok(result?),
        () = stop.asked() => {}
    }
    tracing::info!("asked to stop");
    shutdown.cancel();
    tokio::select! {
        result = running => Ok(result?),
        () = stop.asked() => Err(ControllerError::Interrupted),
    }
}

/// The signals by which the program is asked to stop.
struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    fn new() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn asked(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
