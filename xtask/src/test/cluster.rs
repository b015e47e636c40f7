//! Runs the end-to-end tests on a cluster that is made for them, beside the other tests: both mostly wait.

use std::{io::Write, process::Command};

use super::{
    programs::Program,
    side_by_side::{self, Way},
    tally::Tally,
};
use crate::{cluster::TemporaryCluster, images, workspace::Workspace};

/// The program with these tests.
const PROGRAM: &str = "e2e tests/cluster/main.rs";

/// Takes the program with the end-to-end tests out of the others.
pub(super) fn take(programs: &mut Vec<Program>) -> Option<Program> {
    let place = programs.iter().position(|program| program.name == PROGRAM)?;
    Some(programs.remove(place))
}

/// Makes a cluster, unless the environment names one, and runs the program on it. What keeps the cluster from coming up
/// is a failure; only a machine without root that is said to be one has none.
pub(super) fn run(
    workspace: &Workspace,
    program: Program,
    way: Way,
    command: impl Fn(&Program) -> Command + Sync,
    out: impl Write + Send,
) -> Tally {
    if let Some(kubeconfig) = &workspace.kubeconfig {
        let on_it = |program: &Program| {
            let mut command = command(program);
            // It runs in another directory.
            command.env("BERTH_E2E_KUBECONFIG", workspace.root.join(kubeconfig));
            command
        };
        return side_by_side::run(vec![program], way, on_it, out).0;
    }
    if workspace.is_without_root {
        eprintln!("{PROGRAM} is left out, as BERTH_TEST_WITHOUT_ROOT says: a cluster wants root");
        return Tally::default();
    }
    match make(workspace) {
        Ok(cluster) => {
            let on_it = |program: &Program| {
                let mut command = command(program);
                command.env("BERTH_E2E_KUBECONFIG", cluster.kubeconfig());
                command.env("BERTH_E2E_KUBECTL", cluster.kubectl());
                command
            };
            side_by_side::run(vec![program], way, on_it, out).0
        }
        Err(error) => {
            let mut tally = Tally::default();
            tally.fail(format!("the cluster for the end-to-end tests does not come up: {error:#}"));
            tally
        }
    }
}

/// A cluster with Berth's images.
fn make(workspace: &Workspace) -> anyhow::Result<TemporaryCluster> {
    let cluster = TemporaryCluster::up(workspace)?;
    let (archives, _held) = images::all(workspace, images::QUICK)?;
    archives.iter().try_for_each(|archive| cluster.load(archive))?;
    Ok(cluster)
}
