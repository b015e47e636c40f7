//! `berth doctor`: looks for what stands in the way, and says how to mend it. Changes nothing. Does IO.
//!
//! - [`machine`]: this machine: disk, memory, programs, the port, the clock.
//! - [`opencode`]: opencode, and the providers that it is to work with.
//! - [`files`]: the data directory, who may read what, and what was left behind.
//! - [`server`]: the server, if one is up.
//! - [`secrets`]: what must not be shown, and its removal.
//! - [`bundle`]: the diagnostics archive.

use std::{collections::BTreeMap, ffi::OsString, path::PathBuf};

use crate::{
    connect::ServerChoice,
    error::{CliError, Exit},
    output::Shape,
    printer::Printer,
    render::Tone,
    up::OpencodeChoice,
};

pub mod bundle;
pub mod files;
pub mod machine;
pub mod opencode;
pub mod secrets;
pub mod server;

use berth_command::check::{self, Check, Verdict};

/// `berth doctor`, checked.
#[derive(Clone)]
pub struct DoctorConfig {
    /// The server, and the data directory.
    pub server: ServerChoice,
    /// Where opencode may be.
    pub opencode: OpencodeChoice,
    /// Port that `berth up` would take.
    pub port: u16,
    /// Directories of `PATH`.
    pub path: Vec<PathBuf>,
    /// The user's configuration directory of opencode.
    pub opencode_config: PathBuf,
    /// The user's `auth.json` of opencode.
    pub auth: PathBuf,
    /// The current directory.
    pub directory: PathBuf,
    /// The process's environment. Not shown by `Debug`.
    pub environment: BTreeMap<OsString, OsString>,
    /// One JSON object instead of text.
    pub json: bool,
    /// The archive to write.
    pub bundle: Option<PathBuf>,
    /// The output streams.
    pub shape: Shape,
}

impl std::fmt::Debug for DoctorConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DoctorConfig")
            .field("server", &self.server)
            .field("opencode", &self.opencode)
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

/// Looks everywhere, says what was found, and writes the archive where one is wanted.
pub async fn doctor(config: DoctorConfig) -> Result<Exit, CliError> {
    let checks = look(&config).await;
    let mut printer = Printer::standard(config.shape);
    if config.json {
        printer.raw_line(&check::json(&checks).to_string()).map_err(CliError::Output)?;
    } else {
        check::show(&checks, &mut printer).map_err(CliError::Output)?;
    }
    if let Some(path) = &config.bundle {
        bundle::write(path, &config, &checks).await?;
        let note = format!("{} is written; look into it before you share it", path.display());
        let said = if config.json { printer.aside(&note) } else { printer.line(Tone::Note, &note) };
        said.map_err(CliError::Output)?;
    }
    printer.flush().map_err(CliError::Output)?;
    let bad = checks.iter().any(|check| check.verdict == Verdict::Bad);
    Ok(if bad { Exit::Failed } else { Exit::Succeeded })
}

async fn look(config: &DoctorConfig) -> Vec<Check> {
    let up = server::up(config);
    let mut checks = opencode::checks(config).await;
    checks.extend(machine::checks(config, up.as_ref()));
    checks.extend(files::checks(config, up.as_ref()));
    checks.extend(server::checks(config, up.as_ref()).await);
    checks
}
