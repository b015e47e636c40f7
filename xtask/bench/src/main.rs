//! Runs the registered benchmarks, prints a table for people on standard error and JSON on standard output, and keeps the
//! results when it is told to.
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
mod results;
mod server;
mod sessions;
mod sse;
mod turn;

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Parser;

use crate::{
    measure::{Benchmark, Loop, Setting, measure},
    pod::Figure,
    results::{Measured, Results, Run, Section, Taken},
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
    /// Also keeps the results, after each benchmark: in a JSON file beside this page, and the page is written from it.
    #[arg(long, conflicts_with = "divisor")]
    write: Option<PathBuf>,
}

impl Arguments {
    fn scale(&self) -> Scale {
        Scale { divisor: self.divisor }
    }
}

/// A benchmark that can run here.
struct Task<'a> {
    name: &'static str,
    section: Section,
    run: Box<dyn Fn() -> anyhow::Result<Measured> + 'a>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let filter = arguments.filter.clone().unwrap_or_default();
    let mut tasks = tasks(&arguments);
    tasks.retain(|task| task.name.contains(&filter));
    if tasks.is_empty() {
        bail!("no benchmark's name contains {filter:?}, or its programs are missing");
    }
    let taken = Taken::now()?;
    let mut results = Results::default();
    for task in tasks {
        eprintln!("{} ...", task.name);
        let measured = (task.run)().context(task.name)?;
        print(&measured);
        let (benchmark, section, taken) = (task.name.to_owned(), task.section, taken.clone());
        let run = Run { benchmark, section, taken, measured };
        if let Some(page) = &arguments.write {
            keep(page, run.clone())?;
        }
        results.0.push(run);
    }
    println!("{}", serde_json::to_string_pretty(&results)?);
    Ok(())
}

/// Puts a run into the file beside the page, and writes the page anew: whatever ends the program later, it is kept.
fn keep(page: &Path, run: Run) -> anyhow::Result<()> {
    let path = page.with_extension("json");
    let mut results = Results::read(&path)?;
    results.put(run, &names());
    results.write(&path)?;
    std::fs::write(page, page::render(&results)).with_context(|| page.display().to_string())
}

/// All that there are, in the order of the page.
fn names() -> Vec<&'static str> {
    let loops = BENCHMARKS.iter().map(|benchmark| benchmark.name);
    let pod = pod::BENCHMARKS.iter().map(|benchmark| benchmark.name);
    let server = sessions::BENCHMARKS.iter().map(|benchmark| benchmark.name);
    let cluster = cluster::BENCHMARKS.iter().map(|benchmark| benchmark.name);
    loops.chain(pod).chain(server).chain(cluster).collect()
}

/// Those whose programs are at hand, in the same order.
fn tasks(arguments: &Arguments) -> Vec<Task<'_>> {
    let mut tasks = loops(arguments);
    if let Some(pod) = programs(arguments) {
        tasks.extend(of_pod(&pod));
        tasks.extend(arguments.controller.iter().flat_map(|controller| {
            of_server(
                &sessions::Programs { pod: pod.clone(), controller: controller.clone() },
                arguments.scale(),
            )
        }));
    }
    tasks.extend(arguments.kubeconfig.iter().flat_map(|kubeconfig| {
        of_cluster(&cluster::setting(kubeconfig.clone(), arguments.kubectl.clone()), arguments.scale())
    }));
    tasks
}

fn loops(arguments: &Arguments) -> Vec<Task<'_>> {
    let setting = Setting { sdk: arguments.sdk.clone() };
    let task = |benchmark: &'static Benchmark| {
        let setting = setting.clone();
        let run = Box::new(move || Ok(Measured::Loop(measure(benchmark, &setting)?)));
        Task { name: benchmark.name, section: Section::Loops, run }
    };
    BENCHMARKS.iter().map(task).collect()
}

fn of_pod(programs: &pod::Programs) -> Vec<Task<'static>> {
    let task = |benchmark: &'static pod::PodBenchmark| {
        let programs = programs.clone();
        let run = Box::new(move || Ok(Measured::Figures(benchmark.run(&programs)?)));
        Task { name: benchmark.name, section: Section::Pod, run }
    };
    pod::BENCHMARKS.iter().map(task).collect()
}

fn of_server(programs: &sessions::Programs, scale: Scale) -> Vec<Task<'static>> {
    let task = |benchmark: &'static sessions::ServerBenchmark| {
        let programs = programs.clone();
        let run = Box::new(move || Ok(Measured::Figures(benchmark.run(&programs, scale)?)));
        Task { name: benchmark.name, section: Section::Server, run }
    };
    sessions::BENCHMARKS.iter().map(task).collect()
}

fn of_cluster(setting: &berth_e2e::Setting, scale: Scale) -> Vec<Task<'static>> {
    let task = |benchmark: &'static cluster::ClusterBenchmark| {
        let setting = setting.clone();
        let run = Box::new(move || Ok(Measured::Figures(benchmark.run(&setting, scale)?)));
        Task { name: benchmark.name, section: Section::Cluster, run }
    };
    cluster::BENCHMARKS.iter().map(task).collect()
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

fn print(measured: &Measured) {
    match measured {
        Measured::Loop(row) => print_loop(row),
        Measured::Figures(figures) => print_figures(figures),
    }
}

fn print_figures(figures: &[Figure]) {
    eprintln!("{:<28} {:>12} {:>10} {:>10} {:>10}  bound", "figure", "unit", "baseline", "ours", "compared");
    for figure in figures {
        let [unit, baseline, ours, compared, bound] = figure.cells();
        eprintln!("{:<28} {unit:>12} {baseline:>10} {ours:>10} {compared:>10}  {bound}", figure.name);
    }
}

fn print_loop(row: &Loop) {
    eprintln!(
        "{:<18} {:>6} {:>12} {:>10} {:>12} {:>12} {:>6}  baseline",
        "benchmark", "items", "items/s", "ns/item", "allocs/item", "baseline ns", "ratio"
    );
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
