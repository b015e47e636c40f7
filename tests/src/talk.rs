//! What tests say to a session and wait for, wherever its server is. The bound is the caller's.

use berth_client::BerthClient;
use berth_wire::{
    api::{PostMessage, Turn},
    event::EventPayload,
};
use uuid::Uuid;

use crate::SessionLog;

/// Sends a prompt.
pub async fn post(client: &BerthClient, session: Uuid, prompt: &str) -> Turn {
    let key = Uuid::new_v4().to_string();
    client.post_message(session, &PostMessage::text(prompt), &key).await.expect("the prompt is taken")
}

/// Sends a prompt and reads the session's log until its turn has ended; the log is checked.
pub async fn prompt(client: &BerthClient, session: Uuid, prompt: &str) -> (Turn, SessionLog) {
    let turn = post(client, session, prompt).await;
    let log = SessionLog::until_end(client, session, turn.id).await;
    log.check();
    (turn, log)
}

/// What `wanted` picks of the session's log, once an event of it has that.
pub async fn find<T>(
    client: &BerthClient,
    session: Uuid,
    mut wanted: impl FnMut(&EventPayload) -> Option<T>,
) -> T {
    let mut stream = client.events(session, 0);
    loop {
        let event = stream.next().await.expect("the event stream goes on");
        if let Some(found) = wanted(&event.payload) {
            return found;
        }
    }
}
