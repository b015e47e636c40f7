//! The life of a supervised opencode as a state machine: what happened goes in, what is to be done comes out. Pure.
//!
//! [`crate::runner`] does what comes out. There is one process at most, and one question at most that is asked of
//! somebody: whether it may start, whether it answers yet, whether it still does.

use std::{mem, time::Duration};

use berth_wire::door::ExitCause;
use tokio::time::Instant;

use crate::{RestartCause, ServeCommand, ServePhase, Timings};

/// How long a killed process may take to be gone. Longer means that it hangs in the kernel.
const KILL_BOUND: Duration = Duration::from_secs(10);

/// Why opencode is ended though it lives, in a start that came to nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotReady {
    /// It did not answer in time.
    #[error("it did not answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// It answers, but is not what Berth speaks to.
    #[error("Berth speaks to opencode 1.15 to 1.18, and found {0}")]
    Unsupported(String),
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Input {
    /// opencode may be started.
    Allowed,
    /// Its process runs.
    Spawned {
        /// Names the run.
        boot_id: String,
    },
    /// It cannot be run.
    SpawnFailed,
    /// It answers for the first time.
    Answered,
    /// It answers, and is not what Berth speaks to, as these words say.
    Unsupported(String),
    /// A health request was answered, or was not.
    Health(bool),
    /// The process is no more.
    Exited(Death),
    /// Somebody asks for a change.
    Command(ServeCommand),
    /// [`Life::deadline`] has passed.
    Tick,
    /// The supervision is to end.
    Shutdown,
}

/// How the process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Death {
    /// The number of the signal that ended it.
    pub(crate) signal: Option<i32>,
    /// The kernel has killed for memory meanwhile.
    pub(crate) out_of_memory: bool,
}

impl Death {
    /// What ended it, when we did not.
    fn cause(self) -> ExitCause {
        match self.signal {
            Some(_) if self.is_out_of_memory() => ExitCause::OutOfMemory,
            Some(_) => ExitCause::Killed,
            None => ExitCause::Exited,
        }
    }

    /// It was the kernel, for memory: that is a SIGKILL.
    pub(crate) fn is_out_of_memory(self) -> bool {
        self.signal == Some(nix::libc::SIGKILL) && self.out_of_memory
    }
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Ask whether opencode may be started: [`Input::Allowed`].
    Ask,
    /// Run it: [`Input::Spawned`] or [`Input::SpawnFailed`], then [`Input::Answered`] or [`Input::Unsupported`].
    Spawn,
    /// Ask whether it still answers: [`Input::Health`].
    Check,
    /// Ask nothing more, and end it: SIGTERM.
    Terminate,
    /// SIGKILL.
    Kill,
    /// Tell that it was killed and is not gone: nothing is started beside it.
    Hangs,
    /// Tell how the run ended, and end what is left of it.
    Record {
        /// What ended it.
        cause: ExitCause,
        /// What went wrong with the start.
        failure: Option<NotReady>,
    },
}

/// What somebody wants of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Run,
    Stop,
    /// To end for good.
    End,
}

#[derive(Debug)]
enum At {
    /// No process; the start comes then.
    Pausing { until: Instant },
    /// No process; somebody is asked whether it may start.
    Asking,
    /// It must answer by then.
    Starting { deadline: Instant },
    /// It answers. No check is due while one is under way.
    Ready { since: Instant, misses: u32, next: Option<Instant> },
    /// SIGTERM was sent.
    Ending { cause: ExitCause, failure: Option<NotReady>, due: Due, healthy_for: Duration },
    /// No process, and none is wanted.
    Stopped,
}

/// What is next for a process that is being ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    Kill(Instant),
    /// It was killed, and should be gone by then.
    Gone(Instant),
    /// It hangs in the kernel.
    Nothing,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Life {
    timings: Timings,
    backoff: Backoff,
    at: At,
    wanted: Wanted,
    /// The newest run.
    boot_id: String,
    /// It was ended because it did not answer, and the next was not started yet.
    wedged: bool,
    /// When the check that is under way began.
    checked: Option<Instant>,
}

