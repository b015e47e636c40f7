//! Berth as it runs in a cluster, on this machine: servers on one database file, and a pod's two programs around one real
//! opencode, each a process of its own. Only the scripted model runs in this process.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use berth_client::BerthClient;
use berth_opencode::{ClientConfig, OpencodeClient};
use berth_testkit::{ModelLog, ScriptedModel, ports, provider_config};
use berth_wire::api::{CreateSession, SandboxPhase};
use nix::sys::signal::Signal;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use uuid::Uuid;

use crate::{
    process::Process,
    programs::{built_program, opencode_config_home, opencode_program, search_path},
    stack::{processes_in, secret},
    wait::within,
};

/// How long a server's lease lasts here, in seconds: a take-over need not take long.
pub const LEASE: u64 = 2;

/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(50);

/// The programs. [`Fleet::stop`] ends them and checks that nothing is left.
#[derive(Debug)]
pub struct Fleet {
    /// The servers.
    pub servers: Vec<Process>,
    /// The pod's door.
    pub sidecar: Process,
    /// What keeps opencode running.
    pub supervisor: Process,
    /// What the model was asked.
    pub model: ModelLog,
    /// The sandbox's working directory.
    pub work: PathBuf,
    /// The SQLite file of the servers.
    pub database: PathBuf,
    token: SecretString,
    door_password: SecretString,
    addresses: Addresses,
    listens: Vec<SocketAddr>,
    shutdown: CancellationToken,
    tasks: TaskTracker,
    folder: TempDir,
}

#[derive(Debug, Clone, Copy)]
struct Addresses {
    door: SocketAddr,
    admin: SocketAddr,
    control: SocketAddr,
    opencode: SocketAddr,
}

impl Fleet {
    /// Prepares as many servers, starts the pod's programs and the first server, and waits until it is ready.
    pub async fn start(servers: usize) -> Self {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let root = folder.path().canonicalize().expect("the folder is there");
        let work = root.join("work");
        std::fs::create_dir(&work).expect("a folder can be made");
        let (shutdown, tasks) = (CancellationToken::new(), TaskTracker::new());
        let model = ScriptedModel::bind(([127, 0, 0, 1], 0).into()).await.expect("loopback can be bound");
        let (log, mut config) = (model.log(), provider_config(model.address()));
        config["permission"] = json!({ "bash": "allow", "edit": "allow" });
        tasks.spawn(model.run(shutdown.clone()));
        tasks.close();

        let (token, door_password) = (secret(), secret());
        write_secrets(&root, &token, &door_password);
        let addresses = Addresses {
            door: ports::free(),
            admin: ports::free(),
            control: ports::free(),
            opencode: ports::free(),
        };
        write_sandboxes(&root, addresses.door, &work);
        let listens: Vec<SocketAddr> = (0..servers).map(|_| ports::free()).collect();
        let mut fleet = Self {
            servers: listens
                .iter()
                .enumerate()
                .map(|(index, listen)| server(&root, index, *listen))
                .collect(),
            sidecar: sidecar(&root, addresses),
            supervisor: supervisor(&root, addresses, &config),
            model: log,
            work,
            database: root.join("berth.db"),
            token,
            door_password,
            addresses,
            listens,
            shutdown,
            tasks,
            folder,
        };
        fleet.sidecar.start();
        fleet.supervisor.start();
        fleet.servers[0].start();
        fleet.serves(0).await;
        fleet.ready(0).await;
        fleet
    }

    /// Base address of a server, and its token, for programs that are not ours.
    pub fn address(&self, server: usize) -> (String, String) {
        (format!("http://{}", self.listens[server]), self.token.expose_secret().to_owned())
    }

    /// A client of one of the servers.
    pub fn client(&self, server: usize) -> BerthClient {
        let url = format!("http://{}", self.listens[server]);
        BerthClient::new(&url, self.token.clone()).expect("a plain URL")
    }

    /// Has servers that are started from now on reach the door at another address, such as a [`crate::Cutter`]'s.
    pub fn reach_door_at(&self, address: SocketAddr) {
        let root = self.database.parent().expect("the database is in the folder");
        write_sandboxes(root, address, &self.work);
    }

    /// The door's own address.
    pub fn door(&self) -> SocketAddr {
        self.addresses.door
    }

    /// A client of the door, as a server has one.
    pub fn opencode(&self) -> OpencodeClient {
        let url = format!("http://{}", self.addresses.door);
        OpencodeClient::new(ClientConfig::new(url, self.door_password.clone())).expect("a plain URL")
    }

    /// Waits until a server answers.
    pub async fn serves(&self, server: usize) {
        let client = self.client(server);
        within("a server", async {
            while client.list_sandboxes().await.is_err() {
                tokio::time::sleep(PAUSE).await;
            }
        })
        .await;
    }

    /// Waits until opencode is ready, as this server sees it.
    pub async fn ready(&self, server: usize) {
        let client = self.client(server);
        within("opencode", async {
            loop {
                let sandbox = client.get_sandbox("local", "default").await;
                if sandbox.is_ok_and(|sandbox| sandbox.phase == SandboxPhase::Ready) {
                    return;
                }
                tokio::time::sleep(PAUSE).await;
            }
        })
        .await;
    }

