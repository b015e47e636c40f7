//! `berth-scripted-model`: the scripted model as a server of its own.

use std::{
    io::{self, Write},
    net::SocketAddr,
};

use anyhow::Context;
use berth_testkit::{ScriptedModel, provider_config, scenarios};
use clap::Parser;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

const EXAMPLES: &str = "\
Examples:
  berth-scripted-model                         serve on 127.0.0.1:9100
  berth-scripted-model --listen 127.0.0.1:0    take a free port, and say which
  berth-scripted-model --list                  the scenarios that a prompt can name
  berth-scripted-model --config > opencode.json
                                               configuration that points opencode here

  curl -N 127.0.0.1:9100/v1/chat/completions -H 'content-type: application/json' \\
    -d '{\"model\": \"m\", \"stream\": true, \"messages\": [{\"role\": \"user\", \"content\": \"scenario: text\"}]}'
  curl 127.0.0.1:9100/log                      what it was asked";

/// A model without any AI: it plays what the prompt tells it to. Speaks the OpenAI and the Anthropic wire.
#[derive(Debug, Parser)]
#[command(name = "berth-scripted-model", version, after_help = EXAMPLES)]
struct Args {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1:9100")]
    listen: SocketAddr,
    /// Print the scenarios and leave.
    #[arg(long, conflicts_with = "config")]
    list: bool,
    /// Print the opencode configuration for the address and leave.
    #[arg(long)]
    config: bool,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if args.list {
        return list().context("cannot print the scenarios");
    }
    if args.config {
        return writeln!(io::stdout(), "{:#}", provider_config(args.listen))
            .context("cannot print the configuration");
    }
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).init();
    serve(args.listen).await
}

fn list() -> io::Result<()> {
    let mut out = io::stdout().lock();
    let width = scenarios().iter().map(|scenario| scenario.name.len()).max().unwrap_or_default();
    for scenario in scenarios() {
        writeln!(out, "{:width$}  {}", scenario.name, scenario.summary)?;
    }
    Ok(())
}

async fn serve(listen: SocketAddr) -> anyhow::Result<()> {
    let model = ScriptedModel::bind(listen).await.with_context(|| format!("cannot listen on {listen}"))?;
    tracing::info!(address = %model.address(), "scripted model is listening");
    let shutdown = CancellationToken::new();
    let mut running = std::pin::pin!(model.run(shutdown.clone()));
    tokio::select! {
        served = &mut running => return served.context("the scripted model stopped"),
        signal = stop_signal() => signal.context("cannot wait for signals")?,
    }
    shutdown.cancel();
    running.await.context("the scripted model stopped")
}

async fn stop_signal() -> io::Result<()> {
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted,
        _ = terminate.recv() => Ok(()),
    }
}
