//! A whole pod on the loopback interface: both programs, a real opencode, and the scripted model. IO.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use berth_serve::ServeState;
use berth_testkit::{ScriptedModel, ports, provider_config};
use tempfile::TempDir;
use tokio::time::sleep;
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use super::{
    Programs,
    client::Way,
    process::{Program, flags},
};

/// Passwords of a pod that lives for a benchmark.
pub(crate) const PASSWORD: &str = "the-password-of-the-door";
/// opencode's own.
pub(crate) const INTERNAL: &str = "the-internal-password";

/// Bound on opencode's start and on the door's.
const START_BOUND: Duration = Duration::from_mins(1);

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// What keeps opencode from the network.
const SWITCHES: [&str; 5] = [
    "OPENCODE_DISABLE_MODELS_FETCH",
    "OPENCODE_DISABLE_AUTOUPDATE",
    "OPENCODE_DISABLE_LSP_DOWNLOAD",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS",
    "OPENCODE_PURE",
];

/// Free addresses on the loopback interface: of the door, of the admin listener, of the supervisor's control and of
/// opencode.
pub(crate) fn free_addresses<const COUNT: usize>() -> [SocketAddr; COUNT] {
    std::array::from_fn(|_| ports::free())
}

/// Writes the door's secret into a new directory.
pub(crate) fn write_secret(directory: &Path) -> anyhow::Result<()> {
    fs::create_dir(directory)?;
    fs::write(directory.join("password"), PASSWORD)?;
    fs::write(directory.join("opencode-password"), INTERNAL)?;
    Ok(())
}

/// Starts a door in a program of its own, and waits until requests pass.
pub(crate) async fn start_sidecar(
    programs: &Programs,
    root: &Path,
    [door, admin, control]: [SocketAddr; 3],
) -> anyhow::Result<Program> {
    let arguments = flags([
        ("--listen", door.to_string()),
        ("--admin", admin.to_string()),
        ("--supervisor", control.to_string()),
        ("--secret", root.join("secret").display().to_string()),
    ]);
    let log = root.join("sidecar.log");
    let program = Program::start("berth-sidecar", &programs.sidecar, arguments, &[], &log)?;
    let way = Way::new(door, PASSWORD)?;
    let begun = Instant::now();
    // What runs in opencode is asked for once after the start of a door: that is over when it is known.
    while !way.json("/berth/turns").await.is_ok_and(|turns| turns["activity"] == "idle") {
        within(begun, "the door does not open", &log)?;
        sleep(PAUSE).await;
    }
    Ok(program)
}

/// Fails, with the program's log, when it has taken too long.
pub(crate) fn within(begun: Instant, what: &str, log: &Path) -> anyhow::Result<()> {
    if begun.elapsed() > START_BOUND {
        bail!("{what}; its log:\n{}", fs::read_to_string(log).unwrap_or_default());
    }
    Ok(())
}

/// The pod.
#[derive(Debug)]
pub(crate) struct Pod {
    programs: Programs,
    folder: TempDir,
    configuration: String,
    addresses: [SocketAddr; 3],
    supervisor: Program,
    sidecar: Option<Program>,
    /// To opencode itself.
    pub(crate) direct: Way,
    /// Through the door.
    pub(crate) door: Way,
    opencode: u32,
    _model: DropGuard,
}

impl Pod {
    /// Starts everything, and waits until the door lets requests pass.
    pub(crate) async fn start(programs: &Programs) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let root = folder.path().canonicalize()?;
        fs::create_dir(root.join("work"))?;
        write_secret(&root.join("secret"))?;
        let model = ScriptedModel::bind(([127, 0, 0, 1], 0).into()).await?;
        let configuration = provider_config(model.address()).to_string();
        let shutdown = CancellationToken::new();
        TaskTracker::new().spawn(model.run(shutdown.clone()));

