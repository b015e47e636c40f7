//! Whether the operator lives and reaches the apiserver, for probes. IO, but for [`Pulse`].

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use kube::Client;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How often the apiserver is asked for its version.
const EVERY: Duration = Duration::from_secs(10);

/// Bound on its answer.
const CALL: Duration = Duration::from_secs(5);

/// How long nothing may have been asked, until the process counts as stuck.
const STUCK: Duration = Duration::from_mins(1);

/// How long no answer may have come, until the operator counts as not ready.
const SILENT: Duration = Duration::from_secs(35);

/// When something was asked, and answered, last; clones tell the same.
#[derive(Debug, Clone)]
pub struct Pulse(Arc<Mutex<Beats>>);

#[derive(Debug, Clone, Copy)]
struct Beats {
    asked: Instant,
    answered: Option<Instant>,
}

impl Pulse {
    /// Of a process that begins now.
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(Beats { asked: Instant::now(), answered: None })))
    }

    /// The process goes on. One that does not reach the apiserver lives all the same: to start it anew would not help.
    pub fn is_alive(&self) -> bool {
        self.alive_at(Instant::now())
    }

    /// The apiserver has answered lately.
    pub fn is_ready(&self) -> bool {
        self.ready_at(Instant::now())
    }

    fn alive_at(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.beats().asked) < STUCK
    }

    fn ready_at(&self, now: Instant) -> bool {
        self.beats().answered.is_some_and(|at| now.saturating_duration_since(at) < SILENT)
    }

    fn beats(&self) -> Beats {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Beats)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Asks the apiserver until `shutdown`.
    pub(crate) async fn beat(self, client: Client, shutdown: CancellationToken) {
        let mut tick = tokio::time::interval(EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while shutdown.run_until_cancelled(tick.tick()).await.is_some() {
            self.change(|beats| beats.asked = Instant::now());
            match tokio::time::timeout(CALL, client.apiserver_version()).await {
                Ok(Ok(_)) => self.change(|beats| beats.answered = Some(Instant::now())),
                Ok(Err(error)) => tracing::warn!(error = %error, "the apiserver does not answer"),
                Err(late) => tracing::warn!(error = %late, "the apiserver does not answer"),
            }
        }
    }
}

impl Default for Pulse {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_lives_while_it_asks_and_is_ready_while_it_is_answered() {
        let (pulse, start) = (Pulse::new(), Instant::now());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        assert!(pulse.alive_at(at(50)) && !pulse.alive_at(at(62)));
        assert!(!pulse.ready_at(at(0)), "nothing was answered yet");
        pulse.change(|beats| *beats = Beats { asked: at(100), answered: Some(at(90)) });
        assert!(pulse.alive_at(at(159)) && !pulse.alive_at(at(161)));
        assert!(pulse.ready_at(at(124)) && !pulse.ready_at(at(126)));
    }
}
