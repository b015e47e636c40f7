//! Bodies on their way through the door: looked at as they pass, and cut when an upload takes too long. Nothing is
//! kept: a side that does not take bytes stops the side that gives them.

use std::{
    error::Error,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use prometheus_client::metrics::counter::Counter;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::{Door, refusal::BodyError};

/// What is done with a body as it passes. It lives as long as its body.
pub(crate) trait Hook: Unpin {
    /// These bytes pass.
    fn data(&mut self, _data: &[u8]) {}

    /// All of it has passed: called once, and not for a body that breaks or is given up.
    fn end(&mut self) {}
}

impl<H: Hook> Hook for Option<H> {
    fn data(&mut self, data: &[u8]) {
        if let Some(hook) = self {
            hook.data(data);
        }
    }

    fn end(&mut self) {
        if let Some(hook) = self {
            hook.end();
        }
    }
}

impl Hook for Counter {
    fn data(&mut self, data: &[u8]) {
        self.inc_by(data.len() as u64);
    }
}

/// A body with a hook.
#[derive(Debug)]
pub(crate) struct Hooked<B, H> {
    body: B,
    hook: H,
    has_ended: bool,
}

impl<B: Body<Data = Bytes> + Unpin, H: Hook> Hooked<B, H> {
    /// The body, with what is done as it passes. The end of an empty one is now.
    pub(crate) fn new(body: B, hook: H) -> Self {
        let mut hooked = Self { body, hook, has_ended: false };
        hooked.end_if(hooked.body.is_end_stream());
        hooked
    }

    fn end_if(&mut self, ends: bool) {
        if ends && !std::mem::replace(&mut self.has_ended, true) {
            self.hook.end();
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin, H: Hook> Body for Hooked<B, H> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    self.hook.data(data);
                }
                let ends = self.body.is_end_stream();
                self.end_if(ends);
            }
            Some(Err(_)) => {}
            None => self.end_if(true),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Why an upload was cut.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UploadCut {
    #[error("the request's body stood still for {} s", .0.as_secs())]
    Stalled(Duration),
    #[error("the request's body was not whole after {} s", .0.as_secs())]
    Slow(Duration),
}

impl UploadCut {
    /// The cut that an exchange failed for, if it was one.
    pub(crate) fn of<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        std::iter::successors(Some(error), |error| (*error).source()).find_map(<dyn Error>::downcast_ref)
    }
}

/// A request's body: counted, and cut while opencode wants bytes and the client gives none for too long.
#[derive(Debug)]
pub(crate) struct Upload {
    body: Hooked<Incoming, Counter>,
    begun: Instant,
    /// Longest silence.
    idle: Duration,
    /// Longest time for all of it.
    whole: Duration,
    /// Runs during a silence.
    wait: Option<Pin<Box<Sleep>>>,
}

impl Upload {
    /// A body with the bounds of this door.
    pub(crate) fn new(door: &Door, body: Incoming) -> Self {
        let config = &door.config;
        let body = Hooked::new(body, config.metrics.received_bytes.clone());
        Self { body, begun: Instant::now(), idle: config.upload_idle, whole: config.upload_bound, wait: None }
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            self.wait = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let (idle, whole, end) = (self.idle, self.whole, self.begun + self.whole);
        let wait = self.wait.get_or_insert_with(|| Box::pin(sleep_until(end.min(Instant::now() + idle))));
        ready!(wait.as_mut().poll(context));
        let cut = if Instant::now() < end { UploadCut::Stalled(idle) } else { UploadCut::Slow(whole) };
        Poll::Ready(Some(Err(cut.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