        let [door, admin, control, opencode] = free_addresses();
        let supervisor = supervisor(programs, &root, control, opencode, configuration.clone())?;
        let mut pod = Self {
            addresses: [door, admin, control],
            direct: Way::new(opencode, INTERNAL)?,
            door: Way::new(door, PASSWORD)?,
            opencode: 0,
            sidecar: None,
            programs: programs.clone(),
            folder,
            configuration,
            supervisor,
            _model: shutdown.drop_guard(),
        };
        pod.opencode = pod.wait_for_opencode(control).await?;
        pod.open_door().await?;
        Ok(pod)
    }

    async fn wait_for_opencode(&self, control: SocketAddr) -> anyhow::Result<u32> {
        let way = Way::new(control, INTERNAL)?;
        let begun = Instant::now();
        loop {
            if let Ok(state) = way.json("/state").await {
                let state: ServeState = serde_json::from_value(state)?;
                if let (Some(pid), Some(_)) = (state.pid, state.address) {
                    return Ok(pid);
                }
            }
            within(begun, "opencode does not start", &self.folder.path().join("supervisor.log"))?;
            sleep(PAUSE).await;
        }
    }

    /// Starts the door, if it is not open.
    pub(crate) async fn open_door(&mut self) -> anyhow::Result<()> {
        if self.sidecar.is_none() {
            let root = self.folder.path();
            self.sidecar = Some(start_sidecar(&self.programs, root, self.addresses).await?);
        }
        Ok(())
    }

    /// Ends the door: opencode has no subscriber then.
    pub(crate) async fn close_door(&mut self) -> anyhow::Result<()> {
        match self.sidecar.take() {
            Some(sidecar) => sidecar.stop().await,
            None => Ok(()),
        }
    }

    /// Where the door listens, while it is open.
    pub(crate) fn door_address(&self) -> SocketAddr {
        self.addresses[0]
    }

    /// Where its files are: the sandbox's directory is `work` in it, and `secret` holds passwords.
    pub(crate) fn root(&self) -> anyhow::Result<PathBuf> {
        Ok(self.folder.path().canonicalize()?)
    }

    /// The configuration that its opencode was given.
    pub(crate) fn configuration(&self) -> &str {
        &self.configuration
    }

    /// Process id of the sidecar.
    pub(crate) fn sidecar(&self) -> anyhow::Result<u32> {
        Ok(self.sidecar.as_ref().context("the door is closed")?.pid())
    }

    /// Process id of the supervisor.
    pub(crate) fn supervisor(&self) -> u32 {
        self.supervisor.pid()
    }

    /// Process id of opencode.
    pub(crate) fn opencode(&self) -> u32 {
        self.opencode
    }

    /// Ends everything.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        self.close_door().await?;
        self.supervisor.stop().await
    }
}

/// What opencode finds in its environment.
pub(crate) fn environment(home: &Path, configuration: String) -> Vec<(&'static str, String)> {
    let mut environment: Vec<(&str, String)> = SWITCHES.map(|name| (name, "1".to_owned())).to_vec();
    environment.push(("OPENCODE_CONFIG_CONTENT", configuration));
    environment.push(("PATH", "/usr/local/bin:/usr/bin:/bin".to_owned()));
    environment.push(("HOME", home.display().to_string()));
    environment
}

fn supervisor(
    programs: &Programs,
    root: &Path,
    control: SocketAddr,
    opencode: SocketAddr,
    configuration: String,
) -> anyhow::Result<Program> {
    let path = |path: &Path| path.display().to_string();
    let arguments = flags([
        ("--opencode", path(&programs.opencode)),
        ("--directory", path(&root.join("work"))),
        ("--data", path(&root.join("data"))),
        ("--config-home", path(&programs.config_home)),
        ("--port", opencode.port().to_string()),
        ("--password-file", path(&root.join("secret/opencode-password"))),
        ("--control", control.to_string()),
        ("--termination-log", path(&root.join("termination-log"))),
    ]);
    let environment = environment(root, configuration);
    let log = root.join("supervisor.log");
    Program::start("berth-supervisor", &programs.supervisor, arguments, &environment, &log)
}
