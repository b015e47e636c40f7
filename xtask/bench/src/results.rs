//! What benchmarks found, and the file in which it is kept from run to run. IO only in [`Results::read`],
//! [`Results::write`] and [`Taken::now`].

use std::{fs, io::ErrorKind, path::Path, process::Command};

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use crate::{measure::Loop, pod::Figure};

/// Where the page shows a benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Section {
    /// Code in this process.
    Loops,
    /// The pod's programs.
    Pod,
    /// The session server.
    Server,
    /// Berth in a cluster.
    Cluster,
}

/// When and where a benchmark ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Taken {
    /// Day, by UTC.
    pub(crate) date: String,
    /// The commit that was measured, with a `+` when files differed from it.
    pub(crate) commit: String,
    pub(crate) machine: String,
}

impl Taken {
    /// Here and now.
    pub(crate) fn now() -> anyhow::Result<Self> {
        let information = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let name = information.lines().find(|line| line.starts_with("model name"));
        let processor =
            name.and_then(|line| line.split_once(": ")).map_or("unknown processor", |(_, name)| name);
        let cores = std::thread::available_parallelism()?;
        let node = printed("node", &["--version"])?;
        let changed = printed("git", &["status", "--porcelain", "--untracked-files=no"])?;
        let mark = if changed.is_empty() { "" } else { "+" };
        Ok(Self {
            date: jiff::Timestamp::now().strftime("%Y-%m-%d").to_string(),
            commit: printed("git", &["rev-parse", "--short=12", "HEAD"])? + mark,
            machine: format!("{processor}, {cores} cores, Linux, node {node}"),
        })
    }
}

fn printed(program: &'static str, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(program).args(arguments).output().context(program)?;
    ensure!(output.status.success(), "{program} {} failed", arguments.join(" "));
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// What a benchmark measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Measured {
    /// Of a loop.
    Loop(Loop),
    /// Of programs.
    Figures(Vec<Figure>),
}

/// One benchmark's last run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) benchmark: String,
    pub(crate) section: Section,
    pub(crate) taken: Taken,
    pub(crate) measured: Measured,
}

/// The last run of each benchmark, in the order of the page.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Results(pub(crate) Vec<Run>);

impl Results {
    /// What is kept in this file; nothing when there is none.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let kept = match fs::read(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            read => read.with_context(|| path.display().to_string())?,
        };
        serde_json::from_slice(&kept).with_context(|| path.display().to_string())
    }

    /// Keeps them in this file.
    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        fs::write(path, text).with_context(|| path.display().to_string())
    }

    /// Takes in a run instead of the last of that benchmark. `names` are all benchmarks that there are, in their order;
    /// runs of others are dropped.
    pub(crate) fn put(&mut self, run: Run, names: &[&str]) {
        self.0.retain(|kept| kept.benchmark != run.benchmark);
        self.0.push(run);
        let position = |run: &Run| names.iter().position(|name| *name == run.benchmark);
        self.0.retain(|run| position(run).is_some());
        self.0.sort_by_key(position);
    }

    /// Those of a section.
    pub(crate) fn of(&self, section: Section) -> impl Iterator<Item = &Run> {
        self.0.iter().filter(move |run| run.section == section)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A run of that day.
    pub(crate) fn run(benchmark: &str, section: Section, date: &str, figures: Vec<Figure>) -> Run {
        let taken = Taken { date: date.to_owned(), commit: "c0ffee".to_owned(), machine: "M".to_owned() };
        Run { benchmark: benchmark.to_owned(), section, taken, measured: Measured::Figures(figures) }
    }

    #[test]
    fn a_run_takes_the_place_of_the_last_one_and_others_stay() {
        let names = ["a", "b", "c"];
        let of = |name: &str, date: &str| run(name, Section::Pod, date, Vec::new());
        let mut results = Results(vec![of("gone", "1"), of("c", "1"), of("a", "1")]);
        results.put(of("b", "2"), &names);
        results.put(of("a", "2"), &names);
        assert_eq!(results, Results(vec![of("a", "2"), of("b", "2"), of("c", "1")]));
    }

    #[test]
    fn what_is_written_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.json");
        assert_eq!(Results::read(&path).unwrap(), Results::default());
        let figures = vec![Figure::plain("memory", "MiB", 2.5).at_most(30.0)];
        let results = Results(vec![run("pod-a", Section::Pod, "2026-12-01", figures)]);
        results.write(&path).unwrap();
        assert_eq!(Results::read(&path).unwrap(), results);
        fs::write(&path, "{").unwrap();
        assert!(format!("{:#}", Results::read(&path).unwrap_err()).contains("results.json"));
    }
}
