//! The static checks: each a named step, all run even when one fails.

mod tree;

use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use clap::ValueEnum;

use crate::{
    process::{capture, run_shown},
    tools,
    workspace::Workspace,
};

/// A check, cheapest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Step {
    /// No file names a registry's host or a path of this machine; lock files hold no addresses.
    Tree,
    /// rustfmt.
    Fmt,
    /// shellcheck on every shell script.
    Shell,
    /// actionlint on the hosted workflows (fetched with Go when missing).
    Workflows,
    /// gofmt, and the tests of what kind is given.
    Go,
    /// clippy on all targets, warnings denied.
    Clippy,
    /// Generated files are up to date.
    Gen,
    /// cargo-deny: licences, bans and sources (built once, some minutes, when missing).
    Deny,
}

/// Runs `steps`, or all of them when none is named, and says at the end which failed.
pub(crate) fn run(workspace: &Workspace, steps: &[Step]) -> ExitCode {
    let steps = if steps.is_empty() { Step::value_variants() } else { steps };
    let mut failed = Vec::new();
    for step in steps {
        let name = name(*step);
        eprintln!("check {name}");
        if let Err(error) = run_step(workspace, *step) {
            eprintln!("check {name} failed: {error:#}");
            failed.push(name);
        }
    }
    if failed.is_empty() {
        println!("all {} checks passed", steps.len());
        return ExitCode::SUCCESS;
    }
    println!("failed checks: {}", failed.join(", "));
    ExitCode::FAILURE
}

fn name(step: Step) -> String {
    step.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

fn run_step(workspace: &Workspace, step: Step) -> anyhow::Result<()> {
    let cargo = |arguments: &[&str]| run_program(workspace, &workspace.cargo, arguments);
    match step {
        Step::Tree => tree::check(workspace),
        Step::Fmt => {
            cargo(&["fmt", "--all", "--check"])?;
            cargo(&["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"])
        }
        Step::Shell => check_shell(workspace),
        Step::Workflows => {
            let actionlint = tools::actionlint(workspace)?;
            // Its own run of shellcheck on the scripts in workflows needs shellcheck on PATH and is skipped without.
            run_program(workspace, actionlint, &[])
        }
        Step::Go => check_go(workspace),
        Step::Clippy => cargo(&["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"]),
        Step::Gen => cargo(&["run", "--quiet", "--package", "berth-generate", "--", "--check"]),
        Step::Deny => {
            let deny = tools::cargo_deny(workspace)?;
            run_program(workspace, deny, &["--all-features", "check", "licenses", "bans", "sources"])
        }
    }
}

fn run_program(
    workspace: &Workspace,
    program: impl AsRef<std::ffi::OsStr>,
    arguments: &[&str],
) -> anyhow::Result<()> {
    run_shown(workspace.command(program).args(arguments))
}

fn check_go(workspace: &Workspace) -> anyhow::Result<()> {
    let unformatted = capture(workspace.command("gofmt").args(["-l", "tests/cluster"]))?;
    ensure!(unformatted.is_empty(), "gofmt would change {}", unformatted.trim().replace('\n', ", "));
    let kind = workspace.root.join("tests/cluster/kind");
    run_shown(workspace.command("go").args(["test", "./..."]).current_dir(kind))
}

/// Runs shellcheck on every file that starts as a shell script.
fn check_shell(workspace: &Workspace) -> anyhow::Result<()> {
    let scripts: Vec<String> = tree::repository_files(workspace)?
        .into_iter()
        .filter(|file| {
            file.text.starts_with("#!") && file.text.lines().next().is_some_and(|line| line.ends_with("sh"))
        })
        .map(|file| file.path)
        .collect();
    if scripts.is_empty() {
        bail!("no shell script was found, though there should be some");
    }
    capture(workspace.command("shellcheck").arg("--version"))
        .context("shellcheck is missing: install it (apt-get install shellcheck)")?;
    run_shown(workspace.command("shellcheck").args(scripts))
}
