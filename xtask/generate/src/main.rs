//! Writes every generated file of this repository from one list, or checks that they are up to date.
//!
//! A crate of its own, since it depends on the crates whose documents it writes. A test here does the same as
//! `--check`, so `make test` notices a stale file.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a tool for developers talks on their terminal"
)]

mod cli_reference;
mod difference;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use clap::Parser;

use crate::difference::first_difference;

/// A generated file.
struct Generated {
    /// Relative to the repository's root.
    path: &'static str,
    /// Its whole content.
    render: fn() -> anyhow::Result<String>,
}

/// Every generated file.
const FILES: &[Generated] = &[
    Generated {
        path: "docs/controller.md",
        render: || Ok(cli_reference::render(berth_controller::args::command())),
    },
    Generated { path: "docs/cli.md", render: || Ok(cli_reference::render(berth_cli::args::command())) },
    Generated { path: "docs/openapi.json", render: render_openapi },
    Generated { path: "docs/pod-programs.md", render: || Ok(render_pod_programs()) },
];

/// Writes every generated file of this repository.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask gen", version)]
struct Arguments {
    /// Writes nothing; shows what differs and exits 1 if anything does.
    #[arg(long)]
    check: bool,
}

fn main() -> anyhow::Result<ExitCode> {
    let root = root();
    if !Arguments::parse().check {
        write(FILES, &root)?;
        return Ok(ExitCode::SUCCESS);
    }
    let stale = find_stale(FILES, &root)?;
    for message in &stale {
        println!("{message}");
    }
    if stale.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    println!("run: cargo xtask gen");
    Ok(ExitCode::FAILURE)
}

fn render_openapi() -> anyhow::Result<String> {
    Ok(berth_server::openapi().to_pretty_json()? + "\n")
}

fn render_pod_programs() -> String {
    let about =
        "What `berth-supervisor --help` and `berth-sidecar --help` print. pod/README.md tells what they do.";
    let commands = [berth_serve::args::command(), berth_sidecar::args::command()];
    cli_reference::render_all("The programs of a pod", about, commands)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn write(files: &[Generated], root: &Path) -> anyhow::Result<()> {
    for file in files {
        let path = root.join(file.path);
        let content = (file.render)().context(file.path)?;
        if fs::read_to_string(&path).is_ok_and(|current| current == content) {
            continue;
        }
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&path, content).context(file.path)?;
        eprintln!("wrote {}", file.path);
    }
    Ok(())
}

/// One message for each file that is not what it would be if written now.
fn find_stale(files: &[Generated], root: &Path) -> anyhow::Result<Vec<String>> {
    let mut stale = Vec::new();
    for file in files {
        let wanted = (file.render)().context(file.path)?;
        match fs::read_to_string(root.join(file.path)) {
            Ok(current) => stale.extend(
                first_difference(&current, &wanted)
                    .map(|difference| format!("{} is stale:\n{difference}", file.path)),
            ),
            Err(error) => stale.push(format!("{} cannot be read: {error}", file.path)),
        }
    }
    Ok(stale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_files_are_up_to_date() {
        let stale = find_stale(FILES, &root()).unwrap();
        assert!(stale.is_empty(), "run `cargo xtask gen`:\n{}", stale.join("\n"));
    }

    #[test]
    fn a_missing_or_changed_file_is_stale_until_it_is_written() {
        let root = tempfile::tempdir().unwrap();
        let files = [Generated { path: "docs/deep/a.md", render: || Ok("one\ntwo\n".to_owned()) }];
        assert_eq!(find_stale(&files, root.path()).unwrap().len(), 1, "missing");
        write(&files, root.path()).unwrap();
        assert_eq!(find_stale(&files, root.path()).unwrap(), Vec::<String>::new());
        fs::write(root.path().join("docs/deep/a.md"), "one\n2\n").unwrap();
        assert_eq!(
            find_stale(&files, root.path()).unwrap(),
            ["docs/deep/a.md is stale:\n  line 2\n  - 2\n  + two"]
        );
    }
}
