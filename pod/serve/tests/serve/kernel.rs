//! What the kernel does: kills for memory, process 1, orphans. These tests make control groups and namespaces, which
//! wants root. Where that cannot be had, `BERTH_TEST_WITHOUT_ROOT=1` leaves them out; without it they fail.

use std::fs;

use berth_serve::{ServePhase, ServeState};
use berth_testkit::{ControlGroup, WITHOUT_ROOT, is_without_root};
use berth_wire::door::ExitCause;
use nix::sys::signal::Signal;

use crate::{
    program::{Place, Program, lives, signal},
    rig::{self, Bench, LISTENS, until},
};

/// Runs a program as process 1 of a process namespace of its own, which ends with it.
const UNSHARE: [&str; 5] = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];

const MIB: u64 = 1024 * 1024;

/// Waits for a file, then eats memory in place of the program.
const EAT_AT_A_SIGN: &str = "while ! [ -e eat ]; do sleep 0.05; done; ";

fn is_left_out() -> bool {
    let left_out = is_without_root();
    if left_out {
        eprintln!("left out, as {WITHOUT_ROOT} says");
    }
    left_out
}

/// A control group with a limit on memory.
fn group(limit: u64) -> ControlGroup {
    ControlGroup::with_memory(limit)
        .unwrap_or_else(|error| panic!("no control group: {error}. {WITHOUT_ROOT}=1 leaves this out"))
}

fn start(group: &ControlGroup, place: &Place) -> Program {
    place.start_in(&group.wrapper().each_ref().map(String::as_str))
}

async fn remove(group: ControlGroup) {
    until("end of the control group", || group.remove().is_ok()).await;
}

fn last(state: &ServeState) -> Option<(u64, ExitCause, Option<i32>)> {
    state.last_exit().map(|exit| (exit.boot, exit.cause, exit.signal))
}

#[tokio::test]
async fn a_program_that_uses_up_its_memory_was_killed_for_it() {
    if is_left_out() {
        return;
    }
    let (bench, group) = (Bench::new("1.18.33").await, group(128 * MIB));
    let script = format!("{LISTENS}; {EAT_AT_A_SIGN} rm eat; exec tail /dev/zero");
    let place = Place::with_script(&bench, &script);
    let program = start(&group, &place);
    program.ready().await;
    fs::write(place.work().join("eat"), "").unwrap();
    let state = program.until("restart", |state| state.boot == 2 && state.phase == ServePhase::Ready).await;
    assert_eq!(last(&state), Some((1, ExitCause::OutOfMemory, Some(9))));
    assert_eq!(state.tool_oom_kills, 0);
    // A kill that the kernel has no part in, in the same group.
    signal(state.pid.unwrap(), Signal::SIGKILL);
    let state = program.until("restart", |state| state.boot == 3 && state.phase == ServePhase::Ready).await;
    assert_eq!(last(&state), Some((2, ExitCause::Killed, Some(9))));
    assert_eq!(program.stop().await, Some(0));
    remove(group).await;
}

#[tokio::test]
async fn a_tool_that_uses_up_the_memory_is_told_and_opencode_goes_on() {
    if is_left_out() {
        return;
    }
    let (bench, group) = (Bench::new("1.18.33").await, group(128 * MIB));
    let script = format!("{LISTENS}; {EAT_AT_A_SIGN} tail /dev/zero; while :; do sleep 600; done");
    let place = Place::with_script(&bench, &script);
    let program = start(&group, &place);
    let pid = program.ready().await.pid;
    fs::write(place.work().join("eat"), "").unwrap();
    let state = program.until("news of the kill", |state| state.tool_oom_kills > 0).await;
    assert_eq!((state.tool_oom_kills, state.boot, state.phase), (1, 1, ServePhase::Ready));
    assert_eq!((state.pid, last(&state)), (pid, None));
    // It is told once, and does not make another's SIGKILL one for memory.
    signal(pid.unwrap(), Signal::SIGKILL);
    let state = program.until("restart", |state| state.boot == 2 && state.phase == ServePhase::Ready).await;
    assert_eq!((last(&state), state.tool_oom_kills), (Some((1, ExitCause::Killed, Some(9))), 1));
    assert_eq!(program.stop().await, Some(0));
    remove(group).await;
}

#[tokio::test]
async fn a_real_opencode_survives_a_greedy_tool_and_its_own_end_for_memory_is_named() {
    if is_left_out() {
        return;
    }
    let group = group(1024 * MIB);
    let place = Place::with_opencode();
    let program = start(&group, &place);
    let state = program.ready().await;
    let address = state.address.unwrap();
    rig::shell(address, "tail /dev/zero; echo survived").await;
    let state = program.until("news of the kill", |state| state.tool_oom_kills > 0).await;
    assert_eq!((state.boot, state.phase, last(&state)), (1, ServePhase::Ready, None));
    // Now something else in the container takes nearly all, and the kernel is told to choose opencode.
    fs::write(format!("/proc/{}/oom_score_adj", state.pid.unwrap()), "1000").unwrap();
    let [shell, flag, script, name] = group.wrapper();
    let eat = "head -c 960M /dev/zero | tail -c 960M | sleep 600";
    let mut eater = tokio::process::Command::new(shell);
    let mut eater =
        eater.args([&flag, &script, &name, "/bin/sh", "-c", eat]).process_group(0).spawn().unwrap();
    let state = program.until("end", |state| !state.exits.is_empty()).await;
    assert_eq!(last(&state), Some((1, ExitCause::OutOfMemory, Some(9))), "{:?}", state.exits);
    let group_id = nix::unistd::Pid::from_raw(eater.id().unwrap().cast_signed());
    nix::sys::signal::killpg(group_id, Signal::SIGKILL).unwrap();
    rig::within("end of the other", eater.wait()).await.unwrap();
    program.until("restart", |state| state.phase == ServePhase::Ready && state.boot > 1).await;
    assert_eq!(program.stop().await, Some(0));
    remove(group).await;
}

