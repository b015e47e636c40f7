//! Starts, ends and asks after a cluster, from outside its node.

use std::{
    fs::{self, File},
    io,
    net::TcpListener,
    os::fd::OwnedFd,
    path::Path,
    process::{Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use nix::{
    errno::Errno,
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    cluster::{
        certificates::{self, Authority},
        cgroups, components,
        layout::{Layout, State},
        programs::{self, Version},
    },
    packages,
    process::{capture, pause, run_shown},
    workspace::Workspace,
};

/// Bound on each step of a start: a few seconds on a machine with nothing else to do.
const START: Duration = Duration::from_mins(5);
/// Bound on the end of a node.
const END: Duration = Duration::from_mins(1);
/// Between two looks.
const TICK: Duration = Duration::from_millis(100);
/// How much of the node's own log is shown when it fails, in bytes.
const LOG_TAIL: usize = 2000;

/// What must be there before pods can run: arguments of kubectl.
const READY: [&[&str]; 4] = [
    &["wait", "--for=create", "node/node1"],
    &["wait", "--for=condition=Ready", "node/node1"],
    &["wait", "--for=create", "serviceaccount/default", "--namespace=default"],
    &["rollout", "status", "deployment/coredns", "--namespace=kube-system"],
];

/// Starts the cluster, unless it runs, and waits until pods can run in it.
pub(super) fn up(workspace: &Workspace, layout: &Layout, version: Version) -> anyhow::Result<()> {
    ensure!(nix::unistd::geteuid().is_root(), "only root may make namespaces with a node in them");
    let _lock = lock(&layout.command_lock)?;
    if is_running(layout)? {
        let programs = State::read(layout)?.programs;
        ensure!(
            programs == layout.programs,
            "{} runs with {}: end it first",
            layout.name,
            programs.display()
        );
        println!("{} runs already", layout.name);
        return Ok(());
    }
    programs::ensure(workspace, layout, version)?;
    load_module(workspace)?;
    clean(layout)?;
    cgroups::prepare()?;
    let started = Instant::now();
    let listener = TcpListener::bind("127.0.0.1:0")?;
    write_files(layout, listener.local_addr()?.port())?;
    start_node(layout, listener)?;
    if let Err(error) = wait_ready(workspace, layout) {
        let log = fs::read_to_string(layout.path("log/node.log")).unwrap_or_default();
        eprintln!("{}", log.get(log.len().saturating_sub(LOG_TAIL)..).unwrap_or(&log));
        return Err(error.context(format!("the node's logs are in {}", layout.path("log").display())));
    }
    println!("{} is ready after {:.1} s", layout.name, started.elapsed().as_secs_f32());
    println!("export KUBECONFIG={}", layout.path("kubeconfig").display());
    println!("kubectl, where there is none: {}", layout.program("kubectl").display());
    Ok(())
}

/// Ends the cluster, if it runs, and removes what it left.
pub(super) fn down(layout: &Layout) -> anyhow::Result<()> {
    let _lock = lock(&layout.command_lock)?;
    clean(layout)
}

/// Tells how it stands.
pub(super) fn status(layout: &Layout) -> anyhow::Result<ExitCode> {
    if !is_running(layout)? {
        println!("{} does not run", layout.name);
        return Ok(ExitCode::FAILURE);
    }
    let state = State::read(layout)?;
    println!("{} runs as process {}", layout.name, state.pid);
    println!("programs: {}", state.programs.display());
    println!("logs: {}", layout.path("log").display());
    println!("kubeconfig: {}", state.kubeconfig.display());
    run_shown(kubectl(layout).args(["get", "nodes,pods", "--all-namespaces", "--output=wide"]))?;
    Ok(ExitCode::SUCCESS)
}

/// What is known of a cluster that runs.
pub(super) fn running(layout: &Layout) -> anyhow::Result<State> {
    ensure!(is_running(layout)?, "{} does not run: cargo xtask cluster up", layout.name);
    State::read(layout)
}

/// By it, packets from pod to pod pass the rules of the node. The kernel's other modules come when they are called for.
fn load_module(workspace: &Workspace) -> anyhow::Result<()> {
    if Path::new("/proc/sys/net/bridge").exists() {
        return Ok(());
    }
    packages::ensure(workspace, &packages::OF_MODULES)?;
    run_shown(Command::new("modprobe").arg("br_netfilter"))
        .context("the kernel module br_netfilter is needed")
}

fn lock(path: &Path) -> anyhow::Result<File> {
    fs::create_dir_all(path.parent().context("no parent")?)?;
    let file = File::create(path).with_context(|| path.display().to_string())?;
    file.lock()?;
    Ok(file)
}

/// The node's first process holds a lock for as long as it lives: no identifier of a process can be mistaken.
fn is_running(layout: &Layout) -> anyhow::Result<bool> {
    match File::open(layout.node_lock()) {
        Ok(file) => match file.try_lock() {
            Ok(()) => Ok(false),
            Err(fs::TryLockError::WouldBlock) => Ok(true),
            Err(fs::TryLockError::Error(error)) => Err(error.into()),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Ends what runs, and removes what is left of this run or of one that was killed.
fn clean(layout: &Layout) -> anyhow::Result<()> {
    if let Ok(state) = State::read(layout) {
        if is_running(layout)? {
            end(layout, &state)?;
        }
        cgroups::remove(&state.cgroups)?;
    }
    match fs::remove_dir_all(&layout.directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| layout.directory.display().to_string())
        }
        _ => Ok(()),
    }
}

fn end(layout: &Layout, state: &State) -> anyhow::Result<()> {
    let pid = Pid::from_raw(state.pid);
    kill(pid, Signal::SIGKILL)?;
    // With it the kernel ends every process of its namespace, and only then is it gone itself.
    let is_gone = || Ok(!is_running(layout)? && kill(pid, None) == Err(Errno::ESRCH));
    wait_until("the node has ended", END, is_gone)
}

fn write_files(layout: &Layout, port: u16) -> anyhow::Result<()> {
    for directory in ["pki", "log", "etcd", "cni", "volumes", "volume-plugins"] {
        fs::create_dir_all(layout.path(directory))?;
    }
    for (name, text) in components::configurations(layout) {
        fs::write(layout.path(name), text)?;
    }
    let pki = layout.path("pki");
    let authority = Authority::new()?;
    authority.write(&pki)?;
    certificates::write_token_keys(&pki)?;
    let (node, address) = (components::NODE, components::NODE_ADDRESS);
    let service =
        ["", ".default", ".default.svc", ".default.svc.cluster.local"].map(|end| format!("kubernetes{end}"));
    let mut hosts = vec!["localhost", "127.0.0.1", address, components::API_SERVICE];
    hosts.extend(service.iter().map(String::as_str));
    authority.server("kube-apiserver", &hosts)?.write(&pki, "apiserver")?;
    authority.server(node, &[node, "127.0.0.1", address])?.write(&pki, "kubelet")?;
    authority.client("apiserver", Some("system:masters"))?.write(&pki, "kubelet-client")?;
    let inside = format!("https://{address}:{}", components::API_PORT);
    let admin = authority.client("admin", Some("system:masters"))?;
    fs::write(pki.join("admin.kubeconfig"), authority.kubeconfig(&inside, &admin).to_string())?;
    let outside = format!("https://127.0.0.1:{port}");
    fs::write(layout.path("kubeconfig"), authority.kubeconfig(&outside, &admin).to_string())?;
    let kubelet = format!("system:node:{node}");
    for (file, user, group) in [
        ("controller-manager", "system:kube-controller-manager", None),
        ("scheduler", "system:kube-scheduler", None),
        ("proxy", "system:kube-proxy", None),
        ("kubelet", kubelet.as_str(), Some("system:nodes")),
    ] {
        let client = authority.client(user, group)?;
        let text = authority.kubeconfig(&inside, &client).to_string();
        fs::write(pki.join(format!("{file}.kubeconfig")), text)?;
    }
    Ok(())
}

fn start_node(layout: &Layout, listener: TcpListener) -> anyhow::Result<()> {
    let log = File::create(layout.path("log/node.log"))?;
    let own = std::env::current_exe()?;
    let version = layout.programs.file_name().context("no version")?;
    let mut command = Command::new("setsid");
    command.args(["unshare", "--mount", "--net", "--pid", "--uts", "--ipc", "--propagation=private"]);
    command.args(["--fork", "--kill-child", "--"]).arg(own).args(["cluster", "node", "--name", &layout.name]);
    command.arg("--kubernetes").arg(version);
    command.stdin(Stdio::from(OwnedFd::from(listener))).stdout(log.try_clone()?).stderr(log);
    let mut child = command.spawn().context("setsid and unshare are in util-linux")?;
    wait_until("the node has begun", START, || {
        if let Some(status) = child.try_wait()? {
            bail!("the node has ended: {status}");
        }
        Ok(is_running(layout)? && State::read(layout).is_ok())
    })
}

fn wait_ready(workspace: &Workspace, layout: &Layout) -> anyhow::Result<()> {
    let state = State::read(layout)?;
    let is_alive = || -> anyhow::Result<()> {
        ensure!(is_running(layout)?, "the node has ended");
        Ok(())
    };
    wait_until("containerd answers", START, || {
        is_alive()?;
        Ok(capture(state.command("ctr").arg("version")).is_ok())
    })?;
    let pause = layout.programs.join("pause.tar");
    capture(state.command("ctr").args(["--namespace", "k8s.io", "images", "import"]).arg(pause))?;
    wait_until("the apiserver is ready", START, || {
        is_alive()?;
        Ok(capture(kubectl(layout).args(["get", "--raw=/readyz"])).is_ok())
    })?;
    let manifests = workspace.root.join("tests/cluster/manifests");
    capture(kubectl(layout).args(["apply", "--filename"]).arg(manifests))?;
    let bound = format!("--timeout={}s", START.as_secs());
    for arguments in READY {
        is_alive()?;
        capture(kubectl(layout).args(arguments).arg(&bound))?;
    }
    Ok(())
}

fn kubectl(layout: &Layout) -> Command {
    let mut command = Command::new(layout.program("kubectl"));
    command.arg(format!("--kubeconfig={}", layout.text("kubeconfig")));
    command.arg(format!("--cache-dir={}", layout.text("kubectl-cache")));
    command
}

/// Waits until `is_so`, for `bound` at most.
pub(super) fn wait_until(
    what: &str,
    bound: Duration,
    mut is_so: impl FnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let started = Instant::now();
    while !is_so()? {
        ensure!(started.elapsed() < bound, "waited {} s in vain until {what}", bound.as_secs());
        pause(TICK);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(directory: &Path) -> Layout {
        Layout::new(directory, "main", "1.36.3".parse().unwrap())
    }

    #[test]
    fn a_cluster_runs_for_as_long_as_its_node_holds_the_lock() {
        let directory = tempfile::tempdir().unwrap();
        let layout = layout(directory.path());
        assert!(!is_running(&layout).unwrap());
        assert!(running(&layout).is_err());
        let held = lock(&layout.node_lock()).unwrap();
        assert!(is_running(&layout).unwrap());
        drop(held);
        assert!(!is_running(&layout).unwrap());
    }

    #[test]
    fn what_a_killed_run_left_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let layout = layout(directory.path());
        write_files(&layout, 1).unwrap();
        let cgroup = directory.path().join("cgroup");
        fs::create_dir_all(cgroup.join("pods/one")).unwrap();
        let state = State {
            pid: i32::MAX,
            programs: layout.programs.clone(),
            kubeconfig: layout.path("kubeconfig"),
            node_kubeconfig: layout.path("pki/admin.kubeconfig"),
            cgroups: vec![cgroup.clone()],
        };
        state.write(&layout).unwrap();
        down(&layout).unwrap();
        assert!(!layout.directory.exists() && !cgroup.exists());
        down(&layout).unwrap();
    }

    #[test]
    fn a_wait_has_a_bound_and_says_what_for() {
        let error = wait_until("pigs fly", Duration::ZERO, || Ok(false)).unwrap_err();
        assert_eq!(error.to_string(), "waited 0 s in vain until pigs fly");
        wait_until("", Duration::ZERO, || Ok(true)).unwrap();
    }
}
