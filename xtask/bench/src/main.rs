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
mod sse;

use anyhow::bail;
use clap::Parser;

use crate::measure::{Benchmark, Figures, measure};

/// Every benchmark.
const BENCHMARKS: &[Benchmark] = &[sse::READER];

/// Runs the benchmarks.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench", version)]
struct Arguments {
    /// Only benchmarks whose name contains this.
    filter: Option<String>,
}

fn main() -> anyhow::Result<()> {
    let filter = Arguments::parse().filter.unwrap_or_default();
    let figures: Vec<Figures> = BENCHMARKS
        .iter()
        .filter(|benchmark| benchmark.name.contains(&filter))
        .map(measure)
        .collect::<Result<_, _>>()?;
    if figures.is_empty() {
        bail!("no benchmark's name contains {filter:?}");
    }
    eprintln!(
        "{:<14} {:>8} {:>14} {:>12} {:>14} {:>8}  baseline",
        "benchmark", "items", "items/s", "ns/item", "baseline ns", "ratio"
    );
    for row in &figures {
        eprintln!(
            "{:<14} {:>8} {:>14.0} {:>12.1} {:>14.1} {:>8.2}  {}",
            row.name,
            row.items,
            row.items_per_second,
            row.nanoseconds_per_item,
            row.baseline_nanoseconds_per_item,
            row.ratio,
            row.baseline
        );
    }
    println!("{}", serde_json::to_string_pretty(&figures)?);
    Ok(())
}
