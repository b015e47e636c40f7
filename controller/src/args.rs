//! The command line, as it is typed. Pure; [`crate::config`] makes sense of it.

use std::{net::SocketAddr, path::PathBuf};

use berth_operator::platform::{Destination, Resolver};
use berth_program::LogFormat;
use clap::{Args as ClapArgs, CommandFactory, Parser, Subcommand, ValueEnum};
use ipnet::IpNet;

use crate::exit::EXIT_CODES;

/// Examples for `--help`.
const EXAMPLES: &str = "\
Examples:
  berth-controller serve --database berth.db --token-file token --sandboxes sandboxes.json
  berth-controller serve --database berth.db --token-file token --sandboxes sandboxes.json --listen 127.0.0.1:0 --log text
  berth-controller serve --database berth.db --token-file token --kubernetes

The token's file holds one line: what callers send as `Authorization: Bearer <token>`. The sandboxes' file is JSON:

  {\"sandboxes\": [{
    \"namespace\": \"team\", \"name\": \"one\",          names the sandbox in the API
    \"door_url\": \"http://127.0.0.1:4096\",         where its door listens
    \"password_file\": \"one/password\",             the door's password; relative to this file
    \"directory\": \"/workspace/work\"               where its sessions work
  }]}

Both files, and the passwords', are read once, at the start. Several servers may use one database file at the same time,
on one machine: each sandbox is cared for by one of them, and by another within the lease when that one is no more. They
share memory through a file beside it (`-shm`): when the disk turns read only, SIGBUS may end them. Nothing is lost by
that; at the next start they say what is wrong.";

/// Examples for `operator --help`.
const OPERATOR_EXAMPLES: &str = "\
Examples:
  berth-controller operator --sidecar-image berth-sidecar:0.1.0 --sandbox-image berth-sandbox:0.1.0
  berth-controller operator --sidecar-image ... --sandbox-image ... --resolver 169.254.20.10/32 --allow 10.1.2.3/32:8080

The cluster is the one that it runs in, else that of the current context of the kubeconfig. It wants the kind Sandbox
(deploy/crds) and its role (deploy/operator/role.yaml).

Agents reach public addresses and the cluster's resolver. --resolver and --allow add to that for every sandbox; where
clouds hand out credentials stays closed whatever they say. Resolvers of others:

  --resolver 169.254.20.10/32                                                       NodeLocal DNSCache
  --resolver openshift-dns/dns.operator.openshift.io/daemonset-dns=default:5353     OpenShift

Two may run at the same time: one works, by the Lease berth-operator in the namespace of --control-namespace, and another
one takes its place within 15 seconds. --admin answers /healthz, /readyz and /metrics.";

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
    /// Serve the session API for the sandboxes of a file, or of a cluster
    #[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
    Serve(ServeArgs),
    /// Make pods out of the Sandbox manifests of a cluster
    #[command(
        after_help = OPERATOR_EXAMPLES,
        after_long_help = format!("{OPERATOR_EXAMPLES}\n\n{EXIT_CODES}"),
    )]
    Operator(OperatorArgs),
}

/// Of `operator`.
#[derive(Debug, Clone, ClapArgs)]
pub struct OperatorArgs {
    /// Image of the sidecar of each pod
    #[arg(long, value_name = "IMAGE", env = "BERTH_CONTROLLER_SIDECAR_IMAGE")]
    pub sidecar_image: String,
    /// Image of the agents' containers where a manifest names none
    #[arg(long, value_name = "IMAGE", env = "BERTH_CONTROLLER_SANDBOX_IMAGE")]
    pub sandbox_image: String,
    /// When images are fetched; by Kubernetes' own rule when absent
    #[arg(long, value_name = "POLICY", env = "BERTH_CONTROLLER_IMAGE_PULL_POLICY")]
    pub image_pull_policy: Option<ImagePullPolicy>,
    /// Who reaches whom.
    #[command(flatten)]
    pub network: NetworkArgs,
    /// How it runs.
    #[command(flatten)]
    pub process: ProcessArgs,
    /// What is logged.
    #[command(flatten)]
    pub log: LogArgs,
}

