//! Benchmarks of the session server, as `berth-controller serve`: a process of its own with its SQLite file on disk, before
//! a whole pod with a real opencode where something runs.
//!
//! [`server`] is the program and a client of its API; each other module is one benchmark.

use std::path::PathBuf;

use crate::pod;

mod acp;
mod append;
mod fan_out;
mod idle;
mod latency;
mod load;
mod replay;
mod seed;
mod server;

/// The programs that run.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    /// Those of the pod.
    pub(crate) pod: pod::Programs,
    /// `berth-controller`.
    pub(crate) controller: PathBuf,
}

/// A benchmark of the server.
#[derive(Debug)]
pub(crate) struct ServerBenchmark {
    pub(crate) name: &'static str,
    run: fn(&Programs, Scale) -> anyhow::Result<Vec<pod::Figure>>,
}

impl ServerBenchmark {
    /// Runs it; takes up to some minutes.
    pub(crate) fn run(&self, programs: &Programs, scale: Scale) -> anyhow::Result<Vec<pod::Figure>> {
        (self.run)(programs, scale)
    }
}

/// Every one, in the order of the page.
pub(crate) const BENCHMARKS: &[ServerBenchmark] = &[
    ServerBenchmark { name: "server-first-delta", run: latency::run },
    ServerBenchmark { name: "server-replay", run: replay::run },
    ServerBenchmark { name: "server-fan-out", run: fan_out::run },
    ServerBenchmark { name: "server-append", run: append::run },
    ServerBenchmark { name: "server-idle", run: idle::run },
    ServerBenchmark { name: "server-load", run: load::run },
];

/// How much is done: all that a figure wants, or a fraction to see that a benchmark works.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    /// Counts are divided by this.
    pub(crate) divisor: u32,
}

impl Scale {
    /// A count at this scale; at least one.
    pub(crate) fn count(self, full: u32) -> u32 {
        (full / self.divisor.max(1)).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fraction_is_never_nothing() {
        assert_eq!(Scale { divisor: 1 }.count(200), 200);
        assert_eq!(Scale { divisor: 10 }.count(200), 20);
        assert_eq!(Scale { divisor: 10 }.count(4), 1);
        assert_eq!(Scale { divisor: 0 }.count(4), 4);
    }
}
