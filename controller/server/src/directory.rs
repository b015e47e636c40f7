//! Where sandboxes are: the server asks, and knows nothing of how they came to be.

use secrecy::SecretString;

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
}

/// Finds sandboxes. Answers come from memory: callers ask on every request.
pub trait SandboxDirectory: Send + Sync + 'static {
    /// All sandboxes, ordered by namespace and name.
    fn list(&self) -> Vec<SandboxAddress>;

    /// One sandbox.
    fn find(&self, namespace: &str, name: &str) -> Option<SandboxAddress>;
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
}
