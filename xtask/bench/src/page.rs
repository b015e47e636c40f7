//! The page with the figures, for `docs/`. IO only to learn what machine this is.

use std::{fmt::Write as _, fs, process::Command};

use anyhow::Context;

use crate::{Results, measure::Figures, pod};

/// Where and when the figures were taken.
pub(crate) struct Machine {
    processor: String,
    cores: usize,
    node: String,
    date: String,
}

impl Machine {
    /// This one, now.
    pub(crate) fn this() -> anyhow::Result<Self> {
        let information = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let name = information.lines().find(|line| line.starts_with("model name"));
        let processor =
            name.and_then(|line| line.split_once(": ")).map_or("unknown processor", |(_, name)| name);
        let node = Command::new("node").arg("--version").output().context("node")?;
        Ok(Self {
            processor: processor.to_owned(),
            cores: std::thread::available_parallelism()?.get(),
            node: String::from_utf8_lossy(&node.stdout).trim().to_owned(),
            date: jiff::Timestamp::now().strftime("%Y-%m-%d").to_string(),
        })
    }
}

const HEAD: &str = "# Benchmarks

Written by `cargo xtask bench --write`.
";

const LOOPS: &str = "
## Loops

Each benchmark times its baseline in turn with its subject, 31 times, and takes \
medians: the ratio (subject over baseline, below 1 is faster) is what can be compared between machines and commits. \
Allocations are those of the subject's thread in one pass.
";

const LOOPS_TAIL: &str = "
- **sse-reader**: the reader of event streams, from memory. The baseline only splits the same bytes into lines and owns them.
- **opencode-events**: the client subscribes over HTTP on loopback to a turn of 5,000 deltas, as opencode 1.18.33 sends \
  it, and gives each event out in its type. The baseline does the same with opencode's own SDK (`@opencode-ai/sdk`), \
  which gives events out as parsed JSON, under a node that stays warm. One server serves both; all that is measured \
  includes its writing and the connection.
- **opencode-translate**: the same, and each event goes through the translator, which makes the session's log and the \
  turn's end. The baseline is the same as before, and does not do that.
";

const POD: &str = "
## The pod

The two programs of a pod, static as `make pod` builds them and each in a process of its own, with opencode 1.18.33 and \
the scripted model, on one machine. *Baseline* is the same work with opencode itself, without the door; the two take turns, and \
what is compared is the median of the pairs. While opencode is measured itself, the door is closed: opencode has one \
subscriber either way.

";

const POD_TAIL: &str = "
- **turn-wall**: from the prompt to `session.idle`, of a turn of 5,000 deltas at full speed, as a subscriber of \
  `/global/event` sees it.
- **turn-cpu**: processor time of the sidecar over these turns, against opencode's own (the baseline).
- **first-delta-added**: from the prompt to its first delta, 200 times each way, with an upstream that answers at once: \
  what the door adds. **first-delta**: the same with opencode, in a warm session; its own time varies by more than the \
  door adds.
- **sidecar-memory-\\*, supervisor-memory**: resident; the sidecar's right after its start, after a turn of 5,000 deltas \
  which its journal holds, and after a minute of idleness.
- **idle-cpu**: of both programs together, over a minute, with one subscriber. The baseline is opencode's own.
- **requests-\\***: `GET /global/health` over 1 and 16 connections that are kept.
- **download, upload**: 1 GiB between a client and an upstream that do nothing else, on threads of their own; \
  **transfer-memory-peak** is the most that the sidecar held meanwhile, against what it held before.
- **journal-\\***: 90 s of a load, with one subscriber. *design*: 20 sessions stream 50 deltas a second each, and a \
  command prints 100 KB/s. *chatty*: 20 such commands. *held* is how far back a cursor reaches, *ring* what the \
  journal counts for its bound of 32 MiB.
";

const SERVER: &str = "
## The session server

`berth-controller serve` in a process of its own, with its SQLite file on disk: each event is committed before a client is \
given it. Where something runs, it stands before a whole pod as above.

";

const SERVER_TAIL: &str = "
- **server-first-delta-added**: from a prompt to its first delta, in turn over the server and from an opencode that answers \
  at once (the baseline): what server and door add together. **server-first-delta**: the same with opencode, in warm \
  sessions; the baseline is bare opencode by `prompt_async` and `/event`, with door and server closed.
