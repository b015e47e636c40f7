//! Which cluster the tests run on. Reads the environment.

use std::path::PathBuf;

/// A cluster, and the program to talk to it.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Its kubeconfig.
    pub kubeconfig: PathBuf,
    /// `kubectl`.
    pub kubectl: PathBuf,
}

impl Setting {
    /// The cluster of `BERTH_E2E_KUBECONFIG`, and the kubectl of `BERTH_E2E_KUBECTL`, or else the one on the search path.
    pub fn from_environment() -> Option<Self> {
        let kubeconfig = variable("BERTH_E2E_KUBECONFIG")?;
        let kubectl = variable("BERTH_E2E_KUBECTL").unwrap_or_else(|| "kubectl".into());
        Some(Self { kubeconfig, kubectl })
    }
}

#[expect(clippy::disallowed_methods, reason = "this is where the harness reads its environment")]
fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}
