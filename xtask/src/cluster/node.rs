//! The first process of a node: gives it mounts, a network and its components, and keeps those running.
//!
//! It runs in fresh namespaces, so nothing that it does here is seen outside; what must not reach the machine through
//! them (sysctls that are not of a namespace) gets stand-ins.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    net::{IpAddr, SocketAddr, TcpListener},
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use nix::{
    errno::Errno,
    mount::{MsFlags, mount},
    sys::wait::{WaitPidFlag, WaitStatus, waitpid},
    unistd::sethostname,
};

use crate::{
    cluster::{
        cgroups,
        components::{self, Component, Stage},
        forward,
        layout::{Layout, State},
    },
    packages::SEARCH_PATH,
    process::{pause, run_shown},
};

/// Between two looks at what has ended.
const TICK: Duration = Duration::from_millis(200);
/// Before a component that ended is started again.
const BACKOFF: Duration = Duration::from_secs(1);
/// How often a component may end: tests end some on purpose, and one that cannot run ends at once each time.
const MAX_ENDS: u32 = 100;

/// Sysctls of the whole machine that the kubelet wants to have these values.
const STAND_INS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// Runs the node; standard input is the socket that is forwarded to the apiserver. Returns only with an error.
pub(super) fn run(layout: &Layout) -> anyhow::Result<()> {
    // Of the machine's own /proc, which counts as it does.
    let pid = fs::read_link("/proc/self")?;
    let pid = pid.to_string_lossy().parse().context("/proc/self")?;
    let listener = TcpListener::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let lock = File::create(layout.node_lock())?;
    lock.lock()?;
    let (hierarchies, cgroups) = cgroups::enter(&layout.name)?;
    let state = State {
        pid,
        programs: layout.programs.clone(),
        kubeconfig: layout.path("kubeconfig"),
        node_kubeconfig: layout.path("pki/admin.kubeconfig"),
        cgroups,
    };
    state.write(layout)?;
    mounts(layout, &hierarchies)?;
    network()?;
    let api: IpAddr = components::NODE_ADDRESS.parse()?;
    forward::start(listener, SocketAddr::new(api, components::API_PORT))?;
    supervise(layout)
}

fn mounts(layout: &Layout, hierarchies: &[cgroups::Hierarchy]) -> anyhow::Result<()> {
    // What the kubelet mounts must reach its containers.
    set_shared()?;
    fresh("proc", "/proc", None)?;
    fresh("sysfs", "/sys", None)?;
    cgroups::mount_all(hierarchies)?;
    fresh("tmpfs", "/run", Some("mode=755"))?;
    fs::create_dir_all("/run/lock")?;
    // Networks' own records, and what is logged for pods, have fixed places.
    for (name, place) in [("var-lib-cni", "/var/lib/cni"), ("var-log", "/var/log")] {
        fs::create_dir_all(layout.path(name))?;
        fs::create_dir_all(place)?;
        bind(&layout.path(name), Path::new(place))?;
    }
    fs::create_dir_all("/var/log/pods")?;
    fs::create_dir_all("/var/log/containers")?;
    fs::create_dir_all("/run/berth/bin")?;
    bind(&layout.programs.join("bin"), Path::new("/run/berth/bin"))?;
    let hosts = format!("127.0.0.1 localhost\n{} {}\n", components::NODE_ADDRESS, components::NODE);
    fs::write("/run/berth/hosts", hosts)?;
    bind(Path::new("/run/berth/hosts"), Path::new("/etc/hosts"))?;
    for (name, value) in STAND_INS {
        let stand_in = Path::new("/run/berth/sysctl").join(name);
        fs::create_dir_all(stand_in.parent().context("no parent")?)?;
        fs::write(&stand_in, format!("{value}\n"))?;
        bind(&stand_in, &Path::new("/proc/sys").join(name))?;
    }
    set_shared()
}

fn set_shared() -> anyhow::Result<()> {
    let nothing = None::<&str>;
    mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_SHARED, nothing).context("share /")
}

fn fresh(kind: &str, place: &str, options: Option<&str>) -> anyhow::Result<()> {
    mount(Some(kind), place, Some(kind), MsFlags::empty(), options).with_context(|| place.to_owned())
}

fn bind(from: &Path, to: &Path) -> anyhow::Result<()> {
    let nothing = None::<&str>;
    mount(Some(from), to, nothing, MsFlags::MS_BIND, nothing)
        .with_context(|| format!("{} as {}", from.display(), to.display()))
}

