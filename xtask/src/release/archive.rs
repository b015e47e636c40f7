//! Archives of the command, the same bytes for the same program, and their checksums. IO.

use std::{ffi::OsStr, fs, path::Path};

use anyhow::Context;

use crate::{
    process::{capture, run_shown},
    workspace::Workspace,
};

/// File with the checksums of all other files beside it.
pub(super) const CHECKSUMS: &str = "SHA256SUMS";

/// What is beside the program.
const TEXTS: [&str; 2] = ["LICENSE", "README.md"];

/// Packs the program, with a name by which kubectl finds it too.
pub(super) fn write(workspace: &Workspace, program: &Path, archive: &Path) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let inside = folder.path().join("berth");
    fs::create_dir(&inside)?;
    fs::copy(program, inside.join("berth"))?;
    std::os::unix::fs::symlink("berth", inside.join("kubectl-berth"))?;
    for text in TEXTS {
        fs::copy(workspace.root.join(text), inside.join(text)).context(text)?;
    }
    let mut tar = workspace.command("tar");
    tar.args([
        "--sort=name",
        "--mtime=@0",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--mode=u=rwX,go=rX",
    ]);
    // Without a name and a time in it.
    tar.args(["--use-compress-program=gzip -n -9", "--create", "--directory"]).arg(folder.path());
    run_shown(tar.arg("--file").arg(archive).arg("berth"))
}

/// Writes the checksums of all files of a directory.
pub(super) fn write_checksums(directory: &Path) -> anyhow::Result<()> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let name = entry?.file_name();
        // Signatures are of this file.
        if !name.to_string_lossy().starts_with(CHECKSUMS) {
            names.push(name);
        }
    }
    names.sort();
    let mut sum = std::process::Command::new("sha256sum");
    let sums = capture(sum.current_dir(directory).arg("--").args(names.iter().map(|name| name as &OsStr)))?;
    fs::write(directory.join(CHECKSUMS), sums).with_context(|| directory.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_program_gives_the_same_archive_and_its_checksum_is_right() {
        let directory = tempfile::tempdir().unwrap();
        let workspace = Workspace::find().unwrap();
        let file = |name: &str| directory.path().join(name);
        fs::write(file("program"), "of bytes").unwrap();
        write(&workspace, &file("program"), &file("one.tar.gz")).unwrap();
        write(&workspace, &file("program"), &file("two.tar.gz")).unwrap();
        assert_eq!(fs::read(file("one.tar.gz")).unwrap(), fs::read(file("two.tar.gz")).unwrap());
        let listed = capture(workspace.command("tar").arg("-tf").arg(file("one.tar.gz"))).unwrap();
        let expected =
            ["", "LICENSE", "README.md", "berth", "kubectl-berth"].map(|name| format!("berth/{name}"));
        assert_eq!(listed.lines().collect::<Vec<_>>(), expected);
        write_checksums(directory.path()).unwrap();
        write_checksums(directory.path()).unwrap();
        let mut check = std::process::Command::new("sha256sum");
        let checked = capture(check.current_dir(directory.path()).args(["--check", CHECKSUMS])).unwrap();
        assert_eq!(checked.lines().count(), 3);
    }
}
