//! Questions to opencode about what runs, for the turn table. IO.
//!
//! Each is bounded in time and bytes. A directory whose configuration is broken answers 400 to everything, and nothing
//! can run there; an opencode that does not answer is the supervisor's to end.

use std::{collections::BTreeSet, time::Duration};

use http::StatusCode;
use http_body_util::{BodyExt, Limited};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, de::DeserializeOwned};
use tokio::time::timeout;

use super::{Evidence, Listed, Working};
use crate::{Door, broken::Question, mend, passage::Passage, upstream};

/// Bound on one answer. An instance that has to boot first took 0.3 to 14 s (measured on opencode 1.18.33).
const ANSWER: Duration = Duration::from_secs(20);

/// Bytes of one answer.
const BYTES: usize = 16 * 1024 * 1024;

/// Messages that are asked for.
const MESSAGES: usize = 20;

/// Sessions that are asked for to find directories.
const SESSIONS: usize = 200;

/// Directories that are asked at most, those used last first: the first question to one costs an instance of 41 MB.
const DIRECTORIES: usize = 32;

/// A turn that runs for longer is not looked for. It is seen by its next event.
const LONGEST_TURN: SignedDuration = SignedDuration::from_hours(24);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProbeError {
    /// opencode does not answer now.
    #[error("opencode does not answer")]
    Silent,
    /// It answered with this status.
    #[error("opencode answered with status {0}")]
    Status(StatusCode),
    /// Its answer is none that is known.
    #[error("opencode answered in an unexpected shape")]
    Shape(#[source] serde_json::Error),
}

/// Where a session stands.
pub(super) async fn session(door: &Door, session: &str, directory: &str) -> Evidence {
    match evidence(door, session, directory).await {
        Ok(evidence) => evidence,
        Err(ProbeError::Status(status)) if status.is_client_error() => Evidence::Broken,
        Err(error) => {
            tracing::debug!(%error, session_id = session, "where a session stands cannot be confirmed");
            Evidence::Silent
        }
    }
}

#[derive(Deserialize)]
struct Session {
    directory: String,
}

async fn evidence(door: &Door, session: &str, directory: &str) -> Result<Evidence, ProbeError> {
    let found = get::<Session>(door, &format!("/session/{}", encode(session)), directory).await;
    let (directory, exists) = match found {
        Ok(found) => (found.directory, true),
        Err(ProbeError::Status(StatusCode::NOT_FOUND)) => (directory.to_owned(), false),
        Err(error) => return Err(error),
    };
    let busy = working(door, &directory).await?.iter().any(|working| working == session);
    let messages = if exists && !busy { messages(door, session, &directory).await? } else { Vec::new() };
    Ok(Evidence::Answered { busy, messages })
}

async fn messages(door: &Door, session: &str, directory: &str) -> Result<Vec<Listed>, ProbeError> {
    #[derive(Deserialize)]
    struct Message {
        info: Info,
    }
    #[derive(Deserialize)]
    struct Info {
        id: String,
        #[serde(rename = "parentID")]
        parent: Option<String>,
        #[serde(default)]
        time: Time,
    }
    #[derive(Default, Deserialize)]
    struct Time {
        completed: Option<serde::de::IgnoredAny>,
    }
    let path = format!("/session/{}/message?limit={MESSAGES}", encode(session));
    let messages: Vec<Message> = get(door, &path, directory).await?;
    let listed = messages.into_iter().map(|Message { info: Info { id, parent, time } }| Listed {
        id,
        parent,
        completed: time.completed.is_some(),
    });
    Ok(listed.collect())
}

/// Sessions in which opencode works, of a directory.
async fn working(door: &Door, directory: &str) -> Result<Vec<String>, ProbeError> {
    #[derive(Deserialize)]
    struct Status {
        #[serde(rename = "type")]
        kind: String,
    }
    type Statuses = std::collections::HashMap<String, Status>;
    let statuses: Statuses = get(door, "/session/status", directory).await?;
    let busy = statuses.into_iter().filter(|(_, status)| status.kind != "idle");
    Ok(busy.map(|(session, _)| session).collect())
}

/// What runs in opencode: asked of the directories `known`, and of those of the sessions that were used last.
pub(super) async fn everything(door: &Door, known: &BTreeSet<String>) -> Result<Vec<Working>, ProbeError> {
    let recent = recent(door).await?;
    let mut directories: Vec<&str> = known.iter().map(String::as_str).collect();
    for Recent { directory, .. } in &recent {
        if !directories.contains(&directory.as_str()) && directories.len() < DIRECTORIES {
            directories.push(directory);
        }
    }
    let parent = |id: &str| recent.iter().find(|known| known.id == id).and_then(|known| known.parent.clone());
    let mut all = Vec::new();
    for directory in directories {
        match working(door, directory).await {
            Ok(sessions) => all.extend(sessions.into_iter().map(|session| Working {
                parent: parent(&session),
                directory: directory.to_owned(),
                session,
            })),
            // Its instance cannot be had, so nothing runs in it.
            Err(error @ (ProbeError::Status(_) | ProbeError::Shape(_))) => {
                tracing::warn!(directory, %error, "a directory cannot say what runs in it");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

#[derive(Deserialize)]
struct Recent {
    id: String,
    directory: String,
    #[serde(rename = "parentID")]
    parent: Option<String>,
}

/// The sessions in which a turn may run that began before the door, newest first (measured on opencode 1.15.4 and
/// 1.18.33).
async fn recent(door: &Door) -> Result<Vec<Recent>, ProbeError> {
    let path = format!("/experimental/session?limit={SESSIONS}&start={}", since(door).as_millisecond());
    match get::<Vec<Recent>>(door, &path, "").await {
        Err(error @ (ProbeError::Status(_) | ProbeError::Shape(_))) => {
            tracing::warn!(%error, "opencode does not list its sessions");
            let directory = door.serve.borrow().directory.to_string_lossy().into_owned();
            Ok(vec![Recent { id: String::new(), directory, parent: None }])
        }
        recent => recent,
    }
}

/// No turn that runs now began before this: a session is touched when a turn begins.
fn since(door: &Door) -> Timestamp {
    let longest = Timestamp::now().checked_sub(LONGEST_TURN).unwrap_or(Timestamp::UNIX_EPOCH);
    let exit = door.serve.borrow().last_exit().map(|exit| exit.at);
    exit.map_or(longest, |exit| exit.max(longest))
}

async fn get<T: DeserializeOwned>(door: &Door, path: &str, directory: &str) -> Result<T, ProbeError> {
    let passage = door.passage.borrow().clone();
    let Passage::Open { address, boot_id } = passage else { return Err(ProbeError::Silent) };
    let question = Question { boot_id, directory: directory.to_owned(), asked: Timestamp::now() };
    let separator = if path.contains('?') { '&' } else { '?' };
    let path = match directory {
        "" => path.to_owned(),
        directory => format!("{path}{separator}directory={}", encode(directory)),
    };
    let request = upstream::get(&path, address, &door.upstream.get());
    let exchange = async {
        let response =
            upstream::send(address, request, &door.tracker).await.map_err(|_| ProbeError::Silent)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), BYTES).collect().await;
        let body = body.map_err(|_| ProbeError::Silent)?.to_bytes();
        if status != StatusCode::OK {
            mend::note(door, &question, status, &body).await;
            return Err(ProbeError::Status(status));
        }
        serde_json::from_slice(&body).map_err(ProbeError::Shape)
    };
    timeout(ANSWER, exchange).await.map_err(|_| ProbeError::Silent)?
}

/// Asks opencode to abort what runs in a session.
pub(super) async fn abort(door: &Door, session: &str, directory: &str) -> Result<(), ProbeError> {
    let Passage::Open { address, .. } = *door.passage.borrow() else { return Err(ProbeError::Silent) };
    let path = format!("/session/{}/abort?directory={}", encode(session), encode(directory));
    let mut request = upstream::get(&path, address, &door.upstream.get());
    *request.method_mut() = http::Method::POST;
    let exchange = async {
        let response =
            upstream::send(address, request, &door.tracker).await.map_err(|_| ProbeError::Silent)?;
        let status = response.status();
        let read = Limited::new(response.into_body(), BYTES).collect().await;
        read.map_err(|_| ProbeError::Silent)?;
        if status.is_success() { Ok(()) } else { Err(ProbeError::Status(status)) }
    };
    timeout(ANSWER, exchange).await.map_err(|_| ProbeError::Silent)?
}

fn encode(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}
