//! One session under a translator, driven as a turn runner drives it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use berth_opencode::{
    GlobalEvent, PermissionReply, Prompt, PromptPart, SessionTranslator, Translation, ids,
    model::{PartKind, Role},
};
use berth_testkit::validate::{Entry, Extent, check};
use berth_wire::{
    event::{EventPayload, Fold, PermissionRequested, ProviderRetry, Resolution, TurnStarted, Voice, acp},
    turn::TurnOutcome,
};
use serde_json::json;
use tokio::{
    sync::broadcast,
    time::{Instant, timeout},
};

use crate::server::Server;

/// Bound on one turn.
const BOUND: Duration = Duration::from_secs(100);

/// What is done about requests.
#[derive(Debug, Clone)]
pub(crate) enum Answers {
    Permission(PermissionReply, Option<&'static str>),
    Question(Vec<Vec<String>>),
    Dismiss,
    Leave,
}

/// A session and what was made of its events.
pub(crate) struct Rig {
    pub(crate) server: Arc<Server>,
    pub(crate) directory: String,
    pub(crate) session: String,
    pub(crate) translator: SessionTranslator,
    pub(crate) answers: Answers,
    /// Of the turn that runs, or ran last.
    pub(crate) log: Vec<Translation>,
    events: broadcast::Receiver<Arc<GlobalEvent>>,
    history: Vec<(Option<usize>, EventPayload)>,
    turns: usize,
    running: bool,
}

impl Rig {
    /// In the directory that all share.
    pub(crate) async fn new(server: Arc<Server>) -> Self {
        let directory = server.directory.clone();
        Self::in_directory(server, directory).await
    }

    pub(crate) async fn cold(server: Arc<Server>) -> Self {
        let directory = server.cold_directory();
        Self::in_directory(server, directory).await
    }

    pub(crate) async fn in_directory(server: Arc<Server>, directory: String) -> Self {
        let events = server.events();
        let session = server.new_session(&directory).await;
        let translator = SessionTranslator::new(&session);
        let answers = Answers::Permission(PermissionReply::Once, None);
        Self {
            server,
            directory,
            session,
            translator,
            answers,
            log: Vec::new(),
            events,
            history: Vec::new(),
            turns: 0,
            running: false,
        }
    }

    pub(crate) async fn send(&self, prompt: &Prompt) {
        self.server.client.send_prompt(&self.directory, &self.session, prompt).await.unwrap();
    }

    /// Begins a turn whose prompt plays this script.
    pub(crate) async fn begin(&mut self, script: &str) -> Prompt {
        let prompt = prompt(script);
        self.begin_with(&prompt).await;
        prompt
    }

    pub(crate) async fn begin_with(&mut self, prompt: &Prompt) {
        self.expect(prompt);
        self.send(prompt).await;
    }

    /// The prompt will be sent.
    pub(crate) fn expect(&mut self, prompt: &Prompt) {
        self.log.clear();
        self.turns += 1;
        self.running = true;
        let started = EventPayload::TurnStarted(TurnStarted { prompt: Vec::new() });
        self.history.push((Some(self.turns), started));
        self.translator.begin_turn(&prompt.message_id);
    }

    /// Takes what came out.
    pub(crate) fn record(&mut self, out: Vec<Translation>) {
        for item in &out {
            let turn = self.running.then_some(self.turns);
            match item {
                Translation::Update(payload) => self.history.push((turn, payload.clone())),
                Translation::Ended(outcome) => {
                    self.history.push((turn, EventPayload::TurnEnded(outcome.clone())));
                    self.running = false;
                }
                Translation::Started | Translation::Swallowed | Translation::Abort(_) => {}
            }
        }
        self.log.extend(out);
    }

    /// Takes the next event, or the state when an end is in doubt, and does what follows.
    async fn step(&mut self, wait: Duration) {
        let out = match timeout(wait, self.events.recv()).await {
            Ok(event) => self.translator.apply(&event.expect("the test reads fast enough")),
            Err(_) if self.translator.in_doubt() => return self.reconcile().await,
            Err(_) => Vec::new(),
        };
        for item in &out {
            self.answer(item).await;
        }
        self.record(out);
        self.abort_if_due().await;
    }

    pub(crate) async fn abort_if_due(&mut self) {
        if self.translator.abort_due() {
            self.translator.abort_sent();
            self.server.client.abort(&self.directory, &self.session).await.unwrap();
            let out = self.translator.abort_returned();
            self.record(out);
        }
    }

    /// Reads the state, as after a gap.
    pub(crate) async fn reconcile(&mut self) {
        let prompt = self.translator.prompt();
        let snapshot = self.server.client.snapshot(&self.directory, &self.session, prompt).await.unwrap();
        let out = self.translator.reconcile(&snapshot);
        for item in &out {
            self.answer(item).await;
        }
        self.record(out);
    }

