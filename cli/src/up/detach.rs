//! `berth up --detach`: starts `berth up` as a process of its own, and waits until it answers. Does IO.

use std::{
    ffi::OsString,
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use berth_wire::api::Sandbox;
use tokio::time::{Instant, interval};

use super::{Hint, READY_LIMIT, Screen, UpError};
use crate::{
    connect::{self, ServerChoice},
    error::{CliError, Exit, error_chain},
    interrupts::Interrupts,
    output::{Output, Shape},
    process::Process,
    render::Tone,
    state::{Holder, ServerNote, StateDir},
};

/// How often it is looked whether the process in the background answers.
const LOOK: Duration = Duration::from_millis(50);
/// It gives up by itself after [`READY_LIMIT`], and says why; this much longer it is waited for.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a process that is not wanted any more may take to end.
const END_LIMIT: Duration = Duration::from_secs(20);
/// Bytes of the log before it is set aside at a start; one older file is kept.
const LOG_MAX: u64 = 5 * 1024 * 1024;
/// Most of the log that is shown when it did not start, in bytes.
const TAIL_MAX: u64 = 8 * 1024;

/// `berth up --detach`, checked.
#[derive(Debug, Clone)]
pub struct DetachConfig {
    /// The data directory.
    pub state: StateDir,
    /// This program.
    pub program: PathBuf,
    /// What it is started with in the background.
    pub arguments: Vec<OsString>,
    /// What decides which commands are suggested.
    pub hint: Hint,
    /// The output streams.
    pub shape: Shape,
}

/// Starts it, and returns when it answers.
pub async fn detach(config: DetachConfig) -> Result<Exit, CliError> {
    let DetachConfig { state, program, arguments, hint, shape } = config;
    let mut screen = Screen::new(Output::standard(shape));
    let mut interrupts = Interrupts::of_process().map_err(CliError::Signals)?;
    let _starting = start_alone(&state)?;
    if let Holder::Known(note) = state.holder().map_err(|source| data(&state, source))? {
        return Err(super::data::in_use(&state, &note).into());
    }
    let mut started = Background::start(&state, &program, &arguments)?;
    screen.note(&format!("starting in the background, process {}", started.child.id()))?;
    let note = tokio::select! {
        note = started.published(&state) => note?,
        () = interrupts.next() => {
            started.end().await;
            return Ok(Exit::Cancelled);
        }
    };
    let sandboxes = match answers(&state).await {
        Ok(sandboxes) => sandboxes,
        Err(error) => {
            started.end().await;
            return Err(error);
        }
    };
    show(&mut screen, &note, &sandboxes, &hint)?;
    Ok(Exit::Succeeded)
}

fn data(state: &StateDir, source: io::Error) -> UpError {
    UpError::Data { path: state.root().to_owned(), source }
}

/// Nobody else starts one in the background on this directory while the file is open.
fn start_alone(state: &StateDir) -> Result<File, UpError> {
    let failed = |source| data(state, source);
    DirBuilder::new().recursive(true).mode(0o700).create(state.root()).map_err(failed)?;
    let options = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).to_owned();
    let file = options.open(state.start_lock()).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(UpError::Starting { data: state.root().to_owned() }),
        Err(TryLockError::Error(source)) => Err(failed(source)),
    }
}

/// The process in the background, as long as this one waits for it.
struct Background {
    child: Child,
    log: PathBuf,
    /// Where its part of the log begins.
    begin: u64,
}

impl Background {
    fn start(state: &StateDir, program: &Path, arguments: &[OsString]) -> Result<Self, CliError> {
        let path = state.log();
        let write = |source| CliError::Write { path: path.clone(), source };
        let log = open_log(&path).map_err(write)?;
        let begin = log.metadata().map_err(write)?.len();
        let out = log.try_clone().map_err(write)?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(out).stderr(log);
        let child =
            command.spawn().map_err(|source| UpError::Spawn { program: program.to_owned(), source })?;
        Ok(Self { child, log: path, begin })
    }

    /// Waits until it says where its server is.
    async fn published(&mut self, state: &StateDir) -> Result<ServerNote, CliError> {
        let until = Instant::now() + READY_LIMIT + PATIENCE;
        let mut look = interval(LOOK);
        loop {
            look.tick().await;
            let ended = self.child.try_wait().map_err(|source| self.failed(&error_chain(&source)))?;
            if let Some(status) = ended {
                return Err(self.failed(&how(status)).into());
            }
            match state.read_note() {
                Ok(Some(note)) if note.pid == self.child.id() => return Ok(note),
                // Somebody else's note is about to be removed.
                Ok(_) | Err(_) => {}
            }
            if Instant::now() > until {
                let error = self.failed("it does not answer");
                self.end().await;
                return Err(error.into());
            }
        }
    }

    fn failed(&self, how: &str) -> UpError {
        let said = tail(&self.log, self.begin).unwrap_or_default();
        let said = format!("\n  {}", said.trim().replace('\n', "\n  "));
        UpError::Background { how: how.to_owned(), log: self.log.clone(), said }
    }

    /// Ends it again, and waits for that.
    async fn end(&mut self) {
        let pid = self.child.id();
        let process = crate::process::started(pid).and_then(|start| Process::find(pid, &start));
        if let Ok(Some(process)) = process {
            let _ = process.terminate();
            if tokio::time::timeout(END_LIMIT, process.ended()).await.is_err() {
                let _ = process.kill();
            }
        }
        let _ = self.child.wait();
    }
}

fn how(status: ExitStatus) -> String {
    status.code().map_or_else(|| status.to_string(), |code| format!("it ended with exit code {code}"))
}

/// The log, to be appended to; a long one is set aside.
fn open_log(path: &Path) -> io::Result<File> {
    if fs::metadata(path).is_ok_and(|metadata| metadata.len() > LOG_MAX) {
        fs::rename(path, path.with_added_extension("1"))?;
    }
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

/// What the log says after `begin`, at most the last [`TAIL_MAX`] bytes of it.
fn tail(path: &Path, begin: u64) -> io::Result<String> {
    let mut file = File::open(path)?;
    let end = file.metadata()?.len();
    file.seek(SeekFrom::Start(begin.max(end.saturating_sub(TAIL_MAX))))?;
    let mut bytes = Vec::new();
    file.take(TAIL_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// It answers, with its token too.
async fn answers(state: &StateDir) -> Result<Vec<Sandbox>, CliError> {
    let choice = ServerChoice { url: None, token_file: None, state: state.clone() };
    Ok(connect::client(&choice)?.list_sandboxes().await?)
}

fn show(screen: &mut Screen, note: &ServerNote, sandboxes: &[Sandbox], hint: &Hint) -> Result<(), CliError> {
    screen.line(Tone::Good, &format!("Berth is up at {}, process {}", note.url, note.pid))?;
    for sandbox in sandboxes {
        screen.sandbox(&sandbox.name, &sandbox.directory, sandbox.opencode_version.as_deref())?;
    }
    if let Some(log) = &note.log {
        screen.line(Tone::Tool, &format!("It logs to {}", log.display()))?;
    }
    let first = sandboxes.first().map(|sandbox| sandbox.name.as_str());
    screen.suggestions("Type next:", first, hint)?;
    screen.note(&format!("`berth down{}` ends it.", hint.data_option()))
}
