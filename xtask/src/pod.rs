//! Builds the programs that run in pods, for any image: static, and checked to be so.

use std::{
    fs,
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::{arch::Arch, cross, process::shown, tools, workspace::Workspace};

/// Cargo's profile for what is shipped: small.
pub(crate) const POD_PROFILE: &str = "pod";

/// Packages whose programs run in pods.
const PACKAGES: [&str; 2] = ["berth-serve", "berth-sidecar"];

/// Type of an ELF program header that names the dynamic linker; a static program has none.
const PT_INTERP: u32 = 3;

/// How programs for any image are built.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Way {
    /// For which processor.
    pub(crate) arch: Arch,
    /// Cargo's profile.
    pub(crate) profile: &'static str,
    /// Whether each tells which crates it is built from, to those who look for known faults.
    pub(crate) is_auditable: bool,
}

impl Way {
    /// For this machine.
    pub(crate) const fn local(profile: &'static str) -> Self {
        Self { arch: Arch::LOCAL, profile, is_auditable: false }
    }
}

/// Builds them all, and prints one line for each.
pub(crate) fn build(workspace: &Workspace) -> anyhow::Result<ExitCode> {
    for program in programs(workspace)? {
        println!("{}: {} KiB, static", program.display(), fs::metadata(&program)?.len() / 1024);
    }
    Ok(ExitCode::SUCCESS)
}

/// Builds them all, and gives their paths.
pub(crate) fn programs(workspace: &Workspace) -> anyhow::Result<Vec<PathBuf>> {
    static_programs(workspace, Way::local(POD_PROFILE), &PACKAGES)
}

/// Builds the programs of these packages for any image, and gives their paths.
pub(crate) fn static_programs(
    workspace: &Workspace,
    way: Way,
    packages: &[&str],
) -> anyhow::Result<Vec<PathBuf>> {
    let mut cargo = workspace.command(&workspace.cargo);
    if way.is_auditable {
        cargo = workspace.command(tools::cargo_auditable(workspace)?);
        cargo.arg("auditable");
    }
    cargo.envs(cross::tools(workspace, way.arch)?);
    let arguments = ["--profile", way.profile, "--target", way.arch.target()];
    let programs = build_with(cargo, &arguments, packages)?;
    for path in &programs {
        let shown = path.display();
        let bytes = fs::read(path).with_context(|| shown.to_string())?;
        let is_static = is_static(&bytes).with_context(|| format!("{shown} is no program of 64 bits"))?;
        ensure!(is_static, "{shown} wants a dynamic linker");
    }
    Ok(programs)
}

/// Builds the programs of these packages, and gives their paths.
pub(crate) fn build_programs(
    workspace: &Workspace,
    arguments: &[&str],
    packages: &[&str],
) -> anyhow::Result<Vec<PathBuf>> {
    build_with(workspace.command(&workspace.cargo), arguments, packages)
}

fn build_with(mut cargo: Command, arguments: &[&str], packages: &[&str]) -> anyhow::Result<Vec<PathBuf>> {
    cargo.args(["build", "--bins", "--message-format", "json-render-diagnostics"]).args(arguments);
    cargo.args(packages.iter().flat_map(|package| ["--package", package]));
    let output = cargo.stderr(Stdio::inherit()).output().with_context(|| shown(&cargo))?;
    ensure!(output.status.success(), "{}: {}", shown(&cargo), output.status);
    let messages = String::from_utf8(output.stdout).context("cargo's messages are not UTF-8")?;
    let programs: Vec<PathBuf> = messages.lines().filter_map(program).map(Into::into).collect();
    ensure!(programs.len() >= packages.len(), "{} built {} programs", shown(&cargo), programs.len());
    Ok(programs)
}

/// The program that one of cargo's messages tells of.
fn program(message: &str) -> Option<String> {
    let message: Value = serde_json::from_str(message).ok()?;
    message["executable"].as_str().map(str::to_owned)
}

/// Whether an ELF file (64 bits, little-endian) needs no dynamic linker; `None` when it is none.
fn is_static(elf: &[u8]) -> Option<bool> {
    if !elf.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let number = |at: usize, length: usize| -> Option<usize> {
        let mut bytes = [0; 8];
        bytes[..length].copy_from_slice(elf.get(at..at + length)?);
        usize::try_from(u64::from_le_bytes(bytes)).ok()
    };
    let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    let kinds = (0..count).map(|header| number(table.checked_add(header * size)?, 4));
    let kinds: Vec<usize> = kinds.collect::<Option<_>>()?;
    Some(!kinds.contains(&(PT_INTERP as usize)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with program headers of these types.
    fn elf(kinds: &[u32]) -> Vec<u8> {
        let mut elf = b"\x7fELF\x02\x01".to_vec();
        elf.resize(64, 0);
        elf[32] = 64;
        elf[54] = 56;
        elf[56] = u8::try_from(kinds.len()).unwrap();
        for kind in kinds {
            elf.extend(kind.to_le_bytes());
            elf.extend([0; 52]);
        }
        elf
    }

    #[test]
    fn programs_are_told_apart() {
        assert_eq!(is_static(&elf(&[1, 1, 6])), Some(true));
        assert_eq!(is_static(&elf(&[6, 3, 1])), Some(false));
        assert_eq!(is_static(&elf(&[1, 1])[..80]), None);
        assert_eq!(is_static(b"#!/bin/sh"), None);
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(is_static(&own), Some(cfg!(target_feature = "crt-static")));
    }

    #[test]
    fn cargos_messages_name_programs() {
        assert_eq!(program(r#"{"reason":"x","executable":"/a/b"}"#).as_deref(), Some("/a/b"));
        assert_eq!(program(r#"{"reason":"x","executable":null}"#), None);
        assert_eq!(program("no JSON"), None);
    }
}
