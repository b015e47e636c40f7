//! The programs that a node runs: Debian's, and one of ours that is every Go program by its name.

use std::{
    fmt::{self, Write as _},
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::{
    arch::Arch,
    cluster::{components::PAUSE_IMAGE, layout::Layout},
    images, packages,
    process::run_shown,
    workspace::Workspace,
};

/// The version that go.mod names.
pub(super) const KUBERNETES: &str = "1.36.3";

/// Names of our program: what it is called by decides what it does.
const NAMES: [&str; 9] = [
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "kubectl",
    "coredns",
    "network-policies",
    "local-volumes",
];

/// A version of Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Version {
    major: u16,
    minor: u16,
    patch: u16,
}

impl FromStr for Version {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let numbers: Vec<u16> = text.split('.').map(str::parse).collect::<Result<_, _>>()?;
        let [major, minor, patch] = numbers[..] else { anyhow::bail!("three numbers, as in {KUBERNETES}") };
        Ok(Self { major, minor, patch })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// Installs and builds what is missing.
pub(super) fn ensure(workspace: &Workspace, layout: &Layout, version: Version) -> anyhow::Result<()> {
    packages::ensure(workspace, &packages::OF_A_CLUSTER)?;
    let into = &layout.programs;
    fs::create_dir_all(into)?;
    let lock = fs::File::create(into.join("lock"))?;
    lock.lock()?;
    let from = workspace.root.join("tests/cluster");
    let sources = sources(&from)?;
    let stamp = into.join("sources");
    if fs::read_to_string(&stamp).is_ok_and(|built| built == sources) {
        return Ok(());
    }
    let module =
        if version == KUBERNETES.parse()? { from } else { module_of(workspace, &from, into, version)? };
    eprintln!("building Kubernetes {version}, once; this takes about ten minutes");
    build(workspace, &module, ".", &into.join("bin/berth-cluster"), &linker_flags(version))?;
    for name in NAMES {
        link(&into.join("bin").join(name))?;
    }
    let pause = into.join("pause");
    build(workspace, &module, "./pause", &pause.join("pause"), "-s -w")?;
    fs::copy(module.join("pause/Containerfile"), pause.join("Containerfile"))?;
    images::build(workspace, &pause, PAUSE_IMAGE, Arch::LOCAL, &into.join("pause.tar"))?;
    Ok(fs::write(stamp, sources)?)
}

/// Everything that the programs are built from, as one text.
fn sources(directory: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    for name in FILES {
        let path = directory.join(name);
        let source = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        write!(text, "== {name}\n{source}")?;
    }
    Ok(text)
}

const FILES: [&str; 7] = [
    "go.mod",
    "go.sum",
    "main.go",
    "networkpolicies.go",
    "localvolumes.go",
    "pause/main.go",
    "pause/Containerfile",
];

/// A copy of the module that requires another version of Kubernetes.
fn module_of(workspace: &Workspace, from: &Path, into: &Path, version: Version) -> anyhow::Result<PathBuf> {
    let module = into.join("module");
    fs::create_dir_all(module.join("pause"))?;
    for name in FILES {
        fs::copy(from.join(name), module.join(name))?;
    }
    let theirs = workspace
        .command("go")
        .args(["mod", "download", "-json"])
        .arg(format!("k8s.io/kubernetes@v{version}"))
        .output()?;
    let theirs: Value = serde_json::from_slice(&theirs.stdout).context("go mod download")?;
    let theirs = theirs["GoMod"].as_str().with_context(|| format!("there is no Kubernetes {version}"))?;
    let ours = fs::read_to_string(from.join("go.mod"))?;
    let text = with_version(&ours, &fs::read_to_string(theirs)?, KUBERNETES.parse()?, version);
    fs::write(module.join("go.mod"), text)?;
    let mut tidy = workspace.command("go");
    run_shown(tidy.args(["mod", "tidy"]).env("GOFLAGS", "-mod=mod").current_dir(&module))?;
    Ok(module)
}

/// The text of our go.mod for another version, whose own go.mod is `theirs`: it names the parts that Kubernetes 1.x.y
/// publishes as 0.x.y. What we require ourselves stays; the rest is for `go mod tidy` to find.
fn with_version(ours: &str, theirs: &str, old: Version, new: Version) -> String {
    let part = |version: Version| format!("v0.{}.{}", version.minor, version.patch);
    let mut lines = Vec::new();
    for line in ours.lines() {
        // An indirect one with a reason behind it was asked for.
        if line.starts_with('\t') && (line.ends_with("// indirect") || line.contains(" => ")) {
            continue;
        }
        lines.push(match line.rsplit_once(' ') {
            Some((name, version)) if version == format!("v{old}") => format!("{name} v{new}"),
            Some((name, version)) if version == part(old) => format!("{name} {}", part(new)),
            _ => line.to_owned(),
        });
        if line == "replace (" {
            let parts = theirs.lines().filter_map(|line| line.trim().split_once(" => ./staging/"));
            lines.extend(parts.map(|(name, _)| format!("\t{name} => {name} {}", part(new))));
        }
    }
    lines.join("\n") + "\n"
}

/// Tells the programs which version they are.
fn linker_flags(version: Version) -> String {
    let Version { major, minor, .. } = version;
    let base = "-X k8s.io/component-base/version";
    format!(
        "-s -w {base}.gitVersion=v{version} {base}.gitMajor={major} {base}.gitMinor={minor} \
         -X k8s.io/client-go/pkg/version.gitVersion=v{version}"
    )
}

fn build(
    workspace: &Workspace,
    module: &Path,
    package: &str,
    output: &Path,
    flags: &str,
) -> anyhow::Result<()> {
    let mut go = workspace.command("go");
    go.args(["build", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o"]).arg(output).arg(package);
    go.env("CGO_ENABLED", "0").env("GOFLAGS", "-mod=readonly").current_dir(module);
    run_shown(&mut go).context("the cluster's programs are built with Go 1.26 or later")?;
    ensure!(output.is_file(), "{} was not built", output.display());
    Ok(())
}

fn link(path: &Path) -> anyhow::Result<()> {
    match symlink("berth-cluster", path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_three_numbers() {
        assert_eq!("1.35.4".parse::<Version>().unwrap().to_string(), "1.35.4");
        for bad in ["1.36", "v1.36.3", "1.36.3-rc.1", "", "../1.2.3"] {
            assert!(bad.parse::<Version>().is_err(), "{bad}");
        }
    }

    #[test]
    fn another_version_changes_kubernetes_and_its_parts_only() {
        let ours = "go 1.26.0\n\nrequire (\n\tk8s.io/kubernetes v1.36.3\n\tk8s.io/api v0.36.3\n\tx v0.36.30\n)\n\n\
                    require (\n\ty v1.36.3 // indirect\n\tz v0.11.0 // indirect; for a reason\n)\n\n\
                    replace (\n\tk8s.io/api => k8s.io/api v0.36.3\n\tk8s.io/new => k8s.io/new v0.36.3\n)\n";
        let theirs = "replace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n\tk8s.io/old => ./staging/src/k8s.io/old\n)\n";
        let changed = with_version(ours, theirs, "1.36.3".parse().unwrap(), "1.35.1".parse().unwrap());
        let expected = "go 1.26.0\n\nrequire (\n\tk8s.io/kubernetes v1.35.1\n\tk8s.io/api v0.35.1\n\tx v0.36.30\n)\n\n\
                        require (\n\tz v0.11.0 // indirect; for a reason\n)\n\n\
                        replace (\n\tk8s.io/api => k8s.io/api v0.35.1\n\tk8s.io/old => k8s.io/old v0.35.1\n)\n";
        assert_eq!(changed, expected);
    }

    #[test]
    fn the_module_requires_the_default_version_and_its_program_knows_every_name() {
        let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/cluster");
        let text = fs::read_to_string(module.join("go.mod")).unwrap();
        assert!(text.contains(&format!("k8s.io/kubernetes v{KUBERNETES}\n")));
        let program = fs::read_to_string(module.join("main.go")).unwrap();
        for name in NAMES {
            assert!(program.contains(&format!("case \"{name}\":")), "{name}");
        }
    }
}
