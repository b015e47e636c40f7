//! Development tasks of this repository: `cargo xtask {gen, check, test, bench, fuzz, pod-binaries, images, release, cluster}`.
//!
//! This binary only runs other programs and judges what they say. It depends on none of Berth's crates, so it
//! starts quickly and works when they do not compile; what needs them is in `xtask/generate`, `xtask/bench` and `fuzz`.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a tool for developers talks on their terminal"
)]

mod arch;
mod bench;
mod check;
mod cluster;
mod cross;
mod fuzz;
mod images;
mod packages;
mod pod;
mod process;
mod release;
mod test;
mod tools;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::{check::Step, process::run_cargo, workspace::Workspace};

/// Development tasks of this repository.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Writes every generated file: the CLI reference and the OpenAPI document.
    Gen {
        /// Writes nothing; shows what differs and exits 1 if anything does.
        #[arg(long)]
        check: bool,
    },
    /// Runs the static checks, all of them or only those named.
    Check {
        /// Checks to run; all when none is named.
        #[arg(value_enum)]
        steps: Vec<Step>,
    },
    /// Runs all tests and ends with the line `N passed, N failed`.
    Test {
        /// Full counts and long durations (`BERTH_SOAK=1`), and a report in docs/soak/.
        #[arg(long)]
        soak: bool,
        /// Only the end-to-end tests, on a cluster.
        #[arg(long, conflicts_with = "soak")]
        end_to_end: bool,
    },
    /// Runs the benchmarks, optimised: a table on standard error, JSON on standard output.
    Bench {
        /// Only benchmarks whose name contains this.
        filter: Option<String>,
        /// Also keeps the results in docs/benchmarks.json and writes docs/benchmarks.md from it; of benchmarks that did not
        /// run, the last results stay.
        #[arg(long)]
        write: bool,
    },
    /// Fuzzes what reads bytes from outside, each target for a while. Needs rustup's nightly toolchain.
    Fuzz(fuzz::Arguments),
    /// Builds the programs that run in pods, small and static, and prints their paths and sizes.
    PodBinaries,
    /// Builds the images, without a daemon, and prints their names, archives and sizes.
    Images(images::Arguments),
    /// Makes and publishes what a release is.
    Release(release::Arguments),
    /// A real Kubernetes cluster of one node, without Docker.
    Cluster(cluster::Arguments),
}

fn main() -> anyhow::Result<ExitCode> {
    let workspace = Workspace::find()?;
    match Arguments::parse().task {
        Task::Gen { check } => {
            let check = check.then_some("--check");
            run_cargo(
                &workspace,
                ["run", "--quiet", "--package", "berth-generate", "--"].into_iter().chain(check),
            )
        }
        Task::Check { steps } => Ok(check::run(&workspace, &steps)),
        Task::Test { end_to_end: true, .. } => test::run_end_to_end(&workspace),
        Task::Test { soak, .. } => test::run(&workspace, soak),
        Task::Bench { filter, write } => bench::run(&workspace, filter.as_deref(), write),
        Task::Fuzz(arguments) => fuzz::run(&workspace, &arguments),
        Task::PodBinaries => pod::build(&workspace),
        Task::Images(arguments) => images::run(&workspace, &arguments),
        Task::Release(arguments) => release::run(&workspace, &arguments),
        Task::Cluster(arguments) => cluster::run(&workspace, &arguments),
    }
}
