//! Calls to the door that the owner does not wait for. Each ends as a [`Done`]; each is bounded, by the client's own
//! bounds and by a number of tries.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use berth_opencode::{
    ClientError, Ensured, ModelReference, NewSession, OpencodeClient, Prompt, SessionPatch, Snapshot,
    model::{MessageWithParts, Role},
};
use berth_wire::{door::DoorSession, turn::TurnErrorReason};
use uuid::Uuid;

use super::{aliases, asks::Reply};

/// Tries of a call that may be repeated.
const TRIES: u32 = 20;
/// Pause between tries.
const PAUSE: Duration = Duration::from_millis(500);
/// Longest time for what the owner waits for.
const READ: Duration = Duration::from_secs(10);
/// Newest messages in which an answer to a prompt is looked for.
const MESSAGES: u32 = 400;

/// A call about one session, of which opencode's own is known where it needs one.
#[derive(Debug)]
pub(super) enum Request {
    /// See to it that opencode's session is there and idle; before the first prompt, that opencode can work at all.
    Prepare(NewSession),
    /// Hand the prompt over.
    Post(Box<Prompt>),
    /// Look whether the prompt was answered.
    Look {
        /// Its message id.
        message_id: String,
    },
    /// End what the session does.
    Abort,
    /// Answer an ask.
    Reply(String, Reply),
    /// Delete opencode's session; where it is not known, the one that was made for this session of ours.
    Delete(Uuid),
}

/// Where a call goes.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) client: OpencodeClient,
    /// Directory inside the sandbox.
    pub(super) directory: String,
    /// Its other names.
    pub(super) aliases: Arc<[String]>,
    /// opencode's session, once known.
    pub(super) root: Option<String>,
    /// Longest time for a call that is made of several, all tries included.
    pub(super) bound: Duration,
}

/// The end of a call.
#[derive(Debug)]
pub(super) struct Done {
    /// The session that it was for.
    pub(super) session: Uuid,
    /// What came of it.
    pub(super) end: End,
}

/// What came of a call.
#[derive(Debug)]
pub(super) enum End {
    /// Of one about the session, that was made while this turn ran.
    Session(Option<Uuid>, CallResult),
    /// How much the directory's models take was read, or not.
    Sized(String, Result<BTreeMap<ModelReference, u64>, ClientError>),
}

/// What came of a call about a session.
#[derive(Debug)]
pub(super) enum CallResult {
    /// opencode's session exists and is idle, or not.
    Prepared(Result<Ensured, PrepareError>),
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
}

impl CallResult {
    /// The call's name, and whether it had its effect.
    fn summary(&self) -> (&'static str, bool) {
        match self {
            Self::Prepared(result) => ("prepare", result.is_ok()),
            Self::Posted(result) => ("post", result.is_ok()),
            Self::Looked(result) => ("look", result.is_ok()),
            Self::Aborted(result) => ("abort", result.is_ok()),
            Self::Replied(_, result) => ("reply", result.is_ok()),
            Self::Deleted(result) => ("delete", result.is_ok()),
        }
    }
}

impl End {
    /// The call's name, and whether it had its effect.
    pub(super) fn summary(&self) -> (&'static str, bool) {
        match self {
            Self::Session(_, result) => result.summary(),
            Self::Sized(_, result) => ("sizes", result.is_ok()),
        }
    }

    /// Whether the door refused it since another owner raised the fence.
    pub(super) fn is_stale(&self) -> bool {
        let (Self::Sized(_, Err(error))
        | Self::Session(
            _,
            CallResult::Prepared(Err(PrepareError::Client(error)))
            | CallResult::Posted(Err(error))
            | CallResult::Looked(Err(error))
            | CallResult::Aborted(Err(error))
            | CallResult::Replied(_, Err(error))
            | CallResult::Deleted(Err(error)),
        )) = self
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
pub(super) enum PrepareError {
    #[error("opencode's session could not be made sure of")]
    Client(#[from] ClientError),
    #[error(
        "opencode cannot work in the session's directory: see that it is there and that its configuration is right"
    )]
    Directory(#[source] ClientError),
    #[error("opencode still works on something in this session, which may be somebody else's prompt")]
    Busy,
}

impl PrepareError {
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Client(error) => error.is_transient(),
            Self::Directory(_) => false,
            Self::Busy => true,
        }
    }

    /// Whether the sandbox's gate is closed: that passes, and is no fault of the sandbox.
    pub(super) fn is_gated(&self) -> bool {
        matches!(self, Self::Client(ClientError::Gated(_)))
    }

    pub(super) fn reason(&self) -> TurnErrorReason {
        match self {
            Self::Client(error) => match reason_of(error) {
                // It was not the prompt that was refused.
                TurnErrorReason::PromptRejected => TurnErrorReason::SandboxUnavailable,
                reason => reason,
            },
            Self::Directory(_) => TurnErrorReason::DirectoryUnusable,
            Self::Busy => TurnErrorReason::SessionBusy,
        }
    }
}

/// Errors of opencode's own are about the directory; all others are not.
fn of_directory(error: ClientError) -> PrepareError {
    match error {
        ClientError::Status { ref name, .. } if !name.is_empty() => PrepareError::Directory(error),
        error => PrepareError::Client(error),
    }
}

