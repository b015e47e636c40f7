//! The command line, as it is typed. Pure; [`crate::config`] makes sense of it.

use std::{net::SocketAddr, path::PathBuf};

use berth_program::LogFormat;
use clap::{Args as ClapArgs, CommandFactory, Parser};

use crate::exit::EXIT_CODES;

/// Examples for `--help`.
const EXAMPLES: &str = "\
Examples:
  berth-sidecar --secret /berth/secret
  berth-sidecar --secret ./secret --listen 127.0.0.1:4096 --admin 127.0.0.1:8731 --log text

The secret is a directory as Kubernetes mounts one, with the files `password` (the door's), `opencode-password` (the
internal one, which berth-supervisor gets as well), and during a rotation `password-previous`. They are read again
when they change.";

/// The way in to a pod's opencode: the door, and an admin listener for probes and metrics
#[derive(Debug, Clone, Parser)]
#[command(name = "berth-sidecar", version, after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub struct Args {
    /// Where the door listens
    #[arg(long, value_name = "ADDRESS", env = "BERTH_SIDECAR_LISTEN", default_value = "0.0.0.0:4096")]
    pub listen: SocketAddr,
    /// Where probes and metrics are served: /live, /ready and /metrics, without a password
    #[arg(long, value_name = "ADDRESS", env = "BERTH_SIDECAR_ADMIN", default_value = "0.0.0.0:8731")]
    pub admin: SocketAddr,
    /// Where the supervisor of opencode is asked
    #[arg(long, value_name = "ADDRESS", env = "BERTH_SIDECAR_SUPERVISOR", default_value = "127.0.0.1:4094")]
    pub supervisor: SocketAddr,
    /// Directory with the passwords
    #[arg(long, value_name = "DIR", env = "BERTH_SIDECAR_SECRET")]
    pub secret: PathBuf,
    /// Directory beneath which files are handed out; none are without it
    #[arg(long, value_name = "DIR", env = "BERTH_SIDECAR_FILES")]
    pub files: Option<PathBuf>,
    /// UID of the pod, which the door's proof of itself names
    #[arg(long, value_name = "UID", env = "BERTH_SIDECAR_POD_UID")]
    pub pod_uid: Option<String>,
    /// Bounds of the door.
    #[command(flatten)]
    pub bounds: BoundArgs,
    /// What is logged.
    #[command(flatten)]
    pub log: LogArgs,
}

/// Bounds of the door.
#[derive(Debug, Clone, Copy, ClapArgs)]
#[command(next_help_heading = "Bounds")]
pub struct BoundArgs {
    /// Bytes of events that the journal keeps, 65536 to 1073741824
    #[arg(
        long,
        value_name = "BYTES",
        env = "BERTH_SIDECAR_RING_BYTES",
        default_value_t = 32 * 1024 * 1024,
        value_parser = clap::value_parser!(u32).range(64 * 1024..=1024 * 1024 * 1024),
    )]
    pub ring_bytes: u32,
    /// Connections to the door at a time, 1 to 65536
    #[arg(
        long,
        value_name = "COUNT",
        env = "BERTH_SIDECAR_CONNECTIONS",
        default_value_t = 1024,
        value_parser = clap::value_parser!(u32).range(1..=65_536),
    )]
    pub connections: u32,
}

/// What is logged, to standard error.
#[derive(Debug, Clone, ClapArgs)]
#[command(next_help_heading = "Log")]
pub struct LogArgs {
    /// Format of the log, on standard error
    #[arg(long, value_name = "FORMAT", env = "BERTH_SIDECAR_LOG", default_value = "json")]
    pub log: LogFormat,
    /// What is logged: a level, or levels by module such as `info,berth_door=debug`
    #[arg(long, value_name = "LEVEL", env = "BERTH_SIDECAR_LOG_LEVEL", default_value = "info")]
    pub log_level: String,
}

/// The command line as a `clap` command, for its reference.
pub fn command() -> clap::Command {
    Args::command()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Args, clap::Error> {
        Args::try_parse_from(["berth-sidecar"].iter().chain(arguments))
    }

    #[test]
    fn the_command_is_sound_and_every_flag_has_a_variable() {
        command().debug_assert();
        for argument in command()
            .get_arguments()
            .filter(|argument| !["help", "version"].contains(&argument.get_id().as_str()))
        {
            let flag = argument.get_long().expect("a flag");
            let variable = format!("BERTH_SIDECAR_{}", flag.replace('-', "_").to_uppercase());
            assert_eq!(argument.get_env().and_then(|name| name.to_str()), Some(variable.as_str()));
        }
    }

    #[test]
    fn only_the_secret_must_be_given() {
        let args = parse(&["--secret", "/s"]).unwrap();
        assert_eq!((args.listen.port(), args.admin.port(), args.supervisor.port()), (4096, 8731, 4094));
        assert!(args.supervisor.ip().is_loopback());
        assert!(parse(&[]).is_err());
    }

    #[test]
    fn what_is_out_of_range_is_refused_by_name() {
        for (flag, value) in [
            ("--ring-bytes", "65535"),
            ("--ring-bytes", "1e+06"),
            ("--connections", "0"),
            ("--listen", "4096"),
            ("--log", "xml"),
        ] {
            let error = parse(&["--secret", "/s", flag, value]).unwrap_err().to_string();
            assert!(error.contains(flag) && error.contains(value), "{error}");
        }
    }
}
