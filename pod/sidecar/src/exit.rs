//! How the program ends, for whoever started it. Pure.

use std::{io, net::SocketAddr};

use berth_door::SecretError;

/// The table of exit codes, for `--help`.
pub const EXIT_CODES: &str = "\
Exit codes:
  0   asked to stop, by SIGTERM or SIGINT
  64  the command line is wrong
  69  an address cannot be listened on
  70  internal error
  78  the configuration is wrong, such as a secret that cannot be read";

/// The command line is wrong.
pub const USAGE: u8 = 64;

/// Why the program ended without being asked to.
#[derive(Debug, thiserror::Error)]
pub enum SidecarError {
    /// An argument has a value that cannot be used.
    #[error("{field}: {reason}")]
    Configuration {
        /// The argument.
        field: &'static str,
        /// What is wrong with it; never a secret.
        reason: String,
    },
    /// A password cannot be used.
    #[error("--secret")]
    Secret(#[from] SecretError),
    /// An address cannot be listened on.
    #[error("{field}: cannot listen on {address}")]
    Listen {
        /// The argument.
        field: &'static str,
        /// What it says.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// Something that should never fail did.
    #[error("{what}")]
    Internal {
        /// What failed.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

impl SidecarError {
    /// The number that the caller sees.
    pub fn code(&self) -> u8 {
        match self {
            Self::Listen { .. } => 69,
            Self::Internal { .. } => 70,
            Self::Configuration { .. } | Self::Secret(_) => 78,
        }
    }
}
