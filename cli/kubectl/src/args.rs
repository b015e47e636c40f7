//! The command line, as it is typed. Pure, but for [`completions`], which writes.

use std::{io::Write, path::PathBuf};

use clap::{ArgGroup, Args as ClapArgs, CommandFactory, Parser, Subcommand, ValueEnum};
use jiff::SignedDuration;

use crate::error::{EXIT_CODES, Exit, PluginError};

/// Examples for `--help`.
const EXAMPLES: &str = "\
Examples:
  kubectl berth list -A                   every sandbox that you may see
  kubectl berth describe one              how it stands, why, and what to do
  kubectl berth logs one -f               what the agent's container says, as it says it
  kubectl berth attach one                opencode's terminal, on this machine, for the agent in there
  kubectl berth render -f sandbox.yaml    what would be made of a manifest
  kubectl berth doctor --bundle berth.tar.gz";

/// Sandboxes of coding agents in a cluster
#[derive(Debug, Clone, Parser)]
#[command(
    name = "kubectl-berth",
    bin_name = "kubectl berth",
    version,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = EXAMPLES,
    after_long_help = format!("{EXAMPLES}\n\n{EXIT_CODES}")
)]
pub struct Args {
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Which cluster, and where in it: as with kubectl.
#[derive(Debug, Clone, Default, ClapArgs)]
#[command(next_help_heading = "Cluster")]
pub struct ClusterArgs {
    /// Kubeconfig [default: the files of $KUBECONFIG, else ~/.kube/config, else the pod that this runs in]
    #[arg(long, value_name = "FILE", global = true)]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME", global = true)]
    pub context: Option<String>,
    /// Namespace [default: that of the context]
    #[arg(long, short, value_name = "NAME", global = true)]
    pub namespace: Option<String>,
}

/// What to do.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// List sandboxes: which are ready, and why the others are not
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Show how a sandbox stands, why, and what to do about it
    Describe(DescribeArgs),
    /// Show what the programs of a sandbox's pod say
    Logs(LogsArgs),
    /// Open opencode's terminal here for the agent of a sandbox
    Attach(AttachArgs),
    /// Show what the operator makes of a manifest
    Render(RenderArgs),
    /// Look for what stands in the way of Berth in this cluster; changes nothing
    Doctor(DoctorArgs),
    /// Write the completion script of a shell
    Completions(CompletionsArgs),
}

/// `kubectl berth list`
#[derive(Debug, Clone, ClapArgs)]
#[command(after_help = "\
Examples:
  kubectl berth list
  kubectl berth list -A -o wide
  kubectl berth list -l team=blue -o name
  kubectl berth list -A -o json | jq -r '.items[].metadata.name'

RESTARTS are those of all containers of the pod, and - where pods may not be listed.")]
pub struct ListArgs {
    /// Only these [default: all]
    #[arg(value_name = "NAME", conflicts_with = "all_namespaces")]
    pub names: Vec<String>,
    /// In all namespaces, whatever --namespace says
    #[arg(long, short = 'A')]
    pub all_namespaces: bool,
    /// Only those with these labels, such as team=blue
    #[arg(long, short = 'l', value_name = "SELECTOR")]
    pub selector: Option<String>,
    /// As what [default: a table]
    #[arg(long, short, value_name = "FORMAT")]
    pub output: Option<ListFormat>,
}

/// As what sandboxes are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ListFormat {
    /// A table with more columns
    Wide,
    /// One name a line, as `kubectl get -o name` gives it
    Name,
    /// A List of the manifests, with their status
    Json,
    /// The same as YAML
    Yaml,
}

/// As what objects are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Default)]
pub enum ObjectFormat {
    /// Documents of YAML
    #[default]
    Yaml,
    /// A List as JSON
    Json,
}

/// `kubectl berth describe`
#[derive(Debug, Clone, ClapArgs)]
#[command(after_help = "\
Examples:
  kubectl berth describe one
  kubectl berth describe -n team one two

Exits with 0 whether it is ready or not; `kubectl wait --for=condition=Ready sandbox/NAME` tells that.")]
pub struct DescribeArgs {
    /// The sandboxes
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<String>,
}

