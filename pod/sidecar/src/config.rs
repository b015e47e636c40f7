//! What the command line means. Pure.

use std::{net::SocketAddr, path::PathBuf};

use crate::{args::Args, exit::SidecarError};

/// Longest UID of a pod; Kubernetes' own have 36 characters.
const LONGEST_UID: usize = 64;

/// A checked configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Where the door listens.
    pub listen: SocketAddr,
    /// Where probes and metrics are served.
    pub admin: SocketAddr,
    /// Where the supervisor is asked.
    pub supervisor: SocketAddr,
    /// Directory with the passwords.
    pub secret: PathBuf,
    /// Directory beneath which files are handed out.
    pub files: Option<PathBuf>,
    /// UID of the pod.
    pub pod_uid: Option<String>,
    /// Bytes of events that the journal keeps.
    pub ring_bytes: usize,
    /// Connections to the door at a time.
    pub connections: usize,
}

impl Config {
    /// Checks what was typed.
    pub fn new(args: Args) -> Result<Self, SidecarError> {
        if !args.supervisor.ip().is_loopback() {
            return Err(SidecarError::Configuration {
                field: "--supervisor",
                reason: format!(
                    "{} is not on the loopback interface, and it is sent a password",
                    args.supervisor
                ),
            });
        }
        if let Some(uid) = &args.pod_uid
            && (uid.is_empty() || uid.len() > LONGEST_UID || !uid.bytes().all(|byte| byte.is_ascii_graphic()))
        {
            return Err(SidecarError::Configuration {
                field: "--pod-uid",
                reason: format!("it must be 1 to {LONGEST_UID} printable characters without blanks"),
            });
        }
        Ok(Self {
            listen: args.listen,
            admin: args.admin,
            supervisor: args.supervisor,
            secret: args.secret,
            files: args.files,
            pod_uid: args.pod_uid,
            ring_bytes: args.bounds.ring_bytes as usize,
            connections: args.bounds.connections as usize,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn args(arguments: &[&str]) -> Args {
        Args::try_parse_from(["berth-sidecar", "--secret", "/s"].iter().chain(arguments)).unwrap()
    }

    #[test]
    fn a_wrong_value_is_named_with_its_reason() {
        assert_eq!(Config::new(args(&["--pod-uid", "0b0c"])).unwrap().pod_uid.as_deref(), Some("0b0c"));
        for (flag, value, reason) in [
            ("--supervisor", "10.0.0.1:4094", "loopback"),
            ("--pod-uid", "", "1 to 64"),
            ("--pod-uid", "a b", "without blanks"),
        ] {
            let error = Config::new(args(&[flag, value])).unwrap_err();
            assert_eq!(error.code(), 78);
            assert!(error.to_string().starts_with(flag) && error.to_string().contains(reason), "{error}");
        }
    }
}
