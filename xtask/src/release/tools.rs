//! Tools of a release, all of them Go programs, installed once by version. IO.

use std::path::PathBuf;

use crate::{tools::go_install, workspace::Workspace};

/// Talks to registries, and is one.
pub(super) fn crane(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    go_install(workspace, "crane", "github.com/google/go-containerregistry/cmd/crane", "0.22.1")
}

/// Signs.
pub(super) fn cosign(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    go_install(workspace, "cosign", "github.com/sigstore/cosign/v2/cmd/cosign", "2.6.5")
}

/// Lists what is in images and archives.
pub(super) fn syft(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    go_install(workspace, "syft", "github.com/anchore/syft/cmd/syft", "1.57.1")
}