/// `kubectl berth logs`
#[derive(Debug, Clone, ClapArgs)]
#[command(after_help = "\
Examples:
  kubectl berth logs one                          the agent's container
  kubectl berth logs one --part opencode -f       opencode alone, as it comes
  kubectl berth logs one --part sidecar --since 10m
  kubectl berth logs one --previous               what it said before it was started again
  kubectl berth logs one --raw | jq .             as the programs write it, one JSON object a line")]
pub struct LogsArgs {
    /// The sandbox
    #[arg(value_name = "NAME")]
    pub name: String,
    /// One part of its pod [default: opencode and its supervisor]
    #[arg(long, value_name = "PART")]
    pub part: Option<Part>,
    /// Go on until the container ends, or Ctrl-C
    #[arg(long, short)]
    pub follow: bool,
    /// What the container said that ran before this one
    #[arg(long, short, conflicts_with = "follow")]
    pub previous: bool,
    /// Not older than this, such as 90s, 10m or 2h
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub since: Option<i64>,
    /// The last lines of the container only; of one part they may be fewer
    #[arg(long, value_name = "LINES", value_parser = clap::value_parser!(i64).range(0..))]
    pub tail: Option<i64>,
    /// Lines as they are, for other programs
    #[arg(long)]
    pub raw: bool,
}

/// A part of a sandbox's pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// opencode, in the agent's container
    Opencode,
    /// What keeps opencode running, in the agent's container
    Supervisor,
    /// The door, in a container of its own
    Sidecar,
    /// What fills the workspace before opencode starts, where the manifest says so
    Seed,
}

/// `kubectl berth attach`
#[derive(Debug, Clone, ClapArgs)]
#[command(after_help = "\
Examples:
  kubectl berth attach one
  kubectl berth attach one -- --continue          what follows -- is for `opencode attach`
  kubectl berth attach one --opencode ~/bin/opencode

Wants opencode on this machine, the right to read the sandbox's Secret, and the right to forward ports of its pod. What is
done in this way is not in the sessions of Berth's server: their prompts wait until the agent is idle.")]
pub struct AttachArgs {
    /// The sandbox
    #[arg(value_name = "NAME")]
    pub name: String,
    /// opencode on this machine [default: the one of PATH]
    #[arg(long, value_name = "FILE")]
    pub opencode: Option<PathBuf>,
    /// Directory in the sandbox that is worked in [default: where its sessions work]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<String>,
    /// For `opencode attach`
    #[arg(value_name = "ARGUMENTS", last = true)]
    pub arguments: Vec<String>,
}

/// `kubectl berth render`
#[derive(Debug, Clone, ClapArgs)]
#[command(
    group = ArgGroup::new("what").required(true).args(["filename", "name"]),
    after_help = "\
Examples:
  kubectl berth render one                   of a Sandbox in the cluster
  kubectl berth render -f sandbox.yaml       of one that is not there yet
  kustomize build team | kubectl berth render -f - -o json

First comes the Sandbox as the operator reads it, merged with its template, then the objects that it makes: pod, claim,
Service and network policies. The Secret with its passwords is made in the cluster only, and never shown. Images and other
settings of the platform are those of the operator in the cluster; where that cannot be read, a note says so."
)]
pub struct RenderArgs {
    /// A Sandbox of the cluster
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// File with Sandboxes, and their templates where they are not in the cluster; - for standard input
    #[arg(long, short, value_name = "FILE")]
    pub filename: Option<PathBuf>,
    /// As what
    #[arg(long, short, value_name = "FORMAT", default_value = "yaml")]
    pub output: ObjectFormat,
    /// Namespace of Berth's own programs
    #[arg(long, value_name = "NAME", default_value = "berth-system")]
    pub control_namespace: String,
}

/// `kubectl berth doctor`
#[derive(Debug, Clone, ClapArgs)]
#[command(after_help = "\
Examples:
  kubectl berth doctor
  kubectl berth doctor -A --bundle berth.tar.gz
  kubectl berth doctor -o json | jq '.checks[] | select(.verdict == \"bad\")'

