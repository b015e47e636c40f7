//! The command line of the program `berth-supervisor`, as it is typed. Pure but for a look at one file; the program
//! makes sense of it.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use berth_program::LogFormat;
use clap::{Args as ClapArgs, CommandFactory, Parser};

/// Where Kubernetes looks for the last words of a container.
const TERMINATION_LOG: &str = "/dev/termination-log";

/// Keeps one opencode running, and says how it stands.
#[derive(Debug, Parser)]
#[command(
    name = "berth-supervisor",
    version,
    about = "Keeps one opencode running, and says how it stands",
    max_term_width = 100,
    args_override_self = true,
    after_help = "\
Examples:
  berth-supervisor --opencode /opt/opencode --directory /workspace/work \\
      --data /workspace/.opencode-data --password-file /run/berth/internal-password
  berth-supervisor ... --wait-for http://127.0.0.1:8731/ready
  curl -u opencode:$(cat internal-password) http://127.0.0.1:4094/state

The environment is passed on to opencode, but for BERTH_*, OPENCODE_SERVER_PASSWORD and _USERNAME, and what Kubernetes
adds for its services. XDG_{DATA,STATE,CACHE}_HOME are directories in --data.

Exit codes:
  0   it was asked to stop (SIGTERM or SIGINT), and opencode and all that it started have ended
  64  the command line is wrong
  70  a defect, or no more resources
  75  another supervisor holds the data directory
  78  something that was configured is not there or cannot be used"
)]
pub struct Args {
    /// opencode's binary
    #[arg(long, value_name = "FILE", env = "BERTH_SUPERVISOR_OPENCODE")]
    pub opencode: PathBuf,
    /// Working directory of opencode, and its default directory; made when missing
    #[arg(long, value_name = "DIR", env = "BERTH_SUPERVISOR_DIRECTORY")]
    pub directory: PathBuf,
    /// Directory for the lock, opencode's data, state and cache, and its output
    #[arg(long, value_name = "DIR", env = "BERTH_SUPERVISOR_DATA")]
    pub data: PathBuf,
    /// Directory above opencode's own configuration directory [default: one in --data]
    #[arg(long, value_name = "DIR", env = "BERTH_SUPERVISOR_CONFIG_HOME")]
    pub config_home: Option<PathBuf>,
    /// Port of opencode on 127.0.0.1
    #[arg(
        long,
        value_name = "PORT",
        default_value_t = 4095,
        env = "BERTH_SUPERVISOR_PORT",
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    pub port: u16,
    /// File with the internal password, read before each start
    #[arg(long, value_name = "FILE", env = "BERTH_SUPERVISOR_PASSWORD_FILE")]
    pub password_file: PathBuf,
    /// Address for state and commands
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:4094", env = "BERTH_SUPERVISOR_CONTROL")]
    pub control: SocketAddr,
    /// Asked before each start, and waited for until it answers 200; http with an IP address only
    #[arg(long, value_name = "URL", env = "BERTH_SUPERVISOR_WAIT_FOR")]
    pub wait_for: Option<String>,
    /// Where the last words are written, as JSON [default: /dev/termination-log, when it exists]
    #[arg(long, value_name = "FILE", env = "BERTH_SUPERVISOR_TERMINATION_LOG")]
    pub termination_log: Option<PathBuf>,
    /// Format of the log on standard error
    #[arg(long, value_enum, default_value_t = LogFormat::Json, env = "BERTH_SUPERVISOR_LOG")]
    pub log: LogFormat,
    /// What is logged, such as `warn` or `info,berth_serve=debug`
    #[arg(long, value_name = "FILTER", default_value = "info", env = "BERTH_SUPERVISOR_LOG_LEVEL")]
    pub log_level: String,
    /// Bounds that are good as they are.
    #[command(flatten)]
    pub timings: TimingArgs,
}

/// Bounds in milliseconds, for tests that cannot wait as long as a pod may. Not in the help.
#[derive(Debug, Clone, Copy, ClapArgs)]
pub struct TimingArgs {
    /// Between the beginnings of two health requests
    #[arg(long, hide = true, value_name = "MS", env = "BERTH_SUPERVISOR_HEALTH_PERIOD")]
    pub health_period: Option<u64>,
    /// For one of those
    #[arg(long, hide = true, value_name = "MS", env = "BERTH_SUPERVISOR_HEALTH_DEADLINE")]
    pub health_deadline: Option<u64>,
    /// Longest pause before a restart
    #[arg(long, hide = true, value_name = "MS", env = "BERTH_SUPERVISOR_BACKOFF_LONGEST")]
    pub backoff_longest: Option<u64>,
    /// Between TERM and KILL for opencode
    #[arg(long, hide = true, value_name = "MS", env = "BERTH_SUPERVISOR_GRACE")]
    pub grace: Option<u64>,
}

/// The command line as a `clap` command, for its reference.
pub fn command() -> clap::Command {
    Args::command()
}

impl Args {
    /// The file for the last words, if there is to be one.
    pub fn termination_log(&self) -> Option<PathBuf> {
        let usual = || Path::new(TERMINATION_LOG).exists().then(|| TERMINATION_LOG.into());
        self.termination_log.clone().or_else(usual)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound_and_each_flag_has_a_variable() {
        Args::command().debug_assert();
        for argument in Args::command().get_arguments() {
            let Some(flag) = argument.get_long().filter(|flag| !matches!(*flag, "help" | "version")) else {
                continue;
            };
            let variable = format!("BERTH_SUPERVISOR_{}", flag.replace('-', "_").to_uppercase());
            assert_eq!(argument.get_env().and_then(|name| name.to_str()), Some(variable.as_str()));
        }
    }

    #[test]
    fn port_0_is_none() {
        let typed = "x --opencode o --directory d --data d --password-file p --port";
        let parse = |port| Args::try_parse_from(typed.split(' ').chain([port]));
        assert!(parse("0").is_err());
        assert_eq!(parse("4095").unwrap().port, 4095);
    }
}
