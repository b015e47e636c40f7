//! Benchmarks of a cluster: how soon an agent answers that was asked for.

mod start;

use std::path::PathBuf;

use berth_e2e::Setting;

use crate::{pod::Figure, sessions::Scale};

/// A benchmark of the cluster.
#[derive(Debug)]
pub(crate) struct ClusterBenchmark {
    pub(crate) name: &'static str,
    run: fn(&Setting, Scale) -> anyhow::Result<Vec<Figure>>,
}

impl ClusterBenchmark {
    /// Runs it; takes up to some minutes.
    pub(crate) fn run(&self, setting: &Setting, scale: Scale) -> anyhow::Result<Vec<Figure>> {
        (self.run)(setting, scale)
    }
}

/// Every one, in the order of the page.
pub(crate) const BENCHMARKS: &[ClusterBenchmark] =
    &[ClusterBenchmark { name: "cluster-start", run: start::run }];

/// The cluster of this kubeconfig.
pub(crate) fn setting(kubeconfig: PathBuf, kubectl: Option<PathBuf>) -> Setting {
    Setting { kubeconfig, kubectl: kubectl.unwrap_or_else(|| "kubectl".into()) }
}
