//! Pinned tools of the tasks, installed once by version into the cache.

use std::{fs, path::PathBuf};

use anyhow::Context;

use crate::{process::run_shown, workspace::Workspace};

const CARGO_DENY: &str = "0.20.2";
const CARGO_AUDITABLE: &str = "0.7.7";
const CARGO_FUZZ: &str = "0.13.2";
const ACTIONLINT: &str = "1.7.12";
const HELM: &str = "3.22.0";

/// Path of cargo-deny; building it takes several minutes the first time.
pub(crate) fn cargo_deny(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    cargo_install(workspace, "cargo-deny", CARGO_DENY)
}

/// Path of cargo-auditable.
pub(crate) fn cargo_auditable(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    cargo_install(workspace, "cargo-auditable", CARGO_AUDITABLE)
}

/// Path of cargo-fuzz.
pub(crate) fn cargo_fuzz(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    cargo_install(workspace, "cargo-fuzz", CARGO_FUZZ)
}

fn cargo_install(workspace: &Workspace, name: &str, version: &str) -> anyhow::Result<PathBuf> {
    let root = workspace.cache.join(format!("tools/{name}-{version}"));
    let binary = root.join("bin").join(name);
    if !binary.is_file() {
        eprintln!("installing {name} {version}, once; this takes some minutes");
        let mut install = workspace.command(&workspace.cargo);
        install.args(["install", "--locked", "--quiet", "--version", version, "--root"]).arg(&root);
        // Its own target directory, else its release build would stay in ours.
        run_shown(install.arg(name).env_remove("CARGO_TARGET_DIR"))?;
    }
    Ok(binary)
}

/// Directory with opencode's SDK, and the program that benchmarks run with it.
pub(crate) fn opencode_sdk(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let from = workspace.root.join("xtask/bench/sdk");
    let into = workspace.cache.join("tools/opencode-sdk");
    let lock = fs::read(from.join("package-lock.json"))?;
    fs::create_dir_all(&into)?;
    fs::copy(from.join("baseline.mjs"), into.join("baseline.mjs"))?;
    // npm leaves this file when it has installed everything.
    let is_there = into.join("node_modules/.package-lock.json").is_file();
    if !is_there || fs::read(into.join("package-lock.json")).ok() != Some(lock) {
        eprintln!("installing opencode's SDK for node, once");
        for file in ["package.json", "package-lock.json"] {
            fs::copy(from.join(file), into.join(file))?;
        }
        let mut npm = workspace.command("npm");
        npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"])
            .current_dir(&into);
        run_shown(&mut npm).context("opencode's SDK is installed with npm")?;
    }
    Ok(into)
}

/// Installs schemathesis with all that it needs, each in the version that its list names.
pub(crate) fn schemathesis(workspace: &Workspace) -> anyhow::Result<()> {
    let wanted = workspace.root.join("tests/schemathesis/requirements.txt");
    let home = workspace.cache.join("tools/schemathesis");
    let installed = home.join("requirements.txt");
    let list = fs::read(&wanted)?;
    if fs::read(&installed).ok().as_ref() == Some(&list) {
        return Ok(());
    }
    eprintln!("installing schemathesis, once");
    let python = "python3 with its module venv makes the place for schemathesis";
    run_shown(workspace.command("python3").args(["-m", "venv", "--clear"]).arg(&home)).context(python)?;
    let mut pip = workspace.command(home.join("bin/pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--requirement"])
        .arg(&wanted);
    run_shown(&mut pip).context("schemathesis is installed with pip")?;
    Ok(fs::write(installed, list)?)
}

/// Path of actionlint; needs Go the first time.
pub(crate) fn actionlint(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    go_install(workspace, "actionlint", "github.com/rhysd/actionlint/cmd/actionlint", ACTIONLINT)
}

/// Path of helm; needs Go the first time.
pub(crate) fn helm(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    go_install(workspace, "helm", "helm.sh/helm/v3/cmd/helm", HELM)
}

/// Path of a program that is a Go package; needs Go the first time.
pub(crate) fn go_install(
    workspace: &Workspace,
    name: &str,
    package: &str,
    version: &str,
) -> anyhow::Result<PathBuf> {
    let bin = workspace.cache.join(format!("tools/{name}-{version}/bin"));
    let binary = bin.join(name);
    if !binary.is_file() {
        eprintln!("installing {name} {version}, once");
        let mut go = workspace.command("go");
        go.args(["install", "-trimpath", "-ldflags=-s -w"]).arg(format!("{package}@v{version}"));
        run_shown(go.env("GOBIN", &bin).env("CGO_ENABLED", "0"))
            .with_context(|| format!("{name} is installed with Go"))?;
    }
    Ok(binary)
}
