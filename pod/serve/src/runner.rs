//! Does what the [`Life`] of a supervision asks for, and tells it what happened. IO.

use std::{ffi::OsStr, io, os::unix::process::ExitStatusExt, path::Path, pin::Pin, process::ExitStatus};

use nix::sys::signal::Signal;
use secrecy::SecretString;
use tokio::{
    fs,
    signal::unix::{self, SignalKind},
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    Metrics, ServeConfig, ServePhase, ServeState, StartError, admission, environment, health, identity,
    life::{Death, Effect, Input, Life},
    link::Heard,
    lock::{DataLock, LockError},
    oom::{self, Ledger},
    orphans::{self, Theirs},
    process::{self, Marks, Process, Ready},
    report::{self, End},
    unpacked,
    watchdog::Watchdog,
};

/// Everything that is needed to run opencode, with the data directory locked and swept.
#[derive(Debug)]
pub(crate) struct Prepared {
    config: ServeConfig,
    identity: String,
    metrics: Metrics,
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
    if config.owns_process {
        orphans::adopt();
    }
    let prepared = Prepared { config, identity, metrics: Metrics::default(), _lock: lock };
    prepared.sweep(None).await;
    unpacked::clear(&prepared.config.data).await;
    Ok(prepared)
}

impl Prepared {
    /// opencode's default directory.
    pub(crate) fn directory(&self) -> &Path {
        &self.config.directory
    }

    /// Who may ask this process for anything may ask it for its descendants, too.
    pub(crate) fn owns_process(&self) -> bool {
        self.config.owns_process
    }

    /// What is counted.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Ends what opencode left behind; not its watchdog.
    async fn sweep(&self, watchdog: Option<&Watchdog>) {
        let theirs = Theirs {
            identity: self.identity.clone(),
            adopted: self.config.owns_process,
            spared: watchdog.and_then(Watchdog::pid).into_iter().collect(),
        };
        let swept = orphans::sweep(&theirs, self.config.timings.orphan_grace).await;
        self.metrics.swept.inc_by(swept as u64);
    }

    /// Runs opencode again and again until `stop`. The lock is given back when this returns.
    pub(crate) async fn run(
        self,
        state: watch::Sender<ServeState>,
        commands: mpsc::Receiver<Heard>,
        stop: CancellationToken,
    ) {
        let (life, effects) = Life::begin(self.config.timings);
        let children = if self.config.owns_process { children() } else { None };
        let runner = Runner {
            prepared: self,
            life,
            state,
            commands,
            stop,
            children,
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
    /// Tells when a child of this process ended, which may be an adopted one.
    children: Option<unix::Signal>,
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
            let Some(input) = self.next().await else { continue };
            let effects = self.life.step(Instant::now(), input);
            self.publish_phase();
            self.apply(effects).await;
        }
        self.publish_phase();
    }

    /// The next thing that happens and matters.
    async fn next(&mut self) -> Option<Input> {
        let deadline = self.life.deadline();
        tokio::select! {
            status = exit(&mut self.run) => self.exited(status).await,
            answer = answer(&mut self.question) => Some(self.answered(answer)),
            Some(Heard { command, heard }) = self.commands.recv() => {
                tracing::info!(?command, "the supervisor was asked for a change");
                // Who asked may have gone.
                let _ = heard.send(());
                Some(Input::Command(command))
            }
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => Some(Input::Tick),
            () = self.stop.cancelled(), if !self.life.is_ending() => Some(Input::Shutdown),
            () = child_ended(&mut self.children) => {
                self.reap();
                None
            }
        }
    }

    /// Waits for adopted processes that have ended. It runs in the task that spawns our own, so none of these can be
    /// taken for one of them.
    fn reap(&self) {
        let process = self.run.as_ref().and_then(|run| run.process.pid());
        let watchdog = self.watchdog.as_ref().and_then(Watchdog::pid);
        let awaited: Vec<u32> = process.into_iter().chain(watchdog).collect();
        self.prepared.metrics.reaped.inc_by(orphans::reap(&awaited));
    }

    /// The process is no more: looks how it ended.
    async fn exited(&mut self, status: Option<ExitStatus>) -> Option<Input> {
        self.question = None;
        let run = self.run.take()?;
        let signal = status.and_then(|status| status.signal());
        let by_others = signal == Some(Signal::SIGKILL as i32) && !run.killed;
        let (out_of_memory, tools) = self.memory.ended(oom::count().await, by_others);
        self.tools_killed(tools);
        let output_tail = run.process.drain().await;
        self.end = Some(End { status, output_tail, detail: None });
        Some(Input::Exited(Death { signal, out_of_memory }))
    }

    fn tools_killed(&self, count: u64) {
        self.prepared.metrics.tool_oom_kills.inc_by(count);
        report::tools_killed(&self.state, count);
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
                let tools = self.memory.answered();
                self.tools_killed(tools);
                Input::Health(true)
            }
            Answer::Health(false) => {
                self.prepared.metrics.health_misses.inc();
                Input::Health(false)
            }
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
                Effect::Hangs => {
                    tracing::error!("opencode was killed and does not go: nothing is started beside it");
                }
                Effect::Record { cause, failure } => {
                    let end = self.end.take().unwrap_or_default();
                    self.prepared.metrics.exits.get_or_create(&cause.into()).inc();
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
        self.prepared.metrics.starts.inc();
        let (config, identity) = (&self.prepared.config, &self.prepared.identity);
        let path = config.inherited.get(OsStr::new("PATH"));
        self.memory.begin(oom::count().await);
        if std::process::id() != 1 {
            self.watchdog = Some(Watchdog::start(&boot_id, path.map(AsRef::as_ref)));
        }
        let spawned = config.password.read().map_err(|error| unreadable(&error)).and_then(|password| {
            let unpacked = unpacked::make(&config.data, &boot_id);
            let marks = Marks { identity, boot_id: &boot_id, unpacked: unpacked.as_deref() };
            let process = Process::spawn(config, &password, marks);
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
        self.prepared.sweep(self.watchdog.as_ref()).await;
        unpacked::clear(&self.prepared.config.data).await;
        if let Some(watchdog) = self.watchdog.take() {
            watchdog.stop().await;
        }
        if self.prepared.config.owns_process {
            self.reap();
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

/// Tells of ended children from now on.
fn children() -> Option<unix::Signal> {
    unix::signal(SignalKind::child())
        .inspect_err(|error| tracing::warn!(%error, "adopted processes are not reaped"))
        .ok()
}

/// Waits until a child of this process has ended, if that is looked for.
async fn child_ended(children: &mut Option<unix::Signal>) {
    let told = match children {
        Some(children) => children.recv().await,
        None => None,
    };
    if told.is_none() {
        std::future::pending::<()>().await;
    }
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
