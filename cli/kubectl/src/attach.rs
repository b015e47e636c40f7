//! `kubectl berth attach`: opencode's own terminal here, for the opencode of a sandbox. IO.
//!
//! The door's password goes from the Secret to opencode in a variable of its environment, and nowhere else.

mod program;

use std::{
    io::{self, IsTerminal},
    process::Stdio,
    time::Duration,
};

use berth_api::{layout, names};
use berth_opencode::{ClientConfig, DoorProof, OpencodeClient};
use k8s_openapi::api::core::v1::{Pod, Secret};
use secrecy::{ExposeSecret, SecretString};
use tokio::{
    process::Command,
    signal::unix::{SignalKind, signal},
};

use crate::{
    args::{AttachArgs, ClusterArgs},
    cluster::{Cluster, ask},
    error::{Exit, PluginError},
    sandboxes::{self, Found},
    tunnel::{Door, Tunnel},
};

/// The user that the door knows.
const USER: &str = "opencode";

/// Bound on the first answer of the door.
const DOOR: Duration = Duration::from_secs(30);

/// Attaches until opencode's terminal is left.
pub(crate) async fn attach(cluster: &ClusterArgs, args: AttachArgs) -> Result<Exit, PluginError> {
    if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
        let why = "attach wants a terminal: for scripts there is `berth run`";
        return Err(PluginError::Usage(why.to_owned()));
    }
    let opencode = program::find(args.opencode.as_deref())?;
    let cluster = Cluster::connect(cluster).await?;
    let sandbox = sandboxes::get(&cluster, &args.name).await?;
    let uid = pod_uid(&cluster, &sandbox)?;
    let password = read_password(&cluster, &sandbox).await?;
    let proof = DoorProof::new(password.clone(), Some(uid.clone()));
    let door = Door { pods: cluster.api::<Pod>(), pod: names::pod(&args.name), proof };
    let tunnel = Tunnel::open(door).await?;
    let url = format!("http://{}", tunnel.address);
    greet(&url, &password, uid).await?;
    let directory = args.dir.or_else(|| sandbox.status()?.directory.clone());
    let directory = directory.unwrap_or_else(|| layout::DIRECTORY.to_owned());
    let mut command = Command::new(&opencode);
    command
        .args(["attach", &url, "--dir", &directory])
        .args(&args.arguments)
        .env("OPENCODE_SERVER_USERNAME", USER)
        .env("OPENCODE_SERVER_PASSWORD", password.expose_secret());
    run(command, &opencode).await
}

/// The pod that the status names, which must be there.
fn pod_uid(cluster: &Cluster, sandbox: &Found) -> Result<String, PluginError> {
    let not_ready = |reason: String| PluginError::NotReady {
        namespace: cluster.namespace.clone(),
        name: sandbox.name(),
        reason,
    };
    match sandbox.status().and_then(|status| status.pod.as_ref()) {
        Some(pod) if sandbox.is_ready() => Ok(pod.uid.clone()),
        _ => {
            let (_, reason) = sandbox.ready();
            Err(not_ready(format!(
                "it is not ready ({})",
                if reason.is_empty() { "Unknown" } else { reason }
            )))
        }
    }
}

async fn read_password(cluster: &Cluster, sandbox: &Found) -> Result<SecretString, PluginError> {
    let name = sandbox.status().and_then(|status| status.secret_name.clone());
    let name = name.unwrap_or_else(|| names::secret(&sandbox.name()));
    let secret = ask(&format!("read secret {name}"), cluster.api::<Secret>().get(&name)).await?;
    let bytes = secret.data.and_then(|mut data| data.remove(names::DOOR_PASSWORD));
    let password = bytes.and_then(|bytes| String::from_utf8(bytes.0).ok());
    password.map(SecretString::from).ok_or_else(|| PluginError::NotReady {
        namespace: cluster.namespace.clone(),
        name: sandbox.name(),
        reason: format!("its secret {name} has no {}", names::DOOR_PASSWORD),
    })
}

/// Asks the door how opencode stands, so that what is wrong is told here and not by a terminal that stays empty.
async fn greet(url: &str, password: &SecretString, uid: String) -> Result<(), PluginError> {
    let mut config = ClientConfig::new(url.to_owned(), password.clone());
    (config.connect_timeout, config.request_timeout) = (DOOR, DOOR);
    (config.prove, config.pod_uid) = (true, Some(uid));
    let door = OpencodeClient::new(config).map_err(PluginError::Door)?;
    door.door_state().await.map(drop).map_err(PluginError::Door)
}

/// Runs it on this terminal to its end. Ctrl-C is a key of it, and no end of ours.
async fn run(mut command: Command, opencode: &std::path::Path) -> Result<Exit, PluginError> {
    let failed = |source| PluginError::Run { program: opencode.to_owned(), source };
    let mut interrupts = signal(SignalKind::interrupt()).map_err(failed)?;
    command.stdin(Stdio::inherit()).stdout(Stdio::inherit()).stderr(Stdio::inherit()).kill_on_drop(true);
    let mut child = command.spawn().map_err(failed)?;
    loop {
        tokio::select! {
            status = child.wait() => {
                let code = status.map_err(failed)?.code().and_then(|code| u8::try_from(code).ok());
                return Ok(Exit::Other(code.unwrap_or(1)));
            }
            Some(()) = interrupts.recv() => {}
        }
    }
}
