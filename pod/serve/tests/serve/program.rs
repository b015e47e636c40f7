//! The program `berth-supervisor`: what it is asked, what it says, and what it leaves.

use berth_testkit::ports;
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Output, Stdio},
    time::Duration,
};

use berth_serve::{Password, ServeCommand, ServeLink, ServePhase, ServeState};
use berth_wire::door::ExitCause;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::rig::{self, Bench, INTERNAL, LISTENS, START, until, within};

/// A running program, killed when it is dropped.
pub(crate) struct Program {
    pub(crate) child: Child,
    pub(crate) control: SocketAddr,
    pub(crate) link: ServeLink,
    stop: CancellationToken,
    tracker: TaskTracker,
}

/// Where a program works.
pub(crate) struct Place {
    pub(crate) directory: TempDir,
    pub(crate) control: SocketAddr,
    pub(crate) opencode: PathBuf,
    /// Arguments beside those that are always given.
    pub(crate) arguments: Vec<String>,
    pub(crate) environment: Vec<(String, String)>,
}

impl Place {
    pub(crate) fn new(opencode: PathBuf) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("password"), format!("{INTERNAL}\n")).unwrap();
        std::fs::create_dir(directory.path().join("work")).unwrap();
        let control = ports::free();
        Self { directory, control, opencode, arguments: Vec::new(), environment: Vec::new() }
    }

    /// With a shell script that stands in for opencode.
    pub(crate) fn with_script(bench: &Bench, script: &str) -> Self {
        let mut place = Self::new(bench.config(script).program);
        place.environment.push(("ANSWERS_AT".to_owned(), bench.answers_at.to_string()));
        place
    }

    /// With the real opencode.
    pub(crate) fn with_opencode() -> Self {
        let (program, config_home) = rig::installed();
        let mut place = Self::new(program);
        place.environment.extend(rig::offline());
        if let berth_serve::ConfigHome::At(path) = config_home {
            place.arguments.extend(["--config-home".to_owned(), path.display().to_string()]);
        }
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn work(&self) -> PathBuf {
        self.path("work").canonicalize().unwrap()
    }

    pub(crate) fn termination(&self) -> Value {
        let text = std::fs::read_to_string(self.path("termination")).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// The command, started through `wrapper` if that is not empty.
    pub(crate) fn command(&self, wrapper: &[&str]) -> Command {
        let port = ports::free().port();
        let mut words: Vec<String> = wrapper.iter().map(|word| (*word).to_owned()).collect();
        words.push(env!("CARGO_BIN_EXE_berth-supervisor").to_owned());
        for (flag, value) in [
            ("--opencode", self.opencode.display().to_string()),
            ("--directory", self.path("work").display().to_string()),
            ("--data", self.path("data").display().to_string()),
            ("--password-file", self.path("password").display().to_string()),
            ("--termination-log", self.path("termination").display().to_string()),
            ("--control", self.control.to_string()),
            ("--port", port.to_string()),
        ] {
            words.extend([flag.to_owned(), value]);
        }
        words.extend(self.arguments.iter().cloned());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).envs(self.environment.iter().cloned()).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    /// Starts the program; its log goes to a file.
    pub(crate) fn start(&self) -> Program {
        self.start_in(&[])
    }

    pub(crate) fn start_in(&self, wrapper: &[&str]) -> Program {
        let log = std::fs::File::create(self.path("log")).unwrap();
        let child = self.command(wrapper).stderr(log).spawn().unwrap();
        let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
        let link = ServeLink::remote(self.control, Password::Known(INTERNAL.into()), &tracker, stop.clone());
        Program { child, control: self.control, link, stop, tracker }
    }

    /// Runs the program to its end.
    async fn run(&self) -> Output {
        within("end of the program", self.command(&[]).output()).await.unwrap()
    }
}

impl Program {
    /// Waits until the state is as wanted.
    pub(crate) async fn until(
        &self,
        what: &'static str,
        wanted: impl FnMut(&ServeState) -> bool,
    ) -> ServeState {
        let mut state = self.link.state();
        let state = tokio::time::timeout(START, state.wait_for(wanted)).await;
        state.unwrap_or_else(|_| panic!("no {what} in time")).unwrap().clone()
    }

    pub(crate) async fn ready(&self) -> ServeState {
        self.until("answering opencode", |state| state.phase == ServePhase::Ready).await
    }

    /// Asks it to stop, and gives its exit code.
    pub(crate) async fn stop(mut self) -> Option<i32> {
        signal(self.child.id().unwrap(), Signal::SIGTERM);
        let status = within("end of the program", self.child.wait()).await.unwrap();
        self.stop.cancel();
        self.tracker.close();
        within("end of the link", self.tracker.wait()).await;
        status.code()
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.control)
    }
}

