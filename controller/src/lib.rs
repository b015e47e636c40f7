//! The control plane's program. `serve` is the session server with a static list of sandboxes and an SQLite file: the same
//! server as in local mode, on its own, beside others on the same file. `operator` makes pods out of manifests.
//!
//! [`args`] is the command line as typed, [`config`] what it means; the server itself is [`berth_server`], the operator
//! [`berth_operator`]. IO.

use std::{io, io::Write, process::ExitCode, sync::Arc, time::Duration};

use berth_operator::{Operator, metrics::Metrics, pulse::Pulse};
use berth_program::start_log;
use berth_server::{SandboxDirectory, Server};
use berth_wire::problem::error_chain;
use clap::Parser;
use tokio::{
    net::TcpListener,
    signal::unix::{Signal, SignalKind, signal},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

mod admin;
pub mod args;
pub mod cluster;
pub mod config;
pub mod exit;
mod sandboxes;

use args::{Command, LogArgs};
use cluster::directory::ClusterDirectory;
use config::{Config, OperatorConfig};
use exit::ControllerError;

/// How long blocking work may go on after everything else has ended.
const LEFT: Duration = Duration::from_secs(1);

/// The whole program: parses the command line, serves until it is asked to stop, and tells how it went.
pub fn main() -> ExitCode {
    let args = match args::Args::try_parse() {
        Ok(args) => args,
        Err(error) => return berth_program::not_parsed(&error, exit::USAGE),
    };
    let result = match args.command {
        Command::Serve(args) => start(args),
        Command::Operator(args) => start_operator(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // When standard error is gone too, the exit code still tells.
            let _ = writeln!(io::stderr(), "berth-controller: {}", error_chain(&error));
            error.code().into()
        }
    }
}

fn internal(what: &'static str) -> impl FnOnce(io::Error) -> ControllerError {
    move |source| ControllerError::Internal { what, source }
}

fn start(args: args::ServeArgs) -> Result<(), ControllerError> {
    begin_log(&args.log)?;
    let config = Config::new(args)?;
    run(serve(config))
}

fn start_operator(args: args::OperatorArgs) -> Result<(), ControllerError> {
    begin_log(&args.log)?;
    run(operate(config::operator(args)))
}

fn begin_log(args: &LogArgs) -> Result<(), ControllerError> {
    start_log(args.log, &args.log_level)
        .map_err(|error| ControllerError::Configuration { field: "--log-level", reason: error.to_string() })
}

fn run(program: impl Future<Output = Result<(), ControllerError>>) -> Result<(), ControllerError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(internal("the program cannot begin"))?;
    let result = runtime.block_on(program);
    runtime.shutdown_timeout(LEFT);
    result
}

/// Reconciles until the first SIGTERM or SIGINT, and ends in order; at the second one it ends at once.
async fn operate(config: OperatorConfig) -> Result<(), ControllerError> {
    let mut stop = Stop::new().map_err(internal("signals cannot be heard"))?;
    let OperatorConfig { admin: address, platform, candidate, sweep_after } = config;
    let listen = |source| ControllerError::Listen { field: "--admin", address, source };
    let listener = TcpListener::bind(address).await.map_err(listen)?;
    let address = listener.local_addr().map_err(listen)?;
    let client = cluster::connect().await?;
    tracing::info!(admin = %address, "running");
    let (shutdown, pulse, metrics) = (CancellationToken::new(), Pulse::new(), Metrics::default());
    // Probes are answered until everything else has ended: the task goes with the set.
    let mut tasks = JoinSet::new();
    tasks.spawn(admin::serve(listener, pulse.clone(), metrics.clone()));
    let operator = Operator { platform, candidate, sweep_after, metrics, pulse };
    stop.ends(berth_operator::run(client, operator, shutdown.clone()), &shutdown).await
}

/// Serves until the first SIGTERM or SIGINT, and ends in order; at the second one it ends at once.
async fn serve(config: Config) -> Result<(), ControllerError> {
    let mut stop = Stop::new().map_err(internal("signals cannot be heard"))?;
    let address = config.listen;
    let listen = |source| ControllerError::Listen { field: "--listen", address, source };
    let listener = TcpListener::bind(address).await.map_err(listen)?;
    let address = listener.local_addr().map_err(listen)?;
    let database = config.server.database.display().to_string();
    let shutdown = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let directory: Arc<dyn SandboxDirectory> = if let Some(directory) = config.directory {
        Arc::new(directory)
    } else {
        let (directory, follower) = ClusterDirectory::new(cluster::connect().await?);
        tasks.spawn(follower.run(shutdown.clone()));
        directory
    };
    let server = Server::open(config.server, directory).await?;
    tracing::info!(%address, database, "serving");
    stop.ends(server.run(listener, shutdown.clone()), &shutdown).await
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

    /// Runs `program`: the first signal has it end in order by `shutdown`, the second leaves it.
    async fn ends<E>(
        &mut self,
        program: impl Future<Output = Result<(), E>>,
        shutdown: &CancellationToken,
    ) -> Result<(), ControllerError>
    where
        ControllerError: From<E>,
    {
        let mut running = Box::pin(program);
        tokio::select! {
            result = &mut running => return Ok(result?),
            () = self.asked() => {}
        }
        tracing::info!("asked to stop");
        shutdown.cancel();
        tokio::select! {
            result = running => Ok(result?),
            () = self.asked() => Err(ControllerError::Interrupted),
        }
    }
}
