//! The sidecar: the door as a program of its own, and an admin listener beside it.
//!
//! [`args`] is the command line as typed and [`config`] what it means; `admin` answers probes and shows metrics. The
//! door itself is [`berth_door`]; opencode is run by a supervisor in another container of the pod, which `--supervisor`
//! leads to. IO.

use std::{io, io::Write, process::ExitCode};

use berth_door::{DoorConfig, Metrics, Secrets};
use berth_program::start_log;
use berth_serve::{Password, ServeLink};
use berth_wire::problem::error_chain;
use clap::Parser;
use prometheus_client::registry::Registry;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::watch,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

mod admin;
pub mod args;
pub mod config;
pub mod exit;
mod process_metrics;
mod readiness;

use admin::Admin;
use config::Config;
use exit::SidecarError;
use process_metrics::ProcessMetrics;
use readiness::Readiness;

/// The whole program: parses the command line, serves until it is asked to stop, and tells how it went.
pub fn main() -> ExitCode {
    let args = match args::Args::try_parse() {
        Ok(args) => args,
        Err(error) => return berth_program::not_parsed(&error, exit::USAGE),
    };
    match start(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // When standard error is gone too, the exit code still tells.
            let _ = writeln!(io::stderr(), "berth-sidecar: {}", error_chain(&error));
            error.code().into()
        }
    }
}

fn start(args: args::Args) -> Result<(), SidecarError> {
    start_log(args.log.log, &args.log.log_level)
        .map_err(|error| SidecarError::Configuration { field: "--log-level", reason: error.to_string() })?;
    let config = Config::new(args)?;
    let internal = |what| move |source| SidecarError::Internal { what, source };
    // One thread: with two, a turn of 5,000 deltas was as quick, and downloads and small requests were no quicker.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(internal("the program cannot begin"))?;
    runtime.block_on(async {
        let shutdown = CancellationToken::new();
        let tracker = TaskTracker::new();
        let signals = stop_by_signal(shutdown.clone()).map_err(internal("signals cannot be heard"))?;
        tracker.spawn(signals);
        tracker.close();
        let result = Box::pin(serve(config, shutdown.clone())).await;
        shutdown.cancel();
        tracker.wait().await;
        result
    })
}

/// Cancels `shutdown` at the first SIGTERM or SIGINT.
fn stop_by_signal(shutdown: CancellationToken) -> io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = shutdown.cancelled() => return,
        }
        tracing::info!("asked to stop");
        shutdown.cancel();
    })
}

/// Runs door and admin listener until `shutdown`, or until the door fails.
async fn serve(config: Config, shutdown: CancellationToken) -> Result<(), SidecarError> {
    let door_listener = listen("--listen", config.listen).await?;
    let admin_listener = listen("--admin", config.admin).await?;
    let mut registry = Registry::default();
    registry.register_collector(Box::new(ProcessMetrics::new()));
    let door_config = door_config(&config, &mut registry).await?;
    let (readiness, ready) = watch::channel(Readiness::NotYet("the door is not open yet"));

    let tracker = TaskTracker::new();
    // Probes are answered until the door has ended.
    let admin_shutdown = CancellationToken::new();
    tracker.spawn(admin::run(admin_listener, Admin::new(registry, ready), admin_shutdown.clone()));
    // Read again for each question: the supervisor, too, goes by what the file says then.
    let internal = Password::File(config.secret.join("opencode-password"));
    let link = ServeLink::remote(config.supervisor, internal, &tracker, admin_shutdown.clone());
    tracker.close();
    // Nothing is restored before a start in this version, so opencode may be started at once.
    readiness.send_replace(Readiness::Ready);
    tracing::info!(door = %config.listen, admin = %config.admin, supervisor = %config.supervisor, "serving");
    let result = berth_door::run(door_listener, door_config, link, shutdown).await;
    admin_shutdown.cancel();
    tracker.wait().await;
    result.map_err(|source| SidecarError::Internal { what: "the door ended", source })
}

async fn listen(field: &'static str, address: std::net::SocketAddr) -> Result<TcpListener, SidecarError> {
    TcpListener::bind(address).await.map_err(|source| SidecarError::Listen { field, address, source })
}

async fn door_config(config: &Config, registry: &mut Registry) -> Result<DoorConfig, SidecarError> {
    let mut door = DoorConfig::with_secrets(Secrets::in_directory(&config.secret).await?);
    door.pod_uid.clone_from(&config.pod_uid);
    door.files.clone_from(&config.files);
    door.ring_bytes = config.ring_bytes;
    door.connections = config.connections;
    door.metrics = Metrics::register(registry);
    Ok(door)
}
