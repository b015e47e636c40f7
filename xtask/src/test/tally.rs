//! Counts what cargo and the test programs say, line by line. Pure.

use std::fmt;

/// Counts over all test programs of one run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    passed: u64,
    failed: u64,
    skipped: u64,
    /// Test programs that cargo started.
    started: u64,
    /// Test programs that said their result.
    ended: u64,
    /// Names of failed tests, and what else went wrong.
    pub(crate) failures: Vec<String>,
}

impl Tally {
    /// Takes one line of either output; the two interleave as they like.
    pub(crate) fn add_line(&mut self, line: &str) {
        let trimmed = line.trim_start();
        if let Some(result) = line.strip_prefix("test result: ") {
            self.add_result(result);
        } else if let Some(test) =
            line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED"))
        {
            self.failures.push(test.to_owned());
        } else if line != trimmed && is_program_start(trimmed) {
            self.started += 1;
        }
    }

    /// `ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s`
    fn add_result(&mut self, result: &str) {
        self.ended += 1;
        let counts = result.split_once(". ").map_or("", |(_, counts)| counts);
        for count in counts.split("; ") {
            let Some((number, what)) = count.split_once(' ') else { continue };
            let Ok(number) = number.parse::<u64>() else { continue };
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.skipped += number,
                _ => {}
            }
        }
    }

    /// Adds what another one has counted.
    pub(crate) fn join(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.started += other.started;
        self.ended += other.ended;
        self.failures.extend(other.failures);
    }

    /// Counts a failure that no test program reported.
    pub(crate) fn fail(&mut self, what: String) {
        self.failed += 1;
        self.failures.push(what);
    }

    /// Accounts for programs that never said their result, for an exit status that no count explains, and for a
    /// run without any test.
    pub(crate) fn close(&mut self, exited_with_success: bool) {
        for _ in self.ended..self.started {
            self.fail("a test program ended without its result".to_owned());
        }
        if self.failed == 0 && !exited_with_success {
            self.fail("a test program failed, though no test did".to_owned());
        }
        if self.failed == 0 && self.passed == 0 {
            self.fail("no test ran".to_owned());
        }
    }

    /// Whether nothing failed.
    pub(crate) fn is_success(&self) -> bool {
        self.failed == 0
    }
}

/// Cargo's notice of a test program (`Running unittests src/lib.rs (target/…)`) or of a crate's doc tests.
fn is_program_start(line: &str) -> bool {
    (line.starts_with("Running ") && line.ends_with(')')) || line.starts_with("Doc-tests ")
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)?;
        if self.skipped > 0 {
            write!(f, ", {} skipped", self.skipped)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(output: &str, exited_with_success: bool) -> Tally {
        let mut tally = Tally::default();
        output.lines().for_each(|line| tally.add_line(line));
        tally.close(exited_with_success);
        tally
    }

    const ALL_WELL: &str = "\
Finished `test` profile
     Running unittests src/lib.rs (target/debug/deps/a-0123)
running 3 tests
test a::first ... ok
test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
   Doc-tests a
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 7 filtered out; finished in 0.10s
";

    #[test]
    fn results_of_all_programs_are_added_up() {
        let tally = tally(ALL_WELL, true);
        assert_eq!(tally.to_string(), "4 passed, 0 failed, 1 skipped");
        assert!(tally.is_success());
    }

    #[test]
    fn counts_of_two_runs_are_added_up() {
        let mut one = tally(ALL_WELL, true);
        let mut other = tally(ALL_WELL, true);
        other.fail("x".to_owned());
        one.join(other);
        assert_eq!((one.to_string().as_str(), one.failures.len()), ("8 passed, 1 failed, 2 skipped", 1));
    }

    #[test]
    fn a_failed_test_is_counted_and_named() {
        let output = "     Running tests/turn.rs (target/debug/deps/turn-0123)\n\
            test turn::cancel ... FAILED\n\
            test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s\n";
        let tally = tally(output, false);
        assert_eq!(tally.to_string(), "2 passed, 1 failed");
        assert_eq!(tally.failures, ["turn::cancel"]);
        assert!(!tally.is_success());
    }

    #[test]
    fn a_program_that_dies_is_a_failure() {
        let output =
            format!("{ALL_WELL}     Running tests/x.rs (target/debug/deps/x-0123)\nrunning 2 tests\n");
        let tally = tally(&output, false);
        assert_eq!(tally.to_string(), "4 passed, 1 failed, 1 skipped");
        assert_eq!(tally.failures, ["a test program ended without its result"]);
    }

    #[test]
    fn an_unexplained_exit_status_and_an_empty_run_are_failures() {
        assert_eq!(tally(ALL_WELL, false).failures, ["a test program failed, though no test did"]);
        assert_eq!(tally("", true).failures, ["no test ran"]);
        assert_eq!(tally("", false).to_string(), "0 passed, 1 failed");
    }
}
