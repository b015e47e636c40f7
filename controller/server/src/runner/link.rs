//! The subscription to a sandbox's door. It reconnects with the cursor of the last event it passed on, so that its
//! reader sees every event once, or a resync. The channel is short: a slow reader holds the door's stream back, and
//! the door's journal holds what waits.

use std::time::Duration;

use berth_opencode::{ClientError, OpencodeClient, StreamItem};
use berth_wire::door::{Cursor, DoorState};
use tokio::sync::mpsc;

use crate::http::error_chain;

/// First pause after a lost connection; it doubles to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Events between the door's stream and their reader.
pub(super) const CHANNEL: usize = 64;

/// What the link tells.
#[derive(Debug)]
pub(super) enum LinkEvent {
    /// Nothing was known of this sandbox before: the subscription starts here.
    Opened(Box<DoorState>),
    /// The subscription stands: prompts may be sent.
    Connected,
    /// The next event.
    Item(Box<StreamItem>),
    /// The subscription broke; it is made again.
    Lost,
}

/// Feeds `events` until its receiver is dropped.
pub(super) async fn run(client: OpencodeClient, mut cursor: Option<Cursor>, events: mpsc::Sender<LinkEvent>) {
    let mut pause = PAUSE_MIN;
    while !events.is_closed() {
        match follow(&client, &mut cursor, &events, &mut pause).await {
            Ok(()) => tracing::debug!("the door closed the event stream"),
            Err(error) => tracing::debug!(error = error_chain(&error), "the event stream broke"),
        }
        if events.send(LinkEvent::Lost).await.is_err() {
            return;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

async fn follow(
    client: &OpencodeClient,
    cursor: &mut Option<Cursor>,
    events: &mpsc::Sender<LinkEvent>,
    pause: &mut Duration,
) -> Result<(), ClientError> {
    if cursor.is_none() {
        let state = client.door_state().await?;
        *cursor = Some(Cursor { epoch: state.epoch.clone(), seq: state.seq });
        if events.send(LinkEvent::Opened(Box::new(state))).await.is_err() {
            return Ok(());
        }
    }
    let mut stream = client.global_events(cursor.as_ref()).await?;
    if events.send(LinkEvent::Connected).await.is_err() {
        return Ok(());
    }
    while let Some(item) = stream.next().await {
        match item {
            Ok(item) => {
                *pause = PAUSE_MIN;
                if item.cursor.is_some() {
                    cursor.clone_from(&item.cursor);
                }
                if events.send(LinkEvent::Item(Box::new(item))).await.is_err() {
                    return Ok(());
                }
            }
            Err(ClientError::Event(error)) => {
                tracing::warn!(error = error_chain(&error), "an event was not understood and is left out");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
