//! Tools that build programs for another processor than this machine's: Rust's standard library from rustup, and a C
//! compiler, zig's, from `PyPI`. IO.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use anyhow::Context;

use crate::{arch::Arch, process::run_shown, workspace::Workspace};

/// The version of `ziglang` on `PyPI`.
const ZIG: &str = "0.17.1";

/// Variables that cargo and the builds of crates want. None for this machine's own processor.
pub(crate) fn tools(workspace: &Workspace, arch: Arch) -> anyhow::Result<Vec<(String, PathBuf)>> {
    if arch == Arch::LOCAL && arch == Arch::Amd64 {
        // rust-toolchain.toml names it.
        return Ok(Vec::new());
    }
    let target = arch.target();
    run_shown(workspace.command("rustup").args(["--quiet", "target", "add", target]))
        .context("Rust's standard library comes from rustup")?;
    if arch == Arch::LOCAL {
        return Ok(Vec::new());
    }
    let bin = zig(workspace)?;
    let variable = target.replace('-', "_");
    let compiler = bin.join(format!("{target}-cc"));
    write_program(&compiler, &compiler_script(&bin, target))?;
    let archiver = bin.join("ar");
    write_program(&archiver, &format!("#!/bin/sh\nexec '{}' -m ziglang ar \"$@\"\n", python(&bin)))?;
    Ok(vec![
        (format!("CC_{variable}"), compiler),
        (format!("AR_{variable}"), archiver),
        // rustc's own, which finds the C library beside Rust's.
        (format!("CARGO_TARGET_{}_LINKER", variable.to_uppercase()), "rust-lld".into()),
    ])
}

/// Installs zig once, and gives the directory of its Python.
fn zig(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let home = workspace.cache.join(format!("tools/zig-{ZIG}"));
    let stamp = home.join("installed");
    if !stamp.is_file() {
        eprintln!("installing zig {ZIG}, once");
        let python = "python3 with its module venv makes the place for zig";
        run_shown(workspace.command("python3").args(["-m", "venv", "--clear"]).arg(&home)).context(python)?;
        let mut pip = workspace.command(home.join("bin/pip"));
        pip.args(["install", "--quiet", "--disable-pip-version-check", "--no-deps"]);
        run_shown(pip.arg(format!("ziglang=={ZIG}"))).context("zig is installed with pip")?;
        fs::write(stamp, ZIG)?;
    }
    Ok(home.join("bin"))
}

fn python(bin: &Path) -> String {
    bin.join("python").display().to_string()
}

/// Crates name the target as Rust does, which zig does not know.
fn compiler_script(bin: &Path, target: &str) -> String {
    let zigs = target.replace("-unknown", "");
    format!(
        "#!/bin/sh\nfor word in \"$@\"; do\n  shift\n  case $word in\n    --target=*) ;;\n    *) set -- \"$@\" \"$word\" ;;\n  esac\ndone\nexec '{}' -m ziglang cc -target {zigs} \"$@\"\n",
        python(bin)
    )
}

fn write_program(path: &Path, text: &str) -> anyhow::Result<()> {
    if fs::read_to_string(path).is_ok_and(|there| there == text) {
        return Ok(());
    }
    // In one step: another build may be reading it.
    let new = path.with_extension(format!("new-{}", std::process::id()));
    fs::write(&new, text)?;
    fs::set_permissions(&new, fs::Permissions::from_mode(0o755))?;
    fs::rename(&new, path).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_compiler_is_told_its_own_name_of_the_target() {
        let directory = tempfile::tempdir().unwrap();
        let bin = directory.path();
        std::os::unix::fs::symlink("/bin/echo", bin.join("python")).unwrap();
        let compiler = bin.join("cc");
        write_program(&compiler, &compiler_script(bin, Arch::Arm64.target())).unwrap();
        let said = Command::new("sh")
            .arg(compiler)
            .args(["-c", "--target=aarch64-unknown-linux-musl", "a b.c", "-o", "x"])
            .output()
            .unwrap();
        let expected = "-m ziglang cc -target aarch64-linux-musl -c a b.c -o x\n";
        assert_eq!(String::from_utf8(said.stdout).unwrap(), expected);
    }
}
