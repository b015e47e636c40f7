//! What a finding is, and how findings are shown. Pure but for the writing.

use std::io;

use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    printer::{Printer, Tone},
    table::wrapped,
};

/// How a finding is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it should be.
    Good,
    /// Works, but somebody may want to know.
    Note,
    /// Something does not work like that.
    Bad,
}

/// A finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// How it is.
    pub verdict: Verdict,
    /// What was found, in one line.
    pub found: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Check {
    /// As it should be.
    pub fn good(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Good, found: found.into(), fix: None }
    }

    /// Worth knowing.
    pub fn note(name: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Note, found: found.into(), fix: Some(fix.into()) }
    }

    /// In the way.
    pub fn bad(name: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Bad, found: found.into(), fix: Some(fix.into()) }
    }
}

/// All findings as one object.
pub fn json(checks: &[Check]) -> Value {
    let bad = checks.iter().filter(|check| check.verdict == Verdict::Bad).count();
    json!({ "ok": bad == 0, "checks": checks })
}

/// All findings for a person, and what they come to.
pub fn show(checks: &[Check], printer: &mut Printer) -> io::Result<()> {
    let widest = checks.iter().map(|check| check.name.chars().count()).max().unwrap_or(0);
    for check in checks {
        let (mark, tone) = match check.verdict {
            Verdict::Good => ('✓', Tone::Good),
            Verdict::Note => ('!', Tone::Ask),
            Verdict::Bad => ('✗', Tone::Bad),
        };
        let begin = format!("{mark} {:<widest$}  ", check.name);
        for line in wrapped(&begin, &check.found, printer.width()) {
            printer.line(tone, &line)?;
        }
        for fix in check.fix.iter().filter(|fix| !fix.is_empty()) {
            for line in wrapped(&format!("  {:<widest$}  → ", ""), fix, printer.width()) {
                printer.line(Tone::Tool, &line)?;
            }
        }
    }
    let bad = checks.iter().filter(|check| check.verdict == Verdict::Bad).count();
    let notes = checks.iter().filter(|check| check.verdict == Verdict::Note).count();
    let sum = match (bad, notes) {
        (0, 0) => "everything is as it should be".to_owned(),
        (0, _) => "nothing is in the way".to_owned(),
        (1, _) => "1 thing is in the way".to_owned(),
        (bad, _) => format!("{bad} things are in the way"),
    };
    printer.line(if bad == 0 { Tone::Good } else { Tone::Bad }, &sum)
}