/// How the operator runs.
#[derive(Debug, Clone, ClapArgs)]
#[command(next_help_heading = "Process")]
pub struct ProcessArgs {
    /// Where probes and metrics are answered: /healthz, /readyz, /metrics
    #[arg(long, value_name = "ADDRESS", env = "BERTH_CONTROLLER_ADMIN", default_value = "0.0.0.0:8080")]
    pub admin: SocketAddr,
    /// Whether one of several operators works at a time, by a Lease in the namespace of --control-namespace; where only
    /// one runs it can do without
    #[arg(
        long,
        value_name = "BOOLEAN",
        env = "BERTH_CONTROLLER_LEADER_ELECTION",
        default_value_t = true,
        action = clap::ArgAction::Set,
    )]
    pub leader_election: bool,
    /// What this one is called as the holder of the Lease, which must be nobody else's name, such as its pod's; a random
    /// one when absent
    #[arg(long, value_name = "NAME", env = "BERTH_CONTROLLER_IDENTITY")]
    pub identity: Option<String>,
    /// For how long nobody must have used what the sandboxes of a namespace share, network policies and a Service, before
    /// it is removed
    #[arg(
        long,
        value_name = "SECONDS",
        env = "BERTH_CONTROLLER_SWEEP_AFTER",
        default_value_t = 600,
        value_parser = clap::value_parser!(u64).range(1..=86400),
    )]
    pub sweep_after: u64,
}

/// When images are fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub enum ImagePullPolicy {
    /// Before each start
    Always,
    /// When the node has none of that name
    IfNotPresent,
    /// The node must have it
    Never,
}

/// Who reaches whom.
#[derive(Debug, Clone, ClapArgs)]
#[command(next_help_heading = "Network")]
pub struct NetworkArgs {
    /// Namespace whose pods of Berth (app.kubernetes.io/part-of=berth) reach the sandboxes' doors
    #[arg(
        long,
        value_name = "NAMESPACE",
        env = "BERTH_CONTROLLER_CONTROL_NAMESPACE",
        default_value = "berth-system"
    )]
    pub control_namespace: String,
    /// Addresses that reach the sandboxes' doors too; may be given more than once
    #[arg(long, value_name = "NETWORK", env = "BERTH_CONTROLLER_CONTROL_ADDRESS", value_delimiter = ',')]
    pub control_address: Vec<IpNet>,
    /// Resolvers beside kube-system's own: `<network>` or `<namespace>/<label>=<value>` of pods, with `:<port>` where that is
    /// not 53; may be given more than once
    #[arg(long, value_name = "RESOLVER", env = "BERTH_CONTROLLER_RESOLVER", value_delimiter = ',')]
    pub resolver: Vec<Resolver>,
    /// Private addresses, `<network>` or `<network>:<port>`, that agents may reach; may be given more than once
    #[arg(long, value_name = "DESTINATION", env = "BERTH_CONTROLLER_ALLOW", value_delimiter = ',')]
    pub allow: Vec<Destination>,
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
    #[arg(
        long,
        value_name = "FILE",
        env = "BERTH_CONTROLLER_SANDBOXES",
        required_unless_present = "kubernetes",
        conflicts_with = "kubernetes"
    )]
    pub sandboxes: Option<PathBuf>,
    /// Find the sandboxes in the cluster that this runs in, else in that of the current context of the kubeconfig
    #[arg(long, env = "BERTH_CONTROLLER_KUBERNETES")]
    pub kubernetes: bool,
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
        let given = |argument: &&clap::Arg| !["help", "version"].contains(&argument.get_id().as_str());
        let subcommands: Vec<clap::Command> = command().get_subcommands().cloned().collect();
        assert_eq!(subcommands.len(), 2);
        for argument in subcommands.iter().flat_map(clap::Command::get_arguments).filter(given) {
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

    #[test]
    fn lists_come_with_commas_or_one_by_one() {
        let given = ["berth-controller", "operator", "--sidecar-image", "a", "--sandbox-image", "b"];
        let parse = |more: &[&str]| Args::try_parse_from(given.iter().chain(more)).map(|args| args.command);
        let Ok(Command::Operator(args)) = parse(&[
            "--allow",
            "10.0.0.0/8:80,fd00::/8",
            "--allow",
            "[fd01::/16]:1",
            "--image-pull-policy",
            "Never",
        ]) else {
            panic!("it is sound")
        };
        assert_eq!(args.network.allow.len(), 3);
        assert_eq!(args.image_pull_policy, Some(ImagePullPolicy::Never));
        let error = parse(&["--allow", "models.test:80"]).unwrap_err().to_string();
        assert!(error.contains("models.test:80") && error.contains("such as"), "{error}");
    }
}
