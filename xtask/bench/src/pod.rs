//! Benchmarks of the pod's two programs, as they run in a pod: built for it, in processes of their own.
//!
//! [`rig`] is a whole pod with a real opencode and the scripted model; [`stand_in`] an opencode and its supervisor that
//! do what a benchmark says, for what the real ones will not produce. [`figure`] is what comes out, and its bounds.

use std::path::PathBuf;

pub(crate) mod client;
pub(crate) mod figure;
mod idle;
mod journal;
mod latency;
mod load;
pub(crate) mod process;
mod requests;
pub(crate) mod rig;
pub(crate) mod stand_in;
pub(crate) mod statistics;
pub(crate) mod timed;
mod transfer;
mod turns;

pub(crate) use figure::Figure;

/// The programs that run.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    /// `berth-supervisor`.
    pub(crate) supervisor: PathBuf,
    /// `berth-sidecar`.
    pub(crate) sidecar: PathBuf,
    /// opencode's binary.
    pub(crate) opencode: PathBuf,
    /// What is `XDG_CONFIG_HOME` for opencode.
    pub(crate) config_home: PathBuf,
}

/// A benchmark of the pod.
#[derive(Debug)]
pub(crate) struct PodBenchmark {
    pub(crate) name: &'static str,
    run: fn(&Programs) -> anyhow::Result<Vec<Figure>>,
}

impl PodBenchmark {
    /// Runs it; takes up to some minutes.
    pub(crate) fn run(&self, programs: &Programs) -> anyhow::Result<Vec<Figure>> {
        (self.run)(programs)
    }
}

/// Every one, in the order of the page.
pub(crate) const BENCHMARKS: &[PodBenchmark] = &[
    PodBenchmark { name: "pod-turn", run: turns::run },
    PodBenchmark { name: "pod-first-delta", run: latency::run },
    PodBenchmark { name: "pod-idle", run: idle::run },
    PodBenchmark { name: "pod-requests", run: requests::run },
    PodBenchmark { name: "pod-transfer", run: transfer::run },
    PodBenchmark { name: "pod-journal", run: journal::run },
];

/// A runtime for the client's side of a benchmark.
pub(crate) fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()
}
