//! The server, if one is up or another one is meant. Does IO.

use std::time::Duration;

use berth_command::check::Check;
use berth_wire::api::{Sandbox, SandboxPhase};
use tokio::time::timeout;

use super::DoctorConfig;
use crate::{
    connect,
    error::{CliError, error_chain},
    state::{Holder, ServerNote},
};

/// How long it may take to answer.
const LIMIT: Duration = Duration::from_secs(10);
/// More starts than this, and opencode keeps ending.
const BOOTS_NOTE: u64 = 3;

/// The local one, if it is up.
pub(super) fn up(config: &DoctorConfig) -> Option<ServerNote> {
    match config.server.state.holder() {
        Ok(Holder::Known(note)) => Some(note),
        _ => None,
    }
}

/// Its sandboxes.
pub(super) async fn sandboxes(config: &DoctorConfig) -> Result<Vec<Sandbox>, String> {
    let client = connect::client(&config.server).map_err(|error| error_chain(&error))?;
    match timeout(LIMIT, client.list_sandboxes()).await {
        Ok(sandboxes) => sandboxes.map_err(|error| error_chain(&error)),
        Err(_) => Err(format!("{} does not answer within {} s", client.base_url(), LIMIT.as_secs())),
    }
}

pub(super) async fn checks(config: &DoctorConfig, up: Option<&ServerNote>) -> Vec<Check> {
    const NAME: &str = "server";
    match connect::client(&config.server) {
        Err(CliError::NoServer) => {
            let found = match up {
                Some(note) => format!("process {} is starting", note.pid),
                None => "nothing is up".to_owned(),
            };
            return vec![Check::note(NAME, found, "`berth up`, or --server and --token-file")];
        }
        Err(error) => {
            return vec![Check::bad(NAME, error_chain(&error), "see `berth status`, or `berth up` again")];
        }
        Ok(_) => {}
    }
    let fix = || match up.and_then(|note| note.log.as_ref()) {
        Some(log) => format!("look into {}; `berth down` and `berth up --detach` start anew", log.display()),
        None if config.server.url.is_some() => "is the address right, and does the server run?".to_owned(),
        None => "`berth down`, and `berth up` again".to_owned(),
    };
    match sandboxes(config).await {
        Err(why) => vec![Check::bad(NAME, why, fix())],
        Ok(sandboxes) => {
            let count = sandboxes.len();
            let url =
                config.server.url.clone().or_else(|| up.map(|note| note.url.clone())).unwrap_or_default();
            let noun = if count == 1 { "sandbox" } else { "sandboxes" };
            let first = Check::good(NAME, format!("{url} answers, with {count} {noun}"));
            std::iter::once(first).chain(sandboxes.iter().map(sandbox)).collect()
        }
    }
}

fn sandbox(sandbox: &Sandbox) -> Check {
    const NAME: &str = "sandbox";
    let name = format!("{}/{}", sandbox.namespace, sandbox.name);
    let version = sandbox.opencode_version.as_deref().unwrap_or("of an unknown version");
    let boot = sandbox.boot;
    match sandbox.phase {
        SandboxPhase::Ready if boot > BOOTS_NOTE => {
            let found = format!("{name} is ready, but opencode was started {boot} times");
            Check::note(NAME, found, "its log tells why it ended")
        }
        SandboxPhase::Ready => Check::good(NAME, format!("{name} is ready, opencode {version}")),
        SandboxPhase::Starting => Check::note(
            NAME,
            format!("{name} is starting, for the {boot}. time"),
            "wait a moment, then look at its log",
        ),
        SandboxPhase::Stopped => {
            Check::bad(NAME, format!("{name} was stopped"), "`berth down`, and `berth up` again")
        }
        SandboxPhase::Unreachable => {
            Check::bad(NAME, format!("{name} cannot be reached"), "`berth down`, and `berth up` again")
        }
    }
}
