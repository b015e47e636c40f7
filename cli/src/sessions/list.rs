//! `berth sessions list`. Does IO.

use std::{collections::BTreeSet, io};

use berth_client::BerthClient;
use berth_wire::api::{Session, SessionFilter, SessionState};
use jiff::Timestamp;
use uuid::Uuid;

use super::{Wanted, all};
use crate::{
    choice::short,
    error::{CliError, Exit},
    output::Shape,
    printer::Printer,
    render::Tone,
    table,
    text::ago,
};

pub(super) async fn list(client: &BerthClient, wanted: &Wanted, shape: Shape) -> Result<Exit, CliError> {
    let filter = SessionFilter {
        title: wanted.title.clone(),
        state: wanted.state,
        directory: wanted.directory.clone(),
        ..SessionFilter::default()
    };
    let sessions = all(client, &filter, wanted.sandbox.as_ref()).await?;
    let narrowed = filter != SessionFilter::default() || wanted.sandbox.is_some();
    // A short id must be unique among all sessions, also among those that are not listed.
    let ids =
        if narrowed { ids(&all(client, &SessionFilter::default(), None).await?) } else { ids(&sessions) };
    show(&sessions, &ids, wanted, narrowed, shape).map_err(CliError::Output)?;
    Ok(Exit::Succeeded)
}

fn ids(sessions: &[Session]) -> Vec<Uuid> {
    sessions.iter().map(|session| session.id).collect()
}

fn show(sessions: &[Session], ids: &[Uuid], wanted: &Wanted, narrowed: bool, shape: Shape) -> io::Result<()> {
    let mut printer = Printer::standard(shape);
    let shown = &sessions[..sessions.len().min(wanted.limit)];
    if wanted.json {
        for session in shown {
            printer.raw_line(&serde_json::to_string(session)?)?;
        }
        return printer.flush();
    }
    if sessions.is_empty() {
        let none =
            if narrowed { "no session is like that" } else { "no session yet: berth run, or berth chat" };
        printer.side(none)?;
        return printer.flush();
    }
    let rows = rows(shown, ids, Timestamp::now());
    let mut lines = table::lines(&["ID", "STATE", "CHANGED", "SANDBOX", "TITLE"], &rows, printer.width());
    printer.line(Tone::Ask, &lines.remove(0))?;
    for line in lines {
        printer.line(Tone::Tool, &line)?;
    }
    if shown.len() < sessions.len() {
        let more = sessions.len() - shown.len();
        printer.side(&format!("{more} more; --limit shows more of them"))?;
    }
    printer.flush()
}

fn rows(sessions: &[Session], ids: &[Uuid], now: Timestamp) -> Vec<Vec<String>> {
    let namespaces: BTreeSet<_> = sessions.iter().map(|session| session.namespace.as_str()).collect();
    let row = |session: &Session| {
        let sandbox = if namespaces.len() > 1 {
            format!("{}/{}", session.namespace, session.sandbox)
        } else {
            session.sandbox.clone()
        };
        let title = session.title.clone().unwrap_or_else(|| "-".to_owned());
        let state = state(session.state).to_owned();
        vec![short(session.id, ids), state, ago(session.updated_at, now), sandbox, title]
    };
    sessions.iter().map(row).collect()
}

pub(super) fn state(state: SessionState) -> &'static str {
    match state {
        SessionState::Idle => "idle",
        SessionState::Queued => "queued",
        SessionState::Running => "running",
        SessionState::Waiting => "waiting",
    }
}
