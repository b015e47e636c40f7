//! The kernel kills for memory in the agent's container at points of a turn: opencode, or a tool. One cause, named
//! rightly, and all that holds for other deaths. Wants root for a control group; `BERTH_TEST_WITHOUT_ROOT=1` leaves
//! these tests out. The sidecar is another container, so it is in another group.

use std::{ops::Range, process::Stdio};

use berth_testkit::{ControlGroup, Scale, WITHOUT_ROOT, is_without_root};
use tokio::{
    io::AsyncWriteExt,
    process::{Child, ChildStdin, Command},
};

use crate::{
    matrix::{Before, Matrix, batches},
    pod::Options,
    processes,
    wait::{until, within},
};

const MIB: u64 = 1024 * 1024;

/// What the container may use: twice of what opencode does at most here, so that a greedy tool is larger in the end.
const LIMIT: u64 = 2048 * MIB;

/// What is left free before the turn.
const FREE: u64 = 96 * MIB;

/// A control group; none where such tests are left out.
fn group() -> Option<ControlGroup> {
    if is_without_root() {
        eprintln!("left out, as {WITHOUT_ROOT} says");
        return None;
    }
    let group = ControlGroup::with_memory(LIMIT);
    Some(group.unwrap_or_else(|error| panic!("no control group: {error}. {WITHOUT_ROOT}=1 leaves this out")))
}

/// A pod whose supervisor, opencode and tools are in this group.
async fn start(group: &ControlGroup) -> Matrix {
    let supervisor_wrapper = group.wrapper().to_vec();
    Matrix::start(&Options { supervisor_wrapper, ..Options::default() }).await
}

/// Something else in the container, which holds all that it is given.
struct Eater {
    child: Child,
    pipe: ChildStdin,
}

impl Eater {
    fn start(group: &ControlGroup) -> Self {
        let [shell, arguments @ ..] = group.wrapper();
        let mut command = Command::new(shell);
        command.args(arguments).args(["tail", "-c", "8G"]).kill_on_drop(true);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let pipe = child.stdin.take().unwrap();
        Self { child, pipe }
    }

    /// Takes memory for as long as this holds, or until the kernel ends it.
    async fn eat_while(&mut self, mut hungry: impl FnMut() -> bool) {
        let zeros = vec![0; 1024 * 1024];
        within("the end of a meal", async { while hungry() && self.pipe.write_all(&zeros).await.is_ok() {} })
            .await;
    }

    /// Ends it, and gives back what it holds.
    async fn end(mut self) {
        within("the eater's end", self.child.kill()).await.unwrap();
    }
}

/// Uses the memory up at a point of a turn, when the kernel has been told to choose opencode.
async fn kill_opencode(matrix: &Matrix, group: &ControlGroup, seed: u64) -> Before {
    let opencode = matrix.opencode();
    std::fs::write(format!("/proc/{opencode}/oom_score_adj"), "1000").unwrap();
    let mut eater = Eater::start(group);
    eater.eat_while(|| group.used().unwrap() < LIMIT - FREE).await;
    let before = matrix.go_to_a_point(seed).await;
    eater.eat_while(|| processes::is_alive(opencode)).await;
    until("opencode's end", || !processes::is_alive(opencode)).await;
    eater.end().await;
    before
}

/// Processes beside opencode that were told to have been killed for memory.
fn tools_killed(matrix: &Matrix) -> u64 {
    let told = matrix.global.own("berth.tool.out_of_memory");
    told.iter().map(|event| event["properties"]["count"].as_u64().expect("a count")).sum()
}

#[tokio::test]
async fn opencode_uses_the_memory_up_at_points_of_a_turn() {
    let scale = Scale::current();
    let seeds = scale.pick(3, 100);
    for seeds in batches(seeds) {
        let Some(group) = group() else { return };
        opencode_uses_the_memory_up(&group, seeds).await;
        until("end of the control group", || group.remove().is_ok()).await;
    }
    scale.report("opencode_uses_the_memory_up_at_points_of_a_turn", seeds, &[("kills", seeds)]);
}

async fn opencode_uses_the_memory_up(group: &ControlGroup, seeds: Range<u64>) {
    let matrix = start(group).await;
    let count = seeds.end - seeds.start;
    for seed in seeds {
        let before = kill_opencode(&matrix, group, seed).await;
        matrix.expect_one_exit(&before, "OutOfMemory", "memory of its container was used up").await;
        matrix.expect_alive(&before, seed).await;
        let epoch = matrix.pod.state().await["epoch"].clone();
        assert_eq!(epoch, before.epoch.as_str(), "seed {seed}: the end of opencode loses no event");
    }
    // Before an opencode that was killed is gone the kernel may take others, a tool or the eater: each is told once.
    assert_eq!(tools_killed(&matrix), group.kills().unwrap() - count);
    assert_eq!(matrix.stop().await, 0);
}

/// A turn whose tool eats until the kernel ends it, after so much text.
fn greedy_turn(words: u64) -> String {
    let command = "setsid sleep 600 >/dev/null 2>&1 & tail /dev/zero; echo survived";
    let tool = serde_json::json!({ "command": command, "description": "Eat" });
    format!("@stub text:n={words},d=5 | tool:bash:{tool} >> text:n=40,d=10")
}

#[tokio::test]
async fn a_tool_uses_the_memory_up_and_opencode_goes_on() {
    let Some(group) = group() else { return };
    let scale = Scale::current();
    let seeds = scale.pick(2, 10);
    let matrix = start(&group).await;
    for seed in 0..seeds {
        let before = matrix.before().await;
        let told = matrix.global.own("berth.tool.out_of_memory").len();
        matrix.pod.prompt(&matrix.session, &greedy_turn(1 + seed * 7)).await;
        until("news of the tool", || matrix.global.own("berth.tool.out_of_memory").len() > told).await;
        matrix.expect_alive(&before, seed).await;
        let news = matrix.global.own("berth.tool.out_of_memory").split_off(told);
        let told: Vec<_> = news.iter().map(|event| &event["properties"]).collect();
        assert_eq!(told, [&serde_json::json!({ "boot_id": before.boot_id, "count": 1 })], "seed {seed}");
        let survived = matrix.global.events().iter().any(|event| event.to_string().contains("survived\\n"));
        assert!(survived, "the rest of its command ran");
        let now = matrix.before().await;
        assert_eq!((now.boot_id, now.epoch, now.exits), (before.boot_id, before.epoch, before.exits));
    }
    assert_eq!(matrix.stop().await, 0);
    until("end of the control group", || group.remove().is_ok()).await;
    scale.report("a_tool_uses_the_memory_up_and_opencode_goes_on", seeds, &[("kills", seeds)]);
}
