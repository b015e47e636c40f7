//! Room for the bodies that the door reads whole, shared by all of them: what does not fit waits a while, and its sender
//! with it, and is refused then. IO.
//!
//! A body that says how long it is takes its room at once, so that no two that are half there wait for each other.

use std::{sync::Arc, time::Duration};

use berth_wire::problem::ProblemType;
use http::Response;
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Bytes};
use prometheus_client::metrics::gauge::Gauge;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use crate::{
    control,
    refusal::{BodyError, DoorBody, refuse},
};

/// Bytes of one body.
const LARGEST: usize = 64 * 1024 * 1024;

/// How long a body, or a piece of one of unknown length, waits for room.
const WAIT: Duration = Duration::from_secs(10);

/// The room that is left.
#[derive(Debug)]
pub(crate) struct Room {
    free: Arc<Semaphore>,
    taken: Gauge,
}

/// The room of one body, free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Taken {
    pieces: Option<OwnedSemaphorePermit>,
    taken: Gauge,
}

impl Room {
    /// Room for so many bytes; what is taken of it shows in the gauge.
    pub(crate) fn new(bytes: usize, taken: Gauge) -> Self {
        Self { free: Arc::new(Semaphore::new(bytes.min(Semaphore::MAX_PERMITS))), taken }
    }

    /// Reads a body whole; the error is the answer to its sender.
    pub(crate) async fn whole<B>(&self, body: B) -> Result<(Bytes, Taken), Response<DoorBody>>
    where
        B: Body<Data = Bytes, Error = BodyError> + Unpin,
    {
        let announced = body.size_hint().exact().map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        let mut taken = Taken { pieces: None, taken: self.taken.clone() };
        if let Some(bytes) = announced {
            if bytes > LARGEST {
                return Err(control::too_large(LARGEST));
            }
            self.make(bytes, &mut taken).await?;
        }
        let mut body = Limited::new(body, LARGEST);
        let mut whole = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| control::unread(error.as_ref(), LARGEST))?;
            let Ok(piece) = frame.into_data() else { continue };
            if announced.is_none() {
                self.make(piece.len(), &mut taken).await?;
            }
            whole.extend_from_slice(&piece);
        }
        Ok((whole.into(), taken))
    }

    async fn make(&self, bytes: usize, taken: &mut Taken) -> Result<(), Response<DoorBody>> {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let piece = timeout(WAIT, Arc::clone(&self.free).acquire_many_owned(bytes)).await;
        // The semaphore is never closed.
        let Ok(Ok(piece)) = piece else {
            return Err(refuse(ProblemType::Busy, "The bodies of other calls take all the room: ask again."));
        };
        self.taken.inc_by(bytes.into());
        match &mut taken.pieces {
            Some(pieces) => pieces.merge(piece),
            None => taken.pieces = Some(piece),
        }
        Ok(())
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let bytes = self.pieces.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        self.taken.dec_by(i64::try_from(bytes).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use http_body_util::{Full, StreamBody};
    use hyper::body::Frame;
    use tokio::{sync::mpsc, task::JoinSet};

    use super::*;

    type Whole = Result<usize, u16>;

    /// Reads a body in a task, and keeps its room until `leave` is dropped.
    fn read<B>(tasks: &mut JoinSet<Whole>, room: &Arc<Room>, body: B, leave: mpsc::Receiver<()>)
    where
        B: Body<Data = Bytes, Error = BodyError> + Unpin + Send + 'static,
    {
        let (room, mut leave) = (Arc::clone(room), leave);
        tasks.spawn(async move {
            let (bytes, _taken) = room.whole(body).await.map_err(|refusal| refusal.status().as_u16())?;
            leave.recv().await;
            Ok(bytes.len())
        });
    }

    fn announced(bytes: usize) -> impl Body<Data = Bytes, Error = BodyError> + Unpin + Send + 'static {
        Full::new(Bytes::from(vec![0; bytes])).map_err(|never| match never {})
    }

    /// A body of unknown length, of the pieces that are sent.
    fn pieces() -> (mpsc::Sender<usize>, impl Body<Data = Bytes, Error = BodyError> + Unpin + Send + 'static)
    {
        let (sender, mut pieces) = mpsc::channel::<usize>(8);
        let piece = |bytes: usize| Ok::<_, BodyError>(Frame::data(Bytes::from(vec![0; bytes])));
        let body = stream::poll_fn(move |context| pieces.poll_recv(context).map(|bytes| bytes.map(piece)));
        (sender, StreamBody::new(body))
    }

    async fn until_taken(gauge: &Gauge, bytes: i64) {
        let taken = async {
            while gauge.get() != bytes {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(1), taken).await.expect("that much is taken");
    }

    #[tokio::test]
    async fn a_body_waits_until_another_has_left() {
        let (gauge, mut tasks) = (Gauge::default(), JoinSet::new());
        let room = Arc::new(Room::new(100, gauge.clone()));
        let (first, leave) = mpsc::channel(1);
        read(&mut tasks, &room, announced(80), leave);
        until_taken(&gauge, 80).await;
        let (second, leave) = mpsc::channel(1);
        drop(second);
        read(&mut tasks, &room, announced(50), leave);
        tokio::task::yield_now().await;
        assert_eq!(gauge.get(), 80, "the second waits");
        drop(first);
        let mut read = Vec::new();
        while let Some(bytes) = tasks.join_next().await {
            read.push(bytes.unwrap().unwrap());
        }
        assert_eq!((read, gauge.get()), (vec![80, 50], 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_finds_no_room_is_refused_and_leaves_none_behind() {
        let (gauge, mut tasks) = (Gauge::default(), JoinSet::new());
        let room = Arc::new(Room::new(100, gauge.clone()));
        let (_stays, leave) = mpsc::channel(1);
        let (one, body) = pieces();
        read(&mut tasks, &room, body, leave);
        one.send(60).await.unwrap();
        until_taken(&gauge, 60).await;
        // Both of unknown length, and both half there: one has to go.
        let (_stays, leave) = mpsc::channel(1);
        let (other, body) = pieces();
        read(&mut tasks, &room, body, leave);
        for bytes in [30, 30] {
            other.send(bytes).await.unwrap();
        }
        assert_eq!(tasks.join_next().await.unwrap().unwrap(), Err(409));
        assert_eq!(gauge.get(), 60);
        one.send(40).await.unwrap();
        until_taken(&gauge, 100).await;
    }

    #[tokio::test]
    async fn a_body_has_a_bound_of_its_own() {
        let room = Room::new(2 * LARGEST, Gauge::default());
        let refused = room.whole(announced(LARGEST + 1)).await.unwrap_err();
        assert_eq!(refused.status(), 413);
        assert_eq!(room.taken.get(), 0);
    }
}
