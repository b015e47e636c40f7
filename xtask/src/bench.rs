//! Runs the benchmarks of `xtask/bench`, with the programs and files that they want.

use std::process::ExitCode;

use anyhow::Context;

use crate::{
    cluster::TemporaryCluster,
    images, pod,
    process::{capture, run_cargo},
    tools,
    workspace::Workspace,
};

/// What the benchmarks of the pod's programs are called, all of them and no other.
const OF_POD: &str = "pod-";

/// What those of the session server are called, likewise.
const OF_SERVER: &str = "server-";

/// What those of a cluster are called, likewise.
const OF_CLUSTER: &str = "cluster-";

/// Where the figures are kept.
const PAGE: &str = "docs/benchmarks.md";

/// Runs those whose name contains `filter`, or all.
pub(crate) fn run(workspace: &Workspace, filter: Option<&str>, write: bool) -> anyhow::Result<ExitCode> {
    let mut arguments: Vec<String> =
        ["run", "--quiet", "--release", "--package", "berth-bench", "--"].map(str::to_owned).to_vec();
    let names = |prefix| filter.is_some_and(|filter| filter.starts_with(prefix));
    if !names(OF_POD) && !names(OF_SERVER) && !names(OF_CLUSTER) {
        arguments.extend(["--sdk".to_owned(), tools::opencode_sdk(workspace)?.display().to_string()]);
    }
    if names(OF_POD) || names(OF_SERVER) || filter.is_none() {
        arguments.extend(of_pod(workspace)?);
    }
    if names(OF_SERVER) || filter.is_none() {
        let programs = pod::build_programs(workspace, &["--release"], &["berth-controller"])?;
        let program = programs.first().context("no program was built")?;
        arguments.extend(["--controller".to_owned(), program.display().to_string()]);
    }
    // It ends when this returns.
    let cluster = (names(OF_CLUSTER) || filter.is_none()).then(|| of_cluster(workspace)).transpose()?;
    for (option, path) in cluster
        .iter()
        .flat_map(|cluster| [("--kubeconfig", cluster.kubeconfig()), ("--kubectl", cluster.kubectl())])
    {
        arguments.extend([option.to_owned(), path.display().to_string()]);
    }
    if write {
        arguments.extend(["--write".to_owned(), PAGE.to_owned()]);
    }
    arguments.extend(filter.map(str::to_owned));
    run_cargo(workspace, arguments.iter().map(String::as_str))
}

/// A cluster with the images that are shipped.
fn of_cluster(workspace: &Workspace) -> anyhow::Result<TemporaryCluster> {
    let cluster = TemporaryCluster::up(workspace)?;
    let (archives, _held) = images::all(workspace, pod::POD_PROFILE)?;
    archives.iter().try_for_each(|archive| cluster.load(archive))?;
    Ok(cluster)
}

/// Builds the pod's programs and fetches opencode.
fn of_pod(workspace: &Workspace) -> anyhow::Result<[String; 6]> {
    let programs = pod::programs(workspace)?;
    let folder =
        programs.first().and_then(|program| program.parent()).context("programs without a folder")?;
    let opencode = capture(&mut workspace.command("deploy/opencode/install.sh"))?;
    let config_home = workspace.cache.join("opencode").join(version(workspace)?).join("config");
    Ok([
        "--pod".to_owned(),
        folder.display().to_string(),
        "--opencode".to_owned(),
        opencode.trim().to_owned(),
        "--config-home".to_owned(),
        config_home.display().to_string(),
    ])
}

/// The pinned version of opencode.
fn version(workspace: &Workspace) -> anyhow::Result<String> {
    let path = workspace.root.join("deploy/opencode/package.json");
    let package: serde_json::Value = serde_json::from_slice(&std::fs::read(&path)?)?;
    let version = package["dependencies"]["opencode-linux-x64"].as_str();
    Ok(version.with_context(|| format!("no version in {}", path.display()))?.to_owned())
}
