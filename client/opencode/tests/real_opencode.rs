//! Client and translator together against a real opencode with a scripted model: what the server's turn runner does,
//! in small. The binary is `$BERTH_OPENCODE`, else the pinned one that `make opencode` fetches.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests: a failure is a failed test")]

use std::{path::PathBuf, process::Stdio, time::Duration};

use berth_opencode::{
    ClientConfig, ClientError, EnsuredHow, Event, EventStream, ModelReference, NewSession, OpencodeClient,
    PermissionReply, Prompt, PromptPart, SessionPatch, SessionTranslator, Translation, ids,
    model::{PartKind, Role},
};
use berth_testkit::{ScriptedModel, provider_config};
use berth_wire::{
    event::{EventPayload, Fold, Resolution, Voice},
    turn::{TurnErrorReason, TurnOutcome, TurnState, TurnStopReason},
};
use serde_json::json;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    task::JoinSet,
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

const PASSWORD: &str = "a password for this test";
/// Bound on anything, on a machine that does other things too.
const BOUND: Duration = Duration::from_secs(90);

/// The pinned opencode and its configuration directory.
#[expect(clippy::disallowed_methods, reason = "these tests have no configuration but the environment")]
fn installed() -> (PathBuf, PathBuf) {
    let var = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let cache = var("BERTH_CACHE").or_else(|| Some(var("HOME")?.join(".cache/berth"))).unwrap_or_default();
    let pinned = cache.join("opencode/1.18.33");
    let program =
        var("BERTH_OPENCODE").unwrap_or_else(|| pinned.join("node_modules/opencode-linux-x64/bin/opencode"));
    assert!(program.is_file(), "there is no opencode at {}: `make opencode` gets it", program.display());
    (program, pinned.join("config"))
}

/// An opencode, its model, and a session of it.
struct Rig {
    client: OpencodeClient,
    directory: String,
    session: String,
    translator: SessionTranslator,
    events: EventStream,
    opencode: Child,
    _lines: JoinSet<()>,
    _model: JoinSet<()>,
    _root: TempDir,
}

async fn start_model(tasks: &mut JoinSet<()>) -> serde_json::Value {
    let model = ScriptedModel::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let mut config = provider_config(model.address());
    config["permission"] = json!({ "bash": { "*": "allow", "touch *": "ask" } });
    tasks.spawn(async move { model.run(CancellationToken::new()).await.unwrap() });
    config
}

