//! `GET /v1/sessions/{id}/events`: the log as server-sent events.

use std::{convert::Infallible, sync::Arc};

use axum::{
    body::Body,
    extract::State,
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use berth_wire::{
    event::SessionEventSchema,
    problem::{Problem, ProblemType},
    sse::{KEEPALIVE, write_event},
};
use bytes::Bytes;
use futures_util::{Stream, stream};
use serde::Deserialize;
use tokio::sync::watch;
use uuid::Uuid;

use super::problem::{ApiError, Parameters, Segments};
use crate::{
    app::App,
    metrics::OpenStream,
    store::{LogPage, StoredEvent},
};

#[derive(Debug, Deserialize)]
pub(super) struct EventsQuery {
    /// Send events with a higher `seq` only; the header Last-Event-ID wins, since it is newer on a reconnect.
    after: Option<String>,
}

/// Stream a session's events from the start, or from after `Last-Event-ID` or `after`, and go on as they come.
/// Frames: `id` is the seq, `event` the kind, `data` the event as JSON. A comment each 15 s keeps the line alive.
#[utoipa::path(get, path = "/v1/sessions/{id}/events", tag = "events",
    params(("id" = Uuid, Path), ("after" = Option<i64>, Query), ("Last-Event-ID" = Option<i64>, Header)),
    responses((status = 200, body = SessionEventSchema, content_type = "text/event-stream"),
        (status = 400, body = Problem), (status = 401, body = Problem), (status = 404, body = Problem)))]
pub(super) async fn stream_events(
    State(app): State<super::State>,
    Segments(id): Segments<Uuid>,
    Parameters(query): Parameters<EventsQuery>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let after = start_after(&headers, query.after.as_deref())?;
    let last = app.session(id).await?.last_seq;
    if after > last {
        let detail = format!("the session's log ends at {last}: a cursor of {after} is of another session");
        return Err(ApiError::new(ProblemType::InvalidParameter, detail));
    }
    let open = OpenStream::new(&app.metrics);
    let changed = app.watch_session(id);
    let reader = Reader { changed, app, session_id: id, after, woken: false, at_end: false, _open: open };
    let body = Body::from_stream(read(reader));
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    Ok((headers, body).into_response())
}

fn start_after(headers: &HeaderMap, query: Option<&str>) -> Result<i64, ApiError> {
    let (kind, name, text) = match headers.get("last-event-id") {
        Some(value) => (ProblemType::InvalidHeader, "Last-Event-ID", value.to_str().unwrap_or("?")),
        None => (ProblemType::InvalidParameter, "after", query.unwrap_or("0")),
    };
    let seq = text.parse().ok().filter(|seq| *seq >= 0);
    seq.ok_or_else(|| ApiError::new(kind, format!("{name} must be a seq: a whole number from 0")))
}

/// Where one subscriber stands. It holds no queue: what it has not taken stays in the store.
struct Reader {
    app: Arc<App>,
    session_id: Uuid,
    after: i64,
    changed: watch::Receiver<u64>,
    /// It was woken, or has waited for long: where there is nothing to read then, the session may be gone.
    woken: bool,
    /// The last look saw the log's end: the next one is due when `changed` says so.
    at_end: bool,
    _open: OpenStream,
}

fn read(reader: Reader) -> impl Stream<Item = Result<Bytes, Infallible>> {
    stream::unfold(reader, |mut reader| async move {
        let bytes = reader.next_bytes().await?;
        Some((Ok(bytes), reader))
    })
}

impl Reader {
    /// The next frames, or a keepalive; `None` ends the stream: at shutdown, when the session is gone, or when
    /// the store fails (the client comes back with its cursor).
    async fn next_bytes(&mut self) -> Option<Bytes> {
        loop {
            if self.app.shutdown.is_cancelled() {
                return None;
            }
            if !std::mem::take(&mut self.at_end) {
                self.changed.borrow_and_update();
                let LogPage { events, cut } =
                    self.app.events_after(self.session_id, self.after).await.ok()?;
                if let Some(last) = events.last() {
                    (self.after, self.at_end, self.woken) = (last.seq, !cut, !cut);
                    self.app.metrics.events_sent.inc_by(events.len() as u64);
                    return Some(frames(&events));
                }
                if std::mem::replace(&mut self.woken, true)
                    && !self.app.store.has_session(self.session_id).await.ok()?
                {
                    return None;
                }
            }
            let keepalive = tokio::time::sleep(self.app.limits.keepalive);
            tokio::select! {
                changed = self.changed.changed() => changed.ok()?,
                () = self.app.shutdown.cancelled() => return None,
                () = keepalive => return Some(Bytes::from_static(KEEPALIVE)),
            }
        }
    }
}

fn frames(events: &[StoredEvent]) -> Bytes {
    let mut out = Vec::new();
    for event in events {
        write_event(&mut out, Some(&event.seq.to_string()), Some(&event.kind), &event.to_json());
    }
    Bytes::from(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_wins_and_nonsense_is_refused() {
        let mut headers = HeaderMap::new();
        assert_eq!(start_after(&headers, None).unwrap(), 0);
        assert_eq!(start_after(&headers, Some("7")).unwrap(), 7);
        for bad in ["", "-1", "x", "1.5", "99999999999999999999"] {
            assert!(start_after(&headers, Some(bad)).is_err(), "{bad}");
        }
        headers.insert("last-event-id", "9".parse().unwrap());
        assert_eq!(start_after(&headers, Some("7")).unwrap(), 9);
    }
}
