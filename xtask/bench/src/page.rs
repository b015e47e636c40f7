//! The page with the figures, for `docs/`. IO only to learn what machine this is.

use std::{fmt::Write as _, fs, process::Command};

use anyhow::Context;

use crate::measure::Figures;

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

Written by `cargo xtask bench --write`. Each benchmark times its baseline in turn with its subject, 31 times, and takes \
medians: the ratio (subject over baseline, below 1 is faster) is what can be compared between machines and commits. \
Allocations are those of the subject's thread in one pass.
";

const TAIL: &str = "
- **sse-reader**: the reader of event streams, from memory. The baseline only splits the same bytes into lines and owns them.
- **opencode-events**: the client subscribes over HTTP on loopback to a turn of 5,000 deltas, as opencode 1.18.33 sends \
  it, and gives each event out in its type. The baseline does the same with opencode's own SDK (`@opencode-ai/sdk`), \
  which gives events out as parsed JSON, under a node that stays warm. One server serves both; all that is measured \
  includes its writing and the connection.
- **opencode-translate**: the same, and each event goes through the translator, which makes the session's log and the \
  turn's end. The baseline is the same as before, and does not do that.
";

/// The page.
pub(crate) fn render(figures: &[Figures], machine: &Machine) -> String {
    let mut page = HEAD.to_owned();
    let Machine { processor, cores, node, date } = machine;
    // Writing to a string cannot fail.
    let _ = writeln!(page, "\nTaken on {date}: {processor}, {cores} cores, Linux, node {node}.\n");
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
    page.push_str(TAIL);
    page
}
