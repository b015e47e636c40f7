//! `berth down` and `berth status`, checked. Pure.

use std::time::Duration;

use super::{Environment, Streams, server, shape, state_dir};
use crate::{
    args::{DownArgs, StatusArgs},
    down::DownConfig,
    error::CliError,
    status::StatusConfig,
};

pub(super) fn down(
    args: DownArgs,
    environment: &Environment,
    streams: Streams,
) -> Result<DownConfig, CliError> {
    Ok(DownConfig {
        state: state_dir(args.data, environment)?,
        limit: Duration::from_secs(args.timeout),
        shape: shape(environment, streams),
    })
}

pub(super) fn status(
    args: StatusArgs,
    environment: &Environment,
    streams: Streams,
) -> Result<StatusConfig, CliError> {
    let server = server(args.server, environment)?;
    Ok(StatusConfig { server, json: args.json, shape: shape(environment, streams) })
}
