//! The event stream of all directories, with the door's cursors. IO.

use std::{fmt, time::Duration};

use berth_wire::{
    door::Cursor,
    sse::{SseEvent, SseReader},
};
use futures_util::TryStreamExt;

use super::{Answer, Call, OpencodeClient, accept_events, content_type, transport};
use crate::{error::ClientError, event::GlobalEvent};

/// One event of the stream.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamItem {
    /// Where to resume after it; absent when opencode itself answers, which keeps no journal.
    pub cursor: Option<Cursor>,
    /// The event.
    pub event: GlobalEvent,
}

/// A subscription. Ends with an error, or with `None` when the other side closed it.
pub struct EventStream {
    reader: SseReader,
    idle: Duration,
    ended: bool,
}

impl fmt::Debug for EventStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventStream")
            .field("idle", &self.idle)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

impl OpencodeClient {
    /// Subscribes to the events of all directories, from the one after `after` when a door keeps them. opencode itself
    /// loses what is sent in the first moments after its answer, seconds on a busy machine; a door does not.
    pub async fn global_events(&self, after: Option<&Cursor>) -> Result<EventStream, ClientError> {
        self.request_events(&Call::get(&["global", "event"]), after, self.stream_timeout).await
    }

    /// Subscribes to the events of one directory, without envelopes. opencode keeps no history of them.
    pub async fn directory_events(&self, directory: &str) -> Result<EventStream, ClientError> {
        self.request_events(&Call::get(&["event"]).directory(directory), None, self.request_timeout).await
    }

    async fn request_events(
        &self,
        call: &Call<'_>,
        after: Option<&Cursor>,
        limit: Duration,
    ) -> Result<EventStream, ClientError> {
        let (name, value) = accept_events();
        let mut request = self.request(call)?.header(name, value);
        if let Some(cursor) = after {
            request = request.header("last-event-id", cursor.to_string());
        }
        let response = tokio::time::timeout(limit, request.send())
            .await
            .map_err(|_| ClientError::Timeout { limit })?
            .map_err(transport)?;
        self.open(response).await
    }

    async fn open(&self, response: reqwest::Response) -> Result<EventStream, ClientError> {
        if !response.status().is_success() {
            let limit = self.request_timeout;
            let answer = tokio::time::timeout(limit, Answer::read(response)).await;
            return Err(answer.map_err(|_| ClientError::Timeout { limit })??.into_error());
        }
        let kind = content_type(&response);
        if kind != "text/event-stream" {
            return Err(ClientError::UnexpectedBody { seen: format!("{kind} instead of an event stream") });
        }
        let bytes = response.bytes_stream().map_err(reqwest::Error::without_url);
        Ok(EventStream { reader: SseReader::new(bytes), idle: self.idle_timeout, ended: false })
    }
}

impl EventStream {
    /// The next event. [`ClientError::Event`] tells of one frame that was not understood, and the stream goes on; any
    /// other error ends it.
    pub async fn next(&mut self) -> Option<Result<StreamItem, ClientError>> {
        Some(self.next_frame().await?.and_then(|frame| read_frame(&frame)))
    }

    /// The next frame as it was sent, for recordings. Any error ends the stream.
    pub async fn next_frame(&mut self) -> Option<Result<SseEvent, ClientError>> {
        if self.ended {
            return None;
        }
        let item = match tokio::time::timeout(self.idle, self.reader.next()).await {
            Ok(Some(Ok(frame))) => return Some(Ok(frame)),
            Ok(Some(Err(error))) => Some(Err(ClientError::Stream(error))),
            Ok(None) => None,
            Err(_) => Some(Err(ClientError::StreamIdle { limit: self.idle })),
        };
        self.ended = true;
        item
    }
}

fn read_frame(frame: &SseEvent) -> Result<StreamItem, ClientError> {
    let event = GlobalEvent::parse(&frame.data).map_err(ClientError::Event)?;
    Ok(StreamItem { cursor: frame.id.as_deref().and_then(|id| id.parse().ok()), event })
}
