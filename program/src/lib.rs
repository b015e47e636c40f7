//! What the programs of pod and control plane have in common: the log on standard error, and what is said of a wrong
//! command line. Nothing about what they do. Writes to the standard streams.

use std::{io, process::ExitCode};

use clap::ValueEnum;
use tracing_subscriber::{
    filter::{ParseError, Targets},
    fmt,
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

/// Format of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One JSON object per line
    Json,
    /// For people
    Text,
}

/// Makes everything that is logged from here on go to standard error. `level` is a level, or levels by module such as
/// `info,berth_door=debug`; with one that is neither, nothing is done.
///
/// # Panics
///
/// When the log was started before.
pub fn start_log(format: LogFormat, level: &str) -> Result<(), ParseError> {
    let targets: Targets = level.parse()?;
    let layer = fmt::layer().with_writer(io::stderr).with_ansi(false);
    let registry = tracing_subscriber::registry().with(targets);
    match format {
        LogFormat::Json => registry.with(layer.json().flatten_event(true)).init(),
        LogFormat::Text => registry.with(layer).init(),
    }
    Ok(())
}

/// Prints help or the version, or what is wrong with the command line; that ends the program with `wrong`.
pub fn not_parsed(error: &clap::Error, wrong: u8) -> ExitCode {
    // Nobody may read it: then the exit code still tells.
    let _ = error.print();
    if error.use_stderr() { wrong.into() } else { ExitCode::SUCCESS }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_that_is_none_is_refused() {
        assert!(start_log(LogFormat::Text, "info,berth=loud").is_err());
    }
}