fn start_opencode(root: &TempDir, directory: &str, config: &serde_json::Value) -> Child {
    let (program, config_home) = installed();
    let mut command = Command::new(program);
    command.args(["serve", "--hostname", "127.0.0.1", "--port", "0"]).current_dir(directory);
    command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", root.path().join("home"));
    for name in ["DATA", "STATE", "CACHE"] {
        command.env(format!("XDG_{name}_HOME"), root.path().join(name));
    }
    command
        .env("XDG_CONFIG_HOME", if config_home.is_dir() { config_home } else { root.path().join("config") });
    for name in ["MODELS_FETCH", "AUTOUPDATE", "LSP_DOWNLOAD", "DEFAULT_PLUGINS"] {
        command.env(format!("OPENCODE_DISABLE_{name}"), "1");
    }
    command.env("OPENCODE_PURE", "1").env("OPENCODE_SERVER_PASSWORD", PASSWORD);
    command.env("OPENCODE_CONFIG_CONTENT", config.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    command.spawn().unwrap()
}

impl Rig {
    async fn start() -> Self {
        let mut model = JoinSet::new();
        let config = start_model(&mut model).await;
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().canonicalize().unwrap().join("work").to_str().unwrap().to_owned();
        std::fs::create_dir(&directory).unwrap();
        let mut opencode = start_opencode(&root, &directory, &config);
        let mut lines = BufReader::new(opencode.stdout.take().unwrap()).lines();
        let base_url = timeout(BOUND, async {
            loop {
                let line = lines.next_line().await.unwrap().expect("opencode says that it listens");
                if let Some((_, url)) = line.split_once("listening on ") {
                    return url.trim().to_owned();
                }
            }
        })
        .await
        .unwrap();
        let mut drained = JoinSet::new();
        drained.spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });

        let client = OpencodeClient::new(ClientConfig::new(base_url, PASSWORD.into())).unwrap();
        assert_eq!(client.health().await.unwrap().version.split('.').next(), Some("1"));
        let new = NewSession { title: None, berth_session_id: Uuid::now_v7(), permission: Vec::new() };
        let ensured = client.ensure_session(&directory, None, &new).await.unwrap();
        assert_eq!(ensured.how, EnsuredHow::Created);
        let session = ensured.session.id;
        let again = client.ensure_session(&directory, Some(&session), &new).await.unwrap();
        assert_eq!((&again.session.id, again.how), (&session, EnsuredHow::Known));
        let found = client.ensure_session(&directory, Some("ses_gone"), &new).await.unwrap();
        assert_eq!((&found.session.id, found.how), (&session, EnsuredHow::Found));

        let events = settled_events(&client, &directory, &session).await;
        let translator = SessionTranslator::new(&session);
        Self {
            client,
            directory,
            session,
            translator,
            events,
            opencode,
            _lines: drained,
            _model: model,
            _root: root,
        }
    }

    async fn stop(mut self) {
        self.opencode.kill().await.unwrap();
    }

    async fn send(&self, prompt: &Prompt) {
        self.client.send_prompt(&self.directory, &self.session, prompt).await.unwrap();
    }

    /// Begins a turn with this prompt.
    async fn begin(&mut self, text: &str) -> Prompt {
        let prompt = Prompt::new(ids::message_id(), vec![PromptPart::text(text)]);
        self.begin_with(&prompt).await;
        prompt
    }

    async fn begin_with(&mut self, prompt: &Prompt) {
        self.translator.begin_turn(&prompt.message_id);
        self.send(prompt).await;
    }

    /// Runs the turn to its end, or until something happens. Requests are answered.
    async fn until(
        &mut self,
        log: &mut Vec<Translation>,
        wanted: impl Fn(&Translation) -> bool,
        grant: bool,
    ) {
        while !log.iter().any(&wanted) {
            let out = match timeout(Duration::from_secs(1), self.events.next()).await {
                Ok(item) => self.translator.apply(&item.expect("an open stream").unwrap().event),
                Err(_) if self.translator.in_doubt() => self.reconcile().await,
                Err(_) => Vec::new(),
            };
            for item in &out {
                self.answer(item, grant).await;
            }
            log.extend(out);
            if self.translator.abort_due() {
                self.translator.abort_sent();
                self.client.abort(&self.directory, &self.session).await.unwrap();
                log.extend(self.translator.abort_returned());
            }
        }
    }

    async fn answer(&self, item: &Translation, grant: bool) {
        match item {
            Translation::Update(EventPayload::PermissionRequested(request)) => {
                let reply = if grant { PermissionReply::Once } else { PermissionReply::Reject };
                self.client
                    .reply_permission(&self.directory, &request.permission_id, reply, None)
                    .await
                    .unwrap();
            }
            Translation::Update(EventPayload::QuestionRequested(request)) => {
                let answers = vec![vec!["Blue".to_owned()]; request.questions.len()];
                self.client.reply_question(&self.directory, &request.question_id, &answers).await.unwrap();
            }
            _ => {}
        }
    }

    async fn finish(&mut self, mut log: Vec<Translation>, grant: bool) -> (TurnOutcome, Vec<Translation>) {
        let ended = |item: &Translation| matches!(item, Translation::Ended(_));
        timeout(BOUND, self.until(&mut log, ended, grant)).await.expect("the turn ends");
        let outcomes: Vec<_> = log.iter().filter(|item| ended(item)).collect();
        let [Translation::Ended(outcome)] = outcomes[..] else { panic!("one end in {log:?}") };
        (outcome.clone(), log)
    }

    async fn turn(&mut self, text: &str) -> (TurnOutcome, Vec<Translation>) {
        self.begin(text).await;
        self.finish(Vec::new(), true).await
    }

    async fn reconcile(&mut self) -> Vec<Translation> {
        let prompt = self.translator.prompt();
        let snapshot = self.client.snapshot(&self.directory, &self.session, prompt).await.unwrap();
        self.translator.reconcile(&snapshot)
    }

    /// What opencode has kept of the answers to this prompt.
    async fn kept(&self, prompt: &Prompt) -> String {
        let messages = self.client.list_messages(&self.directory, &self.session, 100).await.unwrap();
        let begin = messages.iter().position(|message| message.info.id == prompt.message_id).unwrap();
        let answers = messages[begin..].iter().filter(|message| message.info.role == Role::Assistant);
        let text = |part: &berth_opencode::model::Part| match &part.kind {
            PartKind::Text(text) => Some(text.text.clone()),
            _ => None,
        };
        answers.flat_map(|message| message.parts.iter().filter_map(text)).collect()
    }
}