impl Life {
    /// Before the first start; gives what is to be done first.
    pub(crate) fn begin(timings: Timings) -> (Self, Vec<Effect>) {
        let life = Self {
            timings,
            backoff: Backoff::new(&timings),
            at: At::Asking,
            wanted: Wanted::Run,
            boot_id: String::new(),
            wedged: false,
            checked: None,
        };
        (life, vec![Effect::Ask])
    }

    /// Where it stands.
    pub(crate) fn phase(&self) -> ServePhase {
        match (&self.at, self.wanted) {
            (_, Wanted::Stop | Wanted::End) | (At::Stopped, _) => ServePhase::Stopped,
            (At::Ready { .. }, Wanted::Run) => ServePhase::Ready,
            _ if self.wedged => ServePhase::Wedged,
            _ => ServePhase::Starting,
        }
    }

    /// When [`Input::Tick`] is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match &self.at {
            At::Pausing { until } => Some(*until),
            At::Starting { deadline } => Some(*deadline),
            At::Ready { next, .. } => *next,
            At::Ending { due: Due::Kill(at) | Due::Gone(at), .. } => Some(*at),
            At::Ending { due: Due::Nothing, .. } | At::Asking | At::Stopped => None,
        }
    }

    /// It was told to end for good.
    pub(crate) fn is_ending(&self) -> bool {
        self.wanted == Wanted::End
    }

    /// It has ended for good.
    pub(crate) fn is_over(&self) -> bool {
        self.is_ending() && matches!(self.at, At::Stopped)
    }

    /// Goes on from what happened to what is to be done.
    pub(crate) fn step(&mut self, now: Instant, input: Input) -> Vec<Effect> {
        match input {
            Input::Allowed if matches!(self.at, At::Asking) => vec![Effect::Spawn],
            Input::Spawned { boot_id } => self.spawned(now, boot_id),
            Input::SpawnFailed => self.gone(now, ExitCause::StartFailed, None, Duration::ZERO),
            Input::Answered if matches!(self.at, At::Starting { .. }) => self.answered(now),
            Input::Unsupported(seen) if matches!(self.at, At::Starting { .. }) => {
                self.end(now, ExitCause::StartFailed, Some(NotReady::Unsupported(seen)))
            }
            Input::Health(answered) => self.health(now, answered),
            Input::Exited(death) => self.exited(now, death),
            Input::Command(command) => self.command(now, command),
            Input::Tick => self.tick(now),
            Input::Shutdown => self.stop(now, Wanted::End),
            Input::Allowed | Input::Answered | Input::Unsupported(_) => Vec::new(),
        }
    }

    fn spawned(&mut self, now: Instant, boot_id: String) -> Vec<Effect> {
        self.boot_id = boot_id;
        self.wedged = false;
        self.at = At::Starting { deadline: now + self.timings.start };
        Vec::new()
    }

    fn answered(&mut self, now: Instant) -> Vec<Effect> {
        self.at = At::Ready { since: now, misses: 0, next: Some(now + self.timings.health_every) };
        Vec::new()
    }

    fn health(&mut self, now: Instant, answered: bool) -> Vec<Effect> {
        let At::Ready { misses, next, .. } = &mut self.at else { return Vec::new() };
        *misses = if answered { 0 } else { *misses + 1 };
        *next = Some(self.checked.map_or(now, |begun| begun + self.timings.health_every).max(now));
        if *misses < self.timings.health_misses {
            return Vec::new();
        }
        self.wedged = true;
        self.end(now, ExitCause::Wedged, None)
    }

    fn tick(&mut self, now: Instant) -> Vec<Effect> {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return Vec::new();
        }
        match &mut self.at {
            At::Pausing { .. } => self.start(),
            At::Starting { .. } => {
                self.end(now, ExitCause::StartFailed, Some(NotReady::Timeout(self.timings.start)))
            }
            At::Ready { next, .. } => {
                *next = None;
                self.checked = Some(now);
                vec![Effect::Check]
            }
            At::Ending { due: due @ Due::Kill(_), .. } => {
                *due = Due::Gone(now + KILL_BOUND);
                vec![Effect::Kill]
            }
            At::Ending { due, .. } => {
                *due = Due::Nothing;
                self.give_up(now)
            }
            At::Asking | At::Stopped => Vec::new(),
        }
    }

    fn start(&mut self) -> Vec<Effect> {
        self.at = At::Asking;
        vec![Effect::Ask]
    }

    /// Ends a process that lives.
    fn end(&mut self, now: Instant, cause: ExitCause, failure: Option<NotReady>) -> Vec<Effect> {
        let healthy_for = match self.at {
            At::Ready { since, .. } => now - since,
            _ => Duration::ZERO,
        };
        self.at = At::Ending { cause, failure, due: Due::Kill(now + self.timings.grace), healthy_for };
        vec![Effect::Terminate]
    }

    /// The process was killed and is not gone. No other may be started beside it; only a shutdown goes on without it.
    fn give_up(&mut self, now: Instant) -> Vec<Effect> {
        match self.at {
            At::Ending { cause, due: Due::Nothing, healthy_for, .. } if self.is_ending() => {
                self.gone(now, cause, None, healthy_for)
            }
            At::Ending { due: Due::Nothing, .. } => vec![Effect::Hangs],
            _ => Vec::new(),
        }
    }

    fn exited(&mut self, now: Instant, death: Death) -> Vec<Effect> {
        match mem::replace(&mut self.at, At::Stopped) {
            // What thrashes for want of memory does not answer either.
            At::Ending { cause: ExitCause::Wedged, healthy_for, due: Due::Kill(_), .. }
                if death.is_out_of_memory() =>
            {
                self.gone(now, ExitCause::OutOfMemory, None, healthy_for)
            }
            At::Ending { cause, failure, healthy_for, .. } => self.gone(now, cause, failure, healthy_for),
            At::Ready { since, .. } => self.gone(now, death.cause(), None, now - since),
            At::Starting { .. } if death.is_out_of_memory() => {
                self.gone(now, ExitCause::OutOfMemory, None, Duration::ZERO)
            }
            At::Starting { .. } => self.gone(now, ExitCause::StartFailed, None, Duration::ZERO),
            other @ (At::Pausing { .. } | At::Asking | At::Stopped) => {
                self.at = other;
                Vec::new()
            }
        }
    }

    /// A run ended: what comes next.
    fn gone(
        &mut self,
        now: Instant,
        cause: ExitCause,
        failure: Option<NotReady>,
        healthy_for: Duration,
    ) -> Vec<Effect> {
        let mut effects = vec![Effect::Record { cause, failure }];
        let asked_for = matches!(
            cause,
            ExitCause::Stopped | ExitCause::Recycled | ExitCause::NeverStarted | ExitCause::Reconfigured
        );
        if self.wanted != Wanted::Run {
            self.at = At::Stopped;
        } else if asked_for {
            effects.extend(self.start());
        } else {
            self.at = At::Pausing { until: now + self.backoff.pause(healthy_for) };
        }
        effects
    }

    fn command(&mut self, now: Instant, command: ServeCommand) -> Vec<Effect> {
        match command {
            _ if self.is_ending() => Vec::new(),
            ServeCommand::Restart { boot_id, cause } if boot_id == self.boot_id && self.is_alive() => {
                let cause = match cause {
                    RestartCause::Memory => ExitCause::Recycled,
                    RestartCause::NeverStarted => ExitCause::NeverStarted,
                    RestartCause::Configuration => ExitCause::Reconfigured,
                };
                self.end(now, cause, None)
            }
            ServeCommand::Restart { .. } => Vec::new(),
            ServeCommand::Stop => self.stop(now, Wanted::Stop),
            ServeCommand::Start => {
                self.wanted = Wanted::Run;
                match self.at {
                    At::Stopped | At::Pausing { .. } => self.start(),
                    _ => Vec::new(),
                }
            }
        }
    }

    fn stop(&mut self, now: Instant, wanted: Wanted) -> Vec<Effect> {
        self.wanted = wanted;
        if self.is_alive() {
            return self.end(now, ExitCause::Stopped, None);
        }
        if matches!(self.at, At::Asking | At::Pausing { .. }) {
            self.at = At::Stopped;
        }
        self.give_up(now)
    }

    /// A process runs and was not told to end.
    fn is_alive(&self) -> bool {
        matches!(self.at, At::Starting { .. } | At::Ready { .. })
    }
}

/// Pauses between restarts.
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
mod tests;
