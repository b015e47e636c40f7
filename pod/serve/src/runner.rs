//! The life of the supervision: prepare, then run after run until it is stopped. IO.

use std::{ffi::OsStr, os::unix::process::ExitStatusExt, path::Path, process::ExitStatus, time::Duration};

use berth_wire::door::ExitCause;
use jiff::Timestamp;
use tokio::{
    fs,
    sync::watch,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    Exit, ServeConfig, ServePhase, ServeState, StartError, Timings, environment, identity,
    lock::{DataLock, LockError},
    orphans,
    process::{self, NotReady, Process},
    watchdog::Watchdog,
};

/// Everything that is needed to run opencode, with the data directory locked and swept.
#[derive(Debug)]
pub(crate) struct Prepared {
    config: ServeConfig,
    identity: String,
    _lock: DataLock,
}

/// Why a run ended, and how long it was healthy.
struct Ended {
    cause: ExitCause,
    status: Option<ExitStatus>,
    failure: Option<NotReady>,
    healthy_for: Duration,
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
    pub(crate) async fn run(self, state: watch::Sender<ServeState>, stop: CancellationToken) {
        let mut backoff = Backoff::new(&self.config.timings);
        while !stop.is_cancelled() {
            let healthy_for = self.run_once(&state, &stop).await;
            if stop.is_cancelled() {
                break;
            }
            let pause = backoff.pause(healthy_for);
            tracing::warn!(pause_ms = pause.as_millis(), "opencode is started again after a pause");
            tokio::select! {
                () = sleep(pause) => {}
                () = stop.cancelled() => {}
            }
        }
        state.send_modify(|state| state.phase = ServePhase::Stopped);
    }

    /// One run with nothing left of it, under a watchdog all along; gives how long it was healthy.
    async fn run_once(&self, state: &watch::Sender<ServeState>, stop: &CancellationToken) -> Duration {
        let boot_id = publish_boot(state);
        let path = self.config.inherited.get(OsStr::new("PATH"));
        let watchdog = Watchdog::start(&boot_id, path.map(AsRef::as_ref));
        let healthy_for = self.run_process(&boot_id, state, stop).await;
        orphans::sweep(&self.identity, self.config.timings.orphan_grace).await;
        watchdog.stop().await;
        healthy_for
    }

    /// One process, from spawn to end; gives how long it was healthy.
    async fn run_process(
        &self,
        boot_id: &str,
        state: &watch::Sender<ServeState>,
        stop: &CancellationToken,
    ) -> Duration {
        let mut process = match Process::spawn(&self.config, &self.identity, boot_id) {
            Ok(process) => process,
            Err(error) => {
                publish_spawn_error(state, &error);
                return Duration::ZERO;
            }
        };
        state.send_modify(|state| state.pid = process.pid());
        let ended = self.attend(&mut process, state, stop).await;
        let output_tail = process.drain().await;
        let healthy_for = ended.healthy_for;
        publish_exit(state, ended, output_tail);
        healthy_for
    }

    /// Follows a process to its end.
    async fn attend(
        &self,
        process: &mut Process,
        state: &watch::Sender<ServeState>,
        stop: &CancellationToken,
    ) -> Ended {
        let grace = self.config.timings.grace;
        let output = process.output().clone();
        let ready = tokio::select! {
            status = process.wait() => return Ended::unready(ExitCause::StartFailed, status, None),
            () = stop.cancelled() => {
                publish_stopping(state);
                return Ended::unready(ExitCause::Stopped, process.end(grace).await, None);
            }
            ready = process::ready(output, &self.config) => ready,
        };
        let ready = match ready {
            Ok(ready) => ready,
            Err(failure) => {
                return Ended::unready(ExitCause::StartFailed, process.end(grace).await, Some(failure));
            }
        };
        let since = Instant::now();
        publish_ready(state, ready);
        let (cause, status) = tokio::select! {
            status = process.wait() => (by_itself(status), status),
            () = stop.cancelled() => {
                publish_stopping(state);
                (ExitCause::Stopped, process.end(grace).await)
            }
        };
        Ended { cause, status, failure: None, healthy_for: since.elapsed() }
    }
}

