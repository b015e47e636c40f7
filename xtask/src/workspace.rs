//! Where things are: the workspace, the cache outside it, cargo. The one place of xtask that reads the
//! environment.

use std::{
    env,
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context;

/// Paths that tasks work with.
#[derive(Debug)]
pub(crate) struct Workspace {
    /// The repository's root.
    pub(crate) root: PathBuf,
    /// `$BERTH_CACHE`, else `$HOME/.cache/berth`: everything fetched or built, by version.
    pub(crate) cache: PathBuf,
    /// The user's home directory.
    pub(crate) home: PathBuf,
    /// The cargo that runs this.
    pub(crate) cargo: OsString,
    /// `BERTH_E2E_KUBECONFIG`: the cluster that the end-to-end tests run on, where it is not to be made for them.
    pub(crate) kubeconfig: Option<PathBuf>,
    /// `BERTH_TEST_WITHOUT_ROOT=1`: tests that want root are to be left out.
    pub(crate) is_without_root: bool,
    /// `BERTH_KUBERNETES`: which version of Kubernetes is made.
    pub(crate) kubernetes: Option<String>,
}

impl Workspace {
    /// Reads the environment.
    #[expect(clippy::disallowed_methods, reason = "the one place of xtask that reads the environment")]
    pub(crate) fn find() -> anyhow::Result<Self> {
        let home = PathBuf::from(env::var_os("HOME").context("HOME is not set")?);
        let given = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
        let cache = given("BERTH_CACHE").map_or_else(|| home.join(".cache/berth"), PathBuf::from);
        let kubeconfig = given("BERTH_E2E_KUBECONFIG").map(PathBuf::from);
        let kubernetes = given("BERTH_KUBERNETES").and_then(|version| version.into_string().ok());
        let is_without_root = given("BERTH_TEST_WITHOUT_ROOT").is_some_and(|value| value == "1");
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask has no parent directory")?;
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        Ok(Self { root: root.to_owned(), cache, home, cargo, kubeconfig, is_without_root, kubernetes })
    }

    /// A command that runs at the workspace's root.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root);
        command
    }
}
