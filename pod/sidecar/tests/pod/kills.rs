//! Whatever dies in a pod: one cause, named rightly; no second opencode; no orphan; no hole and no double for subscribers
//! who come back with their cursor; each turn ends once; and then all works again.

use berth_testkit::Scale;
use nix::sys::signal::Signal;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::Value;

use crate::{
    pod::{Options, Pod, send},
    processes,
    subscriber::Subscriber,
    wait::{some, until},
};

/// A turn with a thought, text, a tool that leaves a process in a session of its own, and text again.
const TURN: &str = r#"@stub think:n=10,d=5 | text:n=30,d=10 | tool:bash:{"command":"setsid sleep 600 >/dev/null 2>&1 & for i in 1 2 3 4 5; do echo $i; sleep 0.1; done","description":"Count"} >> text:n=60,d=10"#;

/// Events of that turn after which something is killed at the latest; a whole turn has more than a hundred.
const LATEST: usize = 90;

/// Who dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Opencode,
    WedgedOpencode,
    Supervisor,
    Sidecar,
}

/// What was there before.
struct Before {
    boot_id: String,
    epoch: String,
    exits: usize,
    started: usize,
    ended: usize,
}

struct Matrix {
    pod: Pod,
    global: Subscriber,
    directory: Subscriber,
    session: String,
}

impl Matrix {
    async fn start(options: &Options) -> Self {
        let pod = Pod::start(options).await;
        let (global, directory) = (pod.follow(), pod.follow_directory());
        let session = pod.session().await;
        // The first turn in a directory takes longer than all others.
        pod.expect_alive(&session, "warm").await;
        until("events of the warm turn", || directory.count() > 0 && global.count() > 0).await;
        Self { pod, global, directory, session }
    }

    async fn before(&self) -> Before {
        let state = self.pod.state().await;
        let text = |name: &str| state[name].as_str().expect("a text").to_owned();
        Before {
            boot_id: text("boot_id"),
            epoch: text("epoch"),
            exits: self.global.own("berth.serve.exited").len(),
            started: self.turns("started"),
            ended: self.turns("ended"),
        }
    }

    /// Turns of the session of which this phase was told.
    fn turns(&self, phase: &str) -> usize {
        let turns = self.global.own("berth.turn");
        let of_session = |turn: &&Value| turn["properties"]["session_id"] == self.session.as_str();
        turns.iter().filter(of_session).filter(|turn| turn["properties"]["phase"] == phase).count()
    }

    /// Prompts, and kills at a point of the turn that the seed decides.
    async fn kill(&mut self, victim: Victim, seed: u64) -> Before {
        let before = self.before().await;
        let point = self.global.count() + StdRng::seed_from_u64(seed).random_range(0..LATEST);
        self.pod.prompt(&self.session, TURN).await;
        until("that point of the turn", || self.global.count() >= point).await;
        match victim {
            Victim::Opencode => send(self.opencode(), Signal::SIGKILL),
            Victim::WedgedOpencode => send(self.opencode(), Signal::SIGSTOP),
            Victim::Supervisor => {
                self.pod.supervisor.kill().await;
                self.pod.supervisor.start();
            }
            Victim::Sidecar => {
                self.pod.sidecar.kill().await;
                self.pod.sidecar.start();
            }
        }
        before
    }

    fn opencode(&self) -> u32 {
        match self.pod.servers()[..] {
            [pid] => pid,
            ref other => panic!("one opencode and not {other:?}"),
        }
    }

    /// After the end of a run: what was told of it.
    async fn expect_one_exit(&self, before: &Before, cause: &str, words: &str) {
        let after = |state: &Value| state["phase"] == "ready" && state["boot_id"] != before.boot_id.as_str();
        let state = self.pod.state_when("the next run", after).await;
        assert!(state["last_exit"].as_str().is_some_and(|told| told.contains(words)), "{words}: {state}");
        until("news of the end", || self.global.own("berth.serve.exited").len() > before.exits).await;
        let exits = self.global.own("berth.serve.exited");
        let told: Vec<_> = exits[before.exits..]
            .iter()
            .map(|exit| (exit["properties"]["boot_id"].as_str(), exit["properties"]["cause"].as_str()))
            .collect();
        assert_eq!(told, [(Some(before.boot_id.as_str()), Some(cause))]);
        until("end of what that run started", || processes::of_boot(&before.boot_id).is_empty()).await;
    }

    /// The turn ends once, and the next prompt is answered.
    async fn expect_alive(&self, before: &Before, seed: u64) {
        self.pod.ready().await;
        until("the turn's end", || self.turns("ended") > before.ended).await;
        self.pod.expect_alive(&self.session, &format!("alive{seed}")).await;
        until("the end of the next turn", || self.turns("ended") >= before.ended + 2).await;
        assert_eq!(self.turns("ended"), before.ended + 2, "each turn ends once");
        // What is killed early enough has not begun.
        let begun = self.turns("started") - before.started;
        assert!((1..=2).contains(&begun), "each turn begins once at most: {begun}");
    }