    /// A new session.
    pub async fn session(&self, server: usize) -> Uuid {
        let body = CreateSession::default();
        self.client(server).create_session("local", "default", &body).await.expect("the session is made").id
    }

    /// Process id of opencode, as the door tells it; none while it does not run.
    pub async fn opencode_pid(&self) -> Option<u32> {
        self.opencode().door_state().await.ok()?.pid
    }

    /// Ends everything in order, and checks exit codes and that no process is left.
    pub async fn stop(mut self) {
        for server in self.servers.iter_mut().filter(|server| server.runs()) {
            let (status, _) = server.terminate().await;
            assert_eq!(status.code(), Some(0), "{}", server.name);
        }
        for program in [&mut self.supervisor, &mut self.sidecar].into_iter().filter(|program| program.runs())
        {
            let (status, _) = program.terminate().await;
            assert_eq!(status.code(), Some(0), "{}", program.name);
        }
        self.shutdown.cancel();
        within("the model's end", self.tasks.wait()).await;
        within("the end of all processes", async {
            while !processes_in(self.folder.path()).is_empty() {
                tokio::time::sleep(PAUSE).await;
            }
        })
        .await;
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        // One that is stopped takes no other signal than these.
        self.servers.iter().filter(|server| server.runs()).for_each(|server| server.send(Signal::SIGCONT));
        if std::thread::panicking() {
            self.servers.iter().chain([&self.sidecar, &self.supervisor]).for_each(Process::show);
        }
    }
}

fn write_secrets(root: &Path, token: &SecretString, door: &SecretString) {
    let folder = root.join("secret");
    std::fs::create_dir(&folder).expect("a folder can be made");
    for (path, value) in [
        (root.join("token"), token),
        (folder.join("password"), door),
        (folder.join("opencode-password"), &secret()),
    ] {
        std::fs::write(path, value.expose_secret()).expect("a file can be written");
    }
}

fn write_sandboxes(root: &Path, door: SocketAddr, work: &Path) {
    let sandbox = json!({
        "namespace": "local", "name": "default", "door_url": format!("http://{door}"),
        "password_file": "secret/password", "directory": work,
    });
    let text = json!({ "sandboxes": [sandbox] }).to_string();
    std::fs::write(root.join("sandboxes.json"), text).expect("a file can be written");
}

fn flat(arguments: &[(&str, String)]) -> Vec<String> {
    arguments.iter().flat_map(|(name, value)| [(*name).to_owned(), value.clone()]).collect()
}

fn text(path: PathBuf) -> String {
    path.into_os_string().into_string().expect("a plain path")
}

fn process(root: &Path, name: &str, program: &str, arguments: Vec<String>) -> Process {
    Process {
        name: name.to_owned(),
        program: built_program(program),
        arguments,
        environment: vec![("PATH".to_owned(), search_path()), ("HOME".to_owned(), text(root.to_owned()))],
        log: root.join(format!("{name}.log")),
        child: None,
    }
}

fn server(root: &Path, index: usize, listen: SocketAddr) -> Process {
    let mut arguments = vec!["serve".to_owned()];
    arguments.extend(flat(&[
        ("--database", text(root.join("berth.db"))),
        ("--listen", listen.to_string()),
        ("--token-file", text(root.join("token"))),
        ("--sandboxes", text(root.join("sandboxes.json"))),
        ("--lease", LEASE.to_string()),
        ("--log", "text".to_owned()),
        ("--log-level", "info,berth_server=debug".to_owned()),
    ]));
    process(root, &format!("server-{index}"), "berth-controller", arguments)
}

fn sidecar(root: &Path, addresses: Addresses) -> Process {
    let arguments = flat(&[
        ("--listen", addresses.door.to_string()),
        ("--admin", addresses.admin.to_string()),
        ("--supervisor", addresses.control.to_string()),
        ("--secret", text(root.join("secret"))),
        ("--log", "text".to_owned()),
    ]);
    process(root, "sidecar", "berth-sidecar", arguments)
}

fn supervisor(root: &Path, addresses: Addresses, config: &Value) -> Process {
    let arguments = flat(&[
        ("--opencode", text(opencode_program())),
        ("--directory", text(root.join("work"))),
        ("--data", text(root.join("data"))),
        ("--config-home", text(opencode_config_home())),
        ("--port", addresses.opencode.port().to_string()),
        ("--password-file", text(root.join("secret/opencode-password"))),
        ("--control", addresses.control.to_string()),
        ("--wait-for", format!("http://{}/ready", addresses.admin)),
        ("--termination-log", text(root.join("termination-log"))),
        ("--log", "text".to_owned()),
        // A test that kills opencode again and again need not wait as a person would.
        ("--backoff-longest", "200".to_owned()),
        ("--grace", "500".to_owned()),
    ]);
    let mut supervisor = process(root, "supervisor", "berth-supervisor", arguments);
    supervisor.environment.extend(crate::stack::offline_environment(config));
    supervisor
}
