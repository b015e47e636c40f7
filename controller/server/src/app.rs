//! What callers may do. Checks values, calls the store, and says in [`AppError`] what stood in the way.

use std::{sync::Arc, time::Duration};

use berth_opencode::{ClientConfig, OpencodeClient};
use berth_wire::api::{
    CancelRequest, CancelResponse, CreateSession, HistoryTurn, PARTS_MAX, PermissionAnswer, PostMessage,
    PromptPart, QuestionAnswer, Sandbox, SandboxPhase, Session, Turn,
};
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    config::Limits,
    directory::{SandboxAddress, SandboxDirectory},
    history,
    store::{
        Answer, Answered, Cancel, Enqueued, LogBounds, NewSession, NewTurn, SandboxKey, Store, StoreError,
        StoredEvent, TurnOptions,
    },
};

/// Longest title, in characters.
const TITLE_MAX: usize = 200;
/// Longest list of sessions; newer ones come first.
const LIST_MAX: i64 = 500;
/// Events read from the store at once.
const PAGE: i64 = 512;
/// How long a door may take to tell its state.
const STATE_TIMEOUT: Duration = Duration::from_secs(2);
/// Who calls, until callers have names.
const CALLER: &str = "local";

/// Why a caller's wish was not granted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AppError {
    /// There is no such thing.
    #[error("there is no {what} {id}")]
    NotFound {
        /// Which kind of thing.
        what: &'static str,
        /// As the caller named it.
        id: String,
    },
    /// A field's value is not acceptable.
    #[error("{field}: {reason}")]
    Invalid {
        /// Path of the field.
        field: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The idempotency key came before with another body.
    #[error("this idempotency key came before with another body: use a new key for a new prompt")]
    KeyTaken,
    /// Too many open turns.
    #[error("the session has {limit} open turns: wait for one to end, or cancel with {{\"queued\": true}}")]
    QueueFull {
        /// The bound.
        limit: i64,
    },
    /// The ask was answered or settled before.
    #[error("{what} {id} was already answered or settled; its end is in the session's events")]
    AlreadyResolved {
        /// Which kind of ask.
        what: &'static str,
        /// As the caller named it.
        id: String,
    },
    /// The store failed.
    #[error("the store failed")]
    Store(#[from] StoreError),
}

/// Everything that handlers need.
pub(crate) struct App {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) directory: Arc<dyn SandboxDirectory>,
    pub(crate) limits: Limits,
    pub(crate) shutdown: CancellationToken,
}

fn no_session(id: Uuid) -> AppError {
    AppError::NotFound { what: "session", id: id.to_string() }
}

fn invalid(field: impl Into<String>, reason: impl Into<String>) -> AppError {
    AppError::Invalid { field: field.into(), reason: reason.into() }
}

impl App {
    fn find_sandbox(&self, namespace: &str, name: &str) -> Result<SandboxAddress, AppError> {
        self.directory
            .find(namespace, name)
            .ok_or_else(|| AppError::NotFound { what: "sandbox", id: format!("{namespace}/{name}") })
    }

    pub(crate) async fn list_sandboxes(&self) -> Vec<Sandbox> {
        futures_util::future::join_all(self.directory.list().into_iter().map(fetch_sandbox)).await
    }

    pub(crate) async fn sandbox(&self, namespace: &str, name: &str) -> Result<Sandbox, AppError> {
        Ok(fetch_sandbox(self.find_sandbox(namespace, name)?).await)
    }

    pub(crate) async fn create_session(
        &self,
        namespace: &str,
        name: &str,
        body: CreateSession,
    ) -> Result<Session, AppError> {
        let sandbox = self.find_sandbox(namespace, name)?;
        let title = body.title.map(|title| checked_title(&title)).transpose()?;
        let new = NewSession {
            id: Uuid::now_v7(),
            sandbox: SandboxKey { namespace: sandbox.namespace, name: sandbox.name },
            directory: sandbox.directory,
            title,
        };
        Ok(self.store.create_session(new).await?)
    }

    pub(crate) async fn list_sessions(&self, namespace: &str, name: &str) -> Result<Vec<Session>, AppError> {
        let sandbox = self.find_sandbox(namespace, name)?;
        let key = SandboxKey { namespace: sandbox.namespace, name: sandbox.name };
        Ok(self.store.list_sessions(&key, LIST_MAX).await?)
    }

    pub(crate) async fn session(&self, id: Uuid) -> Result<Session, AppError> {
        self.store.session(id).await?.ok_or_else(|| no_session(id))
    }

    pub(crate) async fn rename_session(&self, id: Uuid, title: &str) -> Result<Session, AppError> {
        let title = checked_title(title)?;
        self.store.rename_session(id, &title).await?.ok_or_else(|| no_session(id))
    }

    pub(crate) async fn delete_session(&self, id: Uuid) -> Result<(), AppError> {
        if self.store.request_delete(id).await? { Ok(()) } else { Err(no_session(id)) }
    }

    pub(crate) async fn post_message(
        &self,
        session_id: Uuid,
        body: PostMessage,
        idempotency_key: Option<String>,
    ) -> Result<Turn, AppError> {
        check_prompt(&body.parts)?;
        let canonical = serde_json::to_vec(&body).map_err(StoreError::from)?;
        let new = NewTurn {
            id: Uuid::now_v7(),
            session_id,
            prompt: body.parts,
            caller: CALLER.to_owned(),
            idempotency_key,
            body_hash: Sha256::digest(&canonical).to_vec(),
            options: TurnOptions::default(),
        };
        let limit = self.limits.queue;
        match self.store.enqueue_turn(new, limit).await? {
            Enqueued::New(turn) | Enqueued::Repeated(turn) => Ok(turn),
            Enqueued::KeyTaken => Err(AppError::KeyTaken),
            Enqueued::QueueFull => Err(AppError::QueueFull { limit }),
            Enqueued::NoSession => Err(no_session(session_id)),
        }
    }

