//! Builds images from Containerfiles with buildah, without a daemon.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, ensure};

use crate::{process::capture, workspace::Workspace};

/// Builds the image that `directory`/Containerfile describes, and writes it to `archive`.
pub(crate) fn build(
    workspace: &Workspace,
    directory: &Path,
    name: &str,
    archive: &Path,
) -> anyhow::Result<()> {
    let mut build = buildah(workspace);
    // A fixed time, so that the same content is the same image.
    build.args(["build", "--pull-never", "--timestamp=0", "--tag", name]).arg(directory);
    capture(&mut build).context("images are built with buildah (apt-get install buildah)")?;
    let new = archive.with_extension("new");
    // buildah adds to an archive that is there.
    if new.exists() {
        fs::remove_file(&new)?;
    }
    capture(buildah(workspace).args(["push", name]).arg(format!("oci-archive:{}:{name}", new.display())))?;
    ensure!(new.is_file(), "{} was not written", new.display());
    fs::rename(&new, archive).with_context(|| archive.display().to_string())
}

/// buildah with its storage in the cache, in a form that needs nothing of the machine.
fn buildah(workspace: &Workspace) -> Command {
    let mut buildah = workspace.command("buildah");
    for (option, directory) in [("--root", "storage"), ("--runroot", "run")] {
        buildah.arg(option).arg(workspace.cache.join("buildah").join(directory));
    }
    buildah.args(["--storage-driver", "vfs"]).env("BUILDAH_ISOLATION", "chroot");
    buildah
}
