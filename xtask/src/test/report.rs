//! The report of a soak run. Tests append one JSON object a line to the file that `BERTH_SOAK_REPORT` names; this
//! renders them as Markdown. Pure.

use std::{collections::BTreeMap, fmt::Write, time::Duration};

use anyhow::Context;
use serde::Deserialize;

use super::tally::Tally;

/// What one test says about its run.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Measurement {
    /// The test's name.
    test: String,
    /// Seeds it ran with.
    #[serde(default)]
    seeds: Vec<u64>,
    /// What it counted or measured, with the unit in the name (`events`, `elapsed_ms`).
    #[serde(default)]
    counts: BTreeMap<String, f64>,
    /// What a person should know: unexpected, though no failure.
    #[serde(default)]
    findings: Vec<String>,
}

/// A soak run.
#[derive(Debug)]
pub(super) struct Report {
    /// Short id of the commit that was checked out.
    pub(super) commit: String,
    /// Whether the tree had changes that are in no commit.
    pub(super) dirty: bool,
    pub(super) started: jiff::Timestamp,
    pub(super) elapsed: Duration,
    pub(super) measurements: Vec<Measurement>,
}

/// Parses what the tests appended.
pub(super) fn parse(lines: &str) -> anyhow::Result<Vec<Measurement>> {
    let parse = |(index, line)| {
        serde_json::from_str(line).with_context(|| format!("line {} of the measurements: {line}", index + 1))
    };
    lines.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).map(parse).collect()
}

impl Report {
    /// `<date>-<commit>.md`
    pub(super) fn file_name(&self) -> String {
        format!("{}-{}.md", self.started.strftime("%F"), self.commit)
    }

    /// The report as Markdown.
    pub(super) fn render(&self, tally: &Tally) -> String {
        let commit =
            if self.dirty { format!("{}, with local changes", self.commit) } else { self.commit.clone() };
        let mut text = format!(
            "# Soak run of {}\n\n- Commit: {commit}\n- Took: {} min {} s\n- Result: {tally}\n",
            self.started.strftime("%F %R UTC"),
            self.elapsed.as_secs() / 60,
            self.elapsed.as_secs() % 60,
        );
        section(&mut text, "Failures", tally.failures.iter().map(|failure| format!("- {failure}")));
        let findings = |m: &Measurement| {
            m.findings.iter().map(|finding| format!("- `{}`: {finding}", m.test)).collect::<Vec<_>>()
        };
        section(&mut text, "Findings", self.measurements.iter().flat_map(findings));
        section(&mut text, "Measurements", self.table());
        text
    }

    fn table(&self) -> Vec<String> {
        if self.measurements.is_empty() {
            return Vec::new();
        }
        let mut lines = vec!["| test | seeds | counts |".to_owned(), "|---|---|---|".to_owned()];
        lines.extend(self.measurements.iter().map(|m| {
            let counts: Vec<String> =
                m.counts.iter().map(|(name, value)| format!("{name} {value}")).collect();
            format!("| `{}` | {} | {} |", m.test, ranges(&m.seeds), counts.join(", "))
        }));
        lines
    }
}

/// Seeds in words: those that follow one another as `first-last`.
fn ranges(seeds: &[u64]) -> String {
    let follows = |pair: &u64, next: &u64| pair.checked_add(1) == Some(*next);
    let words = seeds.chunk_by(follows).filter_map(|run| match run {
        [] => None,
        [one] => Some(one.to_string()),
        [first, .., last] => Some(format!("{first}-{last}")),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Appends a section with its lines, or says that there are none.
fn section(text: &mut String, title: &str, lines: impl IntoIterator<Item = String>) {
    let lines: Vec<String> = lines.into_iter().collect();
    let body = if lines.is_empty() { "None.".to_owned() } else { lines.join("\n") };
    write!(text, "\n## {title}\n\n{body}\n").expect("writing to a string does not fail");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_result_failures_findings_and_measurements() {
        let lines = concat!(
            r#"{"test":"cut","seeds":[1,2,3,7,9,10],"counts":{"cuts":100,"elapsed_ms":12.5},"findings":["slow at seed 2"]}"#,
            "\n\n",
            r#"{"test":"plain"}"#,
            "\n"
        );
        let report = Report {
            commit: "0123456789ab".to_owned(),
            dirty: true,
            started: "2026-01-02T03:04:05Z".parse().unwrap(),
            elapsed: Duration::from_secs(125),
            measurements: parse(lines).unwrap(),
        };
        let mut tally = Tally::default();
        tally.fail("turn::cancel".to_owned());
        assert_eq!(report.file_name(), "2026-01-02-0123456789ab.md");
        assert_eq!(
            report.render(&tally),
            "# Soak run of 2026-01-02 03:04 UTC\n\n\
             - Commit: 0123456789ab, with local changes\n- Took: 2 min 5 s\n- Result: 0 passed, 1 failed\n\n\
             ## Failures\n\n- turn::cancel\n\n\
             ## Findings\n\n- `cut`: slow at seed 2\n\n\
             ## Measurements\n\n| test | seeds | counts |\n|---|---|---|\n\
             | `cut` | 1-3 7 9-10 | cuts 100, elapsed_ms 12.5 |\n| `plain` |  |  |\n"
        );
    }

    #[test]
    fn a_malformed_line_is_named() {
        let error = parse("{\"test\":\"a\"}\nnonsense\n").unwrap_err();
        assert_eq!(error.to_string(), "line 2 of the measurements: nonsense");
        assert!(parse("{\"test\":\"a\",\"unknown\":1}").is_err());
    }
}
