//! Boots the instance of opencode's own directory after each start, so that the first prompt finds it. IO.

use std::{sync::Arc, time::Duration};

use http::Method;

use crate::{Door, directories, errands, events, passage::Passage};

/// Bound on the boot of an instance. It took 0.3 to 14 s (measured on opencode 1.18.33).
const BOUND: Duration = Duration::from_secs(30);

/// Asks once in each run of opencode, until shutdown.
pub(crate) async fn run(door: Arc<Door>) {
    let mut passage = door.passage.clone();
    let mut warmed = String::new();
    loop {
        let fresh =
            |passage: &Passage| matches!(passage, Passage::Open { boot_id, .. } if *boot_id != warmed);
        let opened = tokio::select! {
            opened = passage.wait_for(fresh) => opened.ok().map(|passage| passage.clone()),
            () = door.shutdown.cancelled() => None,
        };
        let Some(Passage::Open { boot_id, .. }) = opened else { return };
        let directory = events::real(directories::own(&door)).await;
        door.directories.touch(&boot_id, &directory);
        warmed = boot_id;
        let answer = errands::ask(&door, Method::GET, "/session/status", &directory, BOUND).await;
        let status = answer.map(|(status, _)| status.as_u16());
        door.config.metrics.prewarmed.inc();
        tracing::debug!(status, "the first directory was warmed");
    }
}
