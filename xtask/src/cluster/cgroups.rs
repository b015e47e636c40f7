//! The cgroup of a node: one directory in each hierarchy, below the cgroup of whoever starts it.
//!
//! With it as the root of a cgroup namespace, kubelet and runc see nothing else, so two nodes cannot touch each
//! other's and what a dead one left is found in one place. On machines with version 1, alone or in hybrid mode with
//! version 2, those of version 1 have the controllers; with version 2 alone, see `unified`.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail};
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
};

use crate::cluster::{lifecycle::wait_until, unified};

/// Where hierarchies are mounted.
const ROOT: &str = "/sys/fs/cgroup";

/// Bound on removing what a dead node left: its last processes may be on their way out.
const REMOVAL: Duration = Duration::from_secs(20);

/// One hierarchy of cgroups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hierarchy {
    /// Where it is mounted.
    mount: PathBuf,
    /// What selects it when it is mounted again: controllers, or a name; empty for version 2.
    options: String,
    /// The cgroup of this process in it.
    current: PathBuf,
}

/// Lets there be cgroups of nodes with controllers. To be called outside of a node: inside, processes of the machine, which
/// may have to be moved, are not seen.
pub(super) fn prepare() -> anyhow::Result<()> {
    let hierarchies = read()?;
    if is_unified(&hierarchies) {
        for Hierarchy { mount, .. } in &hierarchies {
            unified::hand_down(mount).with_context(|| mount.display().to_string())?;
        }
    }
    Ok(())
}

/// Makes a cgroup of this name in each hierarchy, moves this process into it and makes it the root of what this
/// process sees. To be called while there is one thread only. Returns the hierarchies and the directories.
pub(super) fn enter(name: &str) -> anyhow::Result<(Vec<Hierarchy>, Vec<PathBuf>)> {
    let hierarchies = read()?;
    let is_unified = is_unified(&hierarchies);
    let mut directories = Vec::new();
    for hierarchy in &hierarchies {
        let parent = if is_unified { &hierarchy.mount } else { &hierarchy.current };
        let directory = parent.join(format!("berth-{name}"));
        make(&directory).with_context(|| directory.display().to_string())?;
        join(&directory)?;
        directories.push(directory);
    }
    unshare(CloneFlags::CLONE_NEWCGROUP).context("unshare cgroups")?;
    if is_unified {
        for directory in &directories {
            unified::step_aside(directory)?;
        }
    }
    Ok((hierarchies, directories))
}

/// Where version 1 is, it has the controllers.
fn is_unified(hierarchies: &[Hierarchy]) -> bool {
    hierarchies.iter().all(|hierarchy| hierarchy.options.is_empty())
}

/// As this process sees them.
fn read() -> anyhow::Result<Vec<Hierarchy>> {
    let (mounts, groups) =
        (fs::read_to_string("/proc/self/mountinfo")?, fs::read_to_string("/proc/self/cgroup")?);
    hierarchies(&mounts, &groups)
}

/// Moves this process into a cgroup.
pub(super) fn join(directory: &Path) -> anyhow::Result<()> {
    fs::write(directory.join("cgroup.procs"), "0").with_context(|| directory.display().to_string())
}

fn make(directory: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(directory)?;
    let parent = directory.parent().context("no parent")?;
    // A new cpuset of version 1 has no processors and no memory, and takes no process before it has. One of version 2
    // has those of the cgroup above it, where the machine's outermost has no such files.
    for file in ["cpuset.cpus", "cpuset.mems"] {
        if directory.join(file).exists() && parent.join(file).exists() {
            fs::write(directory.join(file), fs::read(parent.join(file))?)?;
        }
    }
    let inherit = directory.join("cgroup.clone_children");
    if inherit.exists() {
        fs::write(inherit, "1")?;
    }
    Ok(())
}

