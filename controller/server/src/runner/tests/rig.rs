//! A store, a fake door and runners between them.

use std::{path::Path, sync::Arc, time::Duration};

use berth_wire::{
    api::{PermissionDecision, PromptPart, Turn},
    event::{EventPayload, SessionEvent},
    turn::TurnOutcome,
};
use secrecy::SecretString;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::door::FakeDoor;
use crate::{
    config::Limits,
    directory::{SandboxAddress, SandboxDirectory, StaticDirectory},
    metrics::Metrics,
    runner::{
        Runners,
        lease::{Lease, Taken},
        owner::Owner,
    },
    store::{
        Answer, Answered, Enqueued, NewSession, NewTurn, SandboxKey, Sharing, SqliteStore, Store, TurnOptions,
    },
};

/// Longest wait for anything.
pub(super) const BOUND: Duration = Duration::from_secs(20);

/// Waits for `future`, and fails the test with `what` at the bound.
pub(super) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    let ended = tokio::time::timeout(BOUND, future).await;
    ended.unwrap_or_else(|_| panic!("waited {BOUND:?} for {what}"))
}

pub(super) fn sandbox() -> SandboxKey {
    SandboxKey { namespace: "local".to_owned(), name: "default".to_owned() }
}

/// The trace that the prompt of a turn came in.
pub(super) fn traceparent(turn: Uuid) -> String {
    format!("00-{}-00f067aa0ba902b7-01", turn.simple())
}

/// Limits that suit a test: nothing waits longer than it must.
pub(super) fn limits() -> Limits {
    Limits { linger: Duration::from_secs(5), ..Limits::default() }
}

/// Everything that a runner needs, and the runner while it runs.
pub(super) struct Rig {
    pub(super) store: Arc<dyn Store>,
    pub(super) door: FakeDoor,
    pub(super) limits: Limits,
    pub(super) metrics: Metrics,
    pub(super) address: SandboxAddress,
    runners: Option<Runners>,
    #[expect(dead_code, reason = "it is there until the rig is dropped")]
    folder: Option<TempDir>,
}

impl Rig {
    /// A rig whose runner does not run yet.
    pub(super) async fn new(limits: Limits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let rig = Self::on(folder.path(), limits).await;
        Self { folder: Some(folder), ..rig }
    }

    /// A rig whose database lies in this folder, and whose runner does not run yet.
    pub(super) async fn on(folder: &Path, limits: Limits) -> Self {
        let store = SqliteStore::open(&folder.join("berth.db"), Sharing::Alone).await.unwrap();
        let door = FakeDoor::start().await;
        let address = SandboxAddress {
            namespace: "local".to_owned(),
            name: "default".to_owned(),
            directory: "/work".to_owned(),
            aliases: Vec::new(),
            door_url: door.url.clone(),
            door_password: SecretString::from("password"),
            pod_uid: None,
        };
        Self {
            store: Arc::new(store),
            door,
            limits,
            metrics: Metrics::default(),
            address,
            runners: None,
            folder: None,
        }
    }

    /// A rig whose runner runs.
    pub(super) async fn started(limits: Limits) -> Self {
        let mut rig = Self::new(limits).await;
        rig.start();
        rig
    }

    pub(super) fn start(&mut self) {
        self.start_with(
            &(Arc::new(StaticDirectory(vec![self.address.clone()])) as Arc<dyn SandboxDirectory>),
        );
    }

    /// Starts the runners of a directory.
    pub(super) fn start_with(&mut self, directory: &Arc<dyn SandboxDirectory>) {
        self.runners = Some(Runners::start(
            &self.store,
            directory,
            &self.limits,
            &self.metrics,
            Uuid::nil(),
            CancellationToken::new(),
        ));
    }

    /// Stops the runner as a server that is told to stop does.
    pub(super) async fn stop(&mut self) {
        if let Some(runners) = self.runners.take() {
            within("the runners' end", runners.stop()).await;
        }
    }

    /// The sandbox, taken over.
    pub(super) async fn lease(&self) -> Taken {
        Lease::take(&self.store, &sandbox(), Uuid::nil(), &self.limits).await.unwrap().unwrap()
    }

    /// An owner that does nothing by itself.
    pub(super) async fn owner(&self) -> Owner {
        let lease = self.lease().await;
        Owner::new(Arc::clone(&self.store), &self.address, self.limits.clone(), Metrics::default(), lease)
            .unwrap()
    }

    pub(super) async fn session(&self) -> Uuid {
        let new =
            NewSession { id: Uuid::now_v7(), sandbox: sandbox(), directory: "/work".to_owned(), title: None };
        self.store.create_session(new).await.unwrap().id
    }

    /// Queues a prompt, which came in a trace of its own: see [`traceparent`].
    pub(super) async fn post(&self, session_id: Uuid, text: &str) -> Uuid {
        let id = Uuid::now_v7();
        let new = NewTurn {
            id,
            session_id,
            prompt: vec![PromptPart::Text { text: text.to_owned() }],
            files: vec![],
            caller: "me".to_owned(),
            idempotency_key: None,
            body_hash: vec![],
            options: TurnOptions { traceparent: Some(traceparent(id)), ..TurnOptions::default() },
        };
        match self.store.enqueue_turn(new, 10).await.unwrap() {
            Enqueued::New(turn) => turn.id,
            other => panic!("{other:?}"),
        }
    }

    /// Sends a prompt and plays its beginning; the turn, and what runs it.
    pub(super) async fn begin(&self, session: Uuid, count: usize) -> (Uuid, Run) {
        let turn = self.post(session, "go").await;
        (turn, self.begun(count).await)
    }