/// Whether opencode refused the prompt, cannot work there, or was not there to take it.
pub(super) fn reason_of(error: &ClientError) -> TurnErrorReason {
    match error {
        ClientError::UnsupportedVersion { .. } => TurnErrorReason::UnsupportedVersion,
        ClientError::Status { name, .. } if name.starts_with("Config") => TurnErrorReason::DirectoryUnusable,
        ClientError::Status { .. } | ClientError::NotFound { .. } | ClientError::InvalidRequest(_)
            if !error.is_transient() =>
        {
            TurnErrorReason::PromptRejected
        }
        _ => TurnErrorReason::SandboxUnavailable,
    }
}

/// Whether opencode, or the door for it, said that it does not take the prompt. Any other error may have come after it was
/// taken.
pub(super) fn is_refusal(error: &ClientError) -> bool {
    match error {
        ClientError::Status { status, name, .. } => {
            *status < 500 && *status >= 400 && !error.is_transient() && !name.is_empty()
        }
        ClientError::NotFound { .. }
        | ClientError::InvalidRequest(_)
        | ClientError::Unauthorized
        | ClientError::PortTaken => true,
        ClientError::Refused(_) => !error.is_transient(),
        _ => false,
    }
}

/// Makes the call, within its bounds.
pub(super) async fn perform(target: Target, request: Request) -> CallResult {
    let Target { client, directory, aliases, root, bound } = target;
    let known = root.clone();
    let root = root.unwrap_or_default();
    match request {
        Request::Prepare(mut new) => {
            new.permission.extend(aliases::rules(&[], &aliases));
            let prepared = prepare(client, directory, known, new, &aliases);
            let prepared = tokio::time::timeout(bound, prepared).await;
            let late = ClientError::Timeout { limit: bound };
            CallResult::Prepared(prepared.unwrap_or_else(|_| Err(late.into())))
        }
        Request::Post(prompt) => CallResult::Posted(client.send_prompt(&directory, &root, &prompt).await),
        Request::Look { message_id } => {
            CallResult::Looked(within(bound, look(client, directory, root, message_id)).await)
        }
        // Once: a later try could meet another turn.
        Request::Abort => CallResult::Aborted(client.abort(&directory, &root).await),
        Request::Reply(id, reply) => {
            let replied = within(bound, reply_to(client, directory, id.clone(), reply)).await;
            CallResult::Replied(id, replied)
        }
        Request::Delete(ours) => {
            CallResult::Deleted(within(bound, delete(client, directory, known, ours)).await)
        }
    }
}

async fn within<T>(
    bound: Duration,
    call: impl Future<Output = Result<T, ClientError>>,
) -> Result<T, ClientError> {
    tokio::time::timeout(bound, call).await.unwrap_or(Err(ClientError::Timeout { limit: bound }))
}

/// Sees to it that opencode has the session, and that it does nothing: a turn may have failed before its end was seen,
/// or a person may use the session directly. Before the session's first prompt also that what answers is an opencode of
/// a known line that can work in the directory.
async fn prepare(
    client: OpencodeClient,
    directory: String,
    known: Option<String>,
    new: NewSession,
    aliases: &[String],
) -> Result<Ensured, PrepareError> {
    let Some(root) = &known else {
        client.health().await?;
        client.session_status(&directory).await.map_err(of_directory)?;
        return Ok(client.ensure_session(&directory, None, &new).await?);
    };
    let runs =
        |session: &DoorSession| session.session_id == *root && (session.busy || !session.turns.is_empty());
    if client.door_turns().await?.sessions.iter().any(runs)
        || client.session_status(&directory).await?.contains_key(root)
    {
        return Err(PrepareError::Busy);
    }
    let mut ensured = client.ensure_session(&directory, known.as_deref(), &new).await?;
    // The directory may have got another name since the session was made, or lost one.
    let permission = aliases::rules(&ensured.session.permission, aliases);
    if !permission.is_empty() {
        let patch = SessionPatch { permission: Some(permission), ..SessionPatch::default() };
        ensured.session = client.patch_session(&directory, &ensured.session.id, &patch).await?;
    }
    Ok(ensured)
}

/// What opencode knows of this prompt.
async fn look(
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

/// Answers an ask. An ask that opencode does not know was settled otherwise.
async fn reply_to(
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

/// Deletes opencode's session; one that is gone, or that was never made, is deleted.
async fn delete(
    client: OpencodeClient,
    directory: String,
    known: Option<String>,
    ours: Uuid,
) -> Result<(), ClientError> {
    let root = match known {
        Some(root) => root,
        None => match retry(|| client.find_session(&directory, ours)).await? {
            Some(session) => session.id,
            None => return Ok(()),
        },
    };
    match retry(|| client.delete_session(&directory, &root)).await {
        Err(ClientError::NotFound { .. }) => Ok(()),
        other => other,
    }
}

/// A read that the owner waits for, within a bound of its own: nothing else goes on meanwhile.
pub(super) async fn bounded<T>(read: impl Future<Output = Result<T, ClientError>>) -> Result<T, ClientError> {
    within(READ, read).await
}

/// What the translator needs after a gap.
pub(super) async fn snapshot(target: Target, prompt: Option<String>) -> Result<Snapshot, ClientError> {
    let root = target.root.unwrap_or_default();
    bounded(target.client.snapshot(&target.directory, &root, prompt.as_deref())).await
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
