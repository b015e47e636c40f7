//! Waits until requests may pass to opencode, and connects to it; says why not. IO.

use std::{net::SocketAddr, time::Duration};

use berth_serve::ServeState;
use berth_wire::{door::ExitCause, problem::ProblemType};
use http::Response;
use tokio::time::{Instant, timeout, timeout_at};

use crate::{
    Door,
    body::UploadCut,
    passage::Passage,
    refusal::{DoorBody, refuse},
    upstream::{self, Sender},
};

/// How long a refused connection may turn out to be opencode's end, in which case the request waits for the next.
const END_NOTICED: Duration = Duration::from_secs(1);

/// Where requests pass to now.
#[derive(Debug)]
pub(crate) struct Way {
    /// Where opencode listens.
    pub(crate) address: SocketAddr,
    /// Names the run of opencode.
    pub(crate) boot_id: String,
}

/// Waits until requests may pass, at most to `deadline`; the error is the answer to the caller.
pub(crate) async fn way(door: &Door, deadline: Instant) -> Result<Way, Response<DoorBody>> {
    let mut passage = door.passage.clone();
    let waiting = (*passage.borrow() == Passage::Starting).then(Instant::now);
    let opened = tokio::select! {
        biased;
        () = door.shutdown.cancelled() => return Err(shutting_down()),
        opened = timeout_at(deadline, passage.wait_for(|passage| *passage != Passage::Starting)) => opened,
    };
    if let Some(begun) = waiting {
        door.config.metrics.start_waits.observe(begun.elapsed().as_secs_f64());
    }
    let passage = match opened {
        Ok(Ok(passage)) => passage.clone(),
        // The subscription ends at shutdown alone.
        Ok(Err(_)) => return Err(shutting_down()),
        Err(_) => Passage::Starting,
    };
    match passage {
        Passage::Open { address, boot_id } => Ok(Way { address, boot_id }),
        Passage::Starting | Passage::Wedged | Passage::Unsupported(_) | Passage::Stopped => {
            Err(refuse_closed(door, &passage))
        }
    }
}

/// Connects to opencode, waiting for it to start. A connection that opencode refuses because it has just ended has
/// carried nothing, so the request waits for the next start.
pub(super) async fn connect(door: &Door) -> Result<(Way, Sender<DoorBody>), Response<DoorBody>> {
    let deadline = Instant::now() + door.config.start_wait;
    loop {
        let Way { address, boot_id } = way(door, deadline).await?;
        let error = match upstream::connect(address, &door.tracker).await {
            Ok(sender) => return Ok((Way { address, boot_id }, sender)),
            Err(error) => error,
        };
        door.config.metrics.upstream_connect_failures.inc();
        let mut passage = door.passage.clone();
        let same =
            |passage: &Passage| matches!(passage, Passage::Open { boot_id: open, .. } if *open == boot_id);
        if timeout(END_NOTICED, passage.wait_for(|passage| !same(passage))).await.is_err() {
            let source = std::error::Error::source(&error).map(ToString::to_string);
            tracing::warn!(%error, source, "a request cannot be passed on");
            return Err(refuse(ProblemType::BadGateway, "opencode does not accept connections."));
        }
    }
}

/// The answer of a door that closes.
pub(crate) fn shutting_down() -> Response<DoorBody> {
    refuse(ProblemType::ShuttingDown, "The door closes.")
}

/// Why requests cannot pass, as an answer.
fn refuse_closed(door: &Door, passage: &Passage) -> Response<DoorBody> {
    match passage {
        Passage::Stopped => refuse(ProblemType::Stopped, "It is not started again by itself."),
        Passage::Wedged => refuse(ProblemType::Wedged, "It is ended and started again."),
        Passage::Unsupported(seen) => {
            let detail =
                format!("Berth speaks to opencode 1.15 to 1.18, and found {seen}. Install one of those.");
            refuse(ProblemType::UnsupportedVersion, detail)
        }
        Passage::Starting | Passage::Open { .. } => {
            let last_exit = door.serve.borrow().last_exit().map(ToString::to_string);
            refuse(ProblemType::Starting, last_exit.unwrap_or_else(|| "Ask again in a moment.".to_owned()))
        }
    }
}

/// The same for an anonymous caller, who is not told why the last run ended.
pub(crate) fn refuse_anonymous(door: &Door, passage: &Passage) -> Response<DoorBody> {
    match passage {
        Passage::Starting => refuse(ProblemType::Starting, ""),
        Passage::Open { .. } | Passage::Wedged | Passage::Unsupported(_) | Passage::Stopped => {
            refuse_closed(door, passage)
        }
    }
}

/// Why a request that was sent has no answer, as an answer. When it has none because opencode ended, the supervisor
/// says so shortly after.
pub(crate) async fn unanswered(door: &Door, boot_id: &str, error: &hyper::Error) -> Response<DoorBody> {
    if let Some(cut) = UploadCut::of(error) {
        return refuse(ProblemType::RequestTimeout, cut.to_string());
    }
    let source = std::error::Error::source(error).map(ToString::to_string);
    tracing::warn!(%error, source, "opencode broke the connection of a request");
    let mut serve = door.serve.clone();
    let exit_of = |state: &ServeState| state.exits.iter().find(|exit| exit.boot_id == boot_id).cloned();
    let ended = timeout(END_NOTICED, serve.wait_for(|state| exit_of(state).is_some())).await;
    let exit = ended.ok().and_then(Result::ok).and_then(|state| exit_of(&state));
    let kind = match exit.as_ref().map(|exit| exit.cause) {
        Some(ExitCause::Wedged) => ProblemType::Wedged,
        _ => ProblemType::BadGateway,
    };
    let why = exit.map_or_else(|| "opencode broke the connection".to_owned(), |exit| exit.to_string());
    refuse(kind, format!("{why}. The request may have been carried out."))
}
