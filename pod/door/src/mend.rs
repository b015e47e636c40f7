//! Directories whose configuration was broken and is mended work again: opencode is started anew for them, when nothing
//! runs in it. IO.
//!
//! Files are looked at from outside only, when a request for their directory comes: never opened, and links are not
//! followed.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use berth_serve::RestartCause;
use berth_wire::problem::ProblemType;
use http::{HeaderMap, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use jiff::Timestamp;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout},
};

use crate::{
    Door,
    broken::{Failures, Question, Stamp, named},
    passage::Passage,
    proxy::unanswered,
    refusal::{DoorBody, full, refuse},
    restart::{Restarted, restart},
};

/// Bytes of an answer that is looked at: opencode puts the whole file into it.
const BYTES: u64 = 256 * 1024;

/// Bound on the rest of such an answer, once it has begun.
const WHOLE: Duration = Duration::from_secs(5);

/// Bound on a look at a file.
const LOOK: Duration = Duration::from_secs(1);

/// Pause between two tries while something runs.
const PAUSE: Duration = Duration::from_millis(500);

/// What the door knows of broken directories.
#[derive(Debug, Default)]
pub(crate) struct Mending {
    failures: Mutex<Failures>,
    /// A file was changed.
    wanted: Notify,
    /// Counts the tries to start opencode anew.
    tried: watch::Sender<u64>,
}

impl Mending {
    /// See [`Failures::hears`].
    pub(crate) fn hears(&self, boot_id: &str, unheard_since: Option<Timestamp>) {
        self.failures().hears(boot_id, unheard_since);
    }

    fn failures(&self) -> MutexGuard<'_, Failures> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether an answer may say that a configuration is broken.
pub(crate) fn is_suspect(answer: &Response<Incoming>) -> bool {
    answer.status() == StatusCode::BAD_REQUEST
        && is_json(answer.headers())
        && answer.body().size_hint().upper().is_some_and(|bytes| bytes <= BYTES)
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("application/json"))
        && !headers.contains_key(header::CONTENT_ENCODING)
}

/// The answer as it came. One that may say that a configuration is broken is read first, so that whoever mends the
/// file after it finds that the door knows how it looked.
pub(crate) async fn heard(
    door: &Door,
    question: &Question,
    answer: Response<Incoming>,
) -> Result<Response<DoorBody>, Response<DoorBody>> {
    if !is_suspect(&answer) {
        return Ok(answer.map(|body| body.map_err(Into::into).boxed_unsync()));
    }
    let (head, body) = answer.into_parts();
    match timeout(WHOLE, body.collect()).await {
        Ok(Ok(body)) => {
            let body = body.to_bytes();
            note(door, question, head.status, &body).await;
            Ok(Response::from_parts(head, full(body)))
        }
        Ok(Err(error)) => Err(unanswered(door, &question.boot_id, &error).await),
        Err(_) => Err(refuse(ProblemType::BadGateway, "opencode did not end its answer.")),
    }
}

/// Remembers what an answer says about the configuration of its directory, if it does.
pub(crate) async fn note(door: &Door, question: &Question, status: StatusCode, body: &[u8]) {
    let Some(file) = Some(body).filter(|_| status == StatusCode::BAD_REQUEST).and_then(named) else { return };
    let Some(stamp) = look(&file).await else { return };
    tracing::debug!(directory = question.directory, file = %file.display(), "a configuration cannot be used");
    if !door.mending.failures().note(question, file, stamp) {
        tracing::warn!(directory = question.directory, "too many configurations cannot be used");
    }
}

/// How a file looks; nothing when that takes too long.
async fn look(file: &Path) -> Option<Option<Stamp>> {
    let metadata = timeout(LOOK, tokio::fs::symlink_metadata(file)).await.ok()?;
    Some(metadata.ok().map(|metadata| Stamp::of(&metadata)))
}

/// Before a request for a directory: when its configuration was broken and the file was changed, waits until opencode
/// was ended for it, so that the next one takes the request; or until it is known that it cannot be now.
pub(crate) async fn before(door: &Door, directory: &str) {
    let Some((boot_id, files)) = failed(door, directory) else { return };
    let mut tried = door.mending.tried.subscribe();
    let mut changed = false;
    for file in files {
        let Some(stamp) = look(&file).await else { continue };
        changed |= door.mending.failures().looked(&boot_id, directory, &file, stamp);
    }
    if !changed {
        return;
    }
    tried.mark_unchanged();
    door.mending.wanted.notify_one();
    let tried = timeout(door.config.start_wait, tried.changed()).await;
    if tried.is_err() || door.mending.failures().due().is_some() {
        door.config.metrics.mendings_put_off.inc();
    }
}

fn failed(door: &Door, directory: &str) -> Option<(String, Vec<PathBuf>)> {
    let Passage::Open { boot_id, .. } = &*door.passage.borrow() else { return None };
    let files = door.mending.failures().files(boot_id, directory);
    (!files.is_empty()).then(|| (boot_id.clone(), files))
}

/// Starts opencode anew when a file was changed, as soon as nothing runs, until shutdown.
pub(crate) async fn run(door: Arc<Door>) {
    let work = async {
        loop {
            let again = attempt(&door).await;
            door.mending.tried.send_modify(|tried| *tried += 1);
            let wanted = door.mending.wanted.notified();
            match again {
                Some(pause) => timeout(pause, wanted).await.unwrap_or_default(),
                None => wanted.await,
            }
        }
    };
    door.shutdown.run_until_cancelled(work).await;
}

/// Starts opencode anew if that is due; gives when to try again.
async fn attempt(door: &Arc<Door>) -> Option<Duration> {
    let (boot_id, rest) = {
        let failures = door.mending.failures();
        (failures.due()?.to_owned(), failures.rest(Instant::now()))
    };
    if !rest.is_zero() {
        return Some(rest);
    }
    match restart(door, &boot_id, RestartCause::Configuration).await {
        Restarted::Busy => return Some(PAUSE),
        Restarted::Begun => {
            door.config.metrics.reconfigured.inc();
            tracing::info!(boot_id, "opencode was started anew for a configuration that was changed");
        }
        Restarted::Refused => {}
    }
    door.mending.failures().started(Instant::now());
    None
}
