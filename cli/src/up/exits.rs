//! How opencode ended, kept in a file for whoever asks later. Does IO.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::PathBuf,
};

use berth_serve::Exit;
use serde_json::json;

/// Bytes of the file before it is begun anew; one older file is kept.
const FILE_MAX: u64 = 64 * 1024;

/// The file.
#[derive(Debug)]
pub(super) struct ExitLog(pub(super) PathBuf);

impl ExitLog {
    /// Adds an exit. What opencode printed last stays out: tools may have printed anything.
    pub(super) fn record(&self, sandbox: &str, exit: &Exit) {
        if let Err(error) = self.append(sandbox, exit) {
            tracing::warn!(%error, path = %self.0.display(), "an exit of opencode cannot be kept");
        }
    }

    fn append(&self, sandbox: &str, exit: &Exit) -> io::Result<()> {
        if fs::metadata(&self.0).is_ok_and(|metadata| metadata.len() > FILE_MAX) {
            fs::rename(&self.0, self.0.with_added_extension("1"))?;
        }
        let line = json!({
            "at": exit.at,
            "sandbox": sandbox,
            "boot": exit.boot,
            "cause": exit.cause,
            "exit": exit.exit,
            "signal": exit.signal,
            "how": exit.to_string(),
        });
        let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(&self.0)?;
        file.write_all(format!("{line}\n").as_bytes())
    }
}
