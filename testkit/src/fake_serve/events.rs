//! An event stream: `/event` of one directory, `/global/event` of all; and what spoils it.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::stream;
use http::header;
use serde_json::{Value, json};
use tokio::{
    sync::broadcast::{self, error::RecvError},
    time::{Instant, Interval, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

use super::{
    Broken, FLUSH, Shared,
    fault::{HUGE_FRAME, StreamFault},
    now,
    unruly::Outgoing,
    world::Signal,
};

/// Size of the pieces in which a huge frame is sent.
const PIECE: usize = 1024 * 1024;

/// Whose events a stream has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Scope {
    /// Those of every directory, in envelopes, with their `sync` events.
    Global,
    /// Those of one directory, bare.
    Directory(String),
}

#[derive(Debug)]
enum Piece {
    Bytes(Bytes),
    Pause(Duration),
    Cut,
    Die,
    End,
}

/// One subscriber's stream.
#[derive(Debug)]
pub(super) struct Subscription {
    shared: Arc<Shared>,
    scope: Scope,
    signals: broadcast::Receiver<Signal>,
    heartbeat: Interval,
    boot: CancellationToken,
    pieces: VecDeque<Piece>,
    /// Events to lose before the next one that is sent; `None` to lose them all.
    losing: Option<u64>,
    silent: bool,
    dribble: bool,
    drip: Option<Duration>,
    /// Bytes that may still go, and whether the whole server dies then.
    budget: Option<(u64, bool)>,
    over: bool,
}

impl Subscription {
    /// A stream from now on, spoiled at once if the server's fault says so.
    pub(super) fn open(shared: Arc<Shared>, scope: Scope, fault: Option<StreamFault>) -> Self {
        let every = shared.config.heartbeat;
        let mut heartbeat = tokio::time::interval_at(Instant::now() + every, every);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (signals, boot) = (shared.world().subscribe(), shared.boot());
        let mut subscription = Self {
            shared,
            scope,
            signals,
            heartbeat,
            boot,
            pieces: VecDeque::new(),
            losing: Some(0),
            silent: false,
            dribble: false,
            drip: None,
            budget: None,
            over: false,
        };
        if let Some(StreamFault::Cut(_) | StreamFault::Dies(_)) = fault {
            subscription.spoil(fault);
            subscription.push_server_event("server.connected");
        } else {
            subscription.push_server_event("server.connected");
            subscription.spoil(fault);
        }
        subscription
    }

    fn push_server_event(&mut self, kind: &str) {
        let id = self.shared.world().new_id("evt", now());
        let event = json!({ "id": id, "type": kind, "properties": {} });
        let frame = if self.scope == Scope::Global { json!({ "payload": event }) } else { event };
        self.push_frame(&frame.to_string());
    }

    fn push_event(&mut self, event: &Outgoing) {
        match &self.scope {
            Scope::Directory(directory) => {
                if event.directory.as_ref() == Some(directory) {
                    self.push_frame(&event.payload.to_string());
                }
            }
            Scope::Global => {
                let envelope = |payload: &Value| match &event.directory {
                    Some(directory) => {
                        json!({ "directory": directory, "project": "global", "payload": payload }).to_string()
                    }
                    None => json!({ "payload": payload }).to_string(),
                };
                self.push_frame(&envelope(&event.payload));
                if let Some(sync) = &event.sync {
                    self.push_frame(&envelope(sync));
                }
            }
        }
    }

    fn push_frame(&mut self, data: &str) {
        if self.dribble {
            self.push_bytes(format!(": a comment\r\n\r\ndata:{data}\r\n\r\n").into());
        } else {
            self.push_bytes(format!("data: {data}\n\n").into());
        }
    }

    fn push_bytes(&mut self, mut bytes: Bytes) {
        if self.over {
            return;
        }
        if let Some((left, dies)) = &mut self.budget {
            let length = bytes.len() as u64;
            if length >= *left {
                bytes.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
                let end = if *dies { Piece::Die } else { Piece::Cut };
                self.push_pieces(bytes);
                return self.push_end(end);
            }
            *left -= length;
        }
        self.push_pieces(bytes);
    }

    fn push_pieces(&mut self, bytes: Bytes) {
        if !self.dribble && self.drip.is_none() {
            return self.pieces.push_back(Piece::Bytes(bytes));
        }
        for index in 0..bytes.len() {
            self.pieces.extend(self.drip.map(Piece::Pause));
            self.pieces.push_back(Piece::Bytes(bytes.slice(index..=index)));
        }
    }

    fn push_end(&mut self, end: Piece) {
        self.pieces.push_back(Piece::Pause(FLUSH));
        self.pieces.push_back(end);
        self.over = true;
    }

    fn spoil(&mut self, fault: Option<StreamFault>) {
        use StreamFault as S;
        let Some(fault) = fault else { return };
        match fault {
            S::Silent => self.silent = true,
            S::HeartbeatsOnly => self.losing = None,
            S::HugeFrame => self.push_huge_frame(),
            S::HalfFrame => {
                self.push_bytes(Bytes::from_static(b"data: {\"payload\":{\"type\":\"session.id"));
                self.push_end(Piece::Cut);
            }
            S::Cut(bytes) => self.budget = Some((bytes, false)),
            S::Dies(bytes) => self.budget = Some((bytes, true)),
            S::Ends => self.push_end(Piece::End),
            S::BadJson => self.push_frame("{not json"),
            S::NoType => self.push_frame(r#"{"payload":{"properties":{}}}"#),
            S::BadShape => {
                self.push_frame(r#"{"payload":{"type":"session.status","properties":{"sessionID":7}}}"#);
            }
            S::UnknownKind => {
                self.push_frame(r#"{"payload":{"type":"from.the.future","properties":{"x":[1]}}}"#);
            }
            S::BadUtf8 => self.push_bytes(Bytes::from_static(b"data: {\"type\":\"\xff\xfe\"}\n\n")),
            S::Loses(events) => self.losing = Some(events),
            S::Dribble => self.dribble = true,
            S::Drip(ms) => self.drip = Some(Duration::from_millis(ms)),
        }
        // With no byte left there is nothing to wait for.
        if let Some((0, dies)) = self.budget
            && !self.over
        {
            self.push_end(if dies { Piece::Die } else { Piece::Cut });
        }
    }

    fn push_huge_frame(&mut self) {
        let piece = Bytes::from(vec![b'x'; PIECE]);
        self.push_bytes(Bytes::from_static(
            b"data: {\"payload\":{\"type\":\"huge\",\"properties\":{\"text\":\"",
        ));
        for _ in 0..HUGE_FRAME / PIECE {
            self.push_bytes(piece.clone());
        }
        self.push_bytes(Bytes::from_static(b"\"}}}\n\n"));
    }

    fn take(&mut self, signal: Signal) {
        match signal {
            Signal::Spoil(fault) => self.spoil(Some(fault)),
            Signal::Event(_) if self.silent => {}
            Signal::Event(event) => match &mut self.losing {
                None => {}
                Some(0) => self.push_event(&event),
                Some(left) => *left -= 1,
            },
        }
    }

    /// The next bytes; `None` at the proper end.
    async fn next(&mut self) -> Option<Result<Bytes, Broken>> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                match piece {
                    Piece::Bytes(bytes) => return Some(Ok(bytes)),
                    Piece::Pause(time) => tokio::select! {
                        () = tokio::time::sleep(time) => {}
                        () = self.boot.cancelled() => return Some(Err(Broken)),
                    },
                    Piece::Cut => return Some(Err(Broken)),
                    Piece::Die => {
                        self.shared.die();
                        return Some(Err(Broken));
                    }
                    Piece::End => return None,
                }
                continue;
            }
            tokio::select! {
                () = self.boot.cancelled() => return Some(Err(Broken)),
                signal = self.signals.recv() => match signal {
                    Ok(signal) => self.take(signal),
                    Err(RecvError::Lagged(events)) => {
                        tracing::warn!(events, "a subscriber of the fake reads too slowly and is cut off");
                        return Some(Err(Broken));
                    }
                    Err(RecvError::Closed) => return None,
                },
                _ = self.heartbeat.tick() => if !self.silent {
                    self.push_server_event("server.heartbeat");
                },
            }
        }
    }
}

impl IntoResponse for Subscription {
    fn into_response(self) -> Response {
        let bytes = stream::unfold(self, async |mut subscription| {
            let bytes = subscription.next().await?;
            Some((bytes, subscription))
        });
        let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
        (headers, Body::from_stream(bytes)).into_response()
    }
}
