//! A subscription that is made again when it breaks. IO.
//!
//! Through a door it goes on where it was: the door keeps a journal, and says so in the stream when it cannot. opencode
//! itself keeps none: whatever is sent between two subscriptions is lost, and each one after the first is a gap.

use std::time::Duration;

use berth_wire::door::Cursor;
use tokio::time::Instant;

use super::{EventStream, OpencodeClient, StreamItem};
use crate::{
    error::ClientError,
    event::{Event, EventError},
};

/// First pause after a lost connection; it doubles to [`PAUSE_MAX`], and begins anew with each event but the one that
/// says that the subscription stands: one may break right after it again and again.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// What a subscription tells.
#[derive(Debug)]
pub enum SubscriptionItem {
    /// It stands.
    Connected {
        /// Events may have been lost since it stood last: read state again.
        gap: bool,
    },
    /// The next event.
    Event(Box<StreamItem>),
    /// A frame that is no event, which is left out.
    Unreadable(EventError),
    /// It broke, or could not be made; it is made again. How often this is borne is the caller's decision.
    Lost(Option<ClientError>),
}

/// What was read so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SubscriptionCounts {
    /// Events, of all kinds.
    pub events: u64,
    /// Of those, the ones of kinds that are not read.
    pub unknown: u64,
    /// Frames that were no events.
    pub unreadable: u64,
    /// How many times it broke, or could not be made.
    pub lost: u64,
}

/// A subscription to the events of all directories.
#[derive(Debug)]
pub struct Subscription {
    client: OpencodeClient,
    cursor: Option<Cursor>,
    stream: Option<EventStream>,
    stood_before: bool,
    pause: Duration,
    retry_at: Option<Instant>,
    counts: SubscriptionCounts,
}

impl OpencodeClient {
    /// Subscribes to the events of all directories, from the one after `after` where a door keeps them. Nothing is done
    /// before the first [`Subscription::next`].
    pub fn subscribe(&self, after: Option<Cursor>) -> Subscription {
        Subscription {
            client: self.clone(),
            cursor: after,
            stream: None,
            stood_before: false,
            pause: PAUSE_MIN,
            retry_at: None,
            counts: SubscriptionCounts::default(),
        }
    }
}

impl Subscription {
    /// The position after the last event, where a door tells it.
    pub fn cursor(&self) -> Option<&Cursor> {
        self.cursor.as_ref()
    }

    /// What was read so far.
    pub fn counts(&self) -> SubscriptionCounts {
        self.counts
    }

    /// The next thing that it tells. When this is dropped before its end, nothing is lost but the time in which a
    /// connection was being made.
    pub async fn next(&mut self) -> SubscriptionItem {
        if let Some(retry_at) = self.retry_at {
            tokio::time::sleep_until(retry_at).await;
            self.retry_at = None;
        }
        let item = match &mut self.stream {
            None => match self.client.global_events(self.cursor.as_ref()).await {
                Ok(stream) => {
                    self.stream = Some(stream);
                    let gap = self.stood_before && self.cursor.is_none();
                    self.stood_before = true;
                    return SubscriptionItem::Connected { gap };
                }
                Err(error) => Some(Err(error)),
            },
            Some(stream) => stream.next().await,
        };
        match item {
            Some(Ok(item)) => self.pass(item),
            Some(Err(ClientError::Event(error))) => {
                self.counts.unreadable += 1;
                SubscriptionItem::Unreadable(error)
            }
            Some(Err(error)) => self.lose(Some(error)),
            None => self.lose(None),
        }
    }

    fn pass(&mut self, item: StreamItem) -> SubscriptionItem {
        if item.event.event != Event::ServerConnected {
            self.pause = PAUSE_MIN;
        }
        self.counts.events += 1;
        self.counts.unknown += u64::from(item.event.event == Event::Unknown);
        if item.cursor.is_some() {
            self.cursor.clone_from(&item.cursor);
        }
        SubscriptionItem::Event(Box::new(item))
    }

    fn lose(&mut self, error: Option<ClientError>) -> SubscriptionItem {
        self.stream = None;
        self.counts.lost += 1;
        self.retry_at = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        SubscriptionItem::Lost(error)
    }
}
