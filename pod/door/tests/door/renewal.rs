//! Directories that an abort spoilt or may have spoilt, and what keeps them from being renewed.

use std::sync::atomic::Ordering;

use berth_door::Metrics;
use berth_serve::ServeState;
use berth_wire::problem::ProblemType;
use prometheus_client::registry::Registry;
use reqwest::Response;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{
    housekeeping::count,
    real_opencode::json_of,
    rig::{Events, RunningDoor, Upstream, problem, within},
};

/// The directory.
const DIRECTORY: &str = "/.spoilt";

struct Rig {
    upstream: Upstream,
    door: RunningDoor,
    events: Events,
    counters: Registry,
    _serve: watch::Sender<ServeState>,
}

impl Rig {
    async fn start() -> Self {
        let upstream = Upstream::start().await;
        let (serve, receiver) = watch::channel(ServeState::new("/work".into()));
        let mut counters = Registry::default();
        let metrics = Metrics::register(&mut counters);
        let door = RunningDoor::start(receiver, |config| config.metrics = metrics).await;
        serve.send_replace(upstream.ready(1));
        door.ready().await;
        let events = door.events("/global/event", None).await;
        Self { upstream, door, events, counters, _serve: serve }
    }

    async fn post(&self, call: &str, body: &Value) -> Response {
        let request = self.door.post(&format!("/session/s/{call}?directory={DIRECTORY}")).json(body);
        within("answer", request.send()).await.expect("an answer")
    }

    async fn prompt(&self, id: &str) -> Response {
        self.post("prompt_async", &json!({"messageID": id, "parts": []})).await
    }

    /// opencode says this of the session.
    fn say(&self, kind: &str, mut properties: Value) {
        properties["sessionID"] = "s".into();
        self.upstream.event(Some(DIRECTORY), kind, &properties);
    }

    /// It runs a prompt, and the answer ends as aborted.
    fn run_into_an_abort(&self, prompt: &str) {
        self.begin(prompt);
        let error = json!({"name": "MessageAbortedError", "data": {"message": "Aborted"}});
        let answer = json!({"id": format!("a{prompt}"), "role": "assistant", "parentID": prompt, "sessionID": "s",
            "time": {"created": 1, "completed": 2}, "error": error});
        self.say("message.updated", json!({ "info": answer }));
        self.say("session.idle", json!({}));
    }

    fn begin(&self, prompt: &str) {
        let info = json!({"id": prompt, "role": "user", "sessionID": "s"});
        self.say("message.updated", json!({ "info": info }));
        self.say("session.status", json!({"status": {"type": "busy"}}));
    }

    /// How the next turn ends.
    async fn outcome(&mut self) -> Value {
        loop {
            let (_, mut event) = self.events.next().await;
            if event["type"] == "berth.turn" && event["properties"]["phase"] == "ended" {
                return event["properties"]["outcome"].take();
            }
        }
    }

    /// A prompt whose run was interrupted: now the directory is known to be spoilt.
    async fn interrupted() -> Self {
        let mut rig = Self::start().await;
        assert!(rig.prompt("m1").await.status().is_success());
        rig.run_into_an_abort("m1");
        assert_eq!(rig.outcome().await, "interrupted");
        rig
    }

    fn disposals(&self) -> usize {
        self.upstream.shared.disposals.load(Ordering::SeqCst)
    }

    fn put_off(&self) -> u64 {
        count(&self.counters, "renewals_put_off")
    }
}

/// Every prompt for the directory would be swallowed for as long as the terminal lives, which may be for ever.
#[tokio::test]
async fn terminals_that_nobody_is_connected_to_do_not_keep_a_directory_spoilt() {
    let rig = Rig::interrupted().await;
    rig.upstream.shared.terminals.store(1, Ordering::SeqCst);
    assert!(rig.prompt("m2").await.status().is_success());
    assert_eq!((rig.disposals(), rig.put_off()), (1, 0));
    rig.door.stop().await;
}

/// Nor is a prompt passed on to be swallowed: its sender is told what to do.
#[tokio::test]
async fn a_terminal_that_somebody_is_connected_to_refuses_prompts_until_it_is_closed() {
    let rig = Rig::interrupted().await;
    rig.upstream.shared.terminals.store(1, Ordering::SeqCst);
    let request = rig.door.get(&format!("/upgrade?directory={DIRECTORY}"));
    let request = request.header("connection", "upgrade").header("upgrade", "websocket");
    let terminal = within("terminal", request.send()).await.expect("an answer");
    assert_eq!(terminal.status(), 101);
    let terminal = terminal.upgrade().await.expect("a connection");
    let refusal = problem(rig.prompt("m2").await).await;
    assert_eq!(refusal.problem_type(), Some(ProblemType::Busy), "{refusal}");
    assert!(refusal.detail.contains("terminal"), "{refusal}");
    assert_eq!((rig.disposals(), rig.put_off()), (0, 1));
    drop(terminal);
    let passes = async { while !rig.prompt("m3").await.status().is_success() {} };
    within("a prompt that passes", passes).await;
    assert_eq!(rig.disposals(), 1);
    rig.door.stop().await;
}

/// An early abort spoils a directory once in fifteen times: that is no reason to end somebody's programs.
#[tokio::test]
async fn a_suspicion_alone_ends_no_terminal() {
    let mut rig = Rig::start().await;
    assert!(rig.prompt("m1").await.status().is_success());
    rig.begin("m1");
    let begun = async { while json_of(rig.door.get("/berth/turns")).await["sessions"][0]["busy"] != true {} };
    within("a turn that has begun", begun).await;
    assert!(rig.post("abort", &json!({})).await.status().is_success());
    rig.run_into_an_abort("m1");
    assert_eq!(rig.outcome().await, "aborted");
    rig.upstream.shared.terminals.store(1, Ordering::SeqCst);
    assert!(rig.prompt("m2").await.status().is_success());
    assert_eq!((rig.disposals(), rig.put_off()), (0, 1), "it is told, and passes");
    rig.door.stop().await;
}
