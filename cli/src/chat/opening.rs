//! Opening a session: the session itself, its last turns, and what is going on in it. Does IO.

use berth_client::{BerthClient, ClientError};
use berth_wire::{
    api::{CreateSession, HistoryTurn, ListOrder, ListQuery, Session},
    event::SessionEvent,
};
use uuid::Uuid;

use super::effect::Opened;
use crate::{config::Target, error::CliError, turn::open_session};

/// Turns that have ended and are shown.
const HISTORY: u16 = 10;

/// The session that was meant on the command line.
pub(super) async fn target(client: &BerthClient, target: &Target) -> Result<Opened, CliError> {
    let session = open_session(client, target).await?;
    match target {
        Target::New { .. } => Ok(fresh(session)),
        Target::Resume(_) => Ok(with_past(client, session).await?),
    }
}

/// A new session in this sandbox.
pub(super) async fn create(client: &BerthClient, namespace: &str, name: &str) -> Result<Opened, ClientError> {
    client.create_session(namespace, name, &CreateSession::default()).await.map(fresh)
}

/// A session that exists.
pub(super) async fn resume(client: &BerthClient, id: Uuid) -> Result<Opened, ClientError> {
    let session = client.get_session(id).await?;
    with_past(client, session).await
}

fn fresh(session: Session) -> Opened {
    Opened { session, history: Vec::new(), more: false, events: Vec::new() }
}

async fn with_past(client: &BerthClient, session: Session) -> Result<Opened, ClientError> {
    let query = ListQuery { limit: Some(HISTORY), cursor: None, order: Some(ListOrder::Newest) };
    let page = client.history_page(session.id, &query).await?;
    let mut history: Vec<HistoryTurn> = page.items;
    history.sort_by_key(|turn| turn.turn.ordinal);
    let events =
        if session.open_turns.is_empty() { Vec::new() } else { open_events(client, &session).await? };
    Ok(Opened { session, history, more: page.next_cursor.is_some(), events })
}

/// The events so far of the turns that have not ended. Where those begin is not known, so the log is read from its
/// start; that is quick, and rare.
async fn open_events(client: &BerthClient, session: &Session) -> Result<Vec<SessionEvent>, ClientError> {
    let mut stream = client.events(session.id, 0);
    let mut events = Vec::new();
    let mut last = 0;
    while last < session.last_seq {
        let event = stream.next().await?;
        last = event.seq;
        if event.turn_id.is_some_and(|turn| session.open_turns.contains(&turn)) {
            events.push(event);
        }
    }
    Ok(events)
}
