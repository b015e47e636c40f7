//! The supervisor with programs that stand in for opencode where the real one cannot be made to misbehave.

use std::{path::Path, time::Duration};

use berth_serve::{RestartCause, ServeCommand, ServeConfig, ServePhase, StartError, Supervisor};
use berth_wire::door::ExitCause;
use tokio::time::Instant;

use crate::rig::{BOUND, Bench, LISTENS, child_of, environment_of, until_state, within};

fn lives(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[tokio::test]
async fn it_starts_is_killed_and_starts_again() {
    let bench = Bench::new("1.18.33").await;
    let script = format!("{LISTENS}; exec sleep 600");
    let supervisor = Supervisor::start(bench.config(&script)).await.unwrap();
    let first = supervisor.ready(BOUND).await.unwrap();
    assert_eq!((first.boot, first.version.as_deref()), (1, Some("1.18.33")));
    assert_eq!(first.address, Some(bench.answers_at));
    assert_eq!(first.directory, bench.directory.path().canonicalize().unwrap());
    let pid = first.pid.unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid.cast_signed()), nix::sys::signal::SIGKILL).unwrap();
    let second =
        until_state(&supervisor, "second start", |state| state.boot == 2 && state.phase == ServePhase::Ready)
            .await;
    assert_ne!(second.boot_id, first.boot_id);
    let exit = second.last_exit().cloned().unwrap();
    assert_eq!(
        (exit.boot, exit.boot_id, exit.cause, exit.signal),
        (1, first.boot_id, ExitCause::Killed, Some(9))
    );
    supervisor.stop().await;
    let stopped = supervisor.watch().borrow().clone();
    assert_eq!((stopped.phase, stopped.pid, stopped.address), (ServePhase::Stopped, None, None));
    assert_eq!(stopped.last_exit().map(|exit| (exit.boot, exit.cause)), Some((2, ExitCause::Stopped)));
    assert!(!lives(second.pid.unwrap()));
}

#[tokio::test]
async fn a_program_that_ends_at_once_is_reported_with_its_words_and_tried_again() {
    let bench = Bench::new("1.18.33").await;
    let supervisor = Supervisor::start(bench.config("echo \"config is broken\" >&2; exit 7")).await.unwrap();
    let state = supervisor.ready(BOUND).await.unwrap_err();
    let exit = state.last_exit().cloned().unwrap();
    assert_eq!(
        (exit.cause, exit.exit, exit.output_tail.as_str()),
        (ExitCause::StartFailed, Some(7), "config is broken")
    );
    assert!(exit.to_string().contains("exit code 7"), "{exit}");
    until_state(&supervisor, "third try", |state| state.boot >= 3).await;
    supervisor.stop().await;
    let log = std::fs::read_to_string(berth_serve::log_file(&bench.data())).unwrap();
    assert!(log.lines().count() >= 2 && log.lines().all(|line| line == "config is broken"), "{log}");
}

#[tokio::test]
async fn a_program_that_never_listens_is_ended_at_the_bound() {
    let bench = Bench::new("1.18.33").await;
    let mut config = bench.config("exec sleep 600");
    config.timings.start = Duration::from_millis(300);
    let supervisor = Supervisor::start(config).await.unwrap();
    let exit = supervisor.ready(BOUND).await.unwrap_err().last_exit().cloned().unwrap();
    assert_eq!((exit.cause, exit.signal), (ExitCause::StartFailed, Some(15)));
    assert!(exit.to_string().contains("did not answer"), "{exit}");
    supervisor.stop().await;
}

#[tokio::test]
async fn a_version_that_is_not_spoken_is_named() {
    let bench = Bench::new("2.0.1").await;
    let supervisor = Supervisor::start(bench.config(&format!("{LISTENS}; exec sleep 600"))).await.unwrap();
    let exit = supervisor.ready(BOUND).await.unwrap_err().last_exit().cloned().unwrap();
    assert!(exit.unsupported.as_ref().is_some_and(|seen| seen.contains("2.0.1")), "{exit:?}");
    assert!(exit.to_string().contains("2.0.1"), "{exit}");
    supervisor.stop().await;
}

#[tokio::test]
async fn one_that_ignores_term_is_killed_with_all_that_it_started() {
    let bench = Bench::new("1.18.33").await;
    let script =
        format!("trap '' TERM; setsid sleep 600 & echo child $!; {LISTENS}; while :; do sleep 600; done");
    let supervisor = Supervisor::start(bench.config(&script)).await.unwrap();
    let pid = supervisor.ready(BOUND).await.unwrap().pid.unwrap();
    let child = child_of(&bench);
    assert!(lives(pid) && lives(child));
    let begun = Instant::now();
    supervisor.stop().await;
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert!(!lives(pid));
    wait_gone(child);
    assert_eq!(supervisor.watch().borrow().last_exit().unwrap().signal, Some(9));
}

