//! Pinned tools of the checks, installed once by version into the cache.

use std::path::PathBuf;

use anyhow::Context;

use crate::{process::run_shown, workspace::Workspace};

const CARGO_DENY: &str = "0.20.2";
const ACTIONLINT: &str = "1.7.12";

/// Path of cargo-deny; building it takes several minutes the first time.
pub(super) fn cargo_deny(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let root = workspace.cache.join(format!("tools/cargo-deny-{CARGO_DENY}"));
    let binary = root.join("bin/cargo-deny");
    if !binary.is_file() {
        eprintln!("installing cargo-deny {CARGO_DENY}, once; this takes some minutes");
        let mut install = workspace.command(&workspace.cargo);
        install.args(["install", "--locked", "--quiet", "--version", CARGO_DENY, "--root"]).arg(&root);
        // Its own target directory, else its release build would stay in ours.
        run_shown(install.arg("cargo-deny").env_remove("CARGO_TARGET_DIR"))?;
    }
    Ok(binary)
}

/// Path of actionlint; needs Go the first time.
pub(super) fn actionlint(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let bin = workspace.cache.join(format!("tools/actionlint-{ACTIONLINT}/bin"));
    let binary = bin.join("actionlint");
    if !binary.is_file() {
        eprintln!("installing actionlint {ACTIONLINT}, once");
        let module = format!("github.com/rhysd/actionlint/cmd/actionlint@v{ACTIONLINT}");
        run_shown(workspace.command("go").args(["install", &module]).env("GOBIN", &bin))
            .context("actionlint is installed with Go")?;
    }
    Ok(binary)
}