    /// The same where the new door may have found the turn running, or over: then its end may be untold.
    async fn expect_alive_at_a_new_door(&self, before: &Before, seed: u64) {
        self.pod.ready().await;
        some("quiet", async || {
            let turns: Value = self.pod.get("/berth/turns").send().await.ok()?.json().await.ok()?;
            (turns["activity"] == "idle").then_some(())
        })
        .await;
        let ended = self.turns("ended");
        assert!(ended <= before.ended + 1, "it ends once");
        self.pod.expect_alive(&self.session, &format!("alive{seed}")).await;
        until("the end of the next turn", || self.turns("ended") > ended).await;
        assert_eq!(self.turns("ended"), ended + 1, "each turn ends once");
    }

    /// Checks what subscribers saw in all; gives the number of resyncs.
    async fn stop(self) -> u64 {
        let resyncs = self.global.check_dense();
        self.directory.check_against(&self.global, self.pod.work.to_str().expect("a plain path"));
        self.pod.stop().await;
        resyncs
    }
}

async fn points_of_a_turn(victim: Victim, test: &str, cause: &str, words: &str) {
    let scale = Scale::current();
    let seeds = scale.pick(5, 25);
    // Only a wedged opencode should be found to be one, on a busy machine too.
    let health_deadline_ms = if victim == Victim::WedgedOpencode { 3_000 } else { 10_000 };
    let mut matrix = Matrix::start(&Options { health_deadline_ms, ..Options::default() }).await;
    for seed in 0..seeds {
        let before = matrix.kill(victim, seed).await;
        matrix.expect_one_exit(&before, cause, words).await;
        matrix.expect_alive(&before, seed).await;
        let epoch = matrix.pod.state().await["epoch"].clone();
        assert_eq!(epoch, before.epoch.as_str(), "seed {seed}: the end of opencode loses no event");
    }
    assert_eq!(matrix.stop().await, 0);
    scale.report(test, seeds, &[("kills", seeds)]);
}

#[tokio::test]
async fn opencode_is_killed_at_points_of_a_turn() {
    let test = "opencode_is_killed_at_points_of_a_turn";
    points_of_a_turn(Victim::Opencode, test, "Killed", "was killed (signal 9)").await;
}

#[tokio::test]
async fn opencode_is_wedged_at_points_of_a_turn() {
    let test = "opencode_is_wedged_at_points_of_a_turn";
    points_of_a_turn(Victim::WedgedOpencode, test, "Wedged", "did not answer").await;
}

#[tokio::test]
async fn the_supervisor_is_killed_at_points_of_a_turn() {
    let test = "the_supervisor_is_killed_at_points_of_a_turn";
    points_of_a_turn(Victim::Supervisor, test, "SupervisorLost", "supervisor").await;
}

#[tokio::test]
async fn the_sidecar_is_killed_at_points_of_a_turn() {
    let scale = Scale::current();
    let seeds = scale.pick(5, 25);
    let mut matrix = Matrix::start(&Options::default()).await;
    for seed in 0..seeds {
        let before = matrix.kill(Victim::Sidecar, seed).await;
        let state = matrix.pod.state_when("the same run", |state| state["phase"] == "ready").await;
        assert_eq!(state["boot_id"], before.boot_id.as_str(), "seed {seed}: opencode went on");
        assert_ne!(state["epoch"], before.epoch.as_str(), "seed {seed}");
        matrix.expect_alive_at_a_new_door(&before, seed).await;
        assert_eq!(matrix.global.own("berth.serve.exited").len(), before.exits, "seed {seed}: nothing ended");
    }
    assert_eq!(matrix.stop().await, seeds, "one resync for each new door");
    scale.report("the_sidecar_is_killed_at_points_of_a_turn", seeds, &[("kills", seeds)]);
}

#[tokio::test]
async fn both_programs_are_killed_at_once() {
    let mut matrix = Matrix::start(&Options::default()).await;
    let before = matrix.before().await;
    matrix.pod.prompt(&matrix.session, TURN).await;
    let point = matrix.global.count() + 20;
    until("some events of the turn", || matrix.global.count() >= point).await;
    matrix.pod.supervisor.kill().await;
    matrix.pod.sidecar.kill().await;
    matrix.pod.supervisor.start();
    matrix.pod.sidecar.start();
    let next = |state: &Value| state["phase"] == "ready" && state["boot_id"] != before.boot_id.as_str();
    matrix.pod.state_when("the next run", next).await;
    until("end of what the old run started", || processes::of_boot(&before.boot_id).is_empty()).await;
    matrix.pod.ready().await;
    matrix.pod.expect_alive(&matrix.session, "alive").await;
    some("a resync", async || (!matrix.global.own("berth.resync").is_empty()).then_some(())).await;
    assert_eq!(matrix.stop().await, 1);
}
