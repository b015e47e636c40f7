//! Does what the [`Life`] of a supervision asks for, and tells it what happened. IO.

use std::{ffi::OsStr, io, os::unix::process::ExitStatusExt, path::Path, pin::Pin, process::ExitStatus};

use nix::sys::signal::Signal;
use secrecy::SecretString;
use tokio::{
    fs,
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    ServeConfig, ServePhase, ServeState, StartError, admission, environment, health, identity,
    life::{Death, Effect, Input, Life},
    link::Heard,
    lock::{DataLock, LockError},
    oom::{self, Ledger},
    orphans,
    process::{self, Marks, Process, Ready},
    report::{self, End},
    watchdog::Watchdog,
};

/// Everything that is needed to run opencode, with the data directory locked and swept.
#[derive(Debug)]
pub(crate) struct Prepared {
    config: ServeConfig,
    identity: String,
    _lock: DataLock,
}

/// Checks the configuration, takes the data directory and ends what a predecessor left on it.
pub(crate) async fn prepare(mut config: ServeConfig) -> Result<Prepared, StartError> {
    environment::check(&config)?;
    config.directory = fs::canonicalize(&config.directory)
        .await
        .map_err(|source| StartError::Directory { directory: config.directory.clone(), source })?;
    config.program = match fs::canonicalize(&config.program).await {
        Ok(program) if program.is_file() => program,
        _ => return Err(StartError::Program { program: config.program }),
    };
    let data = config.data.clone();
    let unusable = |source| StartError::Data { data: data.clone(), source };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&config.data).await.map_err(&unusable)?;
    config.data = fs::canonicalize(&config.data).await.map_err(&unusable)?;
    let lock = DataLock::take(&config.data.join("lock")).map_err(|error| match error {
        LockError::Held(holder) => StartError::InUse { data: data.clone(), holder },
        LockError::Io(source) => unusable(source),
    })?;
    let identity = identity::of(&config.data).map_err(&unusable)?;
    orphans::sweep(&identity, config.timings.orphan_grace).await;
    Ok(Prepared { config, identity, _lock: lock })
}

impl Prepared {
    /// opencode's default directory.
    pub(crate) fn directory(&self) -> &Path {
        &self.config.directory
    }

    /// Runs opencode again and again until `stop`. The lock is given back when this returns.
    pub(crate) async fn run(
        self,
        state: watch::Sender<ServeState>,
        commands: mpsc::Receiver<Heard>,
        stop: CancellationToken,
    ) {
        let (life, effects) = Life::begin(self.config.timings);
        let runner = Runner {
            prepared: self,
            life,
            state,
            commands,
            stop,
            run: None,
            watchdog: None,
            question: None,
            end: None,
            memory: Ledger::default(),
        };
        runner.run(effects).await;
    }
}

/// Something that somebody was asked, and that has not been answered yet.
type Question = Pin<Box<dyn Future<Output = Answer> + Send>>;

enum Answer {
    Allowed,
    Ready(Result<Ready, String>),
    Health(bool),
}

/// A process.
struct Run {
    process: Process,
    password: SecretString,
    /// We sent SIGKILL.
    killed: bool,
}

struct Runner {
    prepared: Prepared,
    life: Life,
    state: watch::Sender<ServeState>,
    commands: mpsc::Receiver<Heard>,
    stop: CancellationToken,
    run: Option<Run>,
    /// Guards the run from before its start until all of it is gone.
    watchdog: Option<Watchdog>,
    /// The one question that waits for its answer.
    question: Option<Question>,
    /// How the run ended that is not recorded yet.
    end: Option<End>,
    memory: Ledger,
}

impl Runner {
    async fn run(mut self, effects: Vec<Effect>) {
        self.apply(effects).await;
        while !self.life.is_over() {
            let input = self.next().await;
            let effects = self.life.step(Instant::now(), input);
            self.publish_phase();
            self.apply(effects).await;
        }
        self.publish_phase();
    }

    /// The next thing that happens.
    async fn next(&mut self) -> Input {
        let deadline = self.life.deadline();
        tokio::select! {
            status = exit(&mut self.run) => self.exited(status).await,
            answer = answer(&mut self.question) => self.answered(answer),
            Some(Heard { command, heard }) = self.commands.recv() => {
                tracing::info!(?command, "the supervisor was asked for a change");
                // Who asked may have gone.
                let _ = heard.send(());
                Input::Command(command)
            }
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => Input::Tick,
            () = self.stop.cancelled(), if !self.life.is_ending() => Input::Shutdown,
        }
    }