#[tokio::test]
async fn a_second_supervisor_is_refused_by_the_name_of_the_first() {
    let bench = Bench::new("1.18.33").await;
    let script = format!("{LISTENS}; exec sleep 600");
    let supervisor = Supervisor::start(bench.config(&script)).await.unwrap();
    match Supervisor::start(bench.config(&script)).await {
        Err(error @ StartError::InUse { holder, .. }) => {
            assert_eq!(holder.pid, std::process::id());
            assert!(error.to_string().contains(&format!("process id {}", std::process::id())), "{error}");
        }
        other => panic!("{other:?}"),
    }
    supervisor.stop().await;
    let again = Supervisor::start(bench.config(&script)).await.unwrap();
    again.ready(BOUND).await.unwrap();
    again.stop().await;
}

#[tokio::test]
async fn what_a_killed_predecessor_left_is_ended_before_the_start() {
    let bench = Bench::new("1.18.33").await;
    let script = format!("{LISTENS}; exec sleep 600");
    let supervisor = Supervisor::start(bench.config(&script)).await.unwrap();
    let pid = supervisor.ready(BOUND).await.unwrap().pid.unwrap();
    let environment = environment_of(pid).await;
    assert!(!environment.contains("SECRET"), "{environment}");
    let marker = environment.split('\0').find(|variable| variable.starts_with("BERTH_SERVE_ID=")).unwrap();
    let (name, value) = marker.split_once('=').unwrap();
    supervisor.stop().await;
    let mut left = std::process::Command::new("sleep").arg("600").env(name, value).spawn().unwrap();
    let supervisor = Supervisor::start(bench.config(&script)).await.unwrap();
    let environment = std::fs::read(format!("/proc/{}/environ", left.id())).unwrap_or_default();
    assert!(environment.is_empty(), "it was ended before the start returned");
    left.wait().unwrap();
    supervisor.stop().await;
}

