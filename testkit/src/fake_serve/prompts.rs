//! Taking prompts and aborting turns: what happens between a request and the player of its session.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{
    Shared,
    fault::{Fault, TurnFault},
    now, shapes,
    turn::{Player, text_of},
    unruly::Unruly,
    world::{Queued, Running},
};

/// How long an abort waits for its turn to end.
const ABORT_BOUND: Duration = Duration::from_secs(5);

/// Reads a prompt; the error is what opencode says of it.
pub(super) fn read_prompt(shared: &Shared, id: &str, body: &Value) -> Result<Queued, String> {
    let Some(parts) = body["parts"].as_array() else {
        return Err("Missing key\n  at [\"parts\"]".to_owned());
    };
    let message = match body["messageID"].as_str() {
        Some(message) if !message.starts_with("msg") => {
            let words =
                format!("Expected a string starting with \"msg\", got \"{message}\"\n  at [\"messageID\"]");
            return Err(words);
        }
        Some(message) => message.to_owned(),
        None => shared.world().new_id("msg", now()),
    };
    let mut kept = Vec::with_capacity(parts.len());
    for part in parts {
        if !matches!(part["type"].as_str(), Some("text" | "file" | "agent" | "subtask")) {
            return Err(format!("Expected a part, got {part}\n  at [\"parts\"]"));
        }
        let made = || shared.world().new_id("prt", now());
        let part_id = part["id"].as_str().map_or_else(made, str::to_owned);
        let place = shapes::Place { session: id.to_owned(), message: message.clone() };
        let mut fields = part.clone();
        fields["id"] = json!(part_id);
        kept.push(shapes::part(&place, &part_id, fields));
    }
    let wanted = Fault::wanted_by(&text_of(&kept));
    let mut queued = Queued {
        again: false,
        spoiled: None,
        streams: None,
        voice: shapes::Voice {
            agent: body["agent"].as_str().unwrap_or("build").to_owned(),
            provider: body["model"]["providerID"].as_str().unwrap_or("stub").to_owned(),
            model: body["model"]["modelID"].as_str().unwrap_or("m").to_owned(),
        },
        message,
        parts: kept,
    };
    for fault in wanted {
        match fault {
            Fault::Turn(fault) => queued.spoiled = Some(fault),
            Fault::Stream(fault) => queued.streams = Some(fault),
            Fault::Answer(_) => {}
        }
    }
    queued.spoiled = queued.spoiled.or_else(|| shared.turn_fault());
    Ok(queued)
}

/// Queues the prompt, and has somebody play it.
pub(super) fn begin(shared: &Arc<Shared>, id: &str, mut queued: Queued) {
    let mut world = shared.world();
    match world.taken_before(id, &queued.message) {
        Some(true) => {
            if world.sessions.get(id).is_some_and(|session| session.running.is_none()) {
                world.idle(id, now());
            }
            return;
        }
        Some(false) => queued.again = true,
        None => {}
    }
    let Some(session) = world.sessions.get_mut(id) else { return };
    if session.running.is_none() {
        session.unruly = Unruly::new(queued.spoiled);
    }
    session.queue.push_back(queued);
    if session.running.is_some() {
        return;
    }
    let (abort, done) = (CancellationToken::new(), CancellationToken::new());
    session.running = Some(Running { abort: abort.clone(), done: done.clone() });
    let directory = session.directory.clone();
    drop(world);
    let player = Player::new(Arc::clone(shared), id, &directory, abort);
    shared.turns.spawn(async move {
        let _done = done.drop_guard();
        player.run().await;
    });
}

/// Aborts what runs in the session, and waits for its end; says that it is idle in any case.
pub(super) async fn stop(shared: &Shared, id: &str) {
    let running = {
        let mut world = shared.world();
        let session = world.sessions.get(id);
        let running = session.and_then(|session| session.running.clone());
        let begun = session.is_some_and(|session| session.status.is_some());
        match session.and_then(|session| session.unruly.fault()) {
            Some(TurnFault::Deaf) => return,
            // Answered at once, and lost.
            Some(TurnFault::StartsLate(_)) if !begun => return world.idle(id, now()),
            _ => {}
        }
        let retrying = session
            .is_some_and(|session| session.status.as_ref().is_some_and(|status| status["type"] == "retry"));
        if running.is_some() && begun && !retrying {
            world.error(id, &shapes::aborted(), now());
        }
        if !retrying {
            world.idle(id, now());
        }
        running
    };
    if let Some(Running { abort, done }) = running {
        abort.cancel();
        if tokio::time::timeout(ABORT_BOUND, done.cancelled()).await.is_err() {
            tracing::debug!("an abort was answered before its turn had ended");
        }
    }
}
