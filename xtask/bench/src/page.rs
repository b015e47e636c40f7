//! The page with the figures, for `docs/`. Pure.

use std::fmt::Write as _;

use crate::{
    measure::Loop,
    pod::Figure,
    results::{Measured, Results, Section, Taken},
};

const HEAD: &str = "# Benchmarks

Written by `cargo xtask bench --write [FILTER]` from `benchmarks.json` beside it, where each benchmark's last run is kept. \
*Taken* says on which day and commit that was.
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
pub(crate) fn render(results: &Results) -> String {
    let mut page = HEAD.to_owned();
    let mut machines: Vec<&str> = results.0.iter().map(|run| run.taken.machine.as_str()).collect();
    machines.sort_unstable();
    machines.dedup();
    // Writing to a string cannot fail.
    let _ = writeln!(page, "\nMachine: {}.", machines.join("; or "));
    render_loops(&mut page, results);
    for (head, section, tail) in [
        (POD, Section::Pod, POD_TAIL),
        (SERVER, Section::Server, SERVER_TAIL),
        (CLUSTER, Section::Cluster, CLUSTER_TAIL),
    ] {
        render_figures(&mut page, head, results, section, tail);
    }
    page
}

fn render_figures(page: &mut String, head: &str, results: &Results, section: Section, tail: &str) {
    page.push_str(head);
    page.push_str(
        "| figure | unit | baseline | ours | compared | bound | taken |\n|---|---|--:|--:|--:|---|---|\n",
    );
    for run in results.of(section) {
        if let Measured::Figures(figures) = &run.measured {
            page.extend(figures.iter().map(|figure| row(figure, &run.taken)));
        }
    }
    page.push_str(tail);
}

fn row(figure: &Figure, taken: &Taken) -> String {
    format!("| {} | {} | {} |\n", figure.name, figure.cells().join(" | "), stamp(taken))
}

fn stamp(Taken { date, commit, .. }: &Taken) -> String {
    format!("{date} {commit}")
}

fn render_loops(page: &mut String, results: &Results) {
    page.push_str(LOOPS);
    page.push_str(
        "\n| benchmark | events | events/s | ns/event | allocations/event | baseline ns/event | ratio | taken |\n",
    );
    page.push_str("|---|--:|--:|--:|--:|--:|--:|---|\n");
    for run in results.of(Section::Loops) {
        if let Measured::Loop(row) = &run.measured {
            page.push_str(&loop_row(row, &run.taken));
        }
    }
    page.push_str(LOOPS_TAIL);
}

fn loop_row(row: &Loop, taken: &Taken) -> String {
    format!(
        "| {} | {} | {:.0} | {:.0} | {:.1} | {:.0} | {:.2} | {} |\n",
        row.name,
        row.items,
        row.items_per_second,
        row.nanoseconds_per_item,
        row.allocations_per_item,
        row.baseline_nanoseconds_per_item,
        row.ratio,
        stamp(taken)
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::results::tests::run;

    #[test]
    fn the_page_has_a_row_for_each_figure_and_says_when_it_was_taken() {
        let figure = |name: &str| vec![Figure::plain(name, "MiB", 2.5).at_most(30.0)];
        let page = render(&Results(vec![
            run("pod-memory", Section::Pod, "2026-11-30", figure("memory")),
            run("server-replay", Section::Server, "2026-12-01", figure("replay")),
            run("cluster-start", Section::Cluster, "2026-12-01", figure("start")),
        ]));
        assert!(page.contains("\nMachine: M.\n"), "{page}");
        for (name, date) in [("memory", "2026-11-30"), ("replay", "2026-12-01"), ("start", "2026-12-01")] {
            let row = format!("| {name} | MiB | - | 2.50 | - | at most 30: kept | {date} c0ffee |\n");
            assert!(page.contains(&row), "{page}");
        }
    }

    #[test]
    fn the_page_in_docs_is_that_of_the_results_beside_it() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let results = Results::read(&docs.join("benchmarks.json")).unwrap();
        assert_eq!(std::fs::read_to_string(docs.join("benchmarks.md")).unwrap(), render(&results));
    }
}
