//! Builds and runs the fuzz targets of `fuzz/`.
//!
//! Everything is kept in the cache: `fuzz/<target>/corpus/` is what the fuzzer found worth keeping, and where the next
//! run goes on; `seeds/` is written anew from the captures each time; `found/` has the inputs that broke something.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};

use crate::{process::run_shown, tools, workspace::Workspace};

/// Bound on one input, in bytes: short ones are tried more often.
const MAX_INPUT: usize = 4096;

/// What to fuzz.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Targets to run; all when none is named.
    #[arg(value_enum)]
    targets: Vec<Target>,
    /// How long each target runs.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Runs one target once, with this input.
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Target {
    /// The text form of the journal's cursor.
    Cursor,
    /// What the door makes of a request's head.
    DoorRequest,
    /// The reader of event streams.
    SseReader,
    /// The translator of opencode's events.
    Translator,
}

/// Runs the targets one after the other, also when one of them fails, and says which did.
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let targets = if arguments.targets.is_empty() { Target::value_variants() } else { &arguments.targets };
    if arguments.input.is_some() && targets.len() != 1 {
        bail!("an input is for one target: name it");
    }
    build(workspace, targets)?;
    let mut failed = Vec::new();
    for target in targets {
        let result = match &arguments.input {
            Some(input) => run_shown(command(workspace, *target).arg(fs::canonicalize(input)?)),
            None => fuzz(workspace, *target, arguments.seconds),
        };
        if let Err(error) = result {
            eprintln!("{error:#}");
            failed.push(target.name());
        }
    }
    if failed.is_empty() {
        println!("{} fuzz targets found nothing", targets.len());
        return Ok(ExitCode::SUCCESS);
    }
    println!("fuzz targets that failed: {}", failed.join(", "));
    Ok(ExitCode::FAILURE)
}

fn build(workspace: &Workspace, targets: &[Target]) -> anyhow::Result<()> {
    let cargo_fuzz = tools::cargo_fuzz(workspace)?;
    let mut build = workspace.command("rustup");
    build.args(["run", "nightly"]).arg(&cargo_fuzz);
    // No sanitizer: no crate of ours has unsafe code, and without it more inputs are tried.
    build.args(["build", "--fuzz-dir", "fuzz", "--sanitizer", "none", "--target-dir"]);
    build.arg(target_directory(workspace));
    // All of them when none is named.
    if let [target] = targets {
        build.arg(target.name());
    }
    // Both name the toolchain that runs this.
    run_shown(build.env_remove("CARGO").env_remove("RUSTC"))
        .context("is there a nightly toolchain? (rustup toolchain install nightly --profile minimal)")
}

fn target_directory(workspace: &Workspace) -> PathBuf {
    workspace.cache.join("target-fuzz")
}

fn command(workspace: &Workspace, target: Target) -> Command {
    let built = target_directory(workspace).join("x86_64-unknown-linux-gnu/release");
    workspace.command(built.join(target.name()))
}

fn fuzz(workspace: &Workspace, target: Target, seconds: u64) -> anyhow::Result<()> {
    let name = target.name();
    eprintln!("fuzzing {name} for {seconds} s");
    let home = workspace.cache.join("fuzz").join(&name);
    let [corpus, seeds, found] = ["corpus", "seeds", "found"].map(|directory| home.join(directory));
    if seeds.exists() {
        fs::remove_dir_all(&seeds)?;
    }
    for directory in [&corpus, &seeds, &found] {
        fs::create_dir_all(directory)?;
    }
    for (index, seed) in target.seeds(&captures(workspace)?).iter().enumerate() {
        fs::write(seeds.join(index.to_string()), seed)?;
    }
    let mut fuzzer = command(workspace, target);
    fuzzer.arg(&corpus).arg(&seeds);
    fuzzer.args([
        format!("-max_total_time={seconds}"),
        format!("-max_len={MAX_INPUT}"),
        format!("-artifact_prefix={}/", found.display()),
        "-timeout=20".to_owned(),
        "-print_final_stats=1".to_owned(),
    ]);
    run_shown(&mut fuzzer).with_context(|| {
        format!(
            "{name} broke: run it again with cargo xtask fuzz {name} --input FILE, of {}",
            found.display()
        )
    })
}

