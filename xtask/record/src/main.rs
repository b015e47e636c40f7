//! Records what an opencode sends in each of a list of cases, as fixtures: one file for each case, named
//! `<version>-<case>.sse`. How a new version of opencode is taken in with it is in docs/opencode.md.
#![expect(clippy::print_stderr, reason = "a tool for developers talks on their terminal")]

mod case;
mod play;
mod server;

use std::{path::PathBuf, process::ExitCode};

use anyhow::Context;
use berth_testkit::fixture::{Surroundings, normalise, to_bytes};
use clap::Parser;

use crate::{case::CASES, play::play, server::Server};

/// Records what an opencode sends, case by case, as fixtures.
#[derive(Debug, Parser)]
#[command(name = "berth-record", version)]
struct Arguments {
    /// opencode's binary.
    #[arg(long, value_name = "FILE")]
    opencode: PathBuf,
    /// Directory for the fixtures.
    #[arg(long, value_name = "DIR")]
    output: PathBuf,
    /// Name the files as if this version had sent them: so they can be held against its entries in the manifest.
    #[arg(long, value_name = "VERSION")]
    named: Option<String>,
    /// Cases to record; all when none is named.
    #[arg(value_name = "CASE", value_parser = CASES.map(|case| case.name))]
    cases: Vec<String>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    std::fs::create_dir_all(&arguments.output)
        .with_context(|| format!("{} cannot be made", arguments.output.display()))?;
    let server = Server::start(&arguments.opencode).await?;
    let version = arguments.named.as_ref().unwrap_or(&server.version);
    let wanted = |name: &str| arguments.cases.is_empty() || arguments.cases.iter().any(|case| case == name);
    let surroundings = Surroundings { secrets: vec![server.password.clone()], home: server.home() };
    let mut failed = 0;
    for case in CASES.iter().filter(|case| wanted(case.name)) {
        match play(&server, case).await {
            Ok(frames) => {
                let path = arguments.output.join(format!("{version}-{}.sse", case.name));
                std::fs::write(&path, to_bytes(&normalise(&frames, &surroundings)))
                    .with_context(|| format!("{} cannot be written", path.display()))?;
                eprintln!("{:4} events  {}", frames.len(), path.display());
            }
            Err(error) => {
                failed += 1;
                eprintln!("failed       {}: {error:#}", case.name);
            }
        }
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