pub(crate) fn signal(pid: u32, signal: Signal) {
    kill(Pid::from_raw(pid.cast_signed()), signal).unwrap();
}

pub(crate) fn lives(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[tokio::test]
async fn it_runs_opencode_and_ends_in_order_with_last_words() {
    let bench = Bench::new("1.18.33").await;
    let script = format!("setsid sleep 600 & echo child $!; {LISTENS}; exec sleep 600");
    let place = Place::with_script(&bench, &script);
    let program = place.start();
    let state = program.ready().await;
    let pid = state.pid.unwrap();
    let child = rig::child_in(&place.path("data"));
    assert!(lives(child));
    assert_eq!(program.stop().await, Some(0));
    assert!(!lives(pid) && !lives(child));
    let last = place.termination();
    assert_eq!((&last["reason"], &last["boot"], &last["signal"]), (&"Stopped".into(), &1.into(), &15.into()));
    let log = std::fs::read_to_string(place.path("log")).unwrap();
    assert!(log.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{log}");
    assert!(log.contains("opencode says") && log.contains("\"source\":\"opencode\""), "{log}");
    assert!(!log.contains(INTERNAL));
}

#[tokio::test]
async fn a_second_program_on_the_same_directory_is_refused_by_the_name_of_the_first() {
    let bench = Bench::new("1.18.33").await;
    let mut place = Place::with_script(&bench, &format!("{LISTENS}; exec sleep 600"));
    let program = place.start();
    program.ready().await;
    place.control = ports::free();
    place.arguments = vec!["--termination-log".to_owned(), place.path("second").display().to_string()];
    let mut command = place.command(&[]);
    let refused = within("end", command.output()).await.unwrap();
    let holder = format!("process id {}", program.child.id().unwrap());
    let log = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(75), "{log}");
    assert!(log.contains(&holder), "{log}");
    let last: Value = serde_json::from_slice(&std::fs::read(place.path("second")).unwrap()).unwrap();
    assert_eq!(last["reason"], "DataInUse");
    assert!(last["message"].as_str().unwrap().contains(&holder), "{last}");
    assert_eq!(program.link.state().borrow().boot, 1, "the first goes on");
    assert_eq!(program.stop().await, Some(0));
}

#[tokio::test]
async fn exit_codes_tell_what_is_wrong() {
    let bench = Bench::new("1.18.33").await;
    let place = Place::with_script(&bench, "exit 1");
    let usage =
        Command::new(env!("CARGO_BIN_EXE_berth-supervisor")).arg("--nonsense").output().await.unwrap();
    assert_eq!(usage.status.code(), Some(64));
    let help = Command::new(env!("CARGO_BIN_EXE_berth-supervisor")).arg("--help").output().await.unwrap();
    assert_eq!(help.status.code(), Some(0));
    let help = String::from_utf8(help.stdout).unwrap();
    assert!(help.contains("Examples:") && help.contains("Exit codes:"), "{help}");
    let mut nowhere = Place::new("/nowhere/opencode".into());
    std::fs::remove_dir(nowhere.work()).unwrap();
    assert_eq!(nowhere.run().await.status.code(), Some(78));
    assert_eq!(nowhere.termination()["reason"], "Configuration");
    assert!(nowhere.work().is_dir(), "a working directory that is missing is made");
    nowhere.opencode.clone_from(&place.opencode);
    nowhere.arguments = vec!["--wait-for".to_owned(), "https://example.org".to_owned()];
    assert_eq!(nowhere.run().await.status.code(), Some(78));
    let taken = tokio::net::TcpListener::bind(place.control).await.unwrap();
    let refused = place.run().await;
    assert_eq!(refused.status.code(), Some(78), "the control address is taken");
    drop(taken);
}

#[tokio::test]
async fn it_waits_before_each_start_and_reads_the_password_anew() {
    let bench = Bench::new("1.18.33").await;
    let mut place = Place::with_script(&bench, &format!("{LISTENS}; exec sleep 600"));
    let gate = rig::Gate::start().await;
    place.arguments = vec!["--wait-for".to_owned(), format!("http://{}/ready", gate.address)];
    let program = place.start();
    until("question", || gate.asked() >= 2).await;
    assert_eq!(program.until("state", |state| !state.instance.is_empty()).await.boot, 0);
    gate.open(true);
    let first = program.ready().await;
    gate.open(false);
    let asked = gate.asked();
    std::fs::write(place.path("password"), "another").unwrap();
    signal(first.pid.unwrap(), Signal::SIGKILL);
    until("question before the restart", || gate.asked() > asked).await;
    gate.open(true);
    let link = ServeLink::remote(
        place.control,
        Password::Known("another".into()),
        &program.tracker,
        program.stop.clone(),
    );
    let mut state = link.state();
    let second = state.wait_for(|state| state.boot == 2 && state.phase == ServePhase::Ready);
    let second = within("second start", second).await.unwrap().clone();
    let environment = rig::environment_of(second.pid.unwrap()).await;
    assert!(environment.contains("OPENCODE_SERVER_PASSWORD=another\0"));
    let own = std::fs::read_to_string(format!("/proc/{}/environ", program.child.id().unwrap())).unwrap();
    assert!(!own.contains("PASSWORD="), "{own}");
    assert_eq!(program.stop().await, Some(0));
}

#[tokio::test]
async fn the_link_survives_the_program_and_tells_each_end_once() {
    let bench = Bench::new("1.18.33").await;
    let place = Place::with_script(&bench, &format!("{LISTENS}; exec sleep 600"));
    let mut program = place.start();
    let first = program.ready().await;
    program.link.command(ServeCommand::Stop).await.unwrap();
    program.until("stop", |state| state.phase == ServePhase::Stopped && state.pid.is_none()).await;
    program.link.command(ServeCommand::Start).await.unwrap();
    let second = program.ready().await;
    within("end by SIGKILL", program.child.kill()).await.unwrap();
    program.until("loss", |state| state.phase == ServePhase::Starting).await;
    assert!(program.link.command(ServeCommand::Stop).await.is_err());
    until("end of opencode", || !lives(second.pid.unwrap())).await;
    let again = place.command(&[]).stderr(Stdio::null()).spawn().unwrap();
    program.child = again;
    let third = program.ready().await;
    assert_ne!(third.instance, second.instance);
    let ends: Vec<_> = third.exits.iter().map(|exit| (exit.boot_id.clone(), exit.cause)).collect();
    let expected = [(first.boot_id, ExitCause::Stopped), (second.boot_id, ExitCause::SupervisorLost)];
    assert_eq!(ends, expected);
    assert_eq!(program.stop().await, Some(0));
}

#[tokio::test]
async fn the_control_address_answers_and_refuses() {
    let bench = Bench::new("1.18.33").await;
    let place = Place::with_script(&bench, &format!("{LISTENS}; exec sleep 600"));
    let program = place.start();
    let state = program.ready().await;
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(20)).build().unwrap();
    let get = |path: &str| client.get(program.url(path)).basic_auth("opencode", Some(INTERNAL));
    let told: ServeState = get("/state").send().await.unwrap().json().await.unwrap();
    assert_eq!(told, state);
    let memory: Value = get("/memory").send().await.unwrap().json().await.unwrap();
    assert!(memory["opencode"].as_u64().unwrap() > 100_000, "{memory}");
    let live = client.get(program.url("/live")).send().await.unwrap();
    assert_eq!(live.status(), 200);
    let metrics = client.get(program.url("/metrics")).send().await.unwrap().text().await.unwrap();
    assert!(metrics.contains("berth_serve_starts_total 1\n"), "{metrics}");
    assert!(metrics.contains("berth_serve_phase{phase=\"ready\"} 1\n"), "{metrics}");
    assert!(metrics.contains("berth_serve_memory_bytes{of=\"opencode\"}"), "{metrics}");
    for path in ["/state", "/watch", "/memory"] {
        assert_eq!(client.get(program.url(path)).send().await.unwrap().status(), 401, "{path}");
        let wrong = client.get(program.url(path)).basic_auth("opencode", Some("wrong"));
        assert_eq!(wrong.send().await.unwrap().status(), 401, "{path}");
    }
    assert_eq!(get("/nowhere").send().await.unwrap().status(), 404);
    assert_eq!(get("/command").send().await.unwrap().status(), 405);
    for (body, status) in [
        ("", 400),
        ("{}", 400),
        ("\"Explode\"", 400),
        ("{\"Restart\":{\"boot_id\":\"none\",\"cause\":\"Memory\"}}", 202),
        (&"x".repeat(5000), 413),
    ] {
        let post = client.post(program.url("/command")).basic_auth("opencode", Some(INTERNAL));
        let answer = post.body(body.to_owned()).send().await.unwrap();
        assert_eq!(answer.status(), status, "{body:.40}");
        if status != 202 {
            assert_eq!(answer.headers()["content-type"], "application/problem+json");
        }
    }
    assert_eq!(program.stop().await, Some(0));
}
