//! What this process uses, for Prometheus, by the names that every client library gives it. Read when it is asked for.
//! IO: `/proc/self`.

use std::fmt;

use jiff::Timestamp;
use nix::sys::resource::{UsageWho, getrusage};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
    registry::Unit,
};

/// Reads them.
#[derive(Debug)]
pub(crate) struct ProcessMetrics {
    started: Timestamp,
}

impl ProcessMetrics {
    /// For a process that started now.
    pub(crate) fn new() -> Self {
        Self { started: Timestamp::now() }
    }
}

impl Collector for ProcessMetrics {
    /// Leaves out what cannot be read.
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        if let Some(bytes) = resident_bytes() {
            encode(&mut encoder, "process_resident_memory", "Resident memory", Some(&Unit::Bytes), bytes)?;
        }
        if let Some(count) = open_files() {
            encode(&mut encoder, "process_open_fds", "Open file descriptors", None, count)?;
        }
        #[expect(
            clippy::cast_precision_loss,
            reason = "milliseconds since 1970 fit a double for 200,000 years"
        )]
        let started = self.started.as_millisecond() as f64 / 1_000.0;
        let gauge = ConstGauge::new(started);
        let help = "When it started, in seconds since 1970";
        gauge.encode(encoder.encode_descriptor(
            "process_start_time",
            help,
            Some(&Unit::Seconds),
            gauge.metric_type(),
        )?)?;
        let counter = ConstCounter::new(processor_seconds());
        let help = "Processor time used, by the program and for it in the kernel";
        counter.encode(encoder.encode_descriptor(
            "process_cpu",
            help,
            Some(&Unit::Seconds),
            counter.metric_type(),
        )?)
    }
}

fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    unit: Option<&Unit>,
    value: u64,
) -> Result<(), fmt::Error> {
    let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
    gauge.encode(encoder.encode_descriptor(name, help, unit, gauge.metric_type())?)
}

fn resident_bytes() -> Option<u64> {
    parse_resident(&std::fs::read_to_string("/proc/self/status").ok()?)
}

/// The line `VmRSS:  1234 kB`, in bytes.
fn parse_resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

fn open_files() -> Option<u64> {
    // The directory itself is open while it is read.
    Some((std::fs::read_dir("/proc/self/fd").ok()?.count() as u64).saturating_sub(1))
}

fn processor_seconds() -> f64 {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else { return 0.0 };
    [usage.user_time(), usage.system_time()]
        .iter()
        .map(|time| {
            #[expect(
                clippy::cast_precision_loss,
                reason = "microseconds below a million, seconds of one process"
            )]
            let seconds = time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
            seconds
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use prometheus_client::{encoding::text::encode, registry::Registry};

    use super::*;

    #[test]
    fn the_resident_memory_is_found_in_what_the_kernel_writes() {
        assert_eq!(parse_resident("Name:\tx\nVmRSS:\t    2048 kB\nThreads:\t1\n"), Some(2048 * 1024));
        for odd in ["", "VmRSS:", "VmRSS: x kB", "VmRSS: 1 MB", "VmRSS: 99999999999999999999 kB"] {
            assert_eq!(parse_resident(odd), None, "{odd:?}");
        }
    }

    #[test]
    fn this_process_is_told_by_the_usual_names() {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(ProcessMetrics::new()));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let value = |name: &str| -> f64 {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .unwrap_or_else(|| panic!("{name} in {text}"));
            line.trim().parse().unwrap()
        };
        assert!(value("process_resident_memory_bytes ") > 1e6);
        assert!(value("process_open_fds ") >= 3.0);
        assert!(value("process_start_time_seconds ") > 1.7e9);
        assert!(value("process_cpu_seconds_total ") >= 0.0);
    }
}
