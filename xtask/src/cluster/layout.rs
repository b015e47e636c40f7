//! Where a cluster's files are, and what is written down about one that runs.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use crate::{cluster::programs::Version, packages::SEARCH_PATH};

/// Longest name of a cluster: paths of sockets below its directory are limited.
const MAX_NAME: usize = 20;

/// The files of one cluster.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    /// The cluster's name.
    pub(super) name: String,
    /// Everything that the cluster writes; deleted with it.
    pub(super) directory: PathBuf,
    /// Programs and images of the wanted version, kept.
    pub(super) programs: PathBuf,
    /// Locked by a command that starts or ends the cluster.
    pub(super) command_lock: PathBuf,
}

impl Layout {
    /// Of cluster `name` in the cache.
    pub(super) fn new(cache: &Path, name: &str, version: Version) -> Self {
        let clusters = cache.join("clusters");
        Self {
            name: name.to_owned(),
            directory: clusters.join(name),
            programs: cache.join("kubernetes").join(version.to_string()),
            command_lock: clusters.join(format!("{name}.lock")),
        }
    }

    /// A file or directory of the cluster's own.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The same as text, for an argument or a configuration.
    pub(super) fn text(&self, name: &str) -> String {
        self.path(name).to_string_lossy().into_owned()
    }

    /// Locked by the node for as long as it lives.
    pub(super) fn node_lock(&self) -> PathBuf {
        self.path("running")
    }

    /// A program of the cluster, by the name of the component.
    pub(super) fn program(&self, component: &str) -> PathBuf {
        self.programs.join("bin").join(component)
    }
}

/// What the node writes down when it starts.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct State {
    /// The node's first process, as this machine counts.
    pub(super) pid: i32,
    /// Version of Kubernetes.
    pub(super) programs: PathBuf,
    /// For use outside the node.
    pub(super) kubeconfig: PathBuf,
    /// For use inside the node.
    pub(super) node_kubeconfig: PathBuf,
    /// The cgroups that it made, one for each hierarchy.
    pub(super) cgroups: Vec<PathBuf>,
}

impl State {
    /// Reads what the cluster's node wrote.
    pub(super) fn read(layout: &Layout) -> anyhow::Result<Self> {
        let path = layout.path("state.json");
        let text = fs::read(&path).with_context(|| path.display().to_string())?;
        serde_json::from_slice(&text).with_context(|| path.display().to_string())
    }

    /// Writes it, in one step.
    pub(super) fn write(&self, layout: &Layout) -> anyhow::Result<()> {
        let new = layout.path("state.json.new");
        fs::write(&new, serde_json::to_vec_pretty(self)?)?;
        Ok(fs::rename(new, layout.path("state.json"))?)
    }

    /// A command that runs in the node's namespaces.
    pub(super) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={}", self.pid));
        command.args(["--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup", "--wd=/", "--", "env"]);
        command.arg(format!("KUBECONFIG={}", self.node_kubeconfig.display()));
        command.arg(format!("PATH={}:{SEARCH_PATH}", self.programs.join("bin").display()));
        command.arg(program);
        command
    }
}

/// A name that is fit for directories and cgroups.
pub(super) fn parse_name(name: &str) -> anyhow::Result<String> {
    let is_fit = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    ensure!(!name.is_empty() && name.len() <= MAX_NAME, "1 to {MAX_NAME} characters");
    ensure!(name.chars().all(is_fit) && !name.starts_with('-'), "a-z, 0-9 and - only, not - first");
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for good in ["main", "a", "soak-2"] {
            assert_eq!(parse_name(good).unwrap(), good);
        }
        for bad in ["", "..", "a/b", "A", "-x", "a b", "a-name-that-is-too-long"] {
            assert!(parse_name(bad).is_err(), "{bad}");
        }
    }
}
