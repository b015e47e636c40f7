//! Pushes images and the chart to a registry, and notes under which digests. IO.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, ensure};

use super::{Place, Registry, archive};
use crate::{
    images::{self, Image, buildah},
    process::capture,
    workspace::Workspace,
};

/// The chart, where there is one.
const CHART: &str = "charts/berth";

/// Pushes what was built. Writes each reference with its digest, and the checksums of the archives: these are signed.
pub(super) fn publish(workspace: &Workspace, place: &Place, registry: &Registry) -> anyhow::Result<()> {
    let mut published = Vec::new();
    for image in Image::ALL {
        let archives: Vec<_> = place.images().filter(|built| built.0 == image).map(|built| built.2).collect();
        if !archives.is_empty() {
            let name = format!("{}/{}", registry.registry, image.name());
            let digest = push(workspace, registry, &format!("{name}:{}", place.version), &archives)?;
            published.push(format!("{name}@{digest}"));
        }
    }
    ensure!(!published.is_empty(), "no image was built into {}", place.directory.display());
    if workspace.root.join(CHART).join("Chart.yaml").is_file() {
        published.push(push_chart(workspace, place, registry)?);
    }
    archive::write_checksums(&place.archives())?;
    let list = published.join("\n") + "\n";
    print!("{list}");
    fs::write(place.published(), list).with_context(|| place.published().display().to_string())
}

/// One name for all processors: a list, which is pushed with what is in it. Gives the list's digest.
fn push(
    workspace: &Workspace,
    registry: &Registry,
    reference: &str,
    archives: &[impl AsRef<Path>],
) -> anyhow::Result<String> {
    let _lock = images::lock_store(workspace)?;
    let list = format!("localhost/berth-release-{}", std::process::id());
    capture(buildah(workspace).args(["manifest", "create", &list]))?;
    let pushed = fill_and_push(workspace, registry, (&list, reference), archives);
    capture(buildah(workspace).args(["manifest", "rm", &list]))?;
    pushed.with_context(|| format!("push {reference}"))
}

fn fill_and_push(
    workspace: &Workspace,
    registry: &Registry,
    (list, reference): (&str, &str),
    archives: &[impl AsRef<Path>],
) -> anyhow::Result<String> {
    for archive in archives {
        let archive = format!("oci-archive:{}", archive.as_ref().display());
        capture(buildah(workspace).args(["manifest", "add", list, &archive]))?;
    }
    let file = tempfile::NamedTempFile::new()?;
    let mut push = buildah(workspace);
    push.args(["manifest", "push", "--all", "--format=oci", "--digestfile"]).arg(file.path());
    if registry.plain_http {
        push.arg("--tls-verify=false");
    }
    capture(push.arg(list).arg(format!("docker://{reference}")))?;
    digest(&fs::read_to_string(file.path())?)
}

/// Packs the chart with the release's version and pushes it. Gives its name with its digest.
fn push_chart(workspace: &Workspace, place: &Place, registry: &Registry) -> anyhow::Result<String> {
    let helm = crate::tools::helm(workspace)?;
    let version = &place.version;
    let mut package = Command::new(&helm);
    package.args(["package", "--version", version, "--app-version", version, "--destination"]);
    capture(package.arg(&place.directory).arg(workspace.root.join(CHART)))?;
    let mut push = Command::new(helm);
    push.arg("push").arg(place.directory.join(format!("berth-{version}.tgz")));
    push.arg(format!("oci://{}/charts", registry.registry));
    if registry.plain_http {
        push.arg("--plain-http");
    }
    let output = push.output().context("helm push")?;
    ensure!(output.status.success(), "helm push: {}", String::from_utf8_lossy(&output.stderr).trim());
    // It tells on either stream, by its version.
    let said = [output.stdout, output.stderr].concat();
    Ok(format!("{}/charts/berth@{}", registry.registry, digest(&String::from_utf8_lossy(&said))?))
}

/// The digest that a text names.
fn digest(text: &str) -> anyhow::Result<String> {
    let found = text.split_whitespace().find(|word| {
        word.strip_prefix("sha256:").is_some_and(|sum| {
            sum.len() == 64 && sum.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        })
    });
    found.map(str::to_owned).with_context(|| format!("no digest in {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_found_in_what_is_said() {
        let sum = format!("sha256:{}", "0a".repeat(32));
        assert_eq!(digest(&format!("Pushed: x/y:1\nDigest: {sum}\n")).unwrap(), sum);
        assert!(digest("Digest: sha256:0a0a\n").is_err());
    }
}
