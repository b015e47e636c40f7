//! Bodies on their way through the door: counted, and cut when an upload gives nothing for too long. Nothing is kept:
//! a side that does not take bytes stops the side that gives them.

use std::{
    error::Error,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use prometheus_client::metrics::counter::Counter;
use tokio::time::{Sleep, sleep};

use crate::{
    admission::Call,
    refusal::{BodyError, DoorBody},
};

/// An upload gave no byte for too long.
#[derive(Debug, thiserror::Error)]
#[error("the request's body stood still for {} s", .0.as_secs())]
pub(crate) struct UploadStalled(Duration);

impl UploadStalled {
    /// Whether this is why an exchange failed.
    pub(crate) fn caused(error: &(dyn Error + 'static)) -> bool {
        std::iter::successors(Some(error), |error| (*error).source()).any(<dyn Error>::is::<Self>)
    }
}

/// A request's body.
#[derive(Debug)]
pub(crate) struct Upload {
    body: Incoming,
    received: Counter,
    idle: Duration,
    /// Runs while opencode wants bytes and the client gives none.
    stall: Option<Pin<Box<Sleep>>>,
}

impl Upload {
    /// A body that is cut after standing still for `idle`.
    pub(crate) fn new(body: Incoming, received: Counter, idle: Duration) -> Self {
        Self { body, received, idle, stall: None }
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
            self.stall = None;
            count(&self.received, frame.as_ref());
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let idle = self.idle;
        let stall = self.stall.get_or_insert_with(|| Box::pin(sleep(idle)));
        ready!(stall.as_mut().poll(context));
        Poll::Ready(Some(Err(UploadStalled(idle).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// An answer's body.
#[derive(Debug)]
pub(crate) struct Download {
    body: DoorBody,
    sent: Counter,
}

impl Download {
    /// A body whose bytes are counted.
    pub(crate) fn new(body: DoorBody, sent: Counter) -> Self {
        Self { body, sent }
    }
}

impl Body for Download {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        count(&self.sent, frame.as_ref());
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// An answer's body; its request is in flight until it has ended or is given up.
#[derive(Debug)]
pub(crate) struct InFlight {
    body: DoorBody,
    _call: Call,
}

impl InFlight {
    /// The answer to an admitted request.
    pub(crate) fn new(body: DoorBody, call: Call) -> Self {
        Self { body, _call: call }
    }
}

impl Body for InFlight {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn count<E>(counter: &Counter, frame: Option<&Result<Frame<Bytes>, E>>) {
    if let Some(Ok(frame)) = frame
        && let Some(data) = frame.data_ref()
    {
        counter.inc_by(data.len() as u64);
    }
}
