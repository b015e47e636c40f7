//! `berth-fake-serve`: the fake of `opencode serve` as a server of its own.

use std::{
    io::{self, Write},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use anyhow::Context;
use berth_testkit::fake_serve::{FakeServe, FakeServeConfig, Fault};
use clap::{Parser, Subcommand};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

const EXAMPLES: &str = "\
Examples:
  berth-fake-serve                             serve on 127.0.0.1:4096
  berth-fake-serve --fault never-idle          every turn lacks its end
  berth-fake-serve --fault cut=2000            every event stream breaks after 2,000 bytes
  berth-fake-serve --list                      the faults, also for prompts: \"fault:stalls scenario: text\"

  curl -N 127.0.0.1:4096/global/event &
  curl 127.0.0.1:4096/session -X POST
  curl 127.0.0.1:4096/session/ses_.../prompt_async -d '{\"parts\": [{\"type\": \"text\", \"text\": \"scenario: tool\"}]}'";

/// A server that looks like `opencode serve` 1.18.33, without a model, and fails on demand.
#[derive(Debug, Parser)]
#[command(name = "berth-fake-serve", version, after_help = EXAMPLES)]
struct Args {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1:4096")]
    listen: SocketAddr,
    /// Password of user `opencode`; without one everybody is let in.
    #[arg(long, env = "OPENCODE_SERVER_PASSWORD", hide_env_values = true)]
    password: Option<String>,
    /// What goes wrong, for every answer, stream or turn.
    #[arg(long)]
    fault: Option<Fault>,
    /// A permission that every tool call asks for, such as `bash`; may be repeated.
    #[arg(long)]
    ask: Vec<String>,
    /// Milliseconds between two heartbeats.
    #[arg(long, default_value_t = 10_000)]
    heartbeat: u64,
    /// Print the faults and leave.
    #[arg(long)]
    list: bool,
    /// As which other program it was started.
    #[command(subcommand)]
    disguise: Option<Disguise>,
}

/// In the place of opencode's program it is started as that is.
#[derive(Debug, Subcommand)]
enum Disguise {
    /// Serve as `opencode serve` is told to
    #[command(hide = true)]
    Serve {
        /// Address to listen on.
        #[arg(long)]
        hostname: IpAddr,
        /// Port to listen on.
        #[arg(long)]
        port: u16,
        /// It always does.
        #[arg(long)]
        print_logs: bool,
        /// Not looked at.
        #[arg(long)]
        log_level: Option<String>,
    },
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if args.list {
        return list().context("cannot print the faults");
    }
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).init();
    let config = FakeServeConfig {
        password: args.password.map(Into::into),
        heartbeat: Duration::from_millis(args.heartbeat.max(1)),
        ask: args.ask,
        fault: args.fault,
        ..FakeServeConfig::default()
    };
    let listen = match args.disguise {
        Some(Disguise::Serve { hostname, port, .. }) => SocketAddr::new(hostname, port),
        None => args.listen,
    };
    serve(listen, config).await
}

fn list() -> io::Result<()> {
    let mut out = io::stdout().lock();
    for fault in Fault::all(100) {
        writeln!(out, "{fault}")?;
    }
    Ok(())
}

async fn serve(listen: SocketAddr, config: FakeServeConfig) -> anyhow::Result<()> {
    let fake = FakeServe::bind(listen, config).await.with_context(|| format!("cannot listen on {listen}"))?;
    // As opencode says it: whoever starts it may wait for this line.
    writeln!(io::stdout(), "opencode server listening on http://{}", fake.address())?;
    let shutdown = CancellationToken::new();
    let mut running = std::pin::pin!(fake.run(shutdown.clone()));
    tokio::select! {
        served = &mut running => return served.context("the fake stopped"),
        signal = stop_signal() => signal.context("cannot wait for signals")?,
    }
    shutdown.cancel();
    running.await.context("the fake stopped")
}

async fn stop_signal() -> io::Result<()> {
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted,
        _ = terminate.recv() => Ok(()),
    }
}
