//! Does what the turn table wants to be done. IO.

use std::{sync::Arc, time::Duration};

use berth_serve::{RestartCause, ServeCommand};
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{sleep, sleep_until},
};

use super::{Action, probe};
use crate::{Door, passage::Passage};

/// Questions to opencode at a time.
const QUESTIONS: usize = 4;

/// Pause before opencode is asked again what runs; doubles with each failure in a row.
const PAUSE: Duration = Duration::from_millis(500);

/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// Serves the table until shutdown.
pub(crate) async fn run(door: Arc<Door>) {
    let questions = Arc::new(Semaphore::new(QUESTIONS));
    let mut tasks = JoinSet::new();
    loop {
        for action in door.turns.take_actions() {
            tasks.spawn(act(Arc::clone(&door), Arc::clone(&questions), action));
        }
        let deadline = door.turns.deadline();
        tokio::select! {
            () = door.shutdown.cancelled() => return,
            () = door.turns.changed.notified() => {}
            _ = tasks.join_next(), if !tasks.is_empty() => {}
            () = async { sleep_until(deadline.unwrap_or_else(tokio::time::Instant::now)).await },
                if deadline.is_some() => door.turns.tick(&door.journal),
        }
    }
}

async fn act(door: Arc<Door>, questions: Arc<Semaphore>, action: Action) {
    match action {
        Action::SendAbort { session, directory } => {
            door.turns.metrics.own_aborts.inc();
            if let Err(error) = probe::abort(&door, &session, &directory).await {
                tracing::warn!(%error, session_id = session, "an abort that waited for its turn is not answered");
            }
            door.turns.abort_returned(&door.journal, &session);
        }
        Action::Confirm { session, directory } => {
            let _permit = questions.acquire().await;
            let evidence = probe::session(&door, &session, &directory).await;
            tracing::debug!(session_id = session, ?evidence, "where a session stands was asked");
            door.turns.confirmed(&door.journal, &session, &evidence);
        }
        Action::Seed { boot_id } => seed(&door, &boot_id).await,
        Action::Restart { boot_id } => {
            door.turns.metrics.restarts.inc();
            tracing::warn!(boot_id, "opencode took a prompt and did not begin: it is started anew");
            let command = ServeCommand::Restart { boot_id, cause: RestartCause::NeverStarted };
            if let Err(error) = door.link.command(command).await {
                tracing::warn!(%error, "opencode is not started anew");
            }
        }
    }
}

/// Asks what runs until opencode answers, or that run of it is over.
async fn seed(door: &Door, boot_id: &str) {
    let mut pause = PAUSE;
    let mut passage = door.passage.clone();
    loop {
        let open = passage.wait_for(|passage| matches!(passage, Passage::Open { .. })).await.is_ok();
        let (current, count, known) = {
            let inner = door.turns.lock();
            (inner.table.boot_id() == boot_id, inner.table.count(), inner.table.active_directories())
        };
        if !open || !current {
            return;
        }
        match probe::everything(door, &known).await {
            Ok(working) => {
                tracing::info!(sessions = working.len(), "opencode was asked what runs in it");
                door.turns.seed(&door.journal, &working, count);
                return;
            }
            Err(error) => tracing::warn!(%error, "opencode does not say what runs in it"),
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