Exits with 1 when something is in the way. The archive of --bundle has the findings, manifests, pods, events, and the ends
of the logs, without secrets: values of variables and of opencode's options are left out, and what the Secrets hold that
the sandboxes name is read in order to be taken out wherever it stands. Look into it before you share it.")]
pub struct DoctorArgs {
    /// Sandboxes of all namespaces, whatever --namespace says
    #[arg(long, short = 'A')]
    pub all_namespaces: bool,
    /// Write an archive for whoever is asked for help
    #[arg(long, value_name = "FILE")]
    pub bundle: Option<PathBuf>,
    /// As what [default: lines for people]
    #[arg(long, short, value_name = "FORMAT")]
    pub output: Option<DoctorFormat>,
    /// Namespace of Berth's own programs
    #[arg(long, value_name = "NAME", default_value = "berth-system")]
    pub control_namespace: String,
}

/// As what findings are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DoctorFormat {
    /// One JSON object
    Json,
}

/// `kubectl berth completions`
#[derive(Debug, Clone, ClapArgs)]
#[command(after_help = "\
Examples:
  kubectl berth completions bash > ~/.local/share/bash-completion/completions/kubectl-berth
  kubectl berth completions zsh > \"${fpath[1]}/_kubectl-berth\"

They complete `kubectl-berth`, which is the same program as `kubectl berth`.")]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub shell: Shell,
}

/// A shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// bash
    Bash,
    /// zsh
    Zsh,
    /// fish
    Fish,
}

/// A duration in whole seconds, at least one.
fn parse_duration(text: &str) -> Result<i64, String> {
    let duration: SignedDuration = text.parse().map_err(|_| "write one such as 90s, 10m or 1h30m")?;
    let seconds = duration.as_secs();
    if seconds < 1 { Err("it must be at least 1s".to_owned()) } else { Ok(seconds) }
}

/// The whole command line as clap knows it.
pub fn command() -> clap::Command {
    Args::command()
}

/// The completion script of a shell.
pub fn script(shell: Shell) -> Vec<u8> {
    let shell = match shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command().bin_name("kubectl-berth"), "kubectl-berth", &mut script);
    script
}

/// Writes the script to standard output.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<Exit, PluginError> {
    let mut out = std::io::stdout().lock();
    out.write_all(&script(args.shell)).and_then(|()| out.flush()).map_err(PluginError::Output)?;
    Ok(Exit::Succeeded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent_and_every_command_has_examples() {
        command().debug_assert();
        for subcommand in command().get_subcommands() {
            let help = subcommand.clone().render_long_help().to_string();
            assert!(help.contains("Examples:\n  kubectl berth"), "{help}");
        }
    }

    #[test]
    fn flags_of_the_cluster_go_before_and_after_the_command() {
        for line in [
            &["kubectl-berth", "-n", "team", "--context", "c", "list"][..],
            &["kubectl-berth", "list", "-n", "team", "--context", "c"],
        ] {
            let args = Args::try_parse_from(line).unwrap();
            let given = (args.cluster.namespace.as_deref(), args.cluster.context.as_deref());
            assert_eq!(given, (Some("team"), Some("c")));
        }
    }

    #[test]
    fn conflicts_are_refused() {
        for line in [
            &["kubectl-berth"][..],
            &["kubectl-berth", "list", "-A", "one"],
            &["kubectl-berth", "list", "-o", "xml"],
            &["kubectl-berth", "describe"],
            &["kubectl-berth", "logs", "one", "--part", "door"],
            &["kubectl-berth", "logs", "one", "--since", "soon"],
            &["kubectl-berth", "logs", "one", "--since", "0s"],
            &["kubectl-berth", "logs", "one", "-f", "--previous"],
            &["kubectl-berth", "render"],
            &["kubectl-berth", "render", "one", "-f", "x"],
        ] {
            assert!(Args::try_parse_from(line).is_err(), "{line:?}");
        }
    }

    #[test]
    fn durations_are_written_as_kubectl_takes_them() {
        for (text, seconds) in [("90s", 90), ("10m", 600), ("1h30m", 5_400), ("2h", 7_200)] {
            assert_eq!(parse_duration(text), Ok(seconds), "{text}");
        }
    }

    #[test]
    fn every_shell_completes_every_command() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = String::from_utf8(script(shell)).unwrap();
            for word in ["describe", "attach", "bundle", "all-namespaces"] {
                assert!(script.contains(word), "{shell:?}: {word}");
            }
        }
    }
}
