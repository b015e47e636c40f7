//! What can go wrong, the exit codes, and what to do next. Pure.

use std::{error::Error, io, path::PathBuf};

pub(crate) use berth_wire::problem::error_chain;

/// How the program ended, for the shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// 0: everything that was asked for was done.
    Succeeded,
    /// 1: something failed, or a doctor found something in the way.
    Failed,
    /// 2: the command line is wrong.
    Usage,
    /// 4: refused by the cluster, or not there.
    Refused,
    /// 5: no cluster can be reached.
    Unreachable,
    /// As another program ended that was run.
    Other(u8),
}

/// The table of exit codes, for `--help`.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed; of doctor: something is in the way
  2  the command line is wrong
  4  not there, or refused by the cluster
  5  no cluster can be reached
of attach: that of opencode, once it runs";

impl Exit {
    /// The number that the shell sees.
    pub fn code(self) -> u8 {
        match self {
            Self::Succeeded => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Refused => 4,
            Self::Unreachable => 5,
            Self::Other(code) => code,
        }
    }
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// Why the program could not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// The kubeconfig cannot be used.
    #[error("the kubeconfig cannot be used: {0}")]
    Kubeconfig(String),
    /// The cluster did not do something. Not a source of this error: what kube says of one holds its own sources, and more.
    #[error("cannot {action}: {}", words(error))]
    Cluster {
        /// What it was to do.
        action: String,
        /// What it said.
        error: Box<kube::Error>,
    },
    /// The cluster did not answer in time.
    #[error("cannot {action}: the cluster did not answer within {seconds} s")]
    Late {
        /// What it was to do.
        action: String,
        /// The bound, in seconds.
        seconds: u64,
    },
    /// There is no such sandbox.
    #[error("there is no sandbox {name} in namespace {namespace}")]
    NoSandbox {
        /// Where it was looked for.
        namespace: String,
        /// As it was named.
        name: String,
    },
    /// The kind is not known to the cluster.
    #[error("this cluster knows no Sandboxes")]
    NotInstalled,
    /// The sandbox is there, and cannot be used for that now.
    #[error("sandbox {namespace}/{name}: {reason}")]
    NotReady {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Why not.
        reason: String,
    },
    /// The door of the sandbox did not let us in.
    #[error("the door of the sandbox does not answer as it should")]
    Door(#[source] berth_opencode::ClientError),
    /// An argument has a value that cannot be used.
    #[error("{0}")]
    Usage(String),
    /// opencode is not on this machine.
    #[error("{0}")]
    NoOpencode(String),
    /// A program cannot be run.
    #[error("{} cannot be run", program.display())]
    Run {
        /// The program.
        program: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The operator would not make anything of a manifest.
    #[error("{name}: the operator makes nothing of this manifest: {reason}")]
    Invalid {
        /// Which manifest.
        name: String,
        /// What is wrong with it, and what to change.
        reason: String,
    },
    /// A file holds no manifest.
    #[error("{}: {reason}", path.display())]
    BadFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A file cannot be read.
    #[error("{} cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file cannot be written.
    #[error("{} cannot be written", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// No port of this machine can be listened to.
    #[error("no port of 127.0.0.1 can be listened to")]
    Listen(#[source] io::Error),
    /// What was to be shown cannot be written.
    #[error("the output cannot be written")]
    Output(#[source] io::Error),
    /// A log broke off.
    #[error("the log broke off")]
    Log(#[source] io::Error),
    /// The threads of this process cannot be started.
    #[error("worker threads cannot be started")]
    Runtime(#[source] io::Error),
}

/// What the cluster said, or why there is no answer.
fn words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        kube::Error::Api(status) => format!("{} ({})", status.reason, status.code),
        other => innermost(other).to_string(),
    }
}

/// The cause of all others.
fn innermost<'a>(mut error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    while let Some(source) = error.source() {
        error = source;
    }
    error
}

impl PluginError {
    /// Makes an error of what the cluster said when it was to do this.
    pub(crate) fn cluster(action: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        move |error| Self::Cluster { action: action.into(), error: Box::new(error) }
    }

    /// Makes an error of what is wrong with the kubeconfig.
    pub(crate) fn kubeconfig(error: &(dyn Error + 'static)) -> Self {
        Self::Kubeconfig(innermost(error).to_string())
    }

    /// The status code that the apiserver gave, if it is that which failed.
    pub(crate) fn status(&self) -> Option<u16> {
        match self {
            Self::Cluster { error, .. } => match &**error {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether the cluster does not let the caller do this.
    pub(crate) fn is_forbidden(&self) -> bool {
        self.status() == Some(403)
    }

    /// What to do next.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Kubeconfig(_) => {
                "`kubectl config get-contexts` shows which contexts there are; --context names one, --kubeconfig another file"
            }
            Self::Cluster { .. } => match self.status() {
                Some(401) => "the cluster does not know you: log in again, then `kubectl auth whoami`",
                Some(403) => {
                    "you lack a right, and the message names it: ask whoever runs the cluster for it"
                }
                Some(404) => "`kubectl berth list -A` shows which sandboxes there are",
                Some(_) => "`kubectl berth doctor` looks for what is wrong in the cluster",
                None => {
                    "`kubectl cluster-info` shows whether this context's cluster can be reached from here"
                }
            },
            Self::Late { .. } => {
                "`kubectl cluster-info` shows whether this context's cluster can be reached from here"
            }
            Self::NoSandbox { .. } => {
                "`kubectl berth list -A` shows which there are; -n names another namespace"
            }
            Self::NotInstalled => {
                "Berth is not installed there: apply its manifests (deploy/) or the Helm chart, or choose another --context"
            }
            Self::NotReady { namespace, name, .. } => {
                return Some(format!("kubectl berth -n {namespace} describe {name}"));
            }
            Self::Door(berth_opencode::ClientError::PortTaken) => {
                "what listens there is not the door, and was told no password: delete the pod to have it made anew"
            }
            Self::Door(_) => "try again; if it stays so, `kubectl berth logs NAME --part sidecar` tells more",
            Self::NoOpencode(_) => {
                "install it (npm install -g opencode-ai), in the version that the sandbox runs, or name it with --opencode"
            }
            Self::Invalid { .. } => "change the manifest as the message says",
            _ => return None,
        };
        Some(hint.to_owned())
    }

    /// What it means for the shell.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Usage(_) => Exit::Usage,
            Self::Cluster { .. } => match self.status() {
                Some(code) if code < 500 => Exit::Refused,
                Some(_) => Exit::Failed,
                None => Exit::Unreachable,
            },
            Self::Late { .. } => Exit::Unreachable,
            Self::NoSandbox { .. } | Self::NotInstalled | Self::NotReady { .. } | Self::Invalid { .. } => {
                Exit::Refused
            }
            _ => Exit::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn said(code: u16) -> PluginError {
        let status = Status::failure("no", "Reason").with_code(code).boxed();
        PluginError::cluster("list sandboxes")(kube::Error::Api(status))
    }

    #[test]
    fn what_the_cluster_refuses_is_told_apart_from_a_cluster_that_is_not_there() {
        for (code, exit) in [(401, 4), (403, 4), (404, 4), (409, 4), (500, 1), (503, 1)] {
            assert_eq!(said(code).exit().code(), exit, "{code}");
            assert!(said(code).hint().is_some(), "{code}");
        }
        let gone = PluginError::cluster("list sandboxes")(kube::Error::LinesCodecMaxLineLengthExceeded);
        assert_eq!(gone.exit(), Exit::Unreachable);
        assert_eq!(said(403).to_string(), "cannot list sandboxes: no");
        assert!(said(403).is_forbidden() && !said(404).is_forbidden());
    }

    #[test]
    fn a_hint_names_the_sandbox_that_it_is_about() {
        let error = PluginError::NotReady {
            namespace: "team".to_owned(),
            name: "one".to_owned(),
            reason: "Unschedulable".to_owned(),
        };
        assert_eq!(error.hint().unwrap(), "kubectl berth -n team describe one");
    }
}
