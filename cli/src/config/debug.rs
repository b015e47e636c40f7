//! `berth debug`, checked. Pure.

use std::{path::Path, time::Duration};

use berth_testkit::fixture::Surroundings;
use secrecy::SecretString;

use super::Environment;
use crate::{
    args::{CaptureArgs, PROVIDER_VARIABLES, ReplayArgs},
    debug::{
        capture::{CaptureConfig, LiveSource, Source},
        replay::ReplayConfig,
    },
    error::CliError,
};

/// Shorter values are no keys, and would be replaced wherever they are a piece of a word.
const SHORTEST_KEY: usize = 8;

pub(super) fn replay(args: ReplayArgs) -> ReplayConfig {
    ReplayConfig { files: args.files, manifest: args.manifest, plain: args.plain }
}

pub(super) fn capture(args: CaptureArgs, environment: &Environment) -> Result<CaptureConfig, CliError> {
    let source = match (args.from, args.url, args.password_file) {
        (Some(path), ..) => Source::Recorded(path),
        (None, Some(url), Some(password_file)) => Source::Live(LiveSource {
            url,
            password_file,
            directory: args.directory.map(|path| absolute(environment, &path)).transpose()?,
            limit: Duration::from_secs(args.seconds),
        }),
        _ => return Err(CliError::usage("--url", "needed, with --password-file, unless --from is given")),
    };
    let surroundings = Surroundings { secrets: keys(environment), home: home(environment) };
    Ok(CaptureConfig { source, output: args.output, surroundings })
}

fn absolute(environment: &Environment, path: &Path) -> Result<String, CliError> {
    let path = environment.absolute(path);
    path.into_os_string().into_string().map_err(|_| CliError::usage("--directory", "not UTF-8"))
}

fn home(environment: &Environment) -> Option<String> {
    environment.get("HOME").and_then(|home| home.to_str()).map(str::to_owned)
}

/// opencode's password and the providers' keys in the environment: whoever records runs opencode with them, more often
/// than not.
fn keys(environment: &Environment) -> Vec<SecretString> {
    let names = PROVIDER_VARIABLES.iter().filter(|name| name.contains("KEY") || name.contains("TOKEN"));
    let names = names.chain(&["OPENCODE_SERVER_PASSWORD"]);
    let values = names.filter_map(|name| environment.get(name)?.to_str());
    values.filter(|value| value.len() >= SHORTEST_KEY).map(SecretString::from).collect()
}