    /// Everything that was sent and not read yet is lost.
    pub(crate) fn lose_events(&mut self) {
        self.translator.mark_gap();
        self.events = self.server.events();
    }

    async fn answer(&self, item: &Translation) {
        let (client, directory) = (&self.server.client, &self.directory);
        match (item, &self.answers) {
            (
                Translation::Update(EventPayload::PermissionRequested(request)),
                Answers::Permission(reply, words),
            ) => {
                client.reply_permission(directory, &request.permission_id, *reply, *words).await.unwrap();
            }
            (Translation::Update(EventPayload::QuestionRequested(request)), Answers::Question(answers)) => {
                client.reply_question(directory, &request.question_id, answers).await.unwrap();
            }
            (Translation::Update(EventPayload::QuestionRequested(request)), Answers::Dismiss) => {
                client.reject_question(directory, &request.question_id).await.unwrap();
            }
            _ => {}
        }
    }

    /// Goes on until the turn's log has such an item.
    pub(crate) async fn until(&mut self, what: &str, wanted: impl Fn(&Translation) -> bool) {
        let run = async {
            while !self.log.iter().any(&wanted) {
                self.step(Duration::from_secs(1)).await;
            }
        };
        let done = timeout(BOUND, run).await.is_ok();
        assert!(done, "no {what} within {BOUND:?} in {}", self.story());
    }

    /// Goes on for this time.
    pub(crate) async fn go_on_for(&mut self, time: Duration) {
        let deadline = Instant::now() + time;
        while let Some(left) = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
        {
            self.step(left.min(Duration::from_secs(1))).await;
        }
    }

    /// Goes on to the turn's end, and holds the whole log against the rules.
    pub(crate) async fn finish(&mut self) -> TurnOutcome {
        self.until("end", |item| matches!(item, Translation::Ended(_))).await;
        let outcomes: Vec<_> = self
            .log
            .iter()
            .filter_map(|item| match item {
                Translation::Ended(outcome) => Some(outcome.clone()),
                _ => None,
            })
            .collect();
        assert_eq!(outcomes.len(), 1, "one end in {}", self.story());
        self.check_rules();
        outcomes[0].clone()
    }

    pub(crate) fn check_rules(&self) {
        let entries: Vec<_> =
            self.history.iter().map(|(turn, payload)| Entry { turn: *turn, payload }).collect();
        let broken: Vec<String> = check(&entries, Extent::Whole).iter().map(ToString::to_string).collect();
        assert!(broken.is_empty(), "{broken:#?} in {}", self.story());
    }

    /// Begins a turn and brings it to its end; the outcome in words.
    pub(crate) async fn turn(&mut self, script: &str) -> String {
        self.begin(script).await;
        in_words(&self.finish().await)
    }

    /// Cancels the turn, and brings it to its end.
    pub(crate) async fn cancel(&mut self) -> String {
        self.translator.request_cancel();
        self.abort_if_due().await;
        in_words(&self.finish().await)
    }

    /// The next prompt is not touched by what was before.
    pub(crate) async fn check_usable(&mut self) {
        let outcome = self.turn("@stub say:clean").await;
        assert_eq!(
            (outcome.as_str(), self.said().as_str()),
            ("Succeeded EndTurn", "clean"),
            "{}",
            self.story()
        );
    }

    /// What the agent said in the turn.
    pub(crate) fn said(&self) -> String {
        self.voice(Voice::Message)
    }

    pub(crate) fn voice(&self, voice: Voice) -> String {
        let mut fold = Fold::default();
        self.updates().for_each(|payload| fold.apply(payload).unwrap());
        fold.text(voice)
    }

    pub(crate) fn updates(&self) -> impl Iterator<Item = &EventPayload> {
        self.log.iter().filter_map(|item| match item {
            Translation::Update(payload) => Some(payload),
            _ => None,
        })
    }

    pub(crate) fn acp(&self) -> impl Iterator<Item = &acp::SessionUpdate> {
        self.updates().filter_map(|payload| match payload {
            EventPayload::Update(update) => Some(&**update),
            _ => None,
        })
    }

    /// Tool calls of the turn, by id: name, last status, and everything that was told of each as JSON.
    pub(crate) fn calls(&self) -> BTreeMap<String, (String, acp::ToolCallStatus, String)> {
        let mut calls: BTreeMap<String, (String, acp::ToolCallStatus, String)> = BTreeMap::new();
        for update in self.acp() {
            let told = json!(update).to_string();
            match update {
                acp::SessionUpdate::ToolCall(call) => {
                    let name = call.name.clone().unwrap_or_default();
                    calls.insert(call.tool_call_id.to_string(), (name, call.status, told));
                }
                acp::SessionUpdate::ToolCallUpdate(call) => {
                    let known =
                        calls.get_mut(&call.tool_call_id.to_string()).expect("a call before its update");
                    known.1 = call.fields.status.unwrap_or(known.1);
                    known.2.push_str(&told);
                }
                _ => {}
            }
        }
        calls
    }

