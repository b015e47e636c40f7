//! Runs other programs with their output shown, or captured, and waits.

use std::{
    process::{Command, ExitCode},
    thread,
    time::Duration,
};

use anyhow::{Context, bail};

use crate::workspace::Workspace;

/// Runs cargo and passes on whether it succeeded; cargo itself has said why not.
pub(crate) fn run_cargo<'a>(
    workspace: &Workspace,
    arguments: impl IntoIterator<Item = &'a str>,
) -> anyhow::Result<ExitCode> {
    let mut command = workspace.command(&workspace.cargo);
    command.args(arguments);
    let status = command.status().with_context(|| shown(&command))?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs a program, showing its output; an error if it fails.
pub(crate) fn run_shown(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| shown(command))?;
    if !status.success() {
        bail!("{}: {status}", shown(command));
    }
    Ok(())
}

/// Runs a program and returns its standard output; an error if it fails.
pub(crate) fn capture(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| shown(command))?;
    if !output.status.success() {
        bail!("{}: {}: {}", shown(command), output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("{}: output is not UTF-8", shown(command)))
}

/// The command line, for messages.
pub(crate) fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Does nothing for a while.
#[expect(
    clippy::disallowed_methods,
    reason = "there is no executor here, and what is waited for tells nobody"
)]
pub(crate) fn pause(duration: Duration) {
    thread::sleep(duration);
}