/// A subscription that has been seen to deliver: opencode loses what it sends right after it has answered.
async fn settled_events(client: &OpencodeClient, directory: &str, session: &str) -> EventStream {
    let mut events = client.global_events(None).await.unwrap();
    let seen = async {
        for attempt in 0.. {
            let title = Some(format!("New session - {attempt}"));
            let patch = SessionPatch { title, permission: None };
            client.patch_session(directory, session, &patch).await.unwrap();
            while let Ok(item) = timeout(Duration::from_millis(200), events.next()).await {
                if matches!(item.unwrap().unwrap().event.event, Event::SessionUpdated(_)) {
                    return;
                }
            }
        }
    };
    timeout(BOUND, seen).await.unwrap();
    events
}

fn said(log: &[Translation], voice: Voice) -> String {
    let mut fold = Fold::default();
    for item in log {
        if let Translation::Update(payload) = item {
            fold.apply(payload).unwrap();
        }
    }
    fold.text(voice)
}

fn is_chunk(item: &Translation) -> bool {
    matches!(item, Translation::Update(payload) if payload.as_chunk().is_some())
}

#[tokio::test]
async fn turns_of_all_kinds() {
    let mut rig = Rig::start().await;

    // A cancel before the start is armed, and the directory is cold: an abort at once would be lost.
    rig.begin("scenario: slow").await;
    rig.translator.request_cancel();
    let (outcome, _) = rig.finish(Vec::new(), true).await;
    assert_eq!(outcome.state, TurnState::Cancelled);

    let prompt = rig.begin("scenario: thought").await;
    let (outcome, log) = rig.finish(Vec::new(), true).await;
    assert_eq!(outcome.stop_reason, Some(TurnStopReason::EndTurn));
    assert!(outcome.usage.unwrap().output_tokens > 0);
    assert_eq!(said(&log, Voice::Thought), "First I think, in three pieces.");
    assert_eq!(said(&log, Voice::Message), "Then I answer.");
    assert_eq!(rig.kept(&prompt).await, "Then I answer.");

    let (outcome, log) = rig.turn("scenario: edit").await;
    assert_eq!(outcome.stop_reason, Some(TurnStopReason::EndTurn));
    assert!(format!("{log:?}").contains("Diff"), "{log:?}");
    let edited = std::fs::read_to_string(format!("{}/edited-by-berth.txt", rig.directory)).unwrap();
    assert_eq!(edited, "one\nTWO\nthree\n");

    let (outcome, log) = rig.turn("scenario: subagent").await;
    assert_eq!(outcome.stop_reason, Some(TurnStopReason::EndTurn));
    assert!(said(&log, Voice::Message).ends_with("The subagent is done."), "{log:?}");

    let (outcome, log) = rig.turn("scenario: question").await;
    assert_eq!(outcome.stop_reason, Some(TurnStopReason::EndTurn));
    assert_eq!(said(&log, Voice::Message), "Thank you for the answer.");

    let (outcome, _) = rig.turn("scenario: error-400").await;
    assert_eq!(outcome.error.unwrap().reason, TurnErrorReason::ProviderError);

    rig.stop().await;
}

