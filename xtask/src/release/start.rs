//! Starts each image that was built, as far as it goes without a cluster, and looks whether it answers. IO.

use std::{
    io::{BufRead, BufReader, PipeReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    images::{self, Image, buildah},
    process::{capture, pause},
    workspace::Workspace,
};

/// Longest wait for an answer.
const BOUND: Duration = Duration::from_mins(1);

/// What is run in a container of an image.
#[derive(Debug, Clone, Copy)]
struct Start {
    program: &'static str,
    arguments: &'static [&'static str],
    /// What its answer holds: to a request for the path where it serves, which it says itself, else what it prints.
    expected: &'static str,
    path: Option<&'static str>,
}

impl Start {
    const fn prints(program: &'static str, expected: &'static str) -> Self {
        Self { program, arguments: &["--version"], expected, path: None }
    }

    const fn serves(program: &'static str, path: &'static str, expected: &'static str) -> Self {
        Self { program, arguments: &["--listen", "127.0.0.1:0"], expected, path: Some(path) }
    }
}

/// Of each image, the programs that it is for.
fn starts(image: Image) -> Vec<Start> {
    let supervisor = Start::prints("/opt/berth/bin/berth-supervisor", "berth-supervisor ");
    match image {
        Image::Sidecar => vec![Start::prints("/berth-sidecar", "berth-sidecar ")],
        Image::Controller => vec![Start::prints("/berth-controller", "berth-controller ")],
        Image::Testkit => vec![
            Start::serves("/berth-scripted-model", "/v1/models", "200 OK"),
            Start::serves("/berth-fake-serve", "/global/health", "\"healthy\":true"),
            supervisor,
        ],
        Image::Sandbox => vec![
            supervisor,
            Start::prints("/opt/berth/bin/opencode", "1."),
            Start::prints("/usr/bin/git", "git version"),
        ],
    }
}

/// Starts all programs of an image of this machine's processor.
pub(super) fn start(workspace: &Workspace, image: Image, archive: &Path) -> anyhow::Result<()> {
    let _lock = images::lock_store(workspace)?;
    let archive = format!("oci-archive:{}", archive.display());
    let container = capture(buildah(workspace).args(["from", "--pull-never", &archive]))?;
    let result = starts(image).iter().try_for_each(|start| {
        look(workspace, container.trim(), start)
            .with_context(|| format!("{} of {}", start.program, image.name()))
    });
    images::tidy(workspace)?;
    result
}

fn look(workspace: &Workspace, container: &str, start: &Start) -> anyhow::Result<()> {
    let mut run = buildah(workspace);
    run.args(["run", container, "--", start.program]).args(start.arguments);
    let answer = match start.path {
        None => capture(&mut run)?,
        Some(path) => serve(run, path)?,
    };
    ensure!(answer.contains(start.expected), "it answers {answer:?}");
    Ok(())
}

/// Runs a server, asks it once, and ends it.
fn serve(mut run: Command, path: &str) -> anyhow::Result<String> {
    let (output, input) = std::io::pipe()?;
    let mut child = run.stdin(Stdio::null()).stdout(input.try_clone()?).stderr(input).spawn()?;
    // It holds the other end of the pipe too.
    drop(run);
    let answer = address(output).and_then(|address| ask(&address, path));
    // It passes this on to what it started.
    kill(Pid::from_raw(i32::try_from(child.id())?), Signal::SIGTERM)?;
    child.wait()?;
    answer
}

/// The address that it says it listens at.
fn address(output: PipeReader) -> anyhow::Result<String> {
    for line in BufReader::new(output).lines() {
        let line = line?;
        if let Some((_, rest)) = line.split_once("127.0.0.1:") {
            let port: String = rest.chars().take_while(char::is_ascii_digit).collect();
            return Ok(format!("127.0.0.1:{port}"));
        }
    }
    bail!("it ended without saying where it listens")
}

fn ask(address: &str, path: &str) -> anyhow::Result<String> {
    let begun = Instant::now();
    let mut stream = loop {
        match TcpStream::connect(address) {
            Ok(stream) => break stream,
            Err(error) if begun.elapsed() > BOUND => return Err(error).context(address.to_owned()),
            Err(_) => pause(Duration::from_millis(100)),
        }
    };
    stream.set_read_timeout(Some(BOUND))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
