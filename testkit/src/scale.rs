//! How much is tried: `make test` is quick, `make soak` is thorough. The same tests do both. Reads the environment, and
//! appends to the soak run's report.

use std::io::Write;

use serde_json::json;

/// Size of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Few seeds, small sizes.
    Quick,
    /// Full counts.
    Soak,
}

impl Scale {
    /// The size of this run, from `BERTH_SOAK`.
    #[expect(clippy::disallowed_methods, reason = "this is where tests read their environment")]
    pub fn current() -> Self {
        if std::env::var_os("BERTH_SOAK").is_some_and(|value| value == "1") {
            Self::Soak
        } else {
            Self::Quick
        }
    }

    /// One of two values.
    pub fn pick<T>(self, quick: T, soak: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Soak => soak,
        }
    }

    /// In a soak run, adds a line to the report: which test ran once for each seed from 0, and how often what was seen.
    #[expect(clippy::disallowed_methods, reason = "this is where tests read their environment")]
    pub fn report(self, test: &str, seeds: u64, counts: &[(&str, u64)]) {
        let Some(path) = std::env::var_os("BERTH_SOAK_REPORT") else { return };
        let counts: serde_json::Map<_, _> =
            counts.iter().map(|&(name, count)| (name.to_owned(), json!(count))).collect();
        let seeds: Vec<u64> = (0..seeds).collect();
        let line = json!({ "test": test, "seeds": seeds, "counts": counts, "findings": [] });
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        let mut file = file.expect("the soak report can be opened");
        writeln!(file, "{line}").expect("the soak report can be written");
    }
}