/// Addresses, routes, and the rules that send packets to the judge of network policies.
fn network() -> anyhow::Result<()> {
    sethostname(components::NODE)?;
    fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
    fs::write("/proc/sys/net/bridge/bridge-nf-call-iptables", "1")?;
    let (node, services) = (components::NODE_ADDRESS, components::SERVICES);
    for line in [
        "ip link set lo up".to_owned(),
        format!("ip address add {node}/32 dev lo"),
        // Without a route the node itself cannot call a service, whose address is changed only after routing.
        format!("ip route add {services} dev lo src {node}"),
    ] {
        run_line(&line)?;
    }
    for rule in policy_rules() {
        run_line(&rule)?;
    }
    Ok(())
}

/// In the table `mangle`, where nobody else's rule comes first, and addresses of services are resolved already.
/// Each packet that begins a connection of a pod is judged once, to another pod or to the node itself; while nobody
/// judges, it is dropped. What the node sends to its pods is not judged, as in every cluster.
fn policy_rules() -> Vec<String> {
    let (bridge, queue) = (components::BRIDGE, components::QUEUE);
    let judged = format!("-m conntrack --ctstate NEW -j NFQUEUE --queue-num {queue}");
    [
        "FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT".to_owned(),
        format!("FORWARD -o {bridge} {judged}"),
        format!("FORWARD -i {bridge} {judged}"),
        format!("INPUT -i {bridge} {judged}"),
    ]
    .map(|rule| format!("iptables --wait --table mangle --append {rule}"))
    .to_vec()
}

fn run_line(line: &str) -> anyhow::Result<()> {
    let mut words = line.split(' ');
    run_shown(Command::new(words.next().unwrap_or_default()).args(words).env("PATH", SEARCH_PATH))
}

/// A component that was started.
struct Running {
    component: Component,
    child: Option<Child>,
    /// When it is started again.
    due: Instant,
    ends: u32,
}

/// Starts components, first those that need none, and starts again what ends. As the first process of its namespace
/// it also takes in every process whose parent has died.
fn supervise(layout: &Layout) -> anyhow::Result<()> {
    let mut waiting = components::components(layout);
    let mut running: BTreeMap<&str, Running> = BTreeMap::new();
    let mut stage = Stage::First;
    loop {
        for component in waiting.extract_if(.., |component| component.stage == stage) {
            let ends = 0;
            running.insert(component.name, Running { component, child: None, due: Instant::now(), ends });
        }
        reap(&mut running)?;
        for component in running.values_mut().filter(|it| it.child.is_none() && it.due <= Instant::now()) {
            component.child = Some(start(layout, &component.component)?);
        }
        if stage == Stage::First && is_api_ready(layout)? {
            stage = Stage::ApiReady;
        }
        pause(TICK);
    }
}

/// Takes in all that has ended.
fn reap(running: &mut BTreeMap<&str, Running>) -> anyhow::Result<()> {
    loop {
        let status = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return Ok(()),
            other => other?,
        };
        let pid = status.pid().and_then(|pid| u32::try_from(pid.as_raw()).ok());
        let is_it = |it: &&mut Running| it.child.as_ref().map(Child::id) == pid;
        let Some(ended) = running.values_mut().find(is_it) else { continue };
        eprintln!("{} ended: {status:?}", ended.component.name);
        ended.ends += 1;
        ensure!(ended.ends < MAX_ENDS, "{} ended {} times: see its log", ended.component.name, ended.ends);
        ended.child = None;
        ended.due = Instant::now() + BACKOFF;
    }
}

fn start(layout: &Layout, component: &Component) -> anyhow::Result<Child> {
    let log = log_file(layout, component.name)?;
    let child = Command::new(&component.program)
        .args(&component.arguments)
        .env("PATH", SEARCH_PATH)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn();
    child.with_context(|| format!("start {}", component.name))
}

fn log_file(layout: &Layout, name: &str) -> anyhow::Result<File> {
    let path: PathBuf = layout.path("log").join(format!("{name}.log"));
    File::options().create(true).append(true).open(&path).with_context(|| path.display().to_string())
}

fn is_api_ready(layout: &Layout) -> anyhow::Result<bool> {
    let status = Command::new(layout.program("kubectl"))
        .arg(format!("--kubeconfig={}", layout.text("pki/admin.kubeconfig")))
        .args(["get", "--raw=/readyz", "--request-timeout=2s"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    Ok(status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_pods_are_judged_in_every_direction() {
        let rules = policy_rules();
        assert_eq!(rules.iter().filter(|rule| rule.contains("NFQUEUE --queue-num 100")).count(), 3);
        // A verdict for packets while nobody judges would open what must stay closed.
        assert!(rules.iter().all(|rule| !rule.contains("bypass")));
    }
}