#[tokio::test]
async fn permissions_and_cancels() {
    let mut rig = Rig::start().await;
    let resolved = |log: &[Translation], wanted: Resolution| {
        log.iter().any(|item| {
            matches!(item, Translation::Update(EventPayload::PermissionResolved(settled)) if settled.resolution == wanted)
        })
    };
    let (outcome, log) = rig.turn("scenario: permission").await;
    assert_eq!(outcome.stop_reason, Some(TurnStopReason::EndTurn));
    assert!(resolved(&log, Resolution::Once), "{log:?}");

    rig.begin("scenario: permission").await;
    let (outcome, log) = rig.finish(Vec::new(), false).await;
    assert_eq!(outcome.error.unwrap().reason, TurnErrorReason::PermissionRejected);
    assert!(resolved(&log, Resolution::Rejected), "{log:?}");

    // Cancelled while it streams; what was streamed is what opencode keeps; the next prompt is clean.
    let prompt = rig.begin("scenario: slow").await;
    let mut log = Vec::new();
    timeout(BOUND, rig.until(&mut log, is_chunk, true)).await.unwrap();
    rig.translator.request_cancel();
    let (outcome, log) = rig.finish(log, true).await;
    assert_eq!(outcome.state, TurnState::Cancelled);
    assert_eq!(said(&log, Voice::Message), rig.kept(&prompt).await);
    let (outcome, log) = rig.turn("@stub say:clean").await;
    assert_eq!((outcome.state, said(&log, Voice::Message).as_str()), (TurnState::Succeeded, "clean"));

    // A model that never says that it has finished would be called for ever.
    let (outcome, _) = rig.turn("@stub text:n=2 | eof").await;
    assert_eq!(outcome.error.unwrap().reason, TurnErrorReason::ProviderStreamIncomplete);
    rig.stop().await;
}

#[tokio::test]
async fn gaps_doubles_and_refusals() {
    let mut rig = Rig::start().await;

    // The connection is lost in the middle of the text, and made again.
    let prompt = rig.begin("@stub text:n=30,d=30,w=a | tool:bash:{\"command\":\"echo b\",\"description\":\"b\"} >> text:n=30,d=30,w=c").await;
    let mut log = Vec::new();
    timeout(BOUND, rig.until(&mut log, is_chunk, true)).await.unwrap();
    rig.translator.mark_gap();
    rig.events = rig.client.global_events(None).await.unwrap();
    log.extend(rig.reconcile().await);
    // The same prompt once more while it runs makes no second turn.
    rig.send(&prompt).await;
    let (outcome, log) = rig.finish(log, true).await;
    assert_eq!(outcome.state, TurnState::Succeeded);
    let text = said(&log, Voice::Message);
    assert_eq!(text, rig.kept(&prompt).await);
    assert_eq!(text.split_whitespace().count(), 60);

    let part = || vec![PromptPart::text("hi")];
    let model =
        |id: &str| Some(ModelReference { provider_id: "scripted".to_owned(), model_id: id.to_owned() });
    let unknown_model = Prompt { model: model("nope"), ..Prompt::new(ids::message_id(), part()) };
    rig.begin_with(&unknown_model).await;
    let (outcome, _) = rig.finish(Vec::new(), true).await;
    assert_eq!(outcome.error.unwrap().reason, TurnErrorReason::ModelNotFound);

    let agent = Some("nope".to_owned());
    let unknown_agent = Prompt { agent, ..Prompt::new(ids::message_id(), part()) };
    rig.begin_with(&unknown_agent).await;
    let (outcome, _) = rig.finish(Vec::new(), true).await;
    assert_eq!(outcome.error.unwrap().reason, TurnErrorReason::AgentNotFound);

    // What opencode repeats of those errors ends no later turn. A model that was named stays the session's.
    let known = Prompt { model: model("m"), ..Prompt::new(ids::message_id(), part()) };
    rig.begin_with(&known).await;
    let (outcome, log) = rig.finish(Vec::new(), true).await;
    assert_eq!(outcome.state, TurnState::Succeeded, "{log:?}");

    rig.client.delete_session(&rig.directory, &rig.session).await.unwrap();
    let error = rig.client.get_session(&rig.directory, &rig.session).await.unwrap_err();
    assert!(matches!(error, ClientError::NotFound { .. }), "{error:?}");
    let error = rig.client.list_messages(&rig.directory, "ses_gone", 1).await.unwrap_err();
    assert!(matches!(error, ClientError::NotFound { .. }), "{error:?}");
    rig.stop().await;
}