/// Mounts the hierarchies anew, each where it was, so that their roots are the cgroups that were entered.
pub(super) fn mount_all(hierarchies: &[Hierarchy]) -> anyhow::Result<()> {
    let nothing = None::<&str>;
    // Version 2 alone is mounted there itself.
    if hierarchies.iter().all(|hierarchy| hierarchy.mount != Path::new(ROOT)) {
        mount(Some("cgroups"), ROOT, Some("tmpfs"), MsFlags::empty(), Some("mode=755")).context(ROOT)?;
    }
    for hierarchy in hierarchies {
        let shown = || hierarchy.mount.display().to_string();
        fs::create_dir_all(&hierarchy.mount)?;
        let (kind, options) = match hierarchy.options.as_str() {
            "" => ("cgroup2", nothing),
            options => ("cgroup", Some(options)),
        };
        mount(Some("cgroup"), &hierarchy.mount, Some(kind), MsFlags::empty(), options).with_context(shown)?;
    }
    Ok(())
}

/// Removes the cgroups of a node that has ended, and all below them.
pub(super) fn remove(directories: &[PathBuf]) -> anyhow::Result<()> {
    for directory in directories {
        let is_removed = || Ok(remove_tree(directory).is_ok());
        wait_until(&format!("the cgroup {} is free", directory.display()), REMOVAL, is_removed)?;
    }
    Ok(())
}

fn remove_tree(directory: &Path) -> std::io::Result<()> {
    if !directory.exists() {
        return Ok(());
    }
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    // Its files are the kernel's and go with it.
    fs::remove_dir(directory)
}

/// What `/proc/self/mountinfo` and `/proc/self/cgroup` tell.
fn hierarchies(mounts: &str, groups: &str) -> anyhow::Result<Vec<Hierarchy>> {
    let mut hierarchies = Vec::new();
    for line in mounts.lines() {
        let Some((mounted, kind)) = line.split_once(" - ") else { continue };
        let mut kind = kind.split(' ');
        let (kind, options) = (kind.next().unwrap_or_default(), kind.nth(1).unwrap_or_default());
        let is_version_2 = match kind {
            "cgroup" => false,
            "cgroup2" => true,
            _ => continue,
        };
        let mut fields = mounted.split(' ').skip(3);
        let (Some(root), Some(mount)) = (fields.next(), fields.next()) else { bail!("no mount: {line}") };
        let options: Vec<&str> = options.split(',').collect();
        let group = groups.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let is_of_it = match controllers {
                "" => is_version_2,
                some => !is_version_2 && some.split(',').all(|controller| options.contains(&controller)),
            };
            is_of_it.then_some((controllers, path))
        });
        let (controllers, path) = group.with_context(|| format!("no cgroup of this process: {line}"))?;
        let below = Path::new(path).strip_prefix(root).unwrap_or_else(|_| Path::new(""));
        hierarchies.push(Hierarchy {
            mount: mount.into(),
            options: controllers.to_owned(),
            current: Path::new(mount).join(below),
        });
    }
    Ok(hierarchies)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
        20 1 0:19 / / rw - ext4 /dev/vda rw\n\
        30 20 0:25 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:3 - cgroup cgroup rw,cpu,cpuacct\n\
        31 20 0:26 /outer /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
        32 20 0:27 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n\
        33 20 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn hierarchies_are_read_with_the_own_cgroup() {
        let groups = "4:cpu,cpuacct:/\n3:memory:/outer/inner\n2:name=systemd:/init.scope\n0::/x\n";
        let hierarchy = |mount: &str, options: &str, current: &str| Hierarchy {
            mount: Path::new(ROOT).join(mount),
            options: options.to_owned(),
            current: Path::new(ROOT).join(mount).join(current),
        };
        let expected = [
            hierarchy("cpu,cpuacct", "cpu,cpuacct", ""),
            hierarchy("memory", "memory", "inner"),
            hierarchy("systemd", "name=systemd", "init.scope"),
            hierarchy("unified", "", "x"),
        ];
        assert_eq!(hierarchies(MOUNTS, groups).unwrap(), expected);
        let alone = "33 20 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
        let below = "0::/user.slice/session-1.scope\n";
        assert_eq!(hierarchies(alone, below).unwrap(), [hierarchy("", "", "user.slice/session-1.scope")]);
        assert!(hierarchies(MOUNTS, "3:memory:/\n").is_err());
        assert!(hierarchies("1 2 - cgroup cgroup rw,cpu", groups).is_err());
    }
}
