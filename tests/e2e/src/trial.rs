//! Runs one test as a trial: in a namespace of its own, with what a person needs when it fails.

use std::{panic::AssertUnwindSafe, pin::Pin, sync::Arc};

use futures_util::FutureExt;
use libtest_mimic::Trial;
use tokio::runtime::Handle;

use crate::{case::Case, cluster::Cluster, trouble};

/// A test's body.
pub type Body = fn(Case) -> Pin<Box<dyn Future<Output = ()>>>;

/// A trial of this name, on this runtime.
pub fn trial(name: &'static str, body: Body, cluster: Arc<Cluster>, runtime: Handle) -> Trial {
    Trial::test(name, move || runtime.block_on(run(name, body, cluster)))
}

async fn run(name: &str, body: Body, cluster: Arc<Cluster>) -> Result<(), libtest_mimic::Failed> {
    let case = Case::start(cluster, name).await?;
    // It has said why on standard error.
    let passed = AssertUnwindSafe(body(case.clone())).catch_unwind().await.is_ok();
    if !passed {
        trouble::show(&case, name).await;
    }
    case.end().await?;
    if passed { Ok(()) } else { Err("it panicked: see above".into()) }
}
