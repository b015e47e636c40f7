//! Runs the tests, shows their output as it comes, and ends with the line `N passed, N failed`.
//!
//! The counts come from what the test programs say; a program that starts and never says its result (it crashed,
//! or something it left behind holds its output open) counts as one failure.

mod report;
mod tally;
mod temporary;

use std::{
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{ChildStdout, ExitCode, ExitStatus, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;

use self::{report::Report, tally::Tally, temporary::Temporary};
use crate::{
    process::{capture, run_shown},
    tools,
    workspace::Workspace,
};

/// How long the tests' output may stay open after cargo has ended.
const OUTPUT_CLOSES_WITHIN: Duration = Duration::from_secs(10);

/// Builds and runs all tests; with `soak` at full size and with a report in docs/soak/.
pub(crate) fn run(workspace: &Workspace, soak: bool) -> anyhow::Result<ExitCode> {
    run_build(workspace)?;
    tools::opencode_sdk(workspace)?;
    tools::schemathesis(workspace)?;
    let started = jiff::Timestamp::now();
    let clock = Instant::now();
    let measurements = soak.then(|| workspace.cache.join(format!("soak-{}.jsonl", started.as_second())));
    let temporary = Temporary::new().context("a temporary directory")?;
    let mut tally = run_tests(workspace, temporary.path(), measurements.as_deref())?;
    match temporary.libraries().context("the temporary directory")? {
        0 => {}
        count => tally.fail(format!("opencode left {count} libraries in the temporary directory")),
    }
    if let Some(path) = &measurements {
        let report = write_report(workspace, path, started, clock.elapsed(), &tally);
        match report {
            Ok(path) => eprintln!("report: {}", path.display()),
            Err(error) => tally.fail(format!("the report was not written: {error:#}")),
        }
    }
    for failure in &tally.failures {
        println!("failed: {failure}");
    }
    println!("{tally}");
    Ok(if tally.is_success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run_build(workspace: &Workspace) -> anyhow::Result<()> {
    eprintln!("building all tests");
    run_cargo_test(workspace, &["--no-run"])
}

fn run_cargo_test(workspace: &Workspace, arguments: &[&str]) -> anyhow::Result<()> {
    run_shown(workspace.command(&workspace.cargo).args(["test", "--workspace"]).args(arguments))
}

/// Runs `cargo test` with both outputs copied to ours and counted.
fn run_tests(workspace: &Workspace, temporary: &Path, measurements: Option<&Path>) -> anyhow::Result<Tally> {
    let mut command = workspace.command(&workspace.cargo);
    command.args(["test", "--workspace", "--no-fail-fast"]).env("CARGO_TERM_COLOR", "never");
    command.env("TMPDIR", temporary);
    if let Some(path) = measurements {
        command.env("BERTH_SOAK", "1").env("BERTH_SOAK_REPORT", path);
    }
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().context("cargo test")?;
    let (lines, received) = mpsc::channel();
    let stdout: ChildStdout = child.stdout.take().context("cargo's standard output")?;
    let stderr = child.stderr.take().context("cargo's standard error")?;
    let from_stderr = lines.clone();
    thread::spawn(move || copy_lines(stdout, std::io::stdout(), &lines));
    thread::spawn(move || copy_lines(stderr, std::io::stderr(), &from_stderr));
    let status = child.wait().context("cargo test")?;
    Ok(count(&received, status))
}

/// Passes lines on to `to` and to `lines`. Ends with its input, which nobody waits for without a bound.
fn copy_lines(from: impl Read, mut to: impl Write, lines: &mpsc::Sender<String>) {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        // A closed terminal must not end the count.
        let _ = to.write_all(&line).and_then(|()| to.flush());
        if lines.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
            return;
        }
        line.clear();
    }
}

fn count(received: &mpsc::Receiver<String>, status: ExitStatus) -> Tally {
    let mut tally = Tally::default();
    let deadline = Instant::now() + OUTPUT_CLOSES_WITHIN;
    loop {
        match received.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => tally.add_line(&line),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                tally.fail("a process that outlived the tests holds their output open".to_owned());
                break;
            }
        }
    }
    tally.close(status.success());
    tally
}

fn write_report(
    workspace: &Workspace,
    measurements: &Path,
    started: jiff::Timestamp,
    elapsed: Duration,
    tally: &Tally,
) -> anyhow::Result<PathBuf> {
    let commit = capture(workspace.command("git").args(["rev-parse", "--short=12", "HEAD"]))?;
    let dirty = !capture(workspace.command("git").args(["status", "--porcelain"]))?.is_empty();
    // Tests that measure nothing append nothing, so the file need not exist.
    let lines = if measurements.exists() { std::fs::read_to_string(measurements)? } else { String::new() };
    let report = Report {
        commit: commit.trim().to_owned(),
        dirty,
        started,
        elapsed,
        measurements: report::parse(&lines)?,
    };
    let directory = workspace.root.join("docs/soak");
    std::fs::create_dir_all(&directory)?;
    let path = directory.join(report.file_name());
    std::fs::write(&path, report.render(tally))?;
    Ok(path)
}
