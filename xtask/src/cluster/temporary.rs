//! A cluster for one run of the tests: it ends with its value, and also when the run is killed.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::Context;

use crate::{
    cluster::{self, layout::Layout, lifecycle, programs},
    process::capture,
    workspace::Workspace,
};

/// Ends the cluster as soon as its standard input does: the pipe's other end is closed with the process that holds it.
const GUARD: &str = "read -r _; exec \"$@\"";

/// A cluster with a guard that ends it.
#[derive(Debug)]
pub(crate) struct TemporaryCluster {
    layout: Layout,
    guard: Child,
}

impl TemporaryCluster {
    /// Starts one that has nothing to do with those of developers; what an earlier run of this clone left is removed.
    pub(crate) fn up(workspace: &Workspace) -> anyhow::Result<Self> {
        let version = workspace.kubernetes.as_deref().unwrap_or(programs::KUBERNETES).parse()?;
        let layout = Layout::new(&workspace.cache, &name(&workspace.root), version);
        lifecycle::down(&layout)?;
        let guard = guard(&layout)?;
        let cluster = Self { layout, guard };
        lifecycle::up(workspace, &cluster.layout, version)?;
        Ok(cluster)
    }

    /// Loads an archive with an image into the node.
    pub(crate) fn load(&self, archive: &Path) -> anyhow::Result<()> {
        capture(&mut cluster::load(&self.layout, archive)?)?;
        Ok(())
    }

    /// For use outside of the node.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.layout.path("kubeconfig")
    }

    /// The kubectl of its version.
    pub(crate) fn kubectl(&self) -> PathBuf {
        self.layout.program("kubectl")
    }
}

impl Drop for TemporaryCluster {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        if let Err(error) = self.guard.wait() {
            eprintln!("{} may still run: {error}", self.layout.name);
        }
    }
}

/// One name for each clone: runs in two of them do not meet.
fn name(root: &Path) -> String {
    let mut hasher = DefaultHasher::new();
    root.hash(&mut hasher);
    format!("test-{:010x}", hasher.finish() >> 24)
}

/// In a session of its own: what ends the tests from a terminal does not end it.
fn guard(layout: &Layout) -> anyhow::Result<Child> {
    let version = layout.programs.file_name().context("no version")?;
    let mut guard = Command::new("setsid");
    guard.args(["sh", "-c", GUARD, "sh"]).arg(std::env::current_exe()?);
    guard.args(["cluster", "down", "--name", &layout.name, "--kubernetes"]).arg(version);
    guard.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().context("setsid is in util-linux")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_clone_has_a_name_that_is_fit() {
        let one = name(Path::new("/a"));
        assert_ne!(one, name(Path::new("/b")));
        assert_eq!(cluster::layout::parse_name(&one).unwrap(), one);
    }
}
