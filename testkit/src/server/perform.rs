//! Plays beats in time: as a stream of frames, or as one document.

use std::{collections::VecDeque, time::Duration};

use axum::{
    Json,
    body::Body,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::stream;
use http::{StatusCode, header};
use tokio_util::sync::CancellationToken;

use crate::{
    beat::{Beat, Beats, HANG},
    log::{Entry, RequestOutcome},
    script::Op,
    wire::{self, Collected, Encoder, GARBAGE, Heading, ModelWire},
};

/// Time for the last frames to leave before a connection is closed: closing drops what was not sent.
const FLUSH: Duration = Duration::from_millis(20);

/// Why a body stops short. The connection is closed on it, without the mark that ends a chunked body.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("the script closes the connection")]
    Scripted,
    #[error("the scripted model stops")]
    Stopped,
}

impl Broken {
    fn outcome(&self) -> RequestOutcome {
        match self {
            Self::Scripted => RequestOutcome::Cut,
            Self::Stopped => RequestOutcome::Stopped,
        }
    }
}

/// A stream that is being played.
#[derive(Debug)]
pub(super) struct Performance {
    beats: Beats,
    encoder: Encoder,
    ready: VecDeque<String>,
    entry: Entry,
    shutdown: CancellationToken,
}

impl Performance {
    pub(super) fn new(
        wire: ModelWire,
        heading: Heading,
        ops: Vec<Op>,
        entry: Entry,
        shutdown: CancellationToken,
    ) -> Self {
        let mut encoder = Encoder::new(wire, heading);
        let ready = VecDeque::from([encoder.open()]);
        Self { beats: Beats::new(ops), encoder, ready, entry, shutdown }
    }

    /// The next frames; `None` at the end of the body.
    async fn next(&mut self) -> Option<Result<Bytes, Broken>> {
        loop {
            if let Some(frames) = self.ready.pop_front() {
                return Some(Ok(frames.into()));
            }
            let beat = self.beats.next()?;
            if let Err(broken) = self.play(beat).await {
                self.entry.settle(broken.outcome());
                return Some(Err(broken));
            }
        }
    }

    async fn play(&mut self, beat: Beat) -> Result<(), Broken> {
        match beat {
            Beat::Text(text) => self.ready.push_back(self.encoder.text(&text)),
            Beat::Thought(text) => self.ready.push_back(self.encoder.thought(&text)),
            Beat::Tool { name, arguments } => self.ready.extend(self.encoder.tool(&name, &arguments)),
            Beat::Garbage => self.ready.push_back(GARBAGE.to_owned()),
            Beat::Finish { length } => {
                self.ready.push_back(self.encoder.finish(length));
                self.entry.settle(RequestOutcome::Ended);
            }
            Beat::Truncate => self.entry.settle(RequestOutcome::Ended),
            Beat::Pause(_) | Beat::Hang | Beat::Cut => return pass_time(&beat, &self.shutdown).await,
        }
        if self.shutdown.is_cancelled() { Err(Broken::Stopped) } else { Ok(()) }
    }
}

impl IntoResponse for Performance {
    fn into_response(self) -> Response {
        let frames = stream::unfold(self, async |mut performance| {
            let frames = performance.next().await?;
            Some((frames, performance))
        });
        let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
        (headers, Body::from_stream(frames)).into_response()
    }
}

/// Waits as a beat says; every other beat takes no time.
async fn pass_time(beat: &Beat, shutdown: &CancellationToken) -> Result<(), Broken> {
    let (time, then) = match beat {
        Beat::Pause(time) => (*time, Ok(())),
        Beat::Hang => (HANG, Err(Broken::Scripted)),
        Beat::Cut => (FLUSH, Err(Broken::Scripted)),
        _ => return Ok(()),
    };
    tokio::select! {
        () = tokio::time::sleep(time) => then,
        () = shutdown.cancelled() => Err(Broken::Stopped),
    }
}

/// Plays everything and answers with one document.
pub(super) async fn perform_whole(
    wire: ModelWire,
    heading: Heading,
    ops: Vec<Op>,
    mut entry: Entry,
    shutdown: CancellationToken,
) -> Response {
    let mut collected = Collected::default();
    for beat in Beats::new(ops) {
        if let Err(broken) = pass_time(&beat, &shutdown).await {
            entry.settle(broken.outcome());
            return close_connection(broken);
        }
        match beat {
            Beat::Text(text) => collected.add_text(&text),
            Beat::Thought(text) => collected.add_thought(&text),
            Beat::Tool { name, arguments } => collected.tools.push((name, arguments)),
            Beat::Finish { length } => collected.length = Some(length),
            Beat::Garbage => {
                entry.settle(RequestOutcome::Ended);
                return ([(header::CONTENT_TYPE, "application/json")], "{not json").into_response();
            }
            Beat::Truncate | Beat::Pause(_) | Beat::Hang | Beat::Cut => {}
        }
    }
    entry.settle(RequestOutcome::Ended);
    (StatusCode::OK, Json(wire::whole(wire, &heading, &collected))).into_response()
}

/// A response whose body breaks before its first byte.
fn close_connection(broken: Broken) -> Response {
    Body::from_stream(stream::iter([Err::<Bytes, _>(broken)])).into_response()
}
