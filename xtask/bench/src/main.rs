//! Runs the registered benchmarks and prints a table for people on standard error and JSON on standard output.
//!
//! Figures of a shared machine vary between runs, so each benchmark also times a baseline, in turn with the
//! subject, and reports the ratio: that is what can be compared between machines and commits.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a tool for developers talks on their terminal"
)]

mod cluster;
mod measure;
mod node;
mod opencode;
mod page;
mod pod;
mod server;
mod sessions;
mod sse;
mod turn;

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Parser;
use serde::Serialize;

use crate::{
    measure::{Benchmark, Figures, Setting, measure},
    sessions::Scale,
};

/// Every benchmark of code in this process; [`pod::BENCHMARKS`] and [`sessions::BENCHMARKS`] are those of
/// programs, and [`cluster::BENCHMARKS`] those of a cluster.
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
    /// Where the pod's programs are; their benchmarks are left out when it is not said.
    #[arg(long, requires_all = ["opencode", "config_home"])]
    pod: Option<PathBuf>,
    /// opencode's binary.
    #[arg(long)]
    opencode: Option<PathBuf>,
    /// A configuration directory that opencode need not complete.
    #[arg(long)]
    config_home: Option<PathBuf>,
    /// Where the session server's program is; its benchmarks are left out when it is not said.
    #[arg(long, requires = "pod")]
    controller: Option<PathBuf>,
    /// Kubeconfig of a cluster with Berth's images; its benchmarks are left out when it is not said.
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// The kubectl for it.
    #[arg(long)]
    kubectl: Option<PathBuf>,
    /// Divides counts of the session server's and the cluster's benchmarks, to see that they work; their figures mean nothing then.
    #[arg(long, default_value_t = 1)]
    divisor: u32,
    /// Also writes the page with the figures to this file.
    #[arg(long)]
    write: Option<PathBuf>,
}

/// All results.
#[derive(Debug, Serialize)]
struct Results {
    loops: Vec<Figures>,
    pod: Vec<pod::Figure>,
    server: Vec<pod::Figure>,
    cluster: Vec<pod::Figure>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let filter = arguments.filter.clone().unwrap_or_default();
    let (write, programs) = (arguments.write.clone(), programs(&arguments));
    let (controller, scale) = (arguments.controller.clone(), Scale { divisor: arguments.divisor });
    let setting = Setting { sdk: arguments.sdk };
    let loops: Vec<Figures> = BENCHMARKS
        .iter()
        .filter(|benchmark| benchmark.name.contains(&filter))
        .map(|benchmark| measure(benchmark, &setting))
        .collect::<Result<_, _>>()?;
    let mut pod = Vec::new();
    for benchmark in pod::BENCHMARKS.iter().filter(|benchmark| benchmark.name.contains(&filter)) {
        if let Some(programs) = &programs {
            eprintln!("{} ...", benchmark.name);
            pod.extend(benchmark.run(programs).context(benchmark.name)?);
        }
    }
    let mut server = Vec::new();
    if let (Some(pod), Some(controller)) = (programs, controller) {
        let programs = sessions::Programs { pod, controller };
        for benchmark in sessions::BENCHMARKS.iter().filter(|benchmark| benchmark.name.contains(&filter)) {
            eprintln!("{} ...", benchmark.name);
            server.extend(benchmark.run(&programs, scale).context(benchmark.name)?);
        }
    }
    let cluster = on_cluster(arguments.kubeconfig, arguments.kubectl, &filter, scale)?;
    if loops.is_empty() && pod.is_empty() && server.is_empty() && cluster.is_empty() {
        bail!("no benchmark's name contains {filter:?}, or its programs are missing");
    }
    let results = Results { loops, pod, server, cluster };
    print(&results);
    println!("{}", serde_json::to_string_pretty(&results)?);
    if let Some(path) = write {
        std::fs::write(&path, page::render(&results, &page::Machine::this()?))
            .with_context(|| path.display().to_string())?;
    }
    Ok(())
}

fn on_cluster(
    kubeconfig: Option<PathBuf>,
    kubectl: Option<PathBuf>,
    filter: &str,
    scale: Scale,
) -> anyhow::Result<Vec<pod::Figure>> {
    let mut figures = Vec::new();
    let Some(kubeconfig) = kubeconfig else { return Ok(figures) };
    let setting = cluster::setting(kubeconfig, kubectl);
    for benchmark in cluster::BENCHMARKS.iter().filter(|benchmark| benchmark.name.contains(filter)) {
        eprintln!("{} ...", benchmark.name);
        figures.extend(benchmark.run(&setting, scale).context(benchmark.name)?);
    }
    Ok(figures)
}

fn programs(arguments: &Arguments) -> Option<pod::Programs> {
    let pod = arguments.pod.as_ref()?;
    Some(pod::Programs {
        supervisor: pod.join("berth-supervisor"),
        sidecar: pod.join("berth-sidecar"),
        opencode: arguments.opencode.clone()?,
        config_home: arguments.config_home.clone()?,
    })
}

fn print(Results { loops, pod, server, cluster }: &Results) {
    if !loops.is_empty() {
        print_loops(loops);
    }
    if !pod.is_empty() || !server.is_empty() || !cluster.is_empty() {
        eprintln!(
            "{:<28} {:>12} {:>10} {:>10} {:>10}  bound",
            "figure", "unit", "baseline", "ours", "compared"
        );
    }
    for figure in pod.iter().chain(server).chain(cluster) {
        let [unit, baseline, ours, compared, bound] = figure.cells();
        eprintln!("{:<28} {unit:>12} {baseline:>10} {ours:>10} {compared:>10}  {bound}", figure.name);
    }
}

fn print_loops(figures: &[Figures]) {
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