/// A script that leaves two orphans: one that ends soon, one that stays and has no marker in its environment.
fn orphans() -> String {
    let short = "sh -c 'sleep 0.1 &'";
    let long = "(setsid env -i /bin/sh -c 'echo child $$; exec sleep 600' &)";
    format!("{LISTENS}; {short}; {long}; while :; do sleep 600; done")
}

async fn reaped(program: &Program) -> bool {
    let metrics = reqwest::get(format!("http://{}/metrics", program.control)).await.unwrap();
    let metrics = metrics.text().await.unwrap();
    metrics.contains("berth_serve_processes_reaped_total")
        && !metrics.contains("berth_serve_processes_reaped_total 0\n")
}

async fn until_reaped(program: &Program) {
    rig::within("reaping", async {
        while !reaped(program).await {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await;
}

fn watchdogs(boot_id: &str) -> usize {
    let marker = format!("BERTH_SERVE_BOOT={boot_id}");
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter(|entry| {
            let arguments = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            arguments.split(|byte| *byte == 0).any(|argument| argument == marker.as_bytes())
        })
        .count()
}

#[tokio::test]
async fn orphans_are_adopted_reaped_and_ended_with_their_opencode() {
    let bench = Bench::new("1.18.33").await;
    let place = Place::with_script(&bench, &orphans());
    let mut program = place.start();
    let state = program.ready().await;
    assert_eq!(watchdogs(&state.boot_id), 1);
    until("child", || rig::child_of_log(&place.path("data")).is_some()).await;
    let child = rig::child_in(&place.path("data"));
    until_reaped(&program).await;
    assert!(lives(child), "kept while opencode lives");
    let own = program.child.id().unwrap();
    until("adoption", || parent_of(child) == Some(own)).await;
    let memory = program.link.memory().await.unwrap();
    assert!(memory.tool_processes >= 1 && memory.tools > 0, "{memory:?}");
    signal(state.pid.unwrap(), Signal::SIGKILL);
    program.until("restart", |state| state.boot == 2 && state.phase == ServePhase::Ready).await;
    assert!(!lives(child), "ended with its opencode");
    // SIGKILL of the program: what it marked is ended by the watchdog.
    let state = program.link.state().borrow().clone();
    rig::within("end by SIGKILL", program.child.kill()).await.unwrap();
    until("end of opencode", || !lives(state.pid.unwrap())).await;
    let child = rig::child_in(&place.path("data"));
    if lives(child) {
        signal(child, Signal::SIGKILL);
    }
}

fn parent_of(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// Children of a process, and whether they are zombies.
fn children_of(parent: u32) -> Vec<(u32, bool)> {
    let pids =
        fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| parent_of(*pid) == Some(parent))
        .map(|pid| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            (pid, status.contains("State:\tZ"))
        })
        .collect()
}

#[tokio::test]
async fn as_process_1_it_reaps_needs_no_watchdog_and_takes_all_with_it() {
    if is_left_out() {
        return;
    }
    let bench = Bench::new("1.18.33").await;
    let place = Place::with_script(&bench, &orphans());
    let program = place.start_in(&UNSHARE);
    let state = program.ready().await;
    let init = children_of(program.child.id().unwrap())[0].0;
    until_reaped(&program).await;
    assert_eq!(watchdogs(&state.boot_id), 0);
    until("both children", || children_of(init).len() == 2).await;
    assert!(children_of(init).iter().all(|(_, is_zombie)| !is_zombie), "{:?}", children_of(init));
    let all: Vec<u32> = children_of(init).into_iter().map(|(pid, _)| pid).collect();
    signal(init, Signal::SIGTERM);
    until("end of process 1", || !lives(init)).await;
    assert!(all.iter().all(|pid| !lives(*pid)), "{all:?}");
    assert_eq!(place.termination()["reason"], "Stopped");

    let program = place.start_in(&UNSHARE);
    program.ready().await;
    let init = children_of(program.child.id().unwrap())[0].0;
    until("both children", || children_of(init).len() == 2).await;
    let all: Vec<u32> = children_of(init).into_iter().map(|(pid, _)| pid).collect();
    signal(init, Signal::SIGKILL);
    until("end of all", || !lives(init) && all.iter().all(|pid| !lives(*pid))).await;
}
