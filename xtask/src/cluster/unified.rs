//! What a node needs of cgroups of version 2 where there is no version 1.
//!
//! There, a cgroup that hands controllers down to those below it may hold no process, unless it is the machine's
//! outermost. So a node's cgroup is made at the top of what this machine shows, and not below that of whoever starts
//! it, and the node's own processes are in a cgroup beside those of its pods.

use std::{fs, path::Path};

use anyhow::{Context, bail, ensure};

use crate::cluster::cgroups;

/// Controllers that a node cannot do without.
const NEEDED: [&str; 4] = ["cpu", "cpuset", "memory", "pids"];

/// Controllers that are handed down where they are there.
const WANTED: [&str; 6] = ["cpu", "cpuset", "memory", "pids", "io", "hugetlb"];

/// Where the processes of a container go that are in its outermost cgroup. They stay there: others may be below it.
const OUTSIDE: &str = "berth-outside";

/// Where a node's own processes are, in the node's cgroup.
const NODE: &str = "node";

/// How often processes are moved that begin while others are moved.
const ROUNDS: u32 = 20;

/// Lets a cgroup at the top have cgroups with controllers below it.
pub(super) fn hand_down(top: &Path) -> anyhow::Result<()> {
    // The outermost of a machine may keep its processes; it is the one without a type. Not so that of a container.
    if top.join("cgroup.type").exists() {
        empty(top)?;
    }
    enable(top)
}

/// Leaves the node's cgroup to the cgroups below it, and moves this process into one of them.
pub(super) fn step_aside(directory: &Path) -> anyhow::Result<()> {
    let node = directory.join(NODE);
    fs::create_dir_all(&node).with_context(|| node.display().to_string())?;
    cgroups::join(&node)?;
    enable(directory).with_context(|| directory.display().to_string())
}

fn enable(directory: &Path) -> anyhow::Result<()> {
    let controllers = to_enable(&fs::read_to_string(directory.join("cgroup.controllers"))?)?;
    fs::write(directory.join("cgroup.subtree_control"), &controllers).context(controllers)
}

/// What is written to hand down, of what there is.
fn to_enable(controllers: &str) -> anyhow::Result<String> {
    let there: Vec<&str> = controllers.split_whitespace().collect();
    for needed in NEEDED {
        ensure!(there.contains(&needed), "there is no controller {needed} (there are: {})", there.join(" "));
    }
    let wanted = WANTED.iter().filter(|controller| there.contains(controller));
    Ok(wanted.map(|controller| format!("+{controller}")).collect::<Vec<_>>().join(" "))
}

fn empty(top: &Path) -> anyhow::Result<()> {
    let outside = top.join(OUTSIDE);
    for _ in 0..ROUNDS {
        let processes = fs::read_to_string(top.join("cgroup.procs"))?;
        if processes.is_empty() {
            return Ok(());
        }
        fs::create_dir_all(&outside)?;
        for process in processes.lines() {
            ensure!(process != "0", "it holds processes that are not seen here");
            match fs::write(outside.join("cgroup.procs"), process) {
                // It has ended.
                Err(error) if error.raw_os_error() == Some(nix::libc::ESRCH) => {}
                other => other.with_context(|| format!("move process {process}"))?,
            }
        }
    }
    bail!("processes appear in it faster than they can be moved")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_is_handed_down_or_said_to_be_missing() {
        assert_eq!(
            to_enable("cpuset cpu io memory hugetlb pids rdma misc\n").unwrap(),
            "+cpu +cpuset +memory +pids +io +hugetlb"
        );
        assert_eq!(to_enable("pids memory cpuset cpu").unwrap(), "+cpu +cpuset +memory +pids");
        let error = to_enable("memory pids\n").unwrap_err();
        assert_eq!(error.to_string(), "there is no controller cpu (there are: memory pids)");
    }

    #[test]
    fn the_outermost_cgroup_keeps_its_processes() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str| directory.path().join(name);
        fs::write(file("cgroup.controllers"), "cpuset cpu io memory pids\n").unwrap();
        fs::write(file("cgroup.procs"), "1\n2\n").unwrap();
        hand_down(directory.path()).unwrap();
        assert!(!file(OUTSIDE).exists());
        assert_eq!(
            fs::read_to_string(file("cgroup.subtree_control")).unwrap(),
            "+cpu +cpuset +memory +pids +io"
        );
        // Files that are no cgroup's do not change, so nothing is ever moved out of here.
        fs::write(file("cgroup.type"), "domain\n").unwrap();
        assert!(hand_down(directory.path()).is_err());
        fs::write(file("cgroup.procs"), "").unwrap();
        hand_down(directory.path()).unwrap();
    }
}
