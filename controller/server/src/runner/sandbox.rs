//! What the owner knows of the sandbox as a whole: whether its subscription stands, and which run of opencode the
//! sessions' state belongs to. Pure: what the link and the door tell comes in, what it means for the sessions goes out.

use berth_wire::{
    api::SandboxPhase,
    door::{DoorEvent, DoorState, ExitCause, TurnEnding, TurnEvent, TurnOrigin, TurnPhase},
};

/// What happens to a sandbox.
#[derive(Debug)]
pub(super) enum SandboxInput<'a> {
    /// Nothing was known before: the subscription starts at this state.
    Opened(&'a DoorState),
    /// The subscription stands.
    Connected,
    /// The subscription broke.
    Lost,
    /// An event of the door's own.
    Door(&'a DoorEvent),
    /// The door's state was read, as [`Sandbox::is_unsure`] asked.
    State(&'a DoorState),
}

/// What that means for the sessions.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    /// Events were missed: each state must be read again.
    Gap,
    /// The run of opencode is over, for this reason.
    BootEnded(String),
    /// Prompts may be sent: the subscription stands, or opencode has booted.
    Open {
        /// opencode has booted.
        booted: bool,
    },
    /// The subscription broke.
    Lost,
    /// At the door, the turn with this prompt ended so in this session of opencode.
    Ended {
        /// opencode's session.
        root: String,
        /// Message id of the prompt, as far as it is known.
        prompt: Option<String>,
        /// How.
        ending: TurnEnding,
    },
    /// Somebody else's turn goes on in this session of opencode.
    Foreign(String),
    /// So many tools were killed for memory.
    ToolsKilled(u64),
}

/// The sandbox.
#[derive(Debug)]
pub(super) struct Sandbox {
    boot_id: Option<String>,
    connected: bool,
    /// The door could not tell whether something was missed: ask it.
    unsure: bool,
}

impl Sandbox {
    /// As an owner takes it over: the sessions' state belongs to this run of opencode.
    pub(super) fn new(boot_id: Option<String>) -> Self {
        Self { boot_id, connected: false, unsure: false }
    }

    /// The run of opencode that the sessions' state belongs to; none between two.
    pub(super) fn boot_id(&self) -> Option<&str> {
        self.boot_id.as_deref()
    }

    pub(super) fn is_connected(&self) -> bool {
        self.connected
    }

    /// Prompts may be sent.
    pub(super) fn is_open(&self) -> bool {
        self.connected && self.boot_id.is_some()
    }

    /// The door's state must be read: it said so, or it may have told of opencode's start before this subscription
    /// began.
    pub(super) fn is_unsure(&self) -> bool {
        self.connected && (self.unsure || self.boot_id.is_none())
    }

    /// Takes what happened.
    pub(super) fn take(&mut self, input: &SandboxInput<'_>) -> Vec<News> {
        match input {
            SandboxInput::Opened(state) => self.compare(state),
            SandboxInput::State(state) => {
                self.unsure = false;
                self.compare(state)
            }
            SandboxInput::Connected => {
                self.connected = true;
                vec![News::Open { booted: false }]
            }
            SandboxInput::Lost => {
                self.connected = false;
                vec![News::Lost]
            }
            SandboxInput::Door(event) => self.take_event(event),
        }
    }

    fn take_event(&mut self, event: &DoorEvent) -> Vec<News> {
        match event {
            DoorEvent::Resync { .. } => {
                self.unsure = true;
                vec![News::Gap]
            }
            DoorEvent::ServeStarted { boot_id, .. } => {
                let mut news = Vec::new();
                if self.boot_id.as_ref().is_some_and(|known| known != boot_id) {
                    news.push(self.end("opencode was started anew, and nobody saw its end"));
                }
                self.boot_id = Some(boot_id.clone());
                news.push(News::Open { booted: true });
                news
            }
            DoorEvent::ServeExited { boot_id, exit, signal, cause, .. } => {
                // The end of another run than ours is told for those who saw that one.
                if self.boot_id.as_ref().is_some_and(|known| known != boot_id) {
                    return Vec::new();
                }
                vec![self.end(&describe_exit(*exit, *signal, *cause))]
            }
            DoorEvent::ToolOutOfMemory { count, .. } => vec![News::ToolsKilled(*count)],
            DoorEvent::Turn(turn) if is_foreign(turn) => vec![News::Foreign(turn.session_id.clone())],
            // The translators prove ends by opencode's own events; the door knows who asked for them.
            DoorEvent::Turn(TurnEvent { session_id, message_id, outcome: Some(ending), .. }) => {
                vec![News::Ended { root: session_id.clone(), prompt: message_id.clone(), ending: *ending }]
            }
            // Calls that the gate keeps out say so themselves.
            DoorEvent::Turn(_) | DoorEvent::Gate { .. } => Vec::new(),
        }
    }

    fn compare(&mut self, state: &DoorState) -> Vec<News> {
        let mut news = Vec::new();
        if self.boot_id.as_ref().is_some_and(|known| *known != state.boot_id) {
            news.push(self.end("opencode was started anew while nobody watched"));
        }
        if state.phase == SandboxPhase::Ready {
            self.boot_id = Some(state.boot_id.clone());
            news.push(News::Open { booted: true });
        }
        news
    }

    fn end(&mut self, detail: &str) -> News {
        self.boot_id = None;
        News::BootEnded(detail.to_owned())
    }
}

fn is_foreign(turn: &TurnEvent) -> bool {
    turn.origin == TurnOrigin::External && turn.phase != TurnPhase::Ended
}

fn describe_exit(exit: Option<i32>, signal: Option<i32>, cause: ExitCause) -> String {
    match (signal, exit) {
        (Some(signal), _) => format!("opencode was ended by signal {signal} ({cause:?})"),
        (None, Some(code)) => format!("opencode exited with code {code} ({cause:?})"),
        (None, None) => format!("opencode ended ({cause:?})"),
    }
}

#[cfg(test)]
mod tests {
    use berth_wire::{
        admission::{FenceState, GateState},
        door::ResyncReason,
    };

    use super::*;

    fn state(boot_id: &str, phase: SandboxPhase) -> DoorState {
        DoorState {
            phase,
            boot: 1,
            boot_id: boot_id.to_owned(),
            pid: None,
            version: None,
            epoch: "e".to_owned(),
            seq: 0,
            fence: FenceState::default(),
            gate: GateState::default(),
            last_exit: None,
        }
    }

    fn started(boot_id: &str) -> DoorEvent {
        DoorEvent::ServeStarted { boot: 1, boot_id: boot_id.to_owned(), version: "1.18.33".to_owned() }
    }

    fn exited(boot_id: &str) -> DoorEvent {
        let boot_id = boot_id.to_owned();
        DoorEvent::ServeExited { boot: 1, boot_id, exit: None, signal: Some(9), cause: ExitCause::Killed }
    }

    fn turn(phase: TurnPhase, origin: TurnOrigin) -> DoorEvent {
        let (session_id, message_id) = ("ses_1".to_owned(), None);
        DoorEvent::Turn(TurnEvent { session_id, directory: None, message_id, phase, origin, outcome: None })
    }

    fn ended(detail: &str) -> News {
        News::BootEnded(detail.to_owned())
    }

    /// With the run of opencode that is known before, what happens, what it means, and the run that is known then.
    #[test]
    fn what_the_link_and_the_door_tell() {
        use SandboxInput as I;
        let (ready, starting) = (SandboxPhase::Ready, SandboxPhase::Starting);
        let booted = || News::Open { booted: true };
        let killed = || ended("opencode was ended by signal 9 (Killed)");
        let unseen = || ended("opencode was started anew, and nobody saw its end");
        let unwatched = || ended("opencode was started anew while nobody watched");
        let resync = DoorEvent::Resync { reason: ResyncReason::UpstreamGap, oldest: None };
        let foreign = || vec![News::Foreign("ses_1".to_owned())];
        let (external, ours) = (TurnOrigin::External, TurnOrigin::Berth);
        let check = |known: Option<&str>, input: &I<'_>, news: Vec<News>, after: Option<&str>| {
            let mut sandbox = Sandbox::new(known.map(str::to_owned));
            assert_eq!(sandbox.take(input), news, "{known:?}, {input:?}");
            assert_eq!(sandbox.boot_id(), after, "{known:?}, {input:?}");
        };
        check(None, &I::Opened(&state("a", ready)), vec![booted()], Some("a"));
        check(None, &I::Opened(&state("a", starting)), vec![], None);
        check(Some("a"), &I::State(&state("a", ready)), vec![booted()], Some("a"));
        check(Some("a"), &I::State(&state("b", ready)), vec![unwatched(), booted()], Some("b"));
        check(Some("a"), &I::State(&state("b", starting)), vec![unwatched()], None);
        check(Some("a"), &I::Connected, vec![News::Open { booted: false }], Some("a"));
        check(Some("a"), &I::Lost, vec![News::Lost], Some("a"));
        check(None, &I::Door(&started("a")), vec![booted()], Some("a"));
        check(Some("a"), &I::Door(&started("a")), vec![booted()], Some("a"));
        check(Some("a"), &I::Door(&started("b")), vec![unseen(), booted()], Some("b"));
        check(Some("a"), &I::Door(&exited("a")), vec![killed()], None);
        check(Some("b"), &I::Door(&exited("a")), vec![], Some("b"));
        check(None, &I::Door(&exited("a")), vec![killed()], None);
        check(Some("a"), &I::Door(&resync), vec![News::Gap], Some("a"));
        check(Some("a"), &I::Door(&turn(TurnPhase::Admitted, external)), foreign(), Some("a"));
        check(Some("a"), &I::Door(&turn(TurnPhase::Started, external)), foreign(), Some("a"));
        check(Some("a"), &I::Door(&turn(TurnPhase::Ended, external)), vec![], Some("a"));
        check(Some("a"), &I::Door(&turn(TurnPhase::Started, ours)), vec![], Some("a"));
        let DoorEvent::Turn(ended) = turn(TurnPhase::Ended, ours) else { unreachable!("it is of a turn") };
        let (prompt, ending) = (Some("msg_1".to_owned()), TurnEnding::Interrupted);
        let ended = DoorEvent::Turn(TurnEvent { message_id: prompt.clone(), outcome: Some(ending), ..ended });
        let word = News::Ended { root: "ses_1".to_owned(), prompt, ending };
        check(Some("a"), &I::Door(&ended), vec![word], Some("a"));
    }

    #[test]
    fn prompts_may_be_sent_where_the_subscription_stands_and_a_run_is_known() {
        let mut sandbox = Sandbox::new(None);
        assert!(!sandbox.is_open() && !sandbox.is_unsure());
        sandbox.take(&SandboxInput::Connected);
        assert!(!sandbox.is_open() && sandbox.is_unsure(), "the door may have told of it before");
        sandbox.take(&SandboxInput::State(&state("a", SandboxPhase::Ready)));
        assert!(sandbox.is_open() && !sandbox.is_unsure());
        sandbox.take(&SandboxInput::Door(&DoorEvent::Resync {
            reason: ResyncReason::UpstreamGap,
            oldest: None,
        }));
        assert!(sandbox.is_unsure());
        sandbox.take(&SandboxInput::Lost);
        assert!(!sandbox.is_open() && !sandbox.is_unsure());
    }
}