#[tokio::test]
async fn a_dropped_supervisor_ends_its_program() {
    let bench = Bench::new("1.18.33").await;
    let supervisor = Supervisor::start(bench.config(&format!("{LISTENS}; exec sleep 600"))).await.unwrap();
    let pid = supervisor.ready(BOUND).await.unwrap().pid.unwrap();
    drop(supervisor);
    within("end of the program", async {
        while lives(pid) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// Waits until a process is gone, or is a child of process 1 that was not reaped yet.
fn wait_gone(pid: u32) {
    let end = std::time::Instant::now() + BOUND;
    while std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environment| !environment.is_empty()) {
        assert!(std::time::Instant::now() < end, "process {pid} lives on");
        std::thread::yield_now();
    }
}

#[test]
fn a_program_that_ends_without_a_stop_leaves_nothing() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (supervisor, pid, child) = runtime.block_on(async {
        let bench = Bench::new("1.18.33").await;
        let script = format!("setsid sleep 600 & echo child $!; {LISTENS}; exec sleep 600");
        let supervisor = Supervisor::start(bench.config(&script)).await.unwrap();
        let pid = supervisor.ready(BOUND).await.unwrap().pid.unwrap();
        (supervisor, pid, child_of(&bench))
    });
    drop(runtime);
    wait_gone(pid);
    wait_gone(child);
    drop(supervisor);
}

#[tokio::test]
async fn what_cannot_be_started_says_so() {
    let bench = Bench::new("1.18.33").await;
    let config = bench.config("");
    let missing = ServeConfig { program: "/nowhere/opencode".into(), ..config.clone() };
    assert!(matches!(Supervisor::start(missing).await, Err(StartError::Program { .. })));
    let nowhere = ServeConfig { directory: "/nowhere".into(), ..config.clone() };
    assert!(matches!(Supervisor::start(nowhere).await, Err(StartError::Directory { .. })));
    let taken = ServeConfig { data: config.program.join("data"), ..config.clone() };
    assert!(matches!(Supervisor::start(taken).await, Err(StartError::Data { .. })));
    std::fs::write(&config.program, "not a program").unwrap();
    let supervisor = Supervisor::start(config).await.unwrap();
    let exit = supervisor.ready(BOUND).await.unwrap_err().last_exit().cloned().unwrap();
    assert!(exit.to_string().contains("cannot be run"), "{exit}");
    supervisor.stop().await;
}

#[tokio::test]
async fn a_log_file_that_cannot_be_written_keeps_nothing_from_starting() {
    let bench = Bench::new("1.18.33").await;
    let file = berth_serve::log_file(&bench.data());
    std::fs::create_dir_all(&file).unwrap();
    let supervisor = Supervisor::start(bench.config(&format!("{LISTENS}; exec sleep 600"))).await.unwrap();
    supervisor.ready(BOUND).await.unwrap();
    supervisor.stop().await;
    // Nobody reads it: opening and writing must not wait for somebody.
    std::fs::remove_dir(&file).unwrap();
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let supervisor = Supervisor::start(bench.config(&format!("{LISTENS}; exec sleep 600"))).await.unwrap();
    supervisor.ready(BOUND).await.unwrap();
    supervisor.stop().await;
}

#[tokio::test]
async fn commands_stop_start_and_restart() {
    let bench = Bench::new("1.18.33").await;
    let supervisor = Supervisor::start(bench.config(&format!("{LISTENS}; exec sleep 600"))).await.unwrap();
    let link = supervisor.link();
    let first = supervisor.ready(BOUND).await.unwrap();
    link.command(ServeCommand::Stop).await.unwrap();
    let stopped = until_state(&supervisor, "stop", |state| state.pid.is_none()).await;
    assert_eq!((stopped.phase, stopped.boot), (ServePhase::Stopped, 1));
    assert_eq!(stopped.last_exit().map(|exit| exit.cause), Some(ExitCause::Stopped));
    assert!(!lives(first.pid.unwrap()));
    link.command(ServeCommand::Start).await.unwrap();
    let mut before = until_state(&supervisor, "start", |state| state.phase == ServePhase::Ready).await;
    for (cause, seen) in [
        (RestartCause::Memory, ExitCause::Recycled),
        (RestartCause::NeverStarted, ExitCause::NeverStarted),
        (RestartCause::Configuration, ExitCause::Reconfigured),
    ] {
        let restart = |boot_id: &str| ServeCommand::Restart { boot_id: boot_id.to_owned(), cause };
        link.command(restart(&first.boot_id)).await.unwrap();
        link.command(restart(&before.boot_id)).await.unwrap();
        let boot = before.boot + 1;
        let after = until_state(&supervisor, "restart", |state| {
            state.boot == boot && state.phase == ServePhase::Ready
        })
        .await;
        assert_eq!(after.last_exit().map(|exit| (exit.boot, exit.cause)), Some((before.boot, seen)));
        before = after;
    }
    supervisor.stop().await;
    assert!(link.command(ServeCommand::Start).await.is_err(), "nobody hears it any more");
}

#[tokio::test]
async fn a_command_cuts_the_pause_before_a_restart() {
    let bench = Bench::new("1.18.33").await;
    let mut config = bench.config("exit 1");
    config.timings.backoff_first = Duration::from_hours(1);
    config.timings.backoff_longest = Duration::from_hours(1);
    let supervisor = Supervisor::start(config).await.unwrap();
    until_state(&supervisor, "first end", |state| state.last_exit().is_some()).await;
    supervisor.link().command(ServeCommand::Start).await.unwrap();
    until_state(&supervisor, "second end", |state| state.exits.len() == 2).await;
    supervisor.link().command(ServeCommand::Stop).await.unwrap();
    until_state(&supervisor, "stop", |state| state.phase == ServePhase::Stopped).await;
    supervisor.stop().await;
}

#[tokio::test]
async fn one_that_does_not_answer_is_wedged_ended_and_started_again() {
    let bench = Bench::new("1.18.33").await;
    let mut config = bench.config(&format!("{LISTENS}; exec sleep 600"));
    config.timings.health_every = Duration::from_millis(20);
    config.timings.health = Duration::from_millis(200);
    let supervisor = Supervisor::start(config).await.unwrap();
    let first = supervisor.ready(BOUND).await.unwrap();
    bench.silence(true);
    let wedged = until_state(&supervisor, "wedge", |state| state.phase == ServePhase::Wedged).await;
    assert_eq!((wedged.boot, wedged.address), (1, None));
    until_state(&supervisor, "end", |state| state.last_exit().is_some()).await;
    bench.silence(false);
    let second =
        until_state(&supervisor, "second start", |state| state.boot == 2 && state.phase == ServePhase::Ready)
            .await;
    let exit = second.last_exit().unwrap();
    assert_eq!((exit.cause, &exit.boot_id), (ExitCause::Wedged, &first.boot_id));
    supervisor.stop().await;
}
