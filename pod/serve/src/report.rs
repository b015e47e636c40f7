//! Writes what became of opencode into the state that others follow, and into the log. IO: the log.

use std::{os::unix::process::ExitStatusExt, process::ExitStatus};

use berth_wire::door::ExitCause;
use jiff::Timestamp;
use tokio::sync::watch;
use uuid::Uuid;

use crate::{Exit, ServeState, life::NotReady, process::Ready};

/// What is known of the end of a run.
#[derive(Debug, Default)]
pub(crate) struct End {
    /// How the process ended, if there was one.
    pub(crate) status: Option<ExitStatus>,
    /// Its last lines.
    pub(crate) output_tail: String,
    /// Why there was no process.
    pub(crate) detail: Option<String>,
}

/// A start begins; gives the new name of the run.
pub(crate) fn boot(state: &watch::Sender<ServeState>) -> String {
    let boot_id = Uuid::new_v4().simple().to_string();
    state.send_modify(|state| {
        state.boot += 1;
        state.boot_id.clone_from(&boot_id);
    });
    boot_id
}

/// opencode answers.
pub(crate) fn ready(state: &watch::Sender<ServeState>, ready: Ready) {
    // The phase follows at once; who waits for it must find the address.
    state.send_if_modified(|state| {
        state.address = Some(ready.address);
        state.version = Some(ready.version);
        tracing::info!(boot = state.boot, pid = state.pid, version = state.version, "opencode answers");
        false
    });
}

/// The kernel killed so many processes beside opencode.
pub(crate) fn tools_killed(state: &watch::Sender<ServeState>, count: u64) {
    if count > 0 {
        tracing::warn!(count, "processes beside opencode were killed for memory");
        state.send_modify(|state| state.tool_oom_kills += count);
    }
}

/// A run ended.
pub(crate) fn exit(state: &watch::Sender<ServeState>, cause: ExitCause, failure: Option<NotReady>, end: End) {
    let phase_follows = |state: &mut ServeState| {
        let exit = Exit {
            boot: state.boot,
            boot_id: state.boot_id.clone(),
            exit: end.status.and_then(|status| status.code()),
            signal: end.status.and_then(|status| status.signal()),
            cause,
            detail: failure.as_ref().map(ToString::to_string).or(end.detail),
            unsupported: match failure {
                Some(NotReady::Unsupported(seen)) => Some(seen),
                Some(NotReady::Timeout(_)) | None => None,
            },
            at: Timestamp::now(),
            output_tail: end.output_tail,
        };
        log(&exit);
        state.pid = None;
        state.address = None;
        state.record(exit);
    };
    state.send_modify(phase_follows);
}

fn log(exit: &Exit) {
    if matches!(exit.cause, ExitCause::Stopped | ExitCause::Recycled | ExitCause::Reconfigured) {
        tracing::info!(boot = exit.boot, end = %exit, "opencode was ended");
    } else {
        tracing::warn!(boot = exit.boot, end = %exit, "opencode ended");
    }
}
