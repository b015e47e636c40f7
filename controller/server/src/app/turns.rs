//! Prompts, turns, the log and the history that is assembled from it.

use berth_wire::api::{
    CancelRequest, CancelResponse, HistoryTurn, ListOrder, ListQuery, Page, PostMessage, Turn,
};
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use uuid::Uuid;

use super::{App, AppError, CALLER, Cursor, invalid, no_session, one_more, page, page_size, prompt};
use crate::{
    history::Assembly,
    http::trace::Trace,
    store::{
        Cancel, Enqueued, HistoryRow, LogBounds, LogPage, NewTurn, PromptFile, Retried, Retry, StoreError,
        TurnOptions, TurnQuery,
    },
};

/// Events read from the store at once.
const PAGE: i64 = 512;
/// Bytes of text after which a page of history ends, at a turn's end.
const HISTORY_BYTES: usize = 8 * 1024 * 1024;

fn no_turn(id: Uuid) -> AppError {
    AppError::NotFound { what: "turn", id: id.to_string() }
}

/// Of the request that is being answered.
fn traceparent() -> Option<String> {
    Trace::current().map(Trace::to_header)
}

impl App {
    pub(crate) async fn post_message(
        &self,
        session_id: Uuid,
        body: PostMessage,
        idempotency_key: Option<String>,
    ) -> Result<Turn, AppError> {
        let session = self.session(session_id).await?;
        self.check_sandbox(&session)?;
        let body_hash = Sha256::digest(serde_json::to_vec(&body).map_err(StoreError::from)?).to_vec();
        let id = Uuid::now_v7();
        let prepared = prompt::prepare(id, body, &session.directory)?;
        let new = NewTurn {
            id,
            session_id,
            prompt: prepared.parts,
            files: prepared.files,
            caller: CALLER.to_owned(),
            idempotency_key,
            body_hash,
            options: TurnOptions {
                model: prepared.model,
                agent: prepared.agent,
                retry_of: None,
                traceparent: traceparent(),
            },
        };
        let limit = self.limits.queue;
        match self.store.enqueue_turn(new, limit).await? {
            Enqueued::New(turn) | Enqueued::Repeated(turn) => Ok(turn),
            Enqueued::KeyTaken => Err(AppError::KeyTaken),
            Enqueued::QueueFull => Err(AppError::QueueFull { limit }),
            Enqueued::NoSession => Err(no_session(session_id)),
        }
    }

    pub(crate) async fn retry_turn(
        &self,
        turn_id: Uuid,
        idempotency_key: Option<String>,
    ) -> Result<Turn, AppError> {
        let session = self.turn(turn_id).await?.session_id;
        self.check_sandbox(&self.session(session).await?)?;
        let retry = Retry {
            id: Uuid::now_v7(),
            of: turn_id,
            caller: CALLER.to_owned(),
            idempotency_key,
            body_hash: Sha256::digest(format!("retry of {turn_id}")).to_vec(),
            traceparent: traceparent(),
        };
        let limit = self.limits.queue;
        match self.store.retry_turn(retry, limit).await? {
            Retried::New(turn) | Retried::Repeated(turn) => Ok(turn),
            Retried::KeyTaken => Err(AppError::KeyTaken),
            Retried::QueueFull => Err(AppError::QueueFull { limit }),
            Retried::NoTurn => Err(no_turn(turn_id)),
            Retried::NotRetryable(turn) => Err(AppError::NotRetryable { state: turn.state }),
        }
    }

    pub(crate) async fn turn(&self, id: Uuid) -> Result<Turn, AppError> {
        self.store.turn(id).await?.ok_or_else(|| no_turn(id))
    }

    /// What the `data:` URL of a prompt's part held.
    pub(crate) async fn prompt_file(&self, turn_id: Uuid, part: usize) -> Result<PromptFile, AppError> {
        let file = self.store.prompt_file(turn_id, part).await?;
        file.ok_or_else(|| AppError::NotFound { what: "part", id: format!("{part} with data in {turn_id}") })
    }

    pub(crate) async fn turns(&self, session_id: Uuid, query: &ListQuery) -> Result<Page<Turn>, AppError> {
        let page = self.turn_page(session_id, query).await?;
        let items = page.items.into_iter().map(|row| row.turn).collect();
        Ok(Page { items, next_cursor: page.next_cursor })
    }

    async fn turn_page(&self, session_id: Uuid, query: &ListQuery) -> Result<Page<HistoryRow>, AppError> {
        let size = page_size(query.limit)?;
        let order = query.order.unwrap_or_default();
        let behind = query.cursor.as_deref().map(|cursor| Cursor::turn(cursor, order)).transpose()?;
        self.session(session_id).await?;
        let newest_first = order == ListOrder::Newest;
        let query = TurnQuery { session_id, behind, newest_first, limit: one_more(size) };
        let rows = self.store.list_turns(&query).await?;
        Ok(page(rows, size, |row| Cursor::Turn(order, row.turn.ordinal)))
    }

    /// A page of history ends early where it gets large.
    pub(crate) async fn history(
        &self,
        session_id: Uuid,
        query: &ListQuery,
    ) -> Result<Page<HistoryTurn>, AppError> {
        let order = query.order.unwrap_or_default();
        let Page { items: rows, mut next_cursor } = self.turn_page(session_id, query).await?;
        let (mut items, mut bytes) = (Vec::new(), 0);
        let mut rows = rows.into_iter().peekable();
        while let Some(row) = rows.next() {
            let ordinal = row.turn.ordinal;
            let turn = self.assemble(row).await?;
            bytes += turn.text.len() + turn.thought.len();
            items.push(turn);
            if bytes >= HISTORY_BYTES && rows.peek().is_some() {
                next_cursor = Some(Cursor::Turn(order, ordinal).to_string());
                break;
            }
        }
        Ok(Page { items, next_cursor })
    }

    async fn assemble(&self, row: HistoryRow) -> Result<HistoryTurn, AppError> {
        let session_id = row.turn.session_id;
        let last = row.last_seq.unwrap_or(i64::MAX);
        // A turn that never started has said nothing.
        let mut after = row.first_seq.map_or(last, |first| first - 1);
        let mut assembly = Assembly::new(row);
        while after < last {
            let page = self.store.events_after(session_id, after, PAGE).await?;
            let Some(newest) = page.last() else { break };
            after = newest.seq;
            page.iter().take_while(|event| event.seq <= last).for_each(|event| assembly.apply(event));
        }
        Ok(assembly.finish())
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

    /// The next entries of a log.
    pub(crate) async fn events_after(&self, session_id: Uuid, after: i64) -> Result<LogPage, AppError> {
        Ok(self.store.read_log(session_id, after, LogBounds::default()).await?)
    }

    /// Changes whenever there may be more.
    pub(crate) fn watch_session(&self, session_id: Uuid) -> watch::Receiver<u64> {
        self.store.watch_session(session_id)
    }
}
