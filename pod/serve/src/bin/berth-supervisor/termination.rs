//! The last words of the container, which Kubernetes shows with its status: one JSON object. IO; the text is pure.

use std::path::{Path, PathBuf};

use berth_serve::{Exit, ServeState};
use serde::Serialize;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Bytes that Kubernetes keeps.
const MAX: usize = 4096;

/// What is written.
#[derive(Debug, Serialize)]
pub(crate) struct Termination {
    /// One word.
    reason: String,
    /// What happened, in words, and the last lines of opencode's output.
    message: String,
    /// Which start of opencode it was about; 0 when there was none.
    boot: u64,
    /// opencode's exit code, if it exited.
    exit: Option<i32>,
    /// The number of the signal that ended it, if one did.
    signal: Option<i32>,
}

impl Termination {
    /// The supervisor itself failed.
    pub(crate) fn failed(reason: &str, message: String) -> Self {
        Self { reason: reason.to_owned(), message, boot: 0, exit: None, signal: None }
    }

    fn of_exit(exit: &Exit) -> Self {
        let tail = exit.output_tail.trim_end();
        let message = if tail.is_empty() { exit.to_string() } else { format!("{exit}\n{tail}") };
        let reason = format!("{:?}", exit.cause);
        Self { reason, message, boot: exit.boot, exit: exit.exit, signal: exit.signal }
    }

    /// JSON of at most [`MAX`] bytes: the message is cut where it is too long.
    fn to_json(&self) -> String {
        let mut message = self.message.as_str();
        loop {
            let cut = Self { message: message.to_owned(), reason: self.reason.clone(), ..*self };
            let json = serde_json::to_string(&cut).unwrap_or_default();
            if json.len() <= MAX || message.is_empty() {
                return json;
            }
            // What is escaped grows at most sixfold, so this shrinks by at least a byte and soon fits.
            let over = (json.len() - MAX).div_ceil(6);
            message = &message[..message.floor_char_boundary(message.len().saturating_sub(over))];
        }
    }
}

/// Writes the end of each run as it comes: when the kernel kills the whole container, nobody can write any more.
pub(crate) async fn follow(
    mut state: watch::Receiver<ServeState>,
    path: Option<PathBuf>,
    shutdown: CancellationToken,
) {
    let mut written: Option<String> = None;
    loop {
        if let Some(exit) = state.borrow_and_update().last_exit()
            && written.as_ref() != Some(&exit.boot_id)
        {
            written = Some(exit.boot_id.clone());
            write(path.as_deref(), &Termination::of_exit(exit));
        }
        // The last end comes before the shutdown, and is written though both are there.
        tokio::select! {
            biased;
            changed = state.changed() => if changed.is_err() { return },
            () = shutdown.cancelled() => return,
        }
    }
}

/// Writes it, if it is to be written.
pub(crate) fn write(path: Option<&Path>, termination: &Termination) {
    let Some(path) = path else { return };
    if let Err(error) = std::fs::write(path, termination.to_json()) {
        tracing::warn!(%error, path = %path.display(), "the termination log cannot be written");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_fits_whatever_was_said_and_is_json() {
        for text in ["short", &"é".repeat(5000), &"\u{1}".repeat(5000), &"\"\\".repeat(3000)] {
            let json = Termination::failed("Internal", text.to_owned()).to_json();
            assert!(json.len() <= MAX, "{}", json.len());
            let read: serde_json::Value = serde_json::from_str(&json).unwrap();
            let message = read["message"].as_str().unwrap();
            assert!(text.starts_with(message) && !message.is_empty());
            assert!(message.len() == text.len() || json.len() > MAX - 12, "no more is cut than need be");
        }
    }
}
