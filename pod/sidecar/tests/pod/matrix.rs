//! A pod with two subscribers in which something happens at points of a turn, and what must hold after each of them.

use std::ops::Range;

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::Value;

use crate::{
    pod::{Options, Pod},
    processes,
    subscriber::Subscriber,
    wait::{some, until},
};

/// A turn with a thought, text, a tool that leaves a process in a session of its own, and text again.
pub(crate) const TURN: &str = r#"@stub think:n=10,d=5 | text:n=30,d=10 | tool:bash:{"command":"setsid sleep 600 >/dev/null 2>&1 & for i in 1 2 3 4 5; do echo $i; sleep 0.1; done","description":"Count"} >> text:n=60,d=10"#;

/// Events of that turn after which something is killed at the latest; a whole turn has more than a hundred.
const LATEST: usize = 90;

/// Seeds from zero, those of each pod apart: a session becomes slower with each of its turns.
pub(crate) fn batches(seeds: u64) -> impl Iterator<Item = Range<u64>> {
    (0..seeds).step_by(25).map(move |first| first..seeds.min(first + 25))
}

/// What was there before.
pub(crate) struct Before {
    pub(crate) boot_id: String,
    pub(crate) epoch: String,
    pub(crate) exits: usize,
    pub(crate) started: usize,
    pub(crate) ended: usize,
}

pub(crate) struct Matrix {
    pub(crate) pod: Pod,
    pub(crate) global: Subscriber,
    pub(crate) directory: Subscriber,
    pub(crate) session: String,
}

impl Matrix {
    /// Starts it, with a session that has had a turn.
    pub(crate) async fn start(options: &Options) -> Self {
        let pod = Pod::start(options).await;
        let (global, directory) = (pod.follow(), pod.follow_directory());
        let session = pod.session().await;
        // The first turn in a directory takes longer than all others.
        pod.expect_alive(&session, "warm").await;
        until("events of the warm turn", || directory.count() > 0 && global.count() > 0).await;
        Self { pod, global, directory, session }
    }

    /// What there is now.
    pub(crate) async fn before(&self) -> Before {
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
    pub(crate) fn turns(&self, phase: &str) -> usize {
        let turns = self.global.own("berth.turn");
        let of_session = |turn: &&Value| turn["properties"]["session_id"] == self.session.as_str();
        turns.iter().filter(of_session).filter(|turn| turn["properties"]["phase"] == phase).count()
    }

    /// Prompts, and returns at a point of the turn that the seed decides.
    pub(crate) async fn go_to_a_point(&self, seed: u64) -> Before {
        let before = self.before().await;
        let point = self.global.count() + StdRng::seed_from_u64(seed).random_range(0..LATEST);
        self.pod.prompt(&self.session, TURN).await;
        until("that point of the turn", || self.global.count() >= point).await;
        before
    }

    /// Process id of opencode.
    pub(crate) fn opencode(&self) -> u32 {
        match self.pod.servers()[..] {
            [pid] => pid,
            ref other => panic!("one opencode and not {other:?}"),
        }
    }

    /// After the end of a run: what was told of it.
    pub(crate) async fn expect_one_exit(&self, before: &Before, cause: &str, words: &str) {
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
    pub(crate) async fn expect_alive(&self, before: &Before, seed: u64) {
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
    pub(crate) async fn expect_alive_at_a_new_door(&self, before: &Before, seed: u64) {
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
    pub(crate) async fn stop(self) -> u64 {
        let resyncs = self.global.check_dense();
        self.directory.check_against(&self.global, self.pod.work.to_str().expect("a plain path"));
        self.pod.stop().await;
        resyncs
    }
}
