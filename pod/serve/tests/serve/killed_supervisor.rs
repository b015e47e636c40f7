//! What becomes of opencode when its supervisor is killed and can end nothing itself.
//!
//! The supervisor to be killed runs in another process: this same test program, started again for one test that does
//! its part only when it is asked to by a variable in the environment.

use std::{
    fs::{File, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use berth_serve::{ServeConfig, ServePhase, ServeState, Supervisor};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};

use crate::rig::{self, BOUND, Bench, LISTENS, START, until, until_state, within};

/// Asks a test of this program to supervise until it is killed.
const ASKED: &str = "BERTH_TEST_SUPERVISE";

/// All that is left must be gone this long after the kill.
const GONE: Duration = Duration::from_secs(2);

/// A process of its own that supervises.
struct Victim {
    process: Child,
    boot_id: String,
    data: PathBuf,
    _directory: TempDir,
}

impl Victim {
    /// Starts this program again for one test, with a temporary directory of its own, and waits until opencode answers.
    async fn start(test: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", test])
            .env(ASKED, "1")
            .env("TMPDIR", directory.path())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let told = async {
            loop {
                let line = lines.next_line().await.unwrap().expect("a supervising process");
                if let Some(told) = line.strip_prefix("supervising ") {
                    break told.to_owned();
                }
            }
        };
        let told = timeout(START, told).await.expect("supervision in time");
        let (boot_id, data) = told.split_once(' ').unwrap();
        Self { process, boot_id: boot_id.to_owned(), data: data.into(), _directory: directory }
    }

    /// SIGKILL; returns when the supervisor is no more.
    async fn kill(&mut self) {
        within("end by SIGKILL", self.process.kill()).await.unwrap();
    }
}

/// For the process that is to be killed: says what it supervises, and stays. It ends by itself at a bound.
async fn tell_and_stay(state: &ServeState, data: &Path) {
    writeln!(std::io::stdout(), "\nsupervising {} {}", state.boot_id, data.display()).unwrap();
    sleep(START).await;
}

fn is_asked() -> bool {
    std::env::vars_os().any(|(name, _)| name == ASKED)
}

/// Processes of which a file in `/proc` holds the marker of a boot, zombies excluded.
fn holding(file: &str, boot_id: &str) -> Vec<u32> {
    let marker = format!("BERTH_SERVE_BOOT={boot_id}");
    let holds = |pid: &u32| {
        std::fs::read(format!("/proc/{pid}/{file}"))
            .is_ok_and(|bytes| bytes.split(|byte| *byte == 0).any(|entry| entry == marker.as_bytes()))
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(holds).collect()
}

/// opencode and what it started.
fn guarded(boot_id: &str) -> Vec<u32> {
    holding("environ", boot_id)
}

fn watchdogs(boot_id: &str) -> Vec<u32> {
    holding("cmdline", boot_id)
}

/// Kills the supervisor and waits until nothing of its boot is left, and the watchdog neither.
async fn kill_and_expect_nothing_left(mut victim: Victim) {
    let killed = Instant::now();
    victim.kill().await;
    until("end of opencode", || guarded(&victim.boot_id).is_empty()).await;
    let gone = killed.elapsed();
    until("end of the watchdog", || watchdogs(&victim.boot_id).is_empty()).await;
    let quiet = killed.elapsed();
    let figures = format!("gone after {gone:?}, the watchdog after {quiet:?}");
    writeln!(std::io::stderr(), "{figures}").unwrap();
    assert!(quiet < GONE, "{figures}");
}

#[tokio::test]
async fn helper_that_supervises_a_stand_in() {
    if !is_asked() {
        return;
    }
    let bench = Bench::new("1.18.33").await;
    let script = format!("setsid sleep 600 & echo child $!; {LISTENS}; exec sleep 600");
    let supervisor = Supervisor::start(bench.config(&script)).await.unwrap();
    let state = supervisor.ready(BOUND).await.unwrap();
    rig::child_of(&bench);
    tell_and_stay(&state, &bench.data()).await;
}

#[tokio::test]
async fn helper_that_supervises_a_real_opencode() {
    if !is_asked() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let config = rig::real(&directory);
    let work = config.directory.clone();
    let supervisor = Supervisor::start(config).await.unwrap();
    let state = supervisor.ready(START).await.unwrap();
    rig::shell(state.address.unwrap(), "setsid sleep 600 >/dev/null 2>&1 & echo started").await;
    tell_and_stay(&state, &work).await;
}

#[tokio::test]
async fn sigkill_of_the_supervisor_ends_opencode_and_its_children() {
    let victim = Victim::start("killed_supervisor::helper_that_supervises_a_stand_in").await;
    until("program and child", || guarded(&victim.boot_id).len() == 2).await;
    kill_and_expect_nothing_left(victim).await;
}

#[tokio::test]
async fn sigkill_of_the_supervisor_ends_a_real_opencode_and_its_tools() {
    let victim = Victim::start("killed_supervisor::helper_that_supervises_a_real_opencode").await;
    until("opencode and a tool in a session of its own", || guarded(&victim.boot_id).len() >= 2).await;
    kill_and_expect_nothing_left(victim).await;
}

#[tokio::test]
async fn a_late_watchdog_spares_what_a_new_supervisor_started() {
    let mut victim = Victim::start("killed_supervisor::helper_that_supervises_a_stand_in").await;
    let late = hold_back(&victim.boot_id);
    victim.kill().await;
    let bench = Bench::new("1.18.33").await;
    let config =
        ServeConfig { data: victim.data.clone(), ..bench.config(&format!("{LISTENS}; exec sleep 600")) };
    let supervisor = Supervisor::start(config).await.unwrap();
    let state = supervisor.ready(BOUND).await.unwrap();
    assert_eq!(guarded(&victim.boot_id), Vec::<u32>::new(), "the new supervisor has swept");
    assert_eq!(watchdogs(&victim.boot_id).len(), 1, "the old watchdog still waits");
    drop(late);
    until("end of the old watchdog", || watchdogs(&victim.boot_id).is_empty()).await;
    assert_eq!(guarded(&state.boot_id), vec![state.pid.unwrap()]);
    let now = supervisor.watch().borrow().clone();
    assert_eq!((now.boot, now.phase), (1, ServePhase::Ready));
    supervisor.stop().await;
}

/// Keeps a watchdog from seeing the end of its supervisor, as another holder of its pipe.
fn hold_back(boot_id: &str) -> File {
    let watchdog = watchdogs(boot_id)[0];
    OpenOptions::new().write(true).open(format!("/proc/{watchdog}/fd/0")).unwrap()
}

#[tokio::test]
async fn each_run_has_one_watchdog_and_a_stop_leaves_none() {
    let bench = Bench::new("1.18.33").await;
    let supervisor = Supervisor::start(bench.config(&format!("{LISTENS}; exec sleep 600"))).await.unwrap();
    let first = supervisor.ready(BOUND).await.unwrap();
    // The kernel shows a program's arguments a moment after it has begun.
    until("a watchdog", || watchdogs(&first.boot_id).len() == 1).await;
    kill(Pid::from_raw(first.pid.unwrap().cast_signed()), Signal::SIGKILL).unwrap();
    let second =
        until_state(&supervisor, "second start", |state| state.boot == 2 && state.phase == ServePhase::Ready)
            .await;
    until("another watchdog", || watchdogs(&second.boot_id).len() == 1).await;
    assert_eq!(watchdogs(&first.boot_id), Vec::<u32>::new());
    supervisor.stop().await;
    assert_eq!(watchdogs(&second.boot_id), Vec::<u32>::new());
}
