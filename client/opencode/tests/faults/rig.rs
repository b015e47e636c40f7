//! A fake, a client of it, and a runner that plays a turn through client and translator as a server would.

use std::time::Duration;

use berth_opencode::{
    ClientConfig, ClientError, NewSession, OpencodeClient, PermissionReply, Prompt, PromptPart,
    SessionTranslator, Subscription, SubscriptionItem, Translation, TurnPhase, ids,
};
use berth_testkit::fake_serve::{FakeControl, FakeServe, FakeServeConfig, Fault};
use berth_wire::{
    event::{EventPayload, Fold, Voice},
    turn::TurnOutcome,
};
use tokio::{task::JoinSet, time::Instant};
use uuid::Uuid;

pub(crate) const DIRECTORY: &str = "/w";
/// Bound on one call, and on the time between two events, where the bound is what ends them.
pub(crate) const LIMIT: Duration = Duration::from_secs(1);
/// The same where something else ends them, so that a busy machine does not come before it.
const AMPLE: Duration = Duration::from_secs(30);
/// Time in which a turn of a fake ends, if it ends.
const TURN: Duration = Duration::from_secs(3);
/// How long nothing may come, or a doubt may last, before state is read.
const QUIET: Duration = Duration::from_millis(150);
const PASSWORD: &str = "correct horse battery";

/// A fake that runs until it is dropped, and its client.
pub(crate) struct Rig {
    pub(crate) fake: FakeControl,
    pub(crate) client: OpencodeClient,
    _running: JoinSet<()>,
}

impl Rig {
    pub(crate) async fn start() -> Self {
        Self::bounded(LIMIT).await
    }

    /// One whose bounds are short only where a bound `is_the_end`.
    pub(crate) async fn start_for(is_the_end: bool) -> Self {
        Self::bounded(if is_the_end { LIMIT } else { AMPLE }).await
    }

    async fn bounded(limit: Duration) -> Self {
        let heartbeat = Duration::from_millis(50);
        let config =
            FakeServeConfig { password: Some(PASSWORD.into()), heartbeat, ..FakeServeConfig::default() };
        let fake = FakeServe::bind("127.0.0.1:0".parse().unwrap(), config).await.unwrap();
        let mut config = ClientConfig::new(format!("http://{}", fake.address()), PASSWORD.into());
        (config.connect_timeout, config.request_timeout, config.idle_timeout) = (limit, limit, limit);
        let (control, client) = (fake.control(), OpencodeClient::new(config).unwrap());
        let mut running = JoinSet::new();
        running.spawn(async move { fake.run(tokio_util::sync::CancellationToken::new()).await.unwrap() });
        Self { fake: control, client, _running: running }
    }

    pub(crate) async fn session(&self) -> Session {
        let new = NewSession { title: None, berth_session_id: Uuid::now_v7(), permission: Vec::new() };
        let id = self.client.create_session(DIRECTORY, &new).await.unwrap().id;
        let translator = SessionTranslator::new(&id);
        Session { id, translator, events: self.client.subscribe(None), client: self.client.clone() }
    }

    /// The fault is over: the same client works, from its first call to a turn's end.
    pub(crate) async fn works_again(&self, fault: impl Into<Fault>) {
        let fault = fault.into();
        self.fake.mend();
        let health = self.client.health().await;
        assert!(health.is_ok(), "after {fault}: {health:?}");
        let seen = self.session().await.turn("@stub say:all is | say: well", Asks::default()).await;
        assert_eq!(
            (seen.ending(), seen.text.as_str()),
            ("Succeeded EndTurn".to_owned(), "all is well"),
            "after {fault}"
        );
    }
}

/// A session of opencode and its translation.
pub(crate) struct Session {
    pub(crate) id: String,
    pub(crate) translator: SessionTranslator,
    pub(crate) events: Subscription,
    client: OpencodeClient,
}

/// What the person does in a turn.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Asks {
    /// Cancels once there is some text.
    pub(crate) cancel: bool,
}

/// What came of a turn.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) outcomes: Vec<TurnOutcome>,
    pub(crate) fold: Fold,
    pub(crate) text: String,
    /// How the subscription was lost.
    pub(crate) lost: Vec<Option<ClientError>>,
    pub(crate) unreadable: usize,
    /// Times that state was read because of a doubt or of silence.
    pub(crate) snapshots: usize,
    /// The translator was in doubt when state was read.
    pub(crate) doubted: bool,
    pub(crate) requests: usize,
    pub(crate) phase: Option<TurnPhase>,
}

