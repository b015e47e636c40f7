//! The subscription to a sandbox's door, from the cursor that is stored, or from where the door's journal stands. The
//! channel is short: a slow reader holds the door's stream back, and the door's journal holds what waits.

use std::{sync::Arc, time::Duration};

use berth_opencode::{ClientError, OpencodeClient, StreamItem, SubscriptionItem};
use berth_wire::door::{Cursor, DoorState};
use tokio::sync::{Notify, mpsc};

use crate::http::error_chain;

/// Pause after the door's state could not be read.
const PAUSE: Duration = Duration::from_millis(500);
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
    /// Another owner raised the door's fence above ours: nothing may be done here any more.
    TakenOver,
}

/// What the subscription needs.
pub(super) struct Link {
    /// Of the sandbox's door.
    pub(super) client: OpencodeClient,
    /// Where events go.
    pub(super) events: mpsc::Sender<LinkEvent>,
    /// Told when the door does not take the password, or does not prove that it knows it.
    pub(super) refused: Arc<Notify>,
}

impl Link {
    /// Raises the fence, then feeds the events until their receiver is dropped or the fence is lost.
    pub(super) async fn run(self, cursor: Option<Cursor>) {
        let Self { client, events, .. } = &self;
        if !self.raise().await {
            let _ = events.send(LinkEvent::TakenOver).await;
            return;
        }
        let start = match cursor {
            Some(cursor) => cursor,
            None => match open(client, events).await {
                Some(cursor) => cursor,
                None => return,
            },
        };
        let mut subscription = client.subscribe(Some(start));
        loop {
            let event = match subscription.next().await {
                // With a cursor there is no gap that the door does not tell of itself.
                SubscriptionItem::Connected { .. } if self.raise().await => LinkEvent::Connected,
                SubscriptionItem::Connected { .. } => LinkEvent::TakenOver,
                SubscriptionItem::Event(item) => LinkEvent::Item(item),
                SubscriptionItem::Unreadable(error) => {
                    tracing::warn!(
                        error = error_chain(&error),
                        "an event was not understood and is left out"
                    );
                    continue;
                }
                SubscriptionItem::Lost(error) => {
                    if error.as_ref().is_some_and(ClientError::is_of_the_password) {
                        self.refused.notify_one();
                    }
                    let error = error.map(|error| error_chain(&error));
                    tracing::debug!(error, "the event stream ended");
                    LinkEvent::Lost
                }
            };
            let over = matches!(event, LinkEvent::TakenOver);
            if events.send(event).await.is_err() || over {
                return;
            }
        }
    }

    /// Raises the fence before anything else is done at a door, and again at each door that may be another one than before,
    /// until it is raised; false when it is not ours any more.
    async fn raise(&self) -> bool {
        let mut warned = false;
        while !self.events.is_closed() {
            match self.client.raise_fence().await {
                Ok(()) => return true,
                Err(ClientError::StaleFence) => return false,
                Err(error) => {
                    if error.is_of_the_password() {
                        self.refused.notify_one();
                    }
                    let (transient, error) = (error.is_transient(), error_chain(&error));
                    if transient || warned {
                        tracing::debug!(error, "fence could not be raised");
                    } else {
                        tracing::warn!(
                            error,
                            "door does not raise the fence; it may be older than this server"
                        );
                    }
                    warned |= !transient;
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
        true
    }
}

/// Asks the door where its journal stands, until it tells; nothing when nobody waits for it any more.
async fn open(client: &OpencodeClient, events: &mpsc::Sender<LinkEvent>) -> Option<Cursor> {
    while !events.is_closed() {
        match client.door_state().await {
            Ok(state) => {
                let cursor = Cursor { epoch: state.epoch.clone(), seq: state.seq };
                return events.send(LinkEvent::Opened(Box::new(state))).await.ok().map(|()| cursor);
            }
            Err(error) => tracing::debug!(error = error_chain(&error), "door state could not be read"),
        }
        tokio::time::sleep(PAUSE).await;
    }
    None
}
