//! Client and translator together against real opencodes, 1.15.4 and 1.18.33, with a scripted model: what a turn runner
//! does, in small. Every turn's log is held against the testkit's rules.
//!
//! The tests of a version share one opencode, which is started with the first of them and ended after the last; that is
//! why they have a harness of their own. Quick sizes by default, full ones with `BERTH_SOAK=1`. `make opencode
//! opencode-old` fetches the binaries; a test whose binary is missing fails.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests: a failure is a failed test")]

use std::{
    process::ExitCode,
    sync::{Arc, LazyLock},
    time::Duration,
};

use libtest_mimic::{Arguments, Failed, Trial};
use tokio::{runtime::Runtime, sync::OnceCell, time::timeout};

use crate::server::{Server, Version};

mod aborts;
mod asks;
mod crowd;
mod kills;
mod prompts;
mod provider;
mod rig;
mod server;
mod subagents;
mod turns;

/// Bound on one test, on a machine that does other things too.
const BOUND: Duration = Duration::from_mins(4);

/// One opencode for each version, once a test wants it.
static SHARED: [OnceCell<Arc<Server>>; 2] = [OnceCell::const_new(), OnceCell::const_new()];
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("a runtime can be made"));

async fn shared(version: Version) -> Arc<Server> {
    let cell = &SHARED[version as usize];
    Arc::clone(cell.get_or_init(|| async { Arc::new(Server::start(version).await) }).await)
}

/// Full sizes instead of quick ones.
#[expect(clippy::disallowed_methods, reason = "these tests have no configuration but the environment")]
fn is_soak() -> bool {
    std::env::var_os("BERTH_SOAK").is_some_and(|value| value == "1")
}

/// `quick`, or `full` in a soak run.
fn sized<T>(quick: T, full: T) -> T {
    if is_soak() { full } else { quick }
}

fn trial<F>(version: Version, name: &str, case: impl FnOnce(Arc<Server>) -> F + Send + 'static) -> Trial
where
    F: Future<Output = ()> + Send,
{
    let bound = sized(BOUND, BOUND * 6);
    Trial::test(format!("{}::{name}", version.module()), move || {
        let run = async {
            let server = shared(version).await;
            timeout(bound, case(server)).await
        };
        RUNTIME.block_on(run).map_err(|_| Failed::from(format!("not done within {bound:?}")))
    })
}

macro_rules! trials {
    ($($topic:ident: $($name:ident)+;)+) => {
        fn trials() -> Vec<Trial> {
            let mut trials = Vec::new();
            for version in Version::ALL {
                $($(trials.push(trial(version, concat!(stringify!($topic), "::", stringify!($name)), $topic::$name));)+)+
            }
            trials
        }
    };
}

trials! {
    turns: thought_and_text parallel_tools edit apply_patch plan agents_and_usage title_and_metadata
        calls_of_one_id pages_of_messages;
    subagents: one_subagent two_subagents_at_once a_failing_subagent an_aborted_subagent
        ct_2_a_subagent_whose_retry_is_due_in_a_day ct_3_a_grandchild_asks ct_3_a_grandchild_asks_and_the_root_is_cancelled;
    asks: permission_once permission_always permission_rejected permission_rejected_with_words
        permission_of_a_subagent rejecting_one_rejects_the_others permission_left_behind_by_an_abort
        ct_4_a_doom_loop question_answered question_dismissed question_aborted ct_5_several_questions;
    aborts: before_the_start while_streaming while_the_provider_hangs before_the_provider_answers
        while_a_tool_runs while_a_retry_waits by_somebody_else disposed_in_mid_turn;
    provider: error_400 error_401 error_429_with_retry_after error_500_then_success cut_after_partial_text
        garbage no_finish length ct_2_a_retry_that_is_due_in_a_day bad_model bad_agent;
    prompts: cold_aborts warm_aborts sent_again_while_it_runs sent_again_when_it_is_the_newest
        sent_again_after_an_abort sent_again_after_an_error sent_again_when_a_newer_one_exists
        a_connection_reset_after_the_post a_note_in_mid_turn a_gap_in_mid_turn sv_9_a_revert files_agents_and_system;
    kills: right_after_a_cold_post in_mid_text in_a_tool;
    crowd: twenty_sessions_at_once;
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // The tests mostly wait.
    arguments.test_threads = arguments.test_threads.or(Some(6));
    let conclusion = libtest_mimic::run(&arguments, trials());
    RUNTIME.block_on(async {
        for server in SHARED.iter().filter_map(OnceCell::get) {
            server.end().await;
        }
    });
    conclusion.exit_code()
}
