//! Runs the registered benchmarks and prints a table for people on standard error and JSON on standard output.
//!
//! Figures of a shared machine vary between runs, so each benchmark also times a baseline, in turn with the
//! subject, and reports the ratio: that is what can be compared between machines and commits.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a tool for developers talks on their terminal"
)]

mod measure;
mod node;
mod opencode;
mod page;
mod server;
mod sse;
mod turn;

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Parser;

use crate::measure::{Benchmark, Figures, Setting, measure};

/// Every benchmark.
const BENCHMARKS: &[Benchmark] = &[sse::READER, opencode::READER, opencode::TRANSLATOR];

/// Runs the benchmarks.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench", version)]
struct Arguments {
    /// Only benchmarks whose name contains this.
    filter: Option<String>,
    /// Where opencode's SDK is installed.
    #[arg(long)]
    sdk: Option<PathBuf>,
    /// Also writes the page with the figures to this file.
    #[arg(long)]
    write: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    let Arguments { filter, sdk, write } = Arguments::parse();
    let (filter, setting) = (filter.unwrap_or_default(), Setting { sdk });
    let figures: Vec<Figures> = BENCHMARKS
        .iter()
        .filter(|benchmark| benchmark.name.contains(&filter))
        .map(|benchmark| measure(benchmark, &setting))
        .collect::<Result<_, _>>()?;
    if figures.is_empty() {
        bail!("no benchmark's name contains {filter:?}");
    }
    print(&figures);
    println!("{}", serde_json::to_string_pretty(&figures)?);
    if let Some(path) = write {
        std::fs::write(&path, page::render(&figures, &page::Machine::this()?))
            .with_context(|| path.display().to_string())?;
    }
    Ok(())
}

fn print(figures: &[Figures]) {
    eprintln!(
        "{:<18} {:>6} {:>12} {:>10} {:>12} {:>12} {:>6}  baseline",
        "benchmark", "items", "items/s", "ns/item", "allocs/item", "baseline ns", "ratio"
    );
    for row in figures {
        eprintln!(
            "{:<18} {:>6} {:>12.0} {:>10.1} {:>12.1} {:>12.1} {:>6.2}  {}",
            row.name,
            row.items,
            row.items_per_second,
            row.nanoseconds_per_item,
            row.allocations_per_item,
            row.baseline_nanoseconds_per_item,
            row.ratio,
            row.baseline
        );
    }
}
