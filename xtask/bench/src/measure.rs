//! Times a subject and its baseline in turn, takes medians, and counts what the subject allocates.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::ensure;
use serde::{Deserialize, Serialize};

/// Timed runs of each; odd, so that the median is one of them.
const RUNS: usize = 31;

/// What is at hand.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    /// Where opencode's SDK is installed.
    pub(crate) sdk: Option<PathBuf>,
}

/// A benchmark: one pass over the same input by the subject and by the baseline. Both return how many items they
/// saw, which must be [`Benchmark::items`]: a pass that loses some would look fast.
pub(crate) struct Benchmark {
    pub(crate) name: &'static str,
    /// What the baseline does.
    pub(crate) baseline_name: &'static str,
    /// Items in one pass.
    pub(crate) items: usize,
    /// Makes the two passes, with their input prepared.
    pub(crate) prepare: fn(&Setting) -> anyhow::Result<(Pass, Pass)>,
}

/// One timed pass.
pub(crate) type Pass = Box<dyn Fn() -> anyhow::Result<usize>>;

/// Results of one benchmark.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Loop {
    pub(crate) name: String,
    pub(crate) baseline: String,
    pub(crate) items: usize,
    /// Median.
    pub(crate) items_per_second: f64,
    /// Median.
    pub(crate) nanoseconds_per_item: f64,
    /// Median.
    pub(crate) baseline_nanoseconds_per_item: f64,
    /// Subject's median over the baseline's.
    pub(crate) ratio: f64,
    /// The subject's, on its own thread, in one pass.
    pub(crate) allocations_per_item: f64,
}

/// Runs a benchmark.
pub(crate) fn measure(benchmark: &Benchmark, setting: &Setting) -> anyhow::Result<Loop> {
    let (subject, baseline) = (benchmark.prepare)(setting)?;
    let mut times = (Vec::new(), Vec::new());
    for run in 0..=RUNS {
        let pair = (time(benchmark, &subject)?, time(benchmark, &baseline)?);
        // The first pass warms caches and allocator.
        if run > 0 {
            times.0.push(pair.0);
            times.1.push(pair.1);
        }
    }
    let mut last = Ok(Duration::ZERO);
    let allocated = allocation_counter::measure(|| last = time(benchmark, &subject));
    last?;
    Ok(figures(benchmark, median(times.0), median(times.1), allocated.count_total))
}

fn figures(benchmark: &Benchmark, subject: Duration, baseline: Duration, allocations: u64) -> Loop {
    let items = f64::from(u32::try_from(benchmark.items).unwrap_or(u32::MAX));
    let allocations = f64::from(u32::try_from(allocations).unwrap_or(u32::MAX));
    let nanoseconds = |time: Duration| time.as_secs_f64() * 1e9 / items;
    Loop {
        name: benchmark.name.to_owned(),
        baseline: benchmark.baseline_name.to_owned(),
        items: benchmark.items,
        items_per_second: items / subject.as_secs_f64(),
        nanoseconds_per_item: nanoseconds(subject),
        baseline_nanoseconds_per_item: nanoseconds(baseline),
        ratio: subject.as_secs_f64() / baseline.as_secs_f64(),
        allocations_per_item: allocations / items,
    }
}

fn time(benchmark: &Benchmark, pass: &Pass) -> anyhow::Result<Duration> {
    let start = Instant::now();
    let seen = pass()?;
    let elapsed = start.elapsed();
    ensure!(seen == benchmark.items, "{}: a pass saw {seen} items of {}", benchmark.name, benchmark.items);
    Ok(elapsed)
}

/// The middle one of an odd number of times.
fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_and_the_figures_are_right() {
        let times = [30, 10, 20].map(Duration::from_millis).to_vec();
        assert_eq!(median(times), Duration::from_millis(20));
        let benchmark = Benchmark {
            name: "x",
            baseline_name: "y",
            items: 1_000,
            prepare: |_| Ok((Box::new(|| Ok(1_000)), Box::new(|| Ok(1_000)))),
        };
        let figures = figures(&benchmark, Duration::from_millis(2), Duration::from_millis(1), 2_500);
        assert!((figures.items_per_second - 500_000.0).abs() < 1e-6, "{figures:?}");
        assert!((figures.nanoseconds_per_item - 2_000.0).abs() < 1e-6, "{figures:?}");
        assert!((figures.ratio - 2.0).abs() < 1e-9, "{figures:?}");
        assert!((figures.allocations_per_item - 2.5).abs() < 1e-9, "{figures:?}");
    }

    #[test]
    fn a_pass_that_loses_items_is_an_error() {
        let lossy = Benchmark {
            name: "x",
            baseline_name: "y",
            items: 10,
            prepare: |_| Ok((Box::new(|| Ok(9)), Box::new(|| Ok(10)))),
        };
        let setting = Setting { sdk: None };
        assert_eq!(measure(&lossy, &setting).unwrap_err().to_string(), "x: a pass saw 9 items of 10");
    }
}