impl Ended {
    fn unready(cause: ExitCause, status: Option<ExitStatus>, failure: Option<NotReady>) -> Self {
        Self { cause, status, failure, healthy_for: Duration::ZERO }
    }
}

fn by_itself(status: Option<ExitStatus>) -> ExitCause {
    match status.and_then(|status| status.signal()) {
        Some(_) => ExitCause::Killed,
        None => ExitCause::Exited,
    }
}

fn publish_boot(state: &watch::Sender<ServeState>) -> String {
    let boot_id = Uuid::new_v4().simple().to_string();
    state.send_modify(|state| {
        state.phase = ServePhase::Starting;
        state.boot += 1;
        state.boot_id.clone_from(&boot_id);
    });
    boot_id
}

fn publish_ready(state: &watch::Sender<ServeState>, ready: process::Ready) {
    state.send_modify(|state| {
        state.phase = ServePhase::Ready;
        state.address = Some(ready.address);
        state.version = Some(ready.version);
        tracing::info!(boot = state.boot, pid = state.pid, version = state.version, "opencode answers");
    });
}

fn publish_stopping(state: &watch::Sender<ServeState>) {
    state.send_modify(|state| {
        state.phase = ServePhase::Stopped;
        state.address = None;
    });
}

fn publish_spawn_error(state: &watch::Sender<ServeState>, error: &std::io::Error) {
    state.send_modify(|state| {
        let detail = Some(format!("the binary cannot be run: {error}"));
        set_exit(state, Ended::unready(ExitCause::StartFailed, None, None), detail, String::new());
    });
}

fn publish_exit(state: &watch::Sender<ServeState>, ended: Ended, output_tail: String) {
    state.send_modify(|state| {
        let detail = ended.failure.as_ref().map(ToString::to_string);
        set_exit(state, ended, detail, output_tail);
    });
}

fn set_exit(state: &mut ServeState, ended: Ended, detail: Option<String>, output_tail: String) {
    let exit = Exit {
        boot: state.boot,
        boot_id: state.boot_id.clone(),
        exit: ended.status.and_then(|status| status.code()),
        signal: ended.status.and_then(|status| status.signal()),
        cause: ended.cause,
        detail,
        unsupported: match ended.failure {
            Some(NotReady::Unsupported(seen)) => Some(seen),
            Some(NotReady::Timeout(_)) | None => None,
        },
        at: Timestamp::now(),
        output_tail,
    };
    if exit.cause == ExitCause::Stopped {
        tracing::info!(boot = exit.boot, exit = exit.exit, signal = exit.signal, "opencode was stopped");
    } else {
        state.phase = ServePhase::Starting;
        tracing::warn!(boot = exit.boot, end = %exit, "opencode ended");
    }
    state.pid = None;
    state.address = None;
    state.last_exit = Some(exit);
}

/// Pauses between restarts. Pure.
#[derive(Debug)]
struct Backoff {
    first: Duration,
    longest: Duration,
    stable: Duration,
    next: Duration,
}

impl Backoff {
    fn new(timings: &Timings) -> Self {
        let (first, longest, stable) = (timings.backoff_first, timings.backoff_longest, timings.stable);
        Self { first, longest, stable, next: first }
    }

    /// The pause after a run that was healthy for this long.
    fn pause(&mut self, healthy_for: Duration) -> Duration {
        let pause = if healthy_for >= self.stable { self.first } else { self.next };
        self.next = (pause * 2).min(self.longest);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_to_a_bound_and_start_anew_after_a_stable_run() {
        let mut backoff = Backoff::new(&Timings::default());
        let mut pauses = |healthy: &[u64]| -> Vec<u64> {
            healthy.iter().map(|secs| backoff.pause(Duration::from_secs(*secs)).as_secs()).collect()
        };
        assert_eq!(pauses(&[0, 5, 59, 0, 0, 0, 0]), [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(pauses(&[60, 0, 3600]), [1, 2, 1]);
    }
}
