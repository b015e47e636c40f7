//! An opencode of any version with a scripted model, which touches nothing of this machine's and does not reach out of
//! it. Does IO.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, bail};
use berth_opencode::{ClientConfig, ClientError, OpencodeClient};
use berth_testkit::{ScriptedModel, provider_config};
use secrecy::{ExposeSecret, SecretString};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::TcpListener,
    process::{Child, Command},
    task::JoinSet,
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Bound on a start.
const START: Duration = Duration::from_secs(90);

/// A running opencode; dropping it ends it.
pub(crate) struct Server {
    pub(crate) client: OpencodeClient,
    pub(crate) version: String,
    pub(crate) password: SecretString,
    root: TempDir,
    _process: Child,
    _model: JoinSet<std::io::Result<()>>,
}

impl Server {
    pub(crate) async fn start(binary: &Path) -> anyhow::Result<Self> {
        let model = ScriptedModel::bind("127.0.0.1:0".parse().expect("an address")).await?;
        let config = provider_config(model.address()).to_string();
        let mut tasks = JoinSet::new();
        tasks.spawn(model.run(CancellationToken::new()));
        let root = tempfile::tempdir()?;
        let port = TcpListener::bind("127.0.0.1:0").await?.local_addr()?.port();
        let password = SecretString::from(Uuid::new_v4().simple().to_string());
        let mut command = command(binary, root.path(), port);
        command.env("OPENCODE_SERVER_PASSWORD", password.expose_secret());
        command.env("OPENCODE_CONFIG_CONTENT", config);
        let mut process = command.spawn().with_context(|| format!("{} cannot be run", binary.display()))?;
        timeout(START, listens(&mut process)).await.context("opencode does not say that it listens")??;
        let client =
            OpencodeClient::new(ClientConfig::new(format!("http://127.0.0.1:{port}"), password.clone()))?;
        let version = match client.health().await {
            Ok(health) => health.version,
            // A version that is not known yet is what this is for.
            Err(ClientError::UnsupportedVersion { seen }) => seen.trim_start_matches("version ").to_owned(),
            Err(error) => return Err(error.into()),
        };
        Ok(Self { client, version, password, root, _process: process, _model: tasks })
    }

    /// A directory of its own, whose instance has booted.
    pub(crate) async fn directory(&self, name: &str, configuration: Option<&str>) -> anyhow::Result<String> {
        let path: PathBuf = self.root.path().canonicalize()?.join("work").join(name);
        std::fs::create_dir_all(&path)?;
        if let Some(configuration) = configuration {
            std::fs::write(path.join("opencode.json"), configuration)?;
        }
        let path = path.to_str().context("the temporary directory is not UTF-8")?.to_owned();
        self.client.session_status(&path).await?;
        Ok(path)
    }

    /// The home directory that opencode sees.
    pub(crate) fn home(&self) -> Option<String> {
        self.root.path().join("home").to_str().map(str::to_owned)
    }
}

fn command(binary: &Path, root: &Path, port: u16) -> Command {
    let mut command = Command::new(binary);
    command.args(["serve", "--hostname", "127.0.0.1", "--port", &port.to_string()]).current_dir(root);
    command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", root.join("home"));
    for name in ["CONFIG", "DATA", "STATE", "CACHE"] {
        command.env(format!("XDG_{name}_HOME"), root.join(name));
    }
    for name in ["MODELS_FETCH", "AUTOUPDATE", "LSP_DOWNLOAD", "DEFAULT_PLUGINS"] {
        command.env(format!("OPENCODE_DISABLE_{name}"), "1");
    }
    // It leaves libraries there that it unpacks (measured on opencode 1.15.4 and 1.18.33).
    command.env("BUN_TMPDIR", root);
    // What it would install into its configuration directory is refused at once.
    command.env("npm_config_registry", "http://127.0.0.1:9/").env("OPENCODE_PURE", "1");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    command
}

async fn listens(process: &mut Child) -> anyhow::Result<()> {
    let mut lines = BufReader::new(process.stdout.take().context("its output is not piped")?).lines();
    while let Some(line) = lines.next_line().await? {
        if line.contains("listening on ") {
            return Ok(());
        }
    }
    bail!("opencode ended before it listened")
}
