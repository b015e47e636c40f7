//! Calls to the door that the owner does not wait for. Each ends as a [`Done`]; each is bounded, by the client's own
//! bounds and by a number of tries.

use std::{collections::BTreeMap, time::Duration};

use berth_opencode::{
    ClientError, Ensured, ModelReference, NewSession, OpencodeClient, Prompt, Snapshot,
    model::{MessageWithParts, Role},
};
use uuid::Uuid;

use super::asks::Reply;

/// Tries of a call that may be repeated.
const TRIES: u32 = 20;
/// Pause between tries.
const PAUSE: Duration = Duration::from_millis(500);
/// Longest time for what the owner waits for.
const READ: Duration = Duration::from_secs(10);
/// Newest messages in which an answer to a prompt is looked for.
const MESSAGES: u32 = 400;

/// The end of a call.
#[derive(Debug)]
pub(super) struct Done {
    /// The session that it was for.
    pub(super) session: Uuid,
    /// The turn that ran when it began.
    pub(super) turn: Option<Uuid>,
    /// What came of it.
    pub(super) result: CallResult,
}

/// What came of a call.
#[derive(Debug)]
pub(super) enum CallResult {
    /// opencode's session exists and is idle where that was asked, or not.
    Ensured(Result<Ensured, EnsureError>),
    /// The prompt was handed over, or not.
    Posted(Result<(), ClientError>),
    /// What opencode knows of this prompt.
    Looked(Result<Look, ClientError>),
    /// The abort was answered, or not.
    Aborted(Result<(), ClientError>),
    /// An ask was answered, or not.
    Replied(String, Result<(), ClientError>),
    /// opencode's session was deleted, or not.
    Deleted(Result<(), ClientError>),
    /// How much the directory's models take was read, or not.
    Sized(String, Result<BTreeMap<ModelReference, u64>, ClientError>),
}

impl CallResult {
    /// Whether the door refused it since another owner raised the fence.
    pub(super) fn is_stale(&self) -> bool {
        let (Self::Ensured(Err(EnsureError::Client(error)))
        | Self::Looked(Err(error))
        | Self::Sized(_, Err(error))
        | Self::Posted(Err(error))
        | Self::Aborted(Err(error))
        | Self::Replied(_, Err(error))
        | Self::Deleted(Err(error))) = self
        else {
            return false;
        };
        matches!(error, ClientError::StaleFence)
    }
}

/// What opencode knows of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// No answer to it: it may not have arrived, or not have begun.
    Nothing,
    /// An answer to it, on which nobody works.
    Answered,
    /// An answer to it, in a session that works.
    Working,
}

/// Why a session is not ready for a prompt.
#[derive(Debug, thiserror::Error)]
pub(super) enum EnsureError {
    #[error("opencode's session could not be made sure of")]
    Client(#[from] ClientError),
    #[error("opencode still works on something in this session")]
    Busy,
}

impl EnsureError {
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Client(error) => error.is_transient(),
            Self::Busy => true,
        }
    }
}

/// Sees to it that opencode has the session, and that it does nothing: a turn may have failed before its end was seen,
/// or a person may use the session directly.
pub(super) async fn ensure(
    client: OpencodeClient,
    directory: String,
    known: Option<String>,
    new: NewSession,
) -> Result<Ensured, EnsureError> {
    if let Some(known) = &known {
        let status = client.session_status(&directory).await?;
        if status.contains_key(known) {
            return Err(EnsureError::Busy);
        }
    }
    Ok(client.ensure_session(&directory, known.as_deref(), &new).await?)
}

/// Hands the prompt over, once.
pub(super) async fn post(
    client: OpencodeClient,
    directory: String,
    root: String,
    prompt: Prompt,
) -> Result<(), ClientError> {
    client.send_prompt(&directory, &root, &prompt).await
}

/// What opencode knows of this prompt.
pub(super) async fn look(
    client: OpencodeClient,
    directory: String,
    root: String,
    message_id: String,
) -> Result<Look, ClientError> {
    let messages = retry(|| client.list_messages(&directory, &root, MESSAGES)).await?;
    let answers = |message: &MessageWithParts| {
        message.info.role == Role::Assistant && message.info.parent_id.as_ref() == Some(&message_id)
    };
    if !messages.iter().any(answers) {
        return Ok(Look::Nothing);
    }
    let status = client.session_status(&directory).await?;
    Ok(if status.contains_key(&root) { Look::Working } else { Look::Answered })
}

/// Aborts what the session does, once: a later try could meet another turn.
pub(super) async fn abort(
    client: OpencodeClient,
    directory: String,
    root: String,
) -> Result<(), ClientError> {
    client.abort(&directory, &root).await
}

/// Answers an ask. An ask that opencode does not know was settled otherwise.
pub(super) async fn reply(
    client: OpencodeClient,
    directory: String,
    id: String,
    reply: Reply,
) -> Result<(), ClientError> {
    retry(|| async {
        match &reply {
            Reply::Permission(reply, message) => {
                client.reply_permission(&directory, &id, *reply, message.as_deref()).await
            }
            Reply::Question(Some(answers)) => client.reply_question(&directory, &id, answers).await,
            Reply::Question(None) => client.reject_question(&directory, &id).await,
        }
    })
    .await
}

/// Deletes opencode's session; one that is gone is deleted.
pub(super) async fn delete(
    client: OpencodeClient,
    directory: String,
    root: String,
) -> Result<(), ClientError> {
    match retry(|| client.delete_session(&directory, &root)).await {
        Err(ClientError::NotFound { .. }) => Ok(()),
        other => other,
    }
}

/// A read that the owner waits for, within a bound of its own: nothing else goes on meanwhile.
pub(super) async fn bounded<T>(read: impl Future<Output = Result<T, ClientError>>) -> Result<T, ClientError> {
    tokio::time::timeout(READ, read).await.unwrap_or(Err(ClientError::Timeout { limit: READ }))
}

/// What the translator needs after a gap.
pub(super) async fn snapshot(
    client: OpencodeClient,
    directory: String,
    root: String,
    prompt: Option<String>,
) -> Result<Snapshot, ClientError> {
    bounded(client.snapshot(&directory, &root, prompt.as_deref())).await
}

async fn retry<T, F: Future<Output = Result<T, ClientError>>>(
    mut call: impl FnMut() -> F,
) -> Result<T, ClientError> {
    let mut tries = 0;
    loop {
        tries += 1;
        match call().await {
            Err(error) if error.is_transient() && tries < TRIES => tokio::time::sleep(PAUSE).await,
            other => return other,
        }
    }
}