- **server-first-delta-acp**: the baseline is an `opencode acp` that is spawned for the message, up to its first text.
- **server-replay, server-replay-bytes**: a log of 100,000 events to one client. The baseline is the same bytes from the \
  memory of a server that does nothing else. **server-replay-cpu** is the server's processor time.
- **server-fan-out-\\***: 200 clients on a session that streams 50 words a second. *delay* is from the first of them that has \
  an event to the last one, the median and the 99th of 100 events; *cpu* is the server's processor time for an event that is \
  given to a client, and *load* its share of a core, all its work for the turn included. The baseline is one client.
- **server-append-1, server-append-20**: events that the store takes in, in commits of one event for each of 1 and 20 \
  sessions, the cursor and the translators' states with them. The baseline is the same number of rows in a bare SQLite \
  table, in transactions of the same size, with the same settings.
- **server-memory**: resident, with 100 sessions that were read; **server-memory-client** is what each of 1,000 clients adds \
  that wait for events, and **server-cpu-idle-clients** what all of them cost.
- **server-load-cpu**: server and door together while 20 sessions stream 50 words a second each; the baseline is opencode's \
  own processor time meanwhile.
";

const CLUSTER: &str = "
## The cluster

On the test cluster (`docs/cluster.md`), with the image on the node, from the moment at which the object is sent. *Baseline* is \
a pod of the same image in which opencode runs alone, with a readiness probe as often; the two take turns, 20 times.

";

const CLUSTER_TAIL: &str = "
- **start-pod-made, start-pod-scheduled, start-door-runs, start-containers-run, start-pod-ready**: when a watch of the pod \
  shows that it is there, has a node, runs its sidecar, runs all its containers, and is ready.
- **start-answers**: `Ready` of the Sandbox: a prompt would be answered. The baseline is the bare pod's readiness.
";

/// The page.
pub(crate) fn render(results: &Results, machine: &Machine) -> String {
    let mut page = HEAD.to_owned();
    let Machine { processor, cores, node, date } = machine;
    // Writing to a string cannot fail.
    let _ = writeln!(page, "\nTaken on {date}: {processor}, {cores} cores, Linux, node {node}.");
    render_loops(&mut page, &results.loops);
    render_figures(&mut page, POD, &results.pod, POD_TAIL);
    render_figures(&mut page, SERVER, &results.server, SERVER_TAIL);
    render_figures(&mut page, CLUSTER, &results.cluster, CLUSTER_TAIL);
    page
}

fn render_figures(page: &mut String, head: &str, figures: &[pod::Figure], tail: &str) {
    page.push_str(head);
    page.push_str("| figure | unit | baseline | ours | compared | bound |\n|---|---|--:|--:|--:|---|\n");
    for figure in figures {
        let _ = writeln!(page, "| {} | {} |", figure.name, figure.cells().join(" | "));
    }
    page.push_str(tail);
}

fn render_loops(page: &mut String, figures: &[Figures]) {
    page.push_str(LOOPS);
    page.push('\n');
    page.push_str(
        "| benchmark | events | events/s | ns/event | allocations/event | baseline ns/event | ratio |\n",
    );
    page.push_str("|---|--:|--:|--:|--:|--:|--:|\n");
    for row in figures {
        let _ = writeln!(
            page,
            "| {} | {} | {:.0} | {:.0} | {:.1} | {:.0} | {:.2} |",
            row.name,
            row.items,
            row.items_per_second,
            row.nanoseconds_per_item,
            row.allocations_per_item,
            row.baseline_nanoseconds_per_item,
            row.ratio
        );
    }
    page.push_str(LOOPS_TAIL);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_a_row_for_each_figure() {
        let results = Results {
            loops: Vec::new(),
            pod: vec![pod::Figure::plain("memory", "MiB", 2.5).at_most(30.0)],
            server: vec![pod::Figure::plain("replay", "events/s", 1_000.0)],
            cluster: vec![pod::Figure::plain("start", "ms", 900.0)],
        };
        let machine = Machine {
            processor: "P".to_owned(),
            cores: 2,
            node: "v20".to_owned(),
            date: "2026-11-30".to_owned(),
        };
        let page = render(&results, &machine);
        assert!(page.contains("Taken on 2026-11-30: P, 2 cores, Linux, node v20."), "{page}");
        assert!(page.contains("| replay | events/s | - | 1000 | - | - |\n"), "{page}");
        assert!(page.contains("| start | ms | - | 900 | - | - |\n"), "{page}");
        assert!(page.contains("| memory | MiB | - | 2.50 | - | at most 30: kept |\n"), "{page}");
    }
}