    /// The process is no more: looks how it ended.
    async fn exited(&mut self, status: Option<ExitStatus>) -> Input {
        self.question = None;
        let Some(run) = self.run.take() else { return Input::Tick };
        let signal = status.and_then(|status| status.signal());
        let by_others = signal == Some(Signal::SIGKILL as i32) && !run.killed;
        let (out_of_memory, tools) = self.memory.ended(oom::count().await, by_others);
        report::tools_killed(&self.state, tools);
        let output_tail = run.process.drain().await;
        self.end = Some(End { status, output_tail, detail: None });
        Input::Exited(Death { signal, out_of_memory })
    }

    fn answered(&mut self, answer: Answer) -> Input {
        self.question = None;
        match answer {
            Answer::Allowed => Input::Allowed,
            Answer::Ready(Ok(ready)) => {
                report::ready(&self.state, ready);
                Input::Answered
            }
            Answer::Ready(Err(seen)) => Input::Unsupported(seen),
            Answer::Health(true) => {
                report::tools_killed(&self.state, self.memory.answered());
                Input::Health(true)
            }
            Answer::Health(false) => Input::Health(false),
        }
    }

    /// Does all of it, and what comes of it.
    async fn apply(&mut self, effects: Vec<Effect>) {
        let mut due = std::collections::VecDeque::from(effects);
        while let Some(effect) = due.pop_front() {
            match effect {
                Effect::Ask => self.ask(),
                Effect::Spawn => {
                    let input = self.spawn().await;
                    due.extend(self.life.step(Instant::now(), input));
                }
                Effect::Check => self.check().await,
                Effect::Terminate => self.signal(Signal::SIGTERM),
                Effect::Kill => self.signal(Signal::SIGKILL),
                Effect::Record { cause, failure } => {
                    let end = self.end.take().unwrap_or_default();
                    report::exit(&self.state, cause, failure, end);
                    self.clear().await;
                }
            }
            self.publish_phase();
        }
    }

    fn ask(&mut self) {
        let wait_for = self.prepared.config.wait_for.clone();
        self.question = Some(Box::pin(async move {
            admission::wait(wait_for).await;
            Answer::Allowed
        }));
    }

    /// Starts a process under a watchdog.
    async fn spawn(&mut self) -> Input {
        let boot_id = report::boot(&self.state);
        let (config, identity) = (&self.prepared.config, &self.prepared.identity);
        let path = config.inherited.get(OsStr::new("PATH"));
        self.memory.begin(oom::count().await);
        self.watchdog = Some(Watchdog::start(&boot_id, path.map(AsRef::as_ref)));
        let spawned = config.password.read().map_err(|error| unreadable(&error)).and_then(|password| {
            let process = Process::spawn(config, &password, Marks { identity, boot_id: &boot_id });
            process
                .map(|process| (process, password))
                .map_err(|error| format!("the binary cannot be run: {error}"))
        });
        match spawned {
            Ok((process, password)) => {
                self.state.send_modify(|state| state.pid = process.pid());
                let ready =
                    process::ready(process.output().clone(), password.clone(), config.timings.start_health);
                self.question = Some(Box::pin(async move { Answer::Ready(ready.await) }));
                self.run = Some(Run { process, password, killed: false });
                Input::Spawned { boot_id }
            }
            Err(detail) => {
                self.end = Some(End { detail: Some(detail), ..End::default() });
                Input::SpawnFailed
            }
        }
    }

    async fn check(&mut self) {
        self.memory.seen(oom::count().await);
        let (Some(run), Some(address)) = (&self.run, self.state.borrow().address) else { return };
        let (password, bound) = (run.password.clone(), self.prepared.config.timings.health);
        self.question =
            Some(Box::pin(async move { Answer::Health(health::check(address, &password, bound).await) }));
    }

    fn signal(&mut self, signal: Signal) {
        self.question = None;
        if let Some(run) = &mut self.run {
            run.killed |= signal == Signal::SIGKILL;
            run.process.signal(signal);
        }
    }

    /// Ends what is left of a run. A process that hangs in the kernel is left behind by a shutdown only.
    async fn clear(&mut self) {
        self.run = None;
        orphans::sweep(&self.prepared.identity, self.prepared.config.timings.orphan_grace).await;
        if let Some(watchdog) = self.watchdog.take() {
            watchdog.stop().await;
        }
    }

    fn publish_phase(&self) {
        let phase = self.life.phase();
        self.state.send_if_modified(|state| {
            let changed = state.phase != phase;
            state.phase = phase;
            if phase != ServePhase::Ready {
                state.address = None;
            }
            changed
        });
    }
}

fn unreadable(error: &io::Error) -> String {
    format!("the file with its password cannot be read: {error}")
}

/// Waits for the end of the process, if there is one.
async fn exit(run: &mut Option<Run>) -> Option<ExitStatus> {
    match run {
        Some(run) => run.process.wait().await,
        None => std::future::pending().await,
    }
}

/// Waits for the answer to the question, if one was asked.
async fn answer(question: &mut Option<Question>) -> Answer {
    match question {
        Some(question) => question.await,
        None => std::future::pending().await,
    }
}
