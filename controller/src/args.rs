//! The command line, as it is typed. Pure; [`crate::config`] makes sense of it.

use std::{net::SocketAddr, path::PathBuf};

use berth_program::LogFormat;
use clap::{Args as ClapArgs, CommandFactory, Parser, Subcommand};

use crate::exit::EXIT_CODES;

/// Examples for `--help`.
const EXAMPLES: &str = "\
Examples:
  berth-controller serve --database berth.db --token-file token --sandboxes sandboxes.json
  berth-controller serve --database berth.db --token-file token --sandboxes sandboxes.json --listen 127.0.0.1:0 --log text

The token's file holds one line: what callers send as `Authorization: Bearer <token>`. The sandboxes' file is JSON:

  {\"sandboxes\": [{
    \"namespace\": \"team\", \"name\": \"one\",          names the sandbox in the API
    \"door_url\": \"http://127.0.0.1:4096\",         where its door listens
    \"password_file\": \"one/password\",             the door's password; relative to this file
    \"directory\": \"/workspace/work\"               where its sessions work
  }]}

Both files, and the passwords', are read once, at the start. Several servers may use one database file at the same time,
on one machine: each sandbox is cared for by one of them, and by another within the lease when that one is no more.";

/// Berth's control plane
#[derive(Debug, Clone, Parser)]
#[command(name = "berth-controller", version, subcommand_required = true, arg_required_else_help = true)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Serve the session API for the sandboxes of a file
    #[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
    Serve(ServeArgs),
}

/// Of `serve`.
#[derive(Debug, Clone, ClapArgs)]
pub struct ServeArgs {
    /// The SQLite file with sessions and their logs; made when missing
    #[arg(long, value_name = "FILE", env = "BERTH_CONTROLLER_DATABASE")]
    pub database: PathBuf,
    /// Where the API listens: an address of the loopback interface; port 0 takes any free one and logs it
    #[arg(long, value_name = "ADDRESS", env = "BERTH_CONTROLLER_LISTEN", default_value = "127.0.0.1:7447")]
    pub listen: SocketAddr,
    /// File with the token that callers must send
    #[arg(long, value_name = "FILE", env = "BERTH_CONTROLLER_TOKEN_FILE")]
    pub token_file: PathBuf,
    /// File that says where the sandboxes are
    #[arg(long, value_name = "FILE", env = "BERTH_CONTROLLER_SANDBOXES")]
    pub sandboxes: PathBuf,
    /// Bounds.
    #[command(flatten)]
    pub bounds: BoundArgs,
    /// What is logged.
    #[command(flatten)]
    pub log: LogArgs,
}

/// Bounds.
#[derive(Debug, Clone, Copy, ClapArgs)]
#[command(next_help_heading = "Bounds")]
pub struct BoundArgs {
    /// How long a server that owns a sandbox may be silent before another one takes it over, 1 to 60
    #[arg(
        long,
        value_name = "SECONDS",
        env = "BERTH_CONTROLLER_LEASE",
        default_value_t = 15,
        value_parser = clap::value_parser!(u64).range(1..=60),
    )]
    pub lease: u64,
}

/// What is logged, to standard error.
#[derive(Debug, Clone, ClapArgs)]
#[command(next_help_heading = "Log")]
pub struct LogArgs {
    /// Format of the log, on standard error
    #[arg(long, value_name = "FORMAT", env = "BERTH_CONTROLLER_LOG", default_value = "json")]
    pub log: LogFormat,
    /// What is logged: a level, or levels by module such as `info,berth_server=debug`
    #[arg(long, value_name = "LEVEL", env = "BERTH_CONTROLLER_LOG_LEVEL", default_value = "info")]
    pub log_level: String,
}

/// The command line as a `clap` command, for its reference.
pub fn command() -> clap::Command {
    Args::command()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_sound_and_every_flag_has_a_variable() {
        command().debug_assert();
        let serve = command().find_subcommand("serve").cloned().expect("it is there");
        for argument in serve
            .get_arguments()
            .filter(|argument| !["help", "version"].contains(&argument.get_id().as_str()))
        {
            let flag = argument.get_long().expect("a flag");
            let variable = format!("BERTH_CONTROLLER_{}", flag.replace('-', "_").to_uppercase());
            assert_eq!(argument.get_env().and_then(|name| name.to_str()), Some(variable.as_str()));
        }
    }

    #[test]
    fn what_is_out_of_range_is_refused_by_name() {
        let given = ["berth-controller", "serve", "--database", "d", "--token-file", "t", "--sandboxes", "s"];
        let parse = |more: &[&str]| Args::try_parse_from(given.iter().chain(more));
        assert!(parse(&[]).is_ok());
        for (flag, value) in [("--lease", "0"), ("--lease", "61"), ("--listen", "7447"), ("--log", "xml")] {
            let error = parse(&[flag, value]).unwrap_err().to_string();
            assert!(error.contains(flag) && error.contains(value), "{error}");
        }
    }
}