impl Seen {
    /// State, reason and error of the one end, or that there was none.
    pub(crate) fn ending(&self) -> String {
        match &self.outcomes[..] {
            [] => format!("none, {:?}", self.phase.unwrap()),
            [outcome] => {
                let reason = outcome.stop_reason.map(|reason| format!("{reason:?}"));
                let error = outcome.error.as_ref().map(|error| format!("{:?}", error.reason));
                format!("{:?} {}", outcome.state, reason.or(error).unwrap_or_default())
            }
            more => panic!("a turn ends once: {more:?}"),
        }
    }
}

impl Session {
    /// Plays one turn, until it ends or its time is over.
    pub(crate) async fn turn(&mut self, prompt: &str, asks: Asks) -> Seen {
        let mut seen = Seen::default();
        let deadline = Instant::now() + TURN;
        let mut sending: Option<String> = Some(prompt.to_owned());
        let mut quiet_since = Instant::now();
        while Instant::now() < deadline && seen.outcomes.is_empty() {
            let item = tokio::time::timeout(QUIET, self.events.next()).await;
            let out = match item {
                Err(_) => Vec::new(),
                Ok(SubscriptionItem::Connected { gap }) => {
                    if let Some(text) = sending.take() {
                        self.send(&text).await;
                    }
                    if gap { self.read_state(&mut seen).await } else { Vec::new() }
                }
                Ok(SubscriptionItem::Event(item)) => {
                    if self.translator.concerns(&item.event) {
                        quiet_since = Instant::now();
                    }
                    self.translator.apply(&item.event)
                }
                Ok(SubscriptionItem::Unreadable(_)) => {
                    seen.unreadable += 1;
                    Vec::new()
                }
                Ok(SubscriptionItem::Lost(error)) => {
                    seen.lost.push(error);
                    Vec::new()
                }
            };
            // A subscription that stands already from the turn before.
            if let Some(text) = sending.take_if(|_| self.events.counts().events > 0) {
                self.send(&text).await;
            }
            self.take(out, asks, &mut seen).await;
            if quiet_since.elapsed() > QUIET && sending.is_none() && seen.outcomes.is_empty() {
                quiet_since = Instant::now();
                let out = self.read_state(&mut seen).await;
                self.take(out, asks, &mut seen).await;
            }
        }
        seen.phase = Some(self.translator.phase());
        seen.text = seen.fold.text(Voice::Message);
        seen
    }

    async fn send(&mut self, text: &str) {
        let message = ids::message_id();
        self.translator.begin_turn(&message);
        let prompt = Prompt::new(message, vec![PromptPart::text(text)]);
        self.client.send_prompt(DIRECTORY, &self.id, &prompt).await.unwrap();
    }

    /// What a runner does after a gap, in doubt, or when nothing was heard for long. While opencode is away it waits.
    async fn read_state(&mut self, seen: &mut Seen) -> Vec<Translation> {
        seen.snapshots += 1;
        seen.doubted |= self.translator.in_doubt();
        let Ok(snapshot) = self.client.snapshot(DIRECTORY, &self.id, self.translator.prompt()).await else {
            return Vec::new();
        };
        self.translator.mark_gap();
        self.translator.reconcile(&snapshot)
    }

    async fn take(&mut self, out: Vec<Translation>, asks: Asks, seen: &mut Seen) {
        for item in out {
            match item {
                Translation::Update(EventPayload::PermissionRequested(request)) => {
                    seen.requests += 1;
                    let (id, reply) = (&request.permission_id, PermissionReply::Once);
                    self.client.reply_permission(DIRECTORY, id, reply, None).await.unwrap();
                }
                Translation::Update(payload) => seen.fold.apply(&payload).unwrap(),
                Translation::Ended(outcome) => seen.outcomes.push(outcome),
                Translation::Started | Translation::Swallowed | Translation::Abort(_) => {}
            }
        }
        if asks.cancel && !seen.fold.text(Voice::Message).is_empty() {
            self.translator.request_cancel();
        }
        if self.translator.abort_due() {
            self.translator.abort_sent();
            self.client.abort(DIRECTORY, &self.id).await.unwrap();
            let out = self.translator.abort_returned();
            Box::pin(self.take(out, asks, seen)).await;
        }
    }
}

/// An error in a word or two.
pub(crate) fn in_words(error: &ClientError) -> String {
    match error {
        ClientError::Status { status, .. } => format!("Status {status}"),
        ClientError::Stream(source) => {
            let words = format!("{source:?}");
            format!("Stream {}", words.split(['(', ' ', '{']).next().unwrap_or_default())
        }
        other => {
            let words = format!("{other:?}");
            words.split(['(', ' ', '{']).next().unwrap_or_default().to_owned()
        }
    }
}
