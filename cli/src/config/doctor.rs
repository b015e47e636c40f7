//! `berth doctor`, checked. Pure.

use super::{
    Environment, Streams, server, shape,
    up::{cache, opencode},
};
use crate::{args::DoctorArgs, doctor::DoctorConfig, error::CliError};

pub(super) fn doctor(
    args: DoctorArgs,
    environment: &Environment,
    streams: Streams,
) -> Result<DoctorConfig, CliError> {
    let data = environment.base_directory("XDG_DATA_HOME", ".local/share")?;
    Ok(DoctorConfig {
        opencode: opencode(args.opencode.as_deref(), environment, &cache(environment)?),
        server: server(args.server, environment)?,
        port: args.port,
        path: environment.get("PATH").map(|path| std::env::split_paths(path).collect()).unwrap_or_default(),
        opencode_config: environment.base_directory("XDG_CONFIG_HOME", ".config")?,
        auth: data.join("opencode/auth.json"),
        directory: environment.current_directory.clone(),
        environment: environment.variables().clone(),
        json: args.json,
        bundle: args.bundle.map(|path| environment.absolute(&path)),
        shape: shape(environment, streams),
    })
}