    pub(crate) async fn turn(&self, id: Uuid) -> Result<Turn, AppError> {
        let turn = self.store.turn(id).await?;
        turn.ok_or_else(|| AppError::NotFound { what: "turn", id: id.to_string() })
    }

    pub(crate) async fn turns(&self, session_id: Uuid) -> Result<Vec<Turn>, AppError> {
        self.session(session_id).await?;
        Ok(self.store.turns(session_id).await?)
    }

    pub(crate) async fn history(&self, session_id: Uuid) -> Result<Vec<HistoryTurn>, AppError> {
        let turns = self.turns(session_id).await?;
        let mut assembly = history::Assembly::new(turns);
        let mut after = 0;
        loop {
            let page = self.store.events_after(session_id, after, PAGE).await?;
            let Some(last) = page.last() else { return Ok(assembly.finish()) };
            after = last.seq;
            for event in &page {
                assembly.apply(event);
            }
        }
    }

    pub(crate) async fn cancel(
        &self,
        session_id: Uuid,
        body: CancelRequest,
    ) -> Result<CancelResponse, AppError> {
        let which = match (body.queued, body.turn) {
            (false, None) => Cancel::Oldest,
            (true, None) => Cancel::All,
            (false, Some(turn)) => Cancel::One(turn),
            (true, Some(_)) => return Err(invalid("turn", "must not come together with queued")),
        };
        self.session(session_id).await?;
        Ok(CancelResponse { turns: self.store.request_cancel(session_id, which).await? })
    }

    pub(crate) async fn answer_permission(
        &self,
        session_id: Uuid,
        id: &str,
        body: PermissionAnswer,
    ) -> Result<(), AppError> {
        if body.message.as_deref().is_some_and(|message| message.trim().is_empty()) {
            return Err(invalid("message", "must not be blank: leave it out, or say what to do instead"));
        }
        let answer = Answer::Permission { decision: body.decision, message: body.message };
        self.answer(session_id, id, answer, "permission").await
    }

    pub(crate) async fn answer_question(
        &self,
        session_id: Uuid,
        id: &str,
        body: QuestionAnswer,
    ) -> Result<(), AppError> {
        if let Some(index) = body.answers.iter().flatten().position(Vec::is_empty) {
            return Err(invalid(
                format!("answers[{index}]"),
                "must have at least one label; null instead of the list rejects the request",
            ));
        }
        self.answer(session_id, id, Answer::Question { answers: body.answers }, "question").await
    }

    async fn answer(
        &self,
        session_id: Uuid,
        id: &str,
        answer: Answer,
        what: &'static str,
    ) -> Result<(), AppError> {
        self.session(session_id).await?;
        match self.store.answer_ask(session_id, id, answer).await? {
            Answered::Accepted => Ok(()),
            Answered::NotFound => Err(AppError::NotFound { what, id: id.to_owned() }),
            Answered::Conflict => Err(AppError::AlreadyResolved { what, id: id.to_owned() }),
            Answered::WrongCount { questions } => {
                Err(invalid("answers", format!("must have one list for each of the {questions} questions")))
            }
        }
    }

    /// The next entries of a log, and a watch that changes when there may be more.
    pub(crate) async fn events_after(
        &self,
        session_id: Uuid,
        after: i64,
    ) -> Result<Vec<StoredEvent>, AppError> {
        Ok(self.store.read_log(session_id, after, LogBounds::default()).await?)
    }

    pub(crate) fn watch_session(&self, session_id: Uuid) -> watch::Receiver<u64> {
        self.store.watch_session(session_id)
    }
}

fn checked_title(title: &str) -> Result<String, AppError> {
    let title = title.trim();
    if title.is_empty() || title.chars().count() > TITLE_MAX || title.contains(char::is_control) {
        return Err(invalid(
            "title",
            format!("must be 1 to {TITLE_MAX} characters without control characters"),
        ));
    }
    Ok(title.to_owned())
}

fn check_prompt(parts: &[PromptPart]) -> Result<(), AppError> {
    if parts.is_empty() {
        return Err(invalid("parts", "must have at least one part"));
    }
    if parts.len() > PARTS_MAX {
        return Err(invalid("parts", format!("must have at most {PARTS_MAX} parts")));
    }
    let blank = |part: &PromptPart| matches!(part, PromptPart::Text { text } if text.trim().is_empty());
    match parts.iter().position(blank) {
        Some(index) => Err(invalid(format!("parts[{index}].text"), "must not be blank")),
        None => Ok(()),
    }
}

async fn fetch_sandbox(address: SandboxAddress) -> Sandbox {
    let mut config = ClientConfig::new(address.door_url, address.door_password);
    config.request_timeout = STATE_TIMEOUT;
    config.connect_timeout = STATE_TIMEOUT;
    let state = match OpencodeClient::new(config) {
        Ok(client) => client.door_state().await.ok(),
        Err(_) => None,
    };
    Sandbox {
        namespace: address.namespace,
        name: address.name,
        directory: address.directory,
        phase: state.as_ref().map_or(SandboxPhase::Unreachable, |state| state.phase),
        opencode_version: state.as_ref().and_then(|state| state.version.clone()),
        boot: state.as_ref().map_or(0, |state| state.boot),
    }
}
