//! Which test programs there are, and how each is run: as cargo tells and does it.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::{process::shown, workspace::Workspace};

/// A program that says `test result: ...`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Program {
    /// Package and target: tells it from all others, in every run.
    pub(crate) name: String,
    /// What cargo says when it starts it; the tally counts these.
    pub(crate) notice: String,
    /// The program with its arguments.
    words: Vec<OsString>,
    /// Where it runs.
    directory: PathBuf,
}

impl Program {
    /// The command that runs it.
    pub(crate) fn command(&self, workspace: &Workspace) -> Command {
        let (program, arguments) = self.words.split_first().expect("it was made with a program");
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&self.directory).stdin(Stdio::null());
        command.env("CARGO", &workspace.cargo).env("CARGO_MANIFEST_DIR", &self.directory);
        command.env("CARGO_TERM_COLOR", "never");
        command
    }
}

/// Builds all tests and gives their programs.
pub(crate) fn build(workspace: &Workspace) -> anyhow::Result<Vec<Program>> {
    let mut programs = build_of(workspace, &["--workspace"])?;
    programs.push(documentation(workspace));
    Ok(programs)
}

/// Builds the tests of the packages that cargo's arguments choose.
pub(crate) fn build_of(workspace: &Workspace, chosen: &[&str]) -> anyhow::Result<Vec<Program>> {
    let mut cargo = workspace.command(&workspace.cargo);
    cargo.arg("test").args(chosen).args(["--no-run", "--message-format", "json-render-diagnostics"]);
    let output = cargo.stderr(Stdio::inherit()).output().with_context(|| shown(&cargo))?;
    ensure!(output.status.success(), "{}: {}", shown(&cargo), output.status);
    let messages = String::from_utf8(output.stdout).context("cargo's messages are not UTF-8")?;
    let programs: Vec<Program> = messages.lines().filter_map(program).collect();
    ensure!(!programs.is_empty(), "{} built no program", shown(&cargo));
    Ok(programs)
}

/// The test program that one of cargo's messages tells of.
fn program(message: &str) -> Option<Program> {
    let message: Value = serde_json::from_str(message).ok()?;
    // Programs that tests run, and not tests themselves, have an executable too.
    if message["profile"]["test"] != true {
        return None;
    }
    let executable = message["executable"].as_str()?;
    let directory = Path::new(message["manifest_path"].as_str()?).parent()?;
    let target = &message["target"];
    let source = Path::new(target["src_path"].as_str()?);
    let source = source.strip_prefix(directory).unwrap_or(source).display();
    let unit = if target["kind"][0] == "test" { "" } else { "unittests " };
    Some(Program {
        name: format!("{} {unit}{source}", directory.file_name()?.display()),
        notice: format!("     Running {unit}{source} ({executable})"),
        words: vec![executable.into()],
        directory: directory.to_owned(),
    })
}

/// The examples in documentation, of all packages. What starts each of them is cargo, and says so.
fn documentation(workspace: &Workspace) -> Program {
    let arguments = ["test", "--workspace", "--doc", "--no-fail-fast"].map(OsString::from);
    Program {
        name: "documentation".to_owned(),
        notice: "examples in documentation".to_owned(),
        words: std::iter::once(workspace.cargo.clone()).chain(arguments).collect(),
        directory: workspace.root.clone(),
    }
}

#[cfg(test)]
pub(super) fn script(name: &str, script: &str) -> Program {
    Program {
        name: name.to_owned(),
        notice: format!("     Running {name} (sh)"),
        words: ["sh", "-c", script].map(OsString::from).to_vec(),
        directory: "/".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: &str, source: &str, is_test: bool) -> String {
        format!(
            r#"{{"reason":"compiler-artifact","manifest_path":"/r/pod/door/Cargo.toml","executable":"/t/door-01",
            "target":{{"kind":["{kind}"],"name":"door","src_path":"/r/pod/door/{source}"}},
            "profile":{{"test":{is_test}}}}}"#
        )
    }

    #[test]
    fn programs_are_named_and_announced_as_cargo_does() {
        let of_tests = program(&message("test", "tests/door/main.rs", true)).unwrap();
        assert_eq!(of_tests.name, "door tests/door/main.rs");
        assert_eq!(of_tests.notice, "     Running tests/door/main.rs (/t/door-01)");
        assert_eq!(of_tests.directory, Path::new("/r/pod/door"));
        let of_library = program(&message("lib", "src/lib.rs", true)).unwrap();
        assert_eq!(of_library.notice, "     Running unittests src/lib.rs (/t/door-01)");
    }

    #[test]
    fn other_messages_are_no_test_programs() {
        assert_eq!(program(&message("bin", "src/main.rs", false)), None);
        assert_eq!(program(r#"{"reason":"build-finished","success":true}"#), None);
        assert_eq!(program("no JSON"), None);
    }
}
