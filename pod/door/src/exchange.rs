//! Carries a call that changes something to its end, whatever becomes of its caller. IO.
//!
//! A connection that breaks cancels nothing in opencode (measured on opencode 1.18.33), so a call whose caller went
//! away goes on there. The door stays with it: it counts as in flight until opencode has answered it wholly.

use std::sync::Arc;

use futures_util::stream;
use http::{Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Body, Bytes, Frame, Incoming};
use jiff::Timestamp;
use tokio::{
    sync::{mpsc, oneshot},
    time::sleep,
};

use crate::{
    Door,
    admission::Call,
    body::Hooked,
    broken::Question,
    mend,
    proxy::{Way, shutting_down, unanswered},
    refusal::{BodyError, DoorBody, full},
    room::Taken,
    turns::{
        self,
        call::{AbortCall, Answer},
    },
    upstream::Sender,
};

/// Frames of an answer that wait for a caller who reads slowly.
const FRAMES: usize = 64;

/// A call that may be sent.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) sender: Sender<DoorBody>,
    pub(crate) request: Request<DoorBody>,
    /// The room of a body that was read whole.
    pub(crate) room: Option<Taken>,
    pub(crate) call: Call,
    pub(crate) abort: Option<AbortCall>,
    pub(crate) turn: Option<turns::call::Call>,
    pub(crate) way: Way,
    /// The directory that it names, or opencode's own.
    pub(crate) directory: String,
}

type Answered = Result<Response<DoorBody>, Response<DoorBody>>;

/// Sends the call, and gives opencode's answer to a caller who still waits for it.
pub(crate) async fn carry(door: &Arc<Door>, exchange: Exchange) -> Answered {
    let (caller, answer) = oneshot::channel();
    let for_task = Arc::clone(door);
    door.tracker.spawn(async move {
        let number = exchange.call.number();
        let cut = async {
            for_task.shutdown.cancelled().await;
            sleep(for_task.config.drain).await;
        };
        tokio::select! {
            () = run(&for_task, exchange, caller) => {}
            () = cut => tracing::info!(number, "a call in flight is cut at shutdown"),
        }
    });
    // The task answers, or ends with the door.
    match answer.await {
        Ok(answer) => answer,
        Err(_) => Err(shutting_down()),
    }
}

async fn run(door: &Door, exchange: Exchange, caller: oneshot::Sender<Answered>) {
    let Exchange { mut sender, request, room, call, abort, turn, way, directory } = exchange;
    let question = Question { boot_id: way.boot_id, directory, asked: Timestamp::now() };
    let answer = sender.send_request(request).await;
    drop((abort, room));
    // Nobody hears the answer when the caller is gone.
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => {
            drop((turn, call));
            let _ = caller.send(Err(unanswered(door, &question.boot_id, &error).await));
            return;
        }
    };
    if mend::is_suspect(&answer) {
        // No turn comes of it.
        turn.and_then(|turn| turn.answer(answer.status()));
        let answer = mend::heard(door, &question, answer).await;
        drop(call);
        let _ = caller.send(answer);
        return;
    }
    let (head, body) = answer.into_parts();
    let body = Hooked::new(body, turn.and_then(|turn| turn.answer(head.status)));
    if body.is_end_stream() {
        drop(call);
        let _ = caller.send(Ok(Response::from_parts(head, full(Bytes::new()))));
        return;
    }
    let (frames, mut relayed) = mpsc::channel(FRAMES);
    let relayed = StreamBody::new(stream::poll_fn(move |context| relayed.poll_recv(context)));
    let _ = caller.send(Ok(Response::from_parts(head, relayed.boxed_unsync())));
    relay(body, &frames).await;
    drop(call);
}

/// Passes the frames of an answer on for as long as somebody takes them, and reads to the end in any case.
async fn relay(
    mut body: Hooked<Incoming, Option<Answer>>,
    frames: &mpsc::Sender<Result<Frame<Bytes>, BodyError>>,
) {
    while let Some(frame) = body.frame().await {
        let failed = frame.is_err();
        let _ = frames.send(frame.map_err(Into::into)).await;
        if failed {
            return;
        }
    }
}
