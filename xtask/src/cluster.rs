//! A real Kubernetes cluster of one node, in namespaces of this machine: no Docker, no virtual machine.
//!
//! `up` prepares programs and files and starts the node: one process in mount, network, PID, UTS, IPC and cgroup
//! namespaces of its own, with all components below it. Killing it ends everything, and what it leaves are
//! directories only, which `down`, or the next `up`, removes. Several clusters, by name, run side by side. How to use
//! it is told in docs/cluster.md.

mod certificates;
mod cgroups;
mod components;
mod forward;
mod layout;
mod lifecycle;
mod node;
mod programs;
mod temporary;
mod unified;

pub(crate) use temporary::TemporaryCluster;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use clap::{Args, Subcommand};

use crate::{cluster::layout::Layout, process::run_shown, workspace::Workspace};

/// Which cluster, and what to do with it.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
    /// Which cluster: several may run side by side.
    #[arg(long, global = true, default_value = "main", value_parser = layout::parse_name)]
    name: String,
    /// Version of Kubernetes.
    #[arg(long, global = true, env = "BERTH_KUBERNETES", default_value = programs::KUBERNETES)]
    kubernetes: programs::Version,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Starts the cluster and waits until pods can run in it; builds what it needs the first time.
    Up,
    /// Ends the cluster and removes what it leaves.
    Down,
    /// Tells whether it runs, and where its files are; exits 1 when it does not run.
    Status,
    /// Prints the path of a kubeconfig that works outside the node.
    Kubeconfig,
    /// Loads images from OCI or Docker archives into the node.
    LoadImage {
        /// Archives, as `buildah push IMAGE oci-archive:FILE` writes them.
        #[arg(required = true)]
        archives: Vec<PathBuf>,
    },
    /// Runs a program in the node's namespaces, with kubectl and its credentials at hand.
    Exec {
        /// The program and its arguments.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
    /// Is the node: its first process.
    #[command(hide = true)]
    Node,
}

/// The command that loads an archive with an image into the node.
fn load(layout: &Layout, archive: &Path) -> anyhow::Result<Command> {
    let mut load = lifecycle::running(layout)?.command("ctr");
    load.args(["--namespace", "k8s.io", "images", "import"]).arg(std::path::absolute(archive)?);
    Ok(load)
}

/// Does what `arguments` ask for.
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let layout = Layout::new(&workspace.cache, &arguments.name, arguments.kubernetes);
    match &arguments.action {
        Action::Up => lifecycle::up(workspace, &layout, arguments.kubernetes)?,
        Action::Down => lifecycle::down(&layout)?,
        Action::Status => return lifecycle::status(&layout),
        Action::Kubeconfig => println!("{}", lifecycle::running(&layout)?.kubeconfig.display()),
        Action::LoadImage { archives } => {
            for archive in archives {
                run_shown(&mut load(&layout, archive)?)?;
            }
        }
        Action::Exec { command } => {
            let (program, rest) = command.split_first().expect("clap wants at least one word");
            let status = lifecycle::running(&layout)?.command(program).args(rest).status()?;
            // Whatever the program wanted to say, it has said.
            let code = status.code().and_then(|code| u8::try_from(code).ok());
            return Ok(code.map_or(ExitCode::FAILURE, ExitCode::from));
        }
        Action::Node => node::run(&layout)?,
    }
    Ok(ExitCode::SUCCESS)
}