/// The captured streams, in order of their names.
fn captures(workspace: &Workspace) -> anyhow::Result<Vec<Vec<u8>>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(workspace.root.join("client/opencode/tests/captures"))? {
        paths.push(entry?.path());
    }
    paths.retain(|path: &PathBuf| path.extension().is_some_and(|extension| extension == "sse"));
    paths.sort();
    paths.iter().map(|path: &PathBuf| read(path)).collect()
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(path).with_context(|| path.display().to_string())
}

impl Target {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Inputs to begin with, in the target's own form: see `fuzz/src`.
    fn seeds(self, captures: &[Vec<u8>]) -> Vec<Vec<u8>> {
        match self {
            Self::Cursor => ["a1b2-17", "0-0", "Z-18446744073709551615"].map(Vec::from).to_vec(),
            Self::DoorRequest => HEADS.map(Vec::from).to_vec(),
            Self::SseReader => captures.iter().map(|capture| stream_seed(capture)).collect(),
            Self::Translator => {
                captures.iter().zip(0..).flat_map(|(c, index)| session_seeds(c, index)).collect()
            }
        }
    }
}

/// Heads of requests; the credentials are those of the password that the target has.
const HEADS: [&str; 5] = [
    "GET /session?directory=%2Fw&auth_token=b3BlbmNvZGU6cA%3D%3D\nlast-event-id: a-1\nreferer: http://x/?auth_token=b",
    "POST /session/ses_1/prompt_async\nauthorization: Basic b3BlbmNvZGU6cA==\ncontent-length: 2\nexpect: 100-continue",
    "GET //pty/./a%2Fb/connect;c?a=1\nconnection: keep-alive, Upgrade\nupgrade: websocket\nte: trailers",
    "PATCH http://o:p@x:1/Config?auth%5Ftoken=b3BlbmNvZGU6cA==\nx-opencode-directory: %2Fw\nconnection: te",
    "OPTIONS *\norigin: http://localhost:1\naccess-control-request-method: POST\nberth-epoch: 1\nberth-fence: 2",
];

/// Pieces of 1, 7 and 64 bytes, the usual bound, and the beginning of the stream.
fn stream_seed(capture: &[u8]) -> Vec<u8> {
    let mut seed = vec![3, 1, 7, 64, u8::MAX];
    seed.extend(capture.iter().take(MAX_INPUT - seed.len()));
    seed
}

/// Of the first session of stream number `index`: the whole capture; with a gap after each ten events, stored and resumed; and with some frames as they are.
fn session_seeds(capture: &[u8], index: u16) -> [Vec<u8>; 3] {
    let [high, low] = index.to_be_bytes();
    let number = [high, low, 0];
    let whole = [&number[..], &[0, 31].repeat(12)].concat();
    let with_gaps = [&number[..], &[0, 9, 1, 3, 8].repeat(12)].concat();
    let mut raw = number.to_vec();
    for line in capture.split(|byte| *byte == b'\n') {
        let Some(frame) = line.strip_prefix(b"data: ") else { continue };
        let Ok(length) = u16::try_from(frame.len()) else { continue };
        if raw.len() + frame.len() + 3 <= MAX_INPUT {
            raw.push(4);
            raw.extend(length.to_be_bytes());
            raw.extend(frame);
        }
    }
    [whole, with_gaps, raw]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_short_and_every_capture_has_some() {
        let captures = captures(&Workspace::find().unwrap()).unwrap();
        assert!(captures.len() > 90);
        for target in Target::value_variants() {
            let seeds = target.seeds(&captures);
            assert!(seeds.iter().all(|seed| !seed.is_empty() && seed.len() <= MAX_INPUT));
            let of_captures = [Target::SseReader, Target::Translator].contains(target);
            assert!(!of_captures || seeds.len() >= captures.len(), "{target:?}");
        }
    }
}