    /// Statuses of the calls of a tool.
    pub(crate) fn statuses(&self, tool: &str) -> Vec<acp::ToolCallStatus> {
        self.calls().into_values().filter(|(name, ..)| name == tool).map(|(_, status, _)| status).collect()
    }

    pub(crate) fn asked(&self) -> Vec<&PermissionRequested> {
        self.updates()
            .filter_map(|payload| match payload {
                EventPayload::PermissionRequested(request) => Some(request),
                _ => None,
            })
            .collect()
    }

    pub(crate) fn resolutions(&self) -> Vec<Resolution> {
        self.updates()
            .filter_map(|payload| match payload {
                EventPayload::PermissionResolved(resolved) => Some(resolved.resolution),
                EventPayload::QuestionResolved(resolved) => Some(resolved.resolution),
                _ => None,
            })
            .collect()
    }

    pub(crate) fn retries(&self) -> Vec<&ProviderRetry> {
        self.updates()
            .filter_map(|payload| match payload {
                EventPayload::ProviderRetry(retry) => Some(retry),
                _ => None,
            })
            .collect()
    }

    /// What opencode has kept of the answers to this prompt.
    pub(crate) async fn kept(&self, prompt: &Prompt) -> String {
        let client = &self.server.client;
        let messages =
            client.messages_back_to(&self.directory, &self.session, &prompt.message_id).await.unwrap();
        let begin = messages.iter().position(|message| message.info.id == prompt.message_id).unwrap();
        let answers = messages[begin..].iter().filter(|message| message.info.role == Role::Assistant);
        let text = |part: &berth_opencode::model::Part| match &part.kind {
            PartKind::Text(text) => Some(text.text.clone()),
            _ => None,
        };
        answers.flat_map(|message| message.parts.iter().filter_map(text)).collect()
    }

    /// Waits until opencode does nothing in this session.
    pub(crate) async fn wait_until_idle(&self) {
        let idle = async {
            while self
                .server
                .client
                .session_status(&self.directory)
                .await
                .unwrap()
                .contains_key(&self.session)
            {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(BOUND, idle).await.expect("opencode becomes idle");
    }

    /// The log, for a person.
    pub(crate) fn story(&self) -> String {
        let lines = self.log.iter().map(|item| match item {
            Translation::Update(payload) => {
                let (kind, value) = payload.to_parts();
                format!("{kind} {value}")
            }
            other => format!("{other:?}"),
        });
        let short: Vec<String> = lines.map(|line| line.chars().take(300).collect()).collect();
        format!("\n  {}", short.join("\n  "))
    }
}

pub(crate) fn prompt(script: &str) -> Prompt {
    Prompt::new(ids::message_id(), vec![PromptPart::text(script)])
}

pub(crate) fn is_chunk(item: &Translation) -> bool {
    matches!(item, Translation::Update(payload) if payload.as_chunk().is_some())
}

pub(crate) fn is_request(item: &Translation) -> bool {
    matches!(
        item,
        Translation::Update(EventPayload::PermissionRequested(_) | EventPayload::QuestionRequested(_))
    )
}

pub(crate) fn is_retry(item: &Translation) -> bool {
    matches!(item, Translation::Update(EventPayload::ProviderRetry(_)))
}

/// A call of a tool runs.
pub(crate) fn is_running_call(item: &Translation) -> bool {
    let Translation::Update(EventPayload::Update(update)) = item else { return false };
    let running = acp::ToolCallStatus::InProgress;
    match &**update {
        acp::SessionUpdate::ToolCall(call) => call.status == running,
        acp::SessionUpdate::ToolCallUpdate(call) => call.fields.status == Some(running),
        _ => false,
    }
}

/// State, reason and error of an outcome in a few words.
pub(crate) fn in_words(outcome: &TurnOutcome) -> String {
    let reason = outcome.stop_reason.map(|reason| format!("{reason:?}"));
    let error = outcome.error.as_ref().map(|error| format!("{:?}", error.reason));
    format!("{:?} {}", outcome.state, reason.or(error).unwrap_or_default())
}

/// A step that gives this script to a subagent. Steps of the script are separated by `~>>~`, operations by `~|~`; the
/// script may give work to a subagent of its own.
pub(crate) fn task(description: &str, script: &str) -> String {
    let arguments = json!({
        "description": description, "subagent_type": "general", "prompt": format!("@stub2 {script}"),
    });
    // The script is a string in JSON: escapes keep its marks from being taken for those of the outer one.
    let hidden = arguments.to_string().replace("@stub2", "\\u0040stub2").replace('~', "\\u007e");
    format!("tool:task:{hidden}")
}

pub(crate) fn bash(command: &str) -> String {
    format!("tool:bash:{}", json!({ "command": command, "description": "a test" }))
}
