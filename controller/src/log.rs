//! The log on standard error. IO.

use std::io;

use tracing_subscriber::{
    filter::{ParseError, Targets},
    fmt,
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

use crate::args::LogFormat;

/// Makes everything that is logged from here on go there.
pub(crate) fn start(format: LogFormat, level: &str) -> Result<(), ParseError> {
    let targets: Targets = level.parse()?;
    let layer = fmt::layer().with_writer(io::stderr).with_ansi(false);
    let registry = tracing_subscriber::registry().with(targets);
    match format {
        LogFormat::Json => registry.with(layer.json().flatten_event(true)).init(),
        LogFormat::Text => registry.with(layer).init(),
    }
    Ok(())
}
