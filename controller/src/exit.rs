//! How the program ends, for whoever started it. Pure.

use std::{io, net::SocketAddr, path::PathBuf};

use berth_operator::election::LeadershipLost;
use berth_server::{OpenError, RunError};

/// The table of exit codes, for `--help`.
pub const EXIT_CODES: &str = "\
Exit codes:
  0    asked to stop, by SIGTERM or SIGINT
  64   the command line is wrong
  69   the address cannot be listened on, or the cluster cannot be reached
  70   internal error
  74   the database cannot be opened
  75   the operator's lease was lost: another one may work now
  78   the configuration is wrong, such as a file that cannot be read
  130  asked to stop for the second time, before everything had ended";

/// The command line is wrong.
pub const USAGE: u8 = 64;

/// Why the program ended without being asked to.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// An argument has a value that cannot be used.
    #[error("{field}: {reason}")]
    Configuration {
        /// The argument.
        field: &'static str,
        /// What is wrong with it; never a secret.
        reason: String,
    },
    /// A file that an argument names cannot be read.
    #[error("{field}: cannot read {path}")]
    File {
        /// The argument.
        field: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The address cannot be listened on.
    #[error("{field}: cannot listen on {address}")]
    Listen {
        /// The argument.
        field: &'static str,
        /// What it says.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The database cannot be opened.
    #[error("--database")]
    Database(#[from] OpenError),
    /// The cluster cannot be reached, or nothing says where it is.
    #[error("the cluster cannot be reached")]
    Cluster {
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Another operator may work now.
    #[error("the lease was lost")]
    Lease(#[from] LeadershipLost),
    /// The server failed.
    #[error("the server ended")]
    Run(#[from] RunError),
    /// Asked to stop twice.
    #[error("asked to stop again before everything had ended")]
    Interrupted,
    /// Something that should never fail did.
    #[error("{what}")]
    Internal {
        /// What failed.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

impl ControllerError {
    /// The number that the caller sees.
    pub fn code(&self) -> u8 {
        match self {
            Self::Listen { .. } | Self::Cluster { .. } => 69,
            Self::Run(_) | Self::Internal { .. } => 70,
            Self::Database(_) => 74,
            Self::Lease(_) => 75,
            Self::Configuration { .. } | Self::File { .. } => 78,
            Self::Interrupted => 130,
        }
    }
}
