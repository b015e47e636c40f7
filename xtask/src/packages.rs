//! Debian's packages that tasks need: each is known to be there by what it brings, and installed when it is not.
//!
//! What is installed from elsewhere, by version, is in `tools`.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use crate::{process::run_shown, workspace::Workspace};

/// Where programs are looked for: those of root, whoever asks.
pub(crate) const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Certificates of public authorities, which images hold too.
pub(crate) const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// A package, and what it is known by: a program, or the path of a file.
type Package = (&'static str, &'static str);

/// What the node of a test cluster runs, and is made with.
pub(crate) const OF_A_CLUSTER: [Package; 10] = [
    ("containerd", "containerd"),
    ("runc", "runc"),
    ("containernetworking-plugins", "/usr/lib/cni/bridge"),
    ("etcd-server", "etcd"),
    ("iptables", "iptables"),
    ("conntrack", "conntrack"),
    ("iproute2", "ip"),
    ("ethtool", "ethtool"),
    ("util-linux", "nsenter"),
    ("buildah", "buildah"),
];

/// What loads modules of the kernel.
pub(crate) const OF_MODULES: [Package; 1] = [("kmod", "modprobe")];

/// What images hold is built with, or taken from.
pub(crate) const OF_PROGRAMS: [Package; 2] = [
    // Parts of static programs that are C.
    ("musl-tools", "musl-gcc"),
    ("ca-certificates", CERTIFICATES),
];

/// What images are built with, and the base of `berth-sandbox`.
pub(crate) const OF_IMAGES: [Package; 3] =
    [("buildah", "buildah"), ("debootstrap", "debootstrap"), ("util-linux", "unshare")];

/// Installs those of `packages` that are missing, or says which they are.
pub(crate) fn ensure(workspace: &Workspace, packages: &[Package]) -> anyhow::Result<()> {
    let missing = missing(packages, is_there);
    if missing.is_empty() {
        return Ok(());
    }
    let names = missing.join(" ");
    ensure!(
        nix::unistd::geteuid().is_root() && is_there("apt-get"),
        "these Debian packages are missing: apt-get install {names}"
    );
    eprintln!("installing {names}");
    let install = [&["install", "--no-install-recommends"], &missing[..]].concat();
    // A list of packages that was never fetched, or is old, is fetched first.
    if apt(workspace, &install).is_err() {
        apt(workspace, &["update"])?;
        apt(workspace, &install).with_context(|| format!("these Debian packages are needed: {names}"))?;
    }
    for (package, brings) in packages {
        ensure!(is_there(brings), "{package} is installed, but there is no {brings}");
    }
    Ok(())
}

fn missing(packages: &[Package], is_there: impl Fn(&str) -> bool) -> Vec<&'static str> {
    packages.iter().filter(|(_, brings)| !is_there(brings)).map(|(package, _)| *package).collect()
}

fn is_there(what: &str) -> bool {
    let at = |directory: &str| PathBuf::from(directory).join(what).exists();
    if what.contains('/') { Path::new(what).exists() } else { SEARCH_PATH.split(':').any(at) }
}

fn apt(workspace: &Workspace, arguments: &[&str]) -> anyhow::Result<()> {
    let mut apt = workspace.command("apt-get");
    // Nothing of the machine's goes for it: another containerd, say.
    apt.args(["--quiet", "--quiet", "--yes", "--no-remove", "--option=DPkg::Lock::Timeout=300"]);
    run_shown(apt.args(arguments).env("DEBIAN_FRONTEND", "noninteractive"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_is_missing_when_what_it_brings_is() {
        let there = ["containerd", "/usr/lib/cni/bridge"];
        let missing = missing(&OF_A_CLUSTER, |what| there.contains(&what));
        assert_eq!(missing.len(), OF_A_CLUSTER.len() - there.len());
        assert!(!missing.contains(&"containerd") && !missing.contains(&"containernetworking-plugins"));
    }

    #[test]
    fn programs_are_found_where_root_finds_them_and_files_where_they_are() {
        assert!(is_there("sh") && is_there("/proc/self/exe"));
        assert!(!is_there("no-such-program") && !is_there("/proc/self/no-such-file"));
    }
}