    /// Plays the beginning of the prompt that is handed over as number `count`.
    pub(super) async fn begun(&self, count: usize) -> Run {
        let run = self.handed(count).await;
        run.begin();
        run
    }

    /// The prompt that is handed over as number `count`, of which nothing was seen yet.
    pub(super) async fn handed(&self, count: usize) -> Run {
        let posted = self.door.wait_for("POST /prompt_async", count).await;
        let root = posted.call.split('/').nth(2).unwrap().to_owned();
        Run { door: self.door.clone(), root, user: posted.body["messageID"].as_str().unwrap().to_owned() }
    }

    pub(super) async fn turn(&self, turn: Uuid) -> Turn {
        self.store.turn(turn).await.unwrap().unwrap()
    }

    pub(super) async fn log(&self, session: Uuid) -> Vec<SessionEvent> {
        self.store.events_after(session, 0, 10_000).await.unwrap()
    }

    /// Waits until the session's log has an event that `wanted` picks.
    pub(super) async fn wait_for<T>(
        &self,
        session: Uuid,
        what: &str,
        wanted: impl Fn(&SessionEvent) -> Option<T>,
    ) -> T {
        let mut changed = self.store.watch_session(session);
        within(what, async {
            loop {
                changed.borrow_and_update();
                if let Some(found) = self.log(session).await.iter().find_map(&wanted) {
                    return found;
                }
                changed.changed().await.unwrap();
            }
        })
        .await
    }

    /// Waits for the turn's end.
    pub(super) async fn end_of(&self, session: Uuid, turn: Uuid) -> TurnOutcome {
        self.wait_for(session, "the turn's end", |event| match &event.payload {
            EventPayload::TurnEnded(outcome) if event.turn_id == Some(turn) => Some(outcome.clone()),
            _ => None,
        })
        .await
    }

    /// Waits until the log has an event of this kind.
    pub(super) async fn wait_for_kind(&self, session: Uuid, kind: &str) {
        self.wait_for(session, kind, |event| (event.payload.to_parts().0 == kind).then_some(())).await;
    }

    pub(super) async fn decide(&self, session: Uuid, id: &str, decision: PermissionDecision) {
        let answer = Answer::Permission { decision, message: None };
        assert_eq!(self.store.answer_ask(session, id, answer).await.unwrap(), Answered::Accepted);
    }
}

/// What opencode does with one prompt.
pub(super) struct Run {
    door: FakeDoor,
    pub(super) root: String,
    pub(super) user: String,
}

impl Run {
    fn emit(&self, kind: &str, mut properties: Value) {
        properties["sessionID"] = json!(self.root);
        self.door.emit(&json!({ "type": kind, "properties": properties }));
    }

    fn step(&self) -> String {
        format!("{}z", self.user)
    }

    fn assistant(&self, more: &Value) {
        let mut info = json!({
            "id": self.step(), "sessionID": self.root, "role": "assistant", "parentID": self.user,
            "time": { "created": 2 },
        });
        for (name, value) in more.as_object().unwrap() {
            info[name.as_str()] = value.clone();
        }
        self.emit("message.updated", json!({ "info": info }));
    }

    /// The prompt was stored, and the model is called.
    pub(super) fn begin(&self) {
        let user =
            json!({ "id": self.user, "sessionID": self.root, "role": "user", "time": { "created": 1 } });
        self.emit("message.updated", json!({ "info": user }));
        self.emit("session.status", json!({ "status": { "type": "busy" } }));
        self.assistant(&json!({}));
    }

    /// The model has said all of this.
    pub(super) fn say(&self, text: &str) {
        let part = json!({
            "id": "prt_1", "sessionID": self.root, "messageID": self.step(), "type": "text", "text": text,
            "time": { "start": 2, "end": 3 },
        });
        self.emit("message.part.updated", json!({ "part": part }));
    }

    /// The model's answer is complete.
    pub(super) fn complete(&self) {
        let part = json!({
            "id": "prt_9", "sessionID": self.root, "messageID": self.step(), "type": "step-finish", "reason": "stop",
        });
        self.emit("message.part.updated", json!({ "part": part }));
        self.assistant(&json!({ "finish": "stop", "time": { "created": 2, "completed": 3 } }));
    }

    /// The answer was aborted.
    pub(super) fn aborted(&self) {
        let error = json!({ "name": "MessageAbortedError", "data": { "message": "Aborted" } });
        self.assistant(&json!({ "error": error, "time": { "created": 2, "completed": 3 } }));
        self.idle();
    }

    /// The provider failed.
    pub(super) fn failed(&self) {
        let error = json!({ "name": "APIError", "data": { "message": "no", "statusCode": 400 } });
        self.assistant(&json!({ "error": error, "time": { "created": 2, "completed": 3 } }));
        self.idle();
    }

    pub(super) fn idle(&self) {
        self.emit("session.status", json!({ "status": { "type": "idle" } }));
        self.emit("session.idle", json!({}));
    }

    pub(super) fn title(&self, title: &str) {
        let info = json!({ "id": self.root, "title": title, "directory": "/work" });
        self.emit("session.updated", json!({ "info": info }));
    }

    pub(super) fn ask(&self, id: &str) {
        let asked = json!({
            "id": id, "permission": "bash", "patterns": ["ls"], "metadata": {}, "always": ["ls *"],
            "tool": { "messageID": self.step(), "callID": "call_1" },
        });
        self.emit("permission.asked", asked);
    }

    pub(super) fn replied(&self, id: &str, reply: &str) {
        self.emit("permission.replied", json!({ "requestID": id, "reply": reply }));
    }
}
