//! End-to-end tests on a real Kubernetes with real opencode. Without `BERTH_E2E_KUBECONFIG`, which `cargo xtask test` sets,
//! there are none.

mod deaths;
mod deletion;
mod life;
mod manifest;
mod operator;
mod walls;

use std::{process::ExitCode, sync::Arc};

use anyhow::Context;
use berth_e2e::{Body, Cluster, Setting, trial};
use libtest_mimic::Arguments;

/// All tests, the longest first.
const TESTS: &[(&str, Body)] = &[
    ("operator_killed_while_twenty_come_and_go", |case| {
        Box::pin(operator::killed_while_twenty_come_and_go(case))
    }),
    ("manifest_to_answer_and_nothing_is_left", |case| {
        Box::pin(manifest::to_answer_and_nothing_is_left(case))
    }),
    ("sandbox_reads_and_reaches_nothing_private", |case| {
        Box::pin(walls::reads_and_reaches_nothing_private(case))
    }),
    ("fake_door_gets_no_password", |case| Box::pin(walls::fake_door_gets_no_password(case))),
    ("sandbox_expires_and_leaves_its_claim", |case| Box::pin(life::expires_and_leaves_its_claim(case))),
    ("sandbox_rests_and_returns_with_its_work", |case| Box::pin(life::rests_and_returns_with_its_work(case))),
    ("opencode_killed_in_mid_turn", |case| Box::pin(deaths::opencode_killed(case))),
    ("supervisor_killed_in_mid_turn", |case| Box::pin(deaths::supervisor_killed(case))),
    ("sidecar_killed_in_mid_turn", |case| Box::pin(deaths::sidecar_killed(case))),
    ("pause_killed_in_mid_turn", |case| Box::pin(deaths::pause_killed(case))),
    ("pod_deleted_in_mid_turn", |case| Box::pin(deaths::pod_deleted(case))),
    ("pod_with_its_workspace_deleted_in_mid_turn", |case| {
        Box::pin(deaths::pod_with_its_workspace_deleted(case))
    }),
    ("sandbox_deleted_in_mid_turn", |case| Box::pin(deletion::in_mid_turn(case))),
];

/// How many tests run at a time: each waits for the cluster most of its time, and its node has little to spare.
const AT_A_TIME: usize = 4;

#[expect(clippy::print_stderr, reason = "a program for developers talks on their terminal")]
fn main() -> anyhow::Result<ExitCode> {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or(Some(AT_A_TIME));
    let Some(setting) = Setting::from_environment().filter(|_| !arguments.list) else {
        eprintln!("no cluster: `cargo xtask test` makes one, BERTH_E2E_KUBECONFIG names another");
        return Ok(libtest_mimic::run(&arguments, Vec::new()).exit_code());
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let cluster = runtime.block_on(Cluster::prepare(setting)).context("Berth does not come up")?;
    let cluster = Arc::new(cluster);
    let trials = TESTS
        .iter()
        .map(|&(name, body)| trial(name, body, Arc::clone(&cluster), runtime.handle().clone()))
        .collect();
    let ended = libtest_mimic::run(&arguments, trials);
    let cluster = Arc::into_inner(cluster).context("a test is still running")?;
    runtime.block_on(cluster.end())?;
    Ok(ended.exit_code())
}
