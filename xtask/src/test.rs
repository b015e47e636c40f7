//! Runs the tests and ends with the line `N passed, N failed`.
//!
//! The counts come from what the test programs say; a program that starts and never says its result (it crashed,
//! or something it left behind holds its output open) counts as one failure.

mod cluster;
mod programs;
mod report;
mod side_by_side;
mod tally;
mod temporary;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow};

use self::{
    programs::Program,
    report::Report,
    side_by_side::{Times, Way},
    tally::Tally,
    temporary::Temporary,
};
use crate::{
    process::{capture, run_shown},
    tools,
    workspace::Workspace,
};

/// How many test programs run at a time; each runs as many tests at a time as there are processors.
const PROGRAMS_AT_A_TIME: usize = 1;

/// How long a test program may take, and at full size.
const TAKES_AT_MOST: (Duration, Duration) = (Duration::from_mins(30), Duration::from_hours(12));

/// How long a test program's output may stay open after it has ended.
const OUTPUT_CLOSES_WITHIN: Duration = Duration::from_secs(10);

/// Builds and runs all tests; with `soak` at full size, one program at a time, and with a report in docs/soak/.
pub(crate) fn run(workspace: &Workspace, soak: bool) -> anyhow::Result<ExitCode> {
    eprintln!("building all tests");
    let programs = programs::build(workspace)?;
    tools::opencode_sdk(workspace)?;
    tools::schemathesis(workspace)?;
    let started = jiff::Timestamp::now();
    let clock = Instant::now();
    let measurements = soak.then(|| workspace.cache.join(format!("soak-{}.jsonl", started.as_second())));
    let temporary = Temporary::new().context("a temporary directory")?;
    let mut tally = run_programs(workspace, programs, temporary.path(), measurements.as_deref())?;
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
    Ok(conclude(&tally))
}

/// Builds and runs only the end-to-end tests.
pub(crate) fn run_end_to_end(workspace: &Workspace) -> anyhow::Result<ExitCode> {
    // A test runs it.
    run_shown(workspace.command(&workspace.cargo).args(["build", "--quiet", "--package", "berth-cli"]))?;
    let mut programs = programs::build_of(workspace, &["--package", "berth-e2e", "--test", "cluster"])?;
    let program = cluster::take(&mut programs).context("there are no end-to-end tests")?;
    let way =
        Way { at_a_time: 1, takes_at_most: TAKES_AT_MOST.0, output_closes_within: OUTPUT_CLOSES_WITHIN };
    let command = |program: &Program| program.command(workspace);
    Ok(conclude(&cluster::run(workspace, program, way, command, std::io::stdout())))
}

/// The last lines.
fn conclude(tally: &Tally) -> ExitCode {
    for failure in &tally.failures {
        println!("failed: {failure}");
    }
    println!("{tally}");
    if tally.is_success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_programs(
    workspace: &Workspace,
    mut programs: Vec<Program>,
    temporary: &Path,
    measurements: Option<&Path>,
) -> anyhow::Result<Tally> {
    let is_soak = measurements.is_some();
    let way = Way {
        at_a_time: if is_soak { 1 } else { PROGRAMS_AT_A_TIME },
        takes_at_most: if is_soak { TAKES_AT_MOST.1 } else { TAKES_AT_MOST.0 },
        output_closes_within: OUTPUT_CLOSES_WITHIN,
    };
    let command = |program: &Program| {
        let mut command = program.command(workspace);
        command.env("TMPDIR", temporary);
        if let Some(path) = measurements {
            command.env("BERTH_SOAK", "1").env("BERTH_SOAK_REPORT", path);
        }
        command
    };
    let end_to_end = cluster::take(&mut programs).context("there are no end-to-end tests")?;
    // What it says comes whole, between what the others say.
    let beside = Way { at_a_time: 2, ..way };
    let on_cluster = || cluster::run(workspace, end_to_end, beside, command, std::io::stdout());
    if is_soak {
        let mut tally = side_by_side::run(programs, way, command, std::io::stdout()).0;
        tally.join(on_cluster());
        return Ok(tally);
    }
    let path = workspace.cache.join("test-times.json");
    side_by_side::sort(&mut programs, &read_times(&path));
    let (tally, times) = thread::scope(|scope| {
        let on_cluster = scope.spawn(on_cluster);
        let (mut tally, times) = side_by_side::run(programs, way, command, std::io::stdout());
        tally.join(on_cluster.join().map_err(|_| anyhow!("the end-to-end tests' thread has panicked"))?);
        anyhow::Ok((tally, times))
    })?;
    fs::write(&path, serde_json::to_vec_pretty(&times)?).with_context(|| path.display().to_string())?;
    Ok(tally)
}

/// What the last run wrote. It only orders, so one that cannot be read is none.
fn read_times(path: &Path) -> Times {
    fs::read(path).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
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
    let lines = if measurements.exists() { fs::read_to_string(measurements)? } else { String::new() };
    let report = Report {
        commit: commit.trim().to_owned(),
        dirty,
        started,
        elapsed,
        measurements: report::parse(&lines)?,
    };
    let directory = workspace.root.join("docs/soak");
    fs::create_dir_all(&directory)?;
    let path = directory.join(report.file_name());
    fs::write(&path, report.render(tally))?;
    Ok(path)
}
