//! The link to a supervisor in another process, by its control address. IO; what is made of it is in [`Follower`],
//! which is pure.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use berth_wire::{
    door::ExitCause,
    sse::{SseError, SseReader},
};
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use jiff::Timestamp;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    Exit, LinkError, Password, ServeCommand, ServeLink, ServeMemory, ServePhase, ServeState,
    exchange::{ExchangeError, Question, alongside, connect, exchange},
};

/// Bound on the beginning of the stream of states.
const CONNECT_BOUND: Duration = Duration::from_secs(5);

/// Longest silence; the supervisor says something each 10 s.
const SILENCE: Duration = Duration::from_secs(25);

/// Pause before the next connection, doubled with each failure in a row.
const PAUSE: Duration = Duration::from_millis(50);

/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Bytes of one frame of the stream: a state with all of its exits and their last lines.
const FRAME_MAX: usize = 1024 * 1024;

/// Where the supervisor is.
#[derive(Debug)]
pub(crate) struct Remote {
    address: SocketAddr,
    password: Password,
}

/// Why the stream of states ended.
#[derive(Debug, thiserror::Error)]
enum LostError {
    #[error("it cannot be reached")]
    Exchange(#[from] ExchangeError),
    #[error("it answered with status {0}")]
    Status(StatusCode),
    #[error("its stream broke")]
    Stream(#[from] SseError),
    #[error("it told a state that cannot be read")]
    State(#[from] serde_json::Error),
    #[error("its stream ended")]
    Ended,
    #[error("it fell silent")]
    Silent,
}

impl ServeLink {
    /// A link to the supervisor that listens at `address`, whose states are followed on `tracker` until `shutdown`.
    ///
    /// It reconnects by itself. While the supervisor cannot be reached the state is [`ServePhase::Starting`];
    /// [`ServePhase::Wedged`] when it stays connected and says nothing. When another supervisor answers and nobody told
    /// how the run before ended, an exit with [`ExitCause::SupervisorLost`] stands for it. Before the first answer
    /// [`ServeState::instance`] is empty.
    pub fn remote(
        address: SocketAddr,
        password: Password,
        tracker: &TaskTracker,
        shutdown: CancellationToken,
    ) -> Self {
        let follower = Follower::default();
        let (sender, state) = watch::channel(follower.known.clone());
        let remote = Arc::new(Remote { address, password });
        let followed = Arc::clone(&remote);
        tracker.spawn(async move {
            shutdown.run_until_cancelled(follow(&followed, follower, &sender)).await;
        });
        Self::there(state, remote)
    }
}

impl Remote {
    pub(crate) async fn command(&self, command: &ServeCommand, bound: Duration) -> Result<(), LinkError> {
        let body = serde_json::to_vec(command).unwrap_or_default();
        let question = Question { method: Method::POST, body, ..self.question("/command") };
        self.ask(question, bound, StatusCode::ACCEPTED).await.map(|_| ())
    }

    pub(crate) async fn memory(&self, bound: Duration) -> Result<ServeMemory, LinkError> {
        let body = self.ask(self.question("/memory"), bound, StatusCode::OK).await?;
        serde_json::from_slice(&body).map_err(|_| LinkError::Refused)
    }

    async fn ask(
        &self,
        question: Question<'_>,
        bound: Duration,
        expected: StatusCode,
    ) -> Result<hyper::body::Bytes, LinkError> {
        match exchange(question, bound).await {
            Ok((status, body)) if status == expected => Ok(body),
            Ok((StatusCode::SERVICE_UNAVAILABLE, _)) => Err(LinkError::Unreachable),
            Ok((status, _)) => {
                tracing::warn!(%status, "the supervisor refuses a question");
                Err(LinkError::Refused)
            }
            Err(ExchangeError::Timeout(_)) => Err(LinkError::Timeout),
            Err(_) => Err(LinkError::Unreachable),
        }
    }

    fn question<'a>(&'a self, path: &'a str) -> Question<'a> {
        // It may have been exchanged since the last question.
        let password = self.password.read().inspect_err(|error| {
            tracing::warn!(%error, "the file with the internal password cannot be read");
        });
        Question::get(self.address, path, password.ok())
    }
}

/// Follows the supervisor for ever. The first loss is tried to be mended before anybody is told of it.
async fn follow(remote: &Remote, mut follower: Follower, state: &watch::Sender<ServeState>) {
    let mut pause = PAUSE;
    loop {
        let mut heard_once = false;
        let lost = watch_states(remote, |told| {
            heard_once = true;
            publish(state, follower.heard(told));
        })
        .await;
        let is_silent = matches!(lost, LostError::Silent);
        if heard_once && !is_silent {
            tracing::debug!(error = &lost as &dyn std::error::Error, "the supervisor's stream ended");
            pause = PAUSE;
        } else {
            tracing::warn!(error = &lost as &dyn std::error::Error, "the supervisor does not tell its state");
            publish(state, follower.lost(is_silent));
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn publish(state: &watch::Sender<ServeState>, told: &ServeState) {
    state.send_if_modified(|state| {
        let changed = state != told;
        if changed {
            state.clone_from(told);
        }
        changed
    });
}

/// Takes one stream of states to its end, and gives why it ended.
async fn watch_states(remote: &Remote, told: impl FnMut(ServeState)) -> LostError {
    match timeout(CONNECT_BOUND, connect(remote.address)).await {
        Err(_) => ExchangeError::Timeout(CONNECT_BOUND).into(),
        Ok(Err(error)) => error.into(),
        Ok(Ok((mut sender, connection))) => {
            let request = remote.question("/watch").request();
            alongside(connection, async move {
                match timeout(CONNECT_BOUND, sender.send_request(request)).await {
                    Err(_) => LostError::Silent,
                    Ok(Err(error)) => ExchangeError::Http(error).into(),
                    Ok(Ok(response)) if response.status() != StatusCode::OK => {
                        LostError::Status(response.status())
                    }
                    Ok(Ok(response)) => read_states(response.into_body(), told).await,
                }
            })
            .await
        }
    }
}

async fn read_states(body: hyper::body::Incoming, mut told: impl FnMut(ServeState)) -> LostError {
    let mut events = SseReader::with_limit(body.into_data_stream(), FRAME_MAX);
    loop {
        let event = match timeout(SILENCE, events.next()).await {
            Err(_) => return LostError::Silent,
            Ok(None) => return LostError::Ended,
            Ok(Some(Err(error))) => return error.into(),
            Ok(Some(Ok(event))) => event,
        };
        if event.event.as_deref() != Some("state") {
            continue;
        }
        match serde_json::from_str(&event.data) {
            Ok(state) => told(state),
            Err(error) => return error.into(),
        }
    }
}

/// Makes one story of what several supervisors tell, one after the other, with gaps.
#[derive(Debug)]
struct Follower {
    known: ServeState,
}

impl Default for Follower {
    fn default() -> Self {
        Self { known: ServeState::new("".into()) }
    }
}

impl Follower {
    /// A supervisor tells where opencode stands: each end of a run that it or one before told stays, once.
    fn heard(&mut self, told: ServeState) -> &ServeState {
        let mut known = std::mem::replace(&mut self.known, told);
        if known.instance != self.known.instance && !known.boot_id.is_empty() {
            let boot_id = known.boot_id.clone();
            if !known.exits.iter().any(|exit| exit.boot_id == boot_id) {
                known.record(supervisor_lost(known.boot, boot_id));
            }
        }
        let exits = std::mem::replace(&mut self.known.exits, known.exits);
        for exit in exits {
            if !self.known.exits.iter().any(|known| known.boot_id == exit.boot_id) {
                self.known.record(exit);
            }
        }
        &self.known
    }

    /// The supervisor cannot be reached, or says nothing.
    fn lost(&mut self, is_silent: bool) -> &ServeState {
        self.known.phase = if is_silent { ServePhase::Wedged } else { ServePhase::Starting };
        self.known.address = None;
        self.known.pid = None;
        &self.known
    }
}

fn supervisor_lost(boot: u64, boot_id: String) -> Exit {
    Exit {
        boot,
        boot_id,
        exit: None,
        signal: None,
        cause: ExitCause::SupervisorLost,
        detail: None,
        unsupported: None,
        at: Timestamp::now(),
        output_tail: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(instance: &str, boot: u64, exits: &[u64]) -> ServeState {
        let exit = |boot: &u64| Exit {
            cause: ExitCause::Killed,
            at: Timestamp::UNIX_EPOCH,
            ..supervisor_lost(*boot, format!("{instance}{boot}"))
        };
        ServeState {
            instance: instance.to_owned(),
            phase: ServePhase::Ready,
            boot,
            boot_id: if boot == 0 { String::new() } else { format!("{instance}{boot}") },
            exits: exits.iter().map(exit).collect(),
            ..ServeState::new("/work".into())
        }
    }

    fn ends(state: &ServeState) -> Vec<(&str, ExitCause)> {
        state.exits.iter().map(|exit| (exit.boot_id.as_str(), exit.cause)).collect()
    }

    #[test]
    fn each_end_is_told_once_over_gaps_and_supervisors() {
        use ExitCause::{Killed, SupervisorLost};
        let mut follower = Follower::default();
        assert_eq!(ends(follower.heard(told("a", 1, &[]))), []);
        follower.lost(false);
        assert_eq!(ends(follower.heard(told("a", 3, &[1, 2]))), [("a1", Killed), ("a2", Killed)]);
        follower.lost(false);
        let state = follower.heard(told("b", 1, &[]));
        assert_eq!(ends(state), [("a1", Killed), ("a2", Killed), ("a3", SupervisorLost)]);
        assert_eq!((state.instance.as_str(), state.phase), ("b", ServePhase::Ready));
        let state = follower.heard(told("b", 2, &[1]));
        assert_eq!(state.exits.len(), 4);
        let state = follower.heard(told("c", 0, &[]));
        assert_eq!(ends(state)[3..], [("b1", Killed), ("b2", SupervisorLost)]);
        assert_eq!(follower.heard(told("d", 1, &[])).exits.len(), 5, "c had no run");
    }

    #[test]
    fn a_run_whose_end_was_told_is_not_lost_with_its_supervisor() {
        let mut follower = Follower::default();
        follower.heard(told("a", 1, &[1]));
        assert_eq!(ends(follower.heard(told("b", 1, &[]))), [("a1", ExitCause::Killed)]);
    }

    #[test]
    fn what_nobody_tells_is_not_ready() {
        let mut follower = Follower::default();
        follower.heard(told("a", 1, &[]));
        assert_eq!(follower.lost(false).phase, ServePhase::Starting);
        assert_eq!(follower.lost(true).phase, ServePhase::Wedged);
        assert_eq!(follower.heard(told("a", 1, &[])).phase, ServePhase::Ready);
    }

    #[test]
    fn a_ring_that_is_full_repeats_nothing() {
        let mut follower = Follower::default();
        let boots: Vec<u64> = (1..=16).collect();
        follower.heard(told("a", 17, &boots));
        follower.heard(told("b", 1, &[]));
        let state = follower.heard(told("b", 2, &[1]));
        assert_eq!(state.exits.len(), crate::EXITS);
        assert_eq!(ends(state)[14..], [("a17", ExitCause::SupervisorLost), ("b1", ExitCause::Killed)]);
    }
}
