//! What callers may do. Checks values, calls the store, and says in [`AppError`] what stood in the way.
//!
//! Here: sandboxes and sessions. `turns` has prompts, turns and history, `asks` answers, `files` what a session did to
//! files; `prompt` checks prompts and `cursor` reads and makes cursors, both pure; `doors` holds a client for each
//! sandbox.

use std::sync::Arc;

use berth_opencode::ClientError;
use berth_wire::{
    api::{CreateSession, LIST_DEFAULT, LIST_MAX, Page, Sandbox, SandboxPhase, Session, SessionFilter},
    turn::TurnState,
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    config::Limits,
    directory::{SandboxAddress, SandboxDirectory},
    metrics::Metrics,
    store::{NewSession, SandboxKey, SessionQuery, Store, StoreError},
};

mod asks;
mod cursor;
mod doors;
mod files;
mod prompt;
mod turns;

use cursor::Cursor;
use doors::Doors;

/// Longest title, in characters; also of what titles are searched for.
const TITLE_MAX: usize = 200;
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
    /// A parameter of the path or query is not acceptable.
    #[error("{name}: {reason}")]
    InvalidParameter {
        /// Its name.
        name: &'static str,
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
    /// There is nothing to retry.
    #[error("the turn is {}: only one that failed, was cancelled or is unknown is retried; post a new message", state_name(*state))]
    NotRetryable {
        /// Where it stands.
        state: TurnState,
    },
    /// The session's sandbox was deleted.
    #[error(
        "the sandbox {namespace}/{name} was deleted: the session can be read, and goes on when a sandbox of that name is made \
         again"
    )]
    SandboxGone {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// The sandbox is there, or it is not known yet whether it is, and nothing leads to it.
    #[error(
        "the sandbox {namespace}/{name} cannot be reached yet: see its conditions (kubectl describe sandbox), and ask again"
    )]
    SandboxNotPlaced {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// Work on a thread of its own broke off.
    #[error("the work broke off")]
    Broken,
    /// The sandbox gave no answer that could be used.
    #[error("the sandbox gave no answer")]
    Sandbox(#[source] ClientError),
    /// The store failed.
    #[error("the store failed")]
    Store(#[from] StoreError),
}

fn state_name(state: TurnState) -> &'static str {
    match state {
        TurnState::Queued => "queued",
        TurnState::Running => "running",
        TurnState::Succeeded => "succeeded",
        TurnState::Failed => "failed",
        TurnState::Cancelled => "cancelled",
        TurnState::Unknown => "unknown",
    }
}

/// Everything that handlers need.
pub(crate) struct App {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) directory: Arc<dyn SandboxDirectory>,
    doors: Doors,
    pub(crate) limits: Limits,
    pub(crate) shutdown: CancellationToken,
    pub(crate) metrics: Metrics,
}

fn no_session(id: Uuid) -> AppError {
    AppError::NotFound { what: "session", id: id.to_string() }
}

fn invalid(field: impl Into<String>, reason: impl Into<String>) -> AppError {
    AppError::Invalid { field: field.into(), reason: reason.into() }
}

/// How many items a page is to have.
fn page_size(limit: Option<u16>) -> Result<usize, AppError> {
    let limit = limit.unwrap_or(LIST_DEFAULT);
    if (1..=LIST_MAX).contains(&limit) {
        return Ok(usize::from(limit));
    }
    Err(AppError::InvalidParameter { name: "limit", reason: format!("must be 1 to {LIST_MAX}") })
}

/// What the store is asked for, so that it shows whether there is more.
fn one_more(size: usize) -> i64 {
    i64::try_from(size + 1).unwrap_or(i64::MAX)
}

/// A page of what was read with [`one_more`].
fn page<T>(mut items: Vec<T>, size: usize, cursor: impl Fn(&T) -> Cursor) -> Page<T> {
    let more = items.len() > size;
    items.truncate(size);
    let next_cursor = items.last().filter(|_| more).map(|last| cursor(last).to_string());
    Page { items, next_cursor }
}

impl App {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        directory: Arc<dyn SandboxDirectory>,
        limits: Limits,
        shutdown: CancellationToken,
        metrics: Metrics,
    ) -> Self {
        Self { store, directory, doors: Doors::default(), limits, shutdown, metrics }
    }

    /// Asks the store for what it need not look for.
    pub(crate) async fn check_store(&self) -> Result<(), AppError> {
        self.store.has_session(Uuid::nil()).await?;
        Ok(())
    }

    /// What was counted, as text.
    pub(crate) async fn metrics(&self) -> Result<String, AppError> {
        let (queued, running) = self.store.count_open_turns().await?;
        self.metrics.set_open_turns(queued, running);
        self.metrics.encode().map_err(|_| AppError::Broken)
    }

    fn find_sandbox(&self, namespace: &str, name: &str) -> Result<SandboxAddress, AppError> {
        self.directory.find(namespace, name).ok_or_else(|| {
            if self.directory.is_gone(namespace, name) {
                return AppError::NotFound { what: "sandbox", id: format!("{namespace}/{name}") };
            }
            AppError::SandboxNotPlaced { namespace: namespace.to_owned(), name: name.to_owned() }
        })
    }

    /// Nothing is queued for a sandbox that is gone: nobody would ever take it.
    fn check_sandbox(&self, session: &Session) -> Result<(), AppError> {
        let Session { namespace, sandbox, .. } = session;
        if self.directory.is_gone(namespace, sandbox) {
            return Err(AppError::SandboxGone { namespace: namespace.clone(), name: sandbox.clone() });
        }
        Ok(())
    }

    pub(crate) async fn list_sandboxes(&self) -> Vec<Sandbox> {
        let sandboxes = self.directory.list().into_iter();
        futures_util::future::join_all(sandboxes.map(|address| self.fetch_sandbox(address))).await
    }

    pub(crate) async fn sandbox(&self, namespace: &str, name: &str) -> Result<Sandbox, AppError> {
        Ok(self.fetch_sandbox(self.find_sandbox(namespace, name)?).await)
    }

    async fn fetch_sandbox(&self, address: SandboxAddress) -> Sandbox {
        let state = self.door_state(&address).await;
        Sandbox {
            namespace: address.namespace,
            name: address.name,
            directory: address.directory,
            phase: state.as_ref().map_or(SandboxPhase::Unreachable, |state| state.phase),
            opencode_version: state.as_ref().and_then(|state| state.version.clone()),
            boot: state.as_ref().map_or(0, |state| state.boot),
        }
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

    pub(crate) async fn list_sessions(
        &self,
        namespace: &str,
        name: &str,
        filter: SessionFilter,
    ) -> Result<Page<Session>, AppError> {
        let sandbox = self.find_sandbox(namespace, name)?;
        let size = page_size(filter.limit)?;
        let query = SessionQuery {
            directory: filter.directory.map(|directory| sandbox.real(&directory)),
            sandbox: SandboxKey { namespace: sandbox.namespace, name: sandbox.name },
            before: filter.cursor.as_deref().map(Cursor::session).transpose()?,
            limit: one_more(size),
            title: filter.title.map(checked_search).transpose()?.filter(|title| !title.is_empty()),
            state: filter.state,
            updated_after: filter.updated_after,
        };
        let sessions = self.store.list_sessions(&query).await?;
        Ok(page(sessions, size, |session| Cursor::Session(session.id)))
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
}

fn checked_search(title: String) -> Result<String, AppError> {
    if title.chars().count() > TITLE_MAX {
        let reason = format!("must be at most {TITLE_MAX} characters: no title is longer");
        return Err(AppError::InvalidParameter { name: "title", reason });
    }
    Ok(title)
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
