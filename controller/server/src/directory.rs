//! Where sandboxes are: the server asks, and knows nothing of how they came to be.

use secrecy::{ExposeSecret, SecretString};
use tokio::sync::watch;

/// How to reach one sandbox.
#[derive(Debug, Clone)]
pub struct SandboxAddress {
    /// Namespace; `local` in local mode.
    pub namespace: String,
    /// Name, unique in its namespace.
    pub name: String,
    /// Absolute working directory inside the sandbox, links resolved.
    pub directory: String,
    /// Other absolute names of that directory, through symbolic links, under which persons know it: files that are
    /// named by them are inside too.
    pub aliases: Vec<String>,
    /// Base URL of its door, without a trailing slash.
    pub door_url: String,
    /// Password of its door.
    pub door_password: SecretString,
    /// UID of the pod whose door this must be: it has to prove that it is, on each connection, before the password is
    /// sent. Nothing where the door is of this machine and nobody else can take its port.
    pub pod_uid: Option<String>,
}

impl SandboxAddress {
    /// Whether both lead to the same door with the same password, and to the same directory behind it.
    pub(crate) fn leads_where(&self, other: &Self) -> bool {
        let place =
            |address: &Self| (address.door_url.clone(), address.pod_uid.clone(), address.directory.clone());
        place(self) == place(other)
            && self.door_password.expose_secret() == other.door_password.expose_secret()
    }

    /// A directory of the sandbox by its own name, when it is named through one of the aliases.
    pub fn real(&self, directory: &str) -> String {
        let beneath = |alias: &String| {
            let rest = directory.strip_prefix(alias.trim_end_matches('/'))?;
            (rest.is_empty() || rest.starts_with('/')).then(|| format!("{}{rest}", self.directory))
        };
        self.aliases.iter().find_map(beneath).unwrap_or_else(|| directory.to_owned())
    }
}

/// Why a sandbox is not ready, in the words of who makes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unready {
    /// Its reason, such as `Unschedulable`.
    pub reason: String,
    /// For a person.
    pub message: String,
    /// Whether its programs run, so that it may be ready soon; else it waits for a place, an image or a person.
    pub runs: bool,
}

/// Finds sandboxes. Answers come from memory: callers ask on every request.
pub trait SandboxDirectory: Send + Sync + 'static {
    /// Changes after answers have changed; nothing when they never do.
    fn changes(&self) -> Option<watch::Receiver<()>> {
        None
    }

    /// The sandbox's door does not take the password: where it is kept there may be another one by now.
    fn refused(&self, _namespace: &str, _name: &str) {}

    /// Turns run in the sandbox or wait for it, or no more.
    fn at_work(&self, _namespace: &str, _name: &str, _at_work: bool) {}

    /// Why a sandbox is not ready, where that is known.
    fn unready(&self, _namespace: &str, _name: &str) -> Option<Unready> {
        None
    }

    /// All sandboxes, ordered by namespace and name.
    fn list(&self) -> Vec<SandboxAddress>;

    /// One sandbox; nothing where none is known of that name, or where it cannot be reached.
    fn find(&self, namespace: &str, name: &str) -> Option<SandboxAddress>;

    /// Whether there is none of that name for sure: not while it is not known what there is, and not where there is one
    /// that only cannot be reached.
    fn is_gone(&self, namespace: &str, name: &str) -> bool;
}

/// A directory that never changes.
#[derive(Debug)]
pub struct StaticDirectory(pub Vec<SandboxAddress>);

impl SandboxDirectory for StaticDirectory {
    fn list(&self) -> Vec<SandboxAddress> {
        self.0.clone()
    }

    fn find(&self, namespace: &str, name: &str) -> Option<SandboxAddress> {
        self.0.iter().find(|sandbox| sandbox.namespace == namespace && sandbox.name == name).cloned()
    }

    fn is_gone(&self, namespace: &str, name: &str) -> bool {
        self.find(namespace, name).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_name() {
        let sandbox = SandboxAddress {
            namespace: "local".to_owned(),
            name: "shop".to_owned(),
            directory: "/srv/shop".to_owned(),
            aliases: vec!["/home/ada/shop".to_owned(), "/s/".to_owned()],
            door_url: String::new(),
            door_password: "".into(),
            pod_uid: None,
        };
        for (named, real) in [
            ("/home/ada/shop", "/srv/shop"),
            ("/home/ada/shop/api", "/srv/shop/api"),
            ("/s", "/srv/shop"),
            ("/s/api", "/srv/shop/api"),
            ("/home/ada/shopping", "/home/ada/shopping"),
            ("/srv/shop", "/srv/shop"),
        ] {
            assert_eq!(sandbox.real(named), real);
        }
    }
}
