//! `berth sessions`, `berth diff` and `berth cp`, checked. Looks where links lead; else pure.

use std::path::Path;

use berth_wire::api::SessionState;

use super::{Environment, Streams, sandbox_key, server, shape};
use crate::{
    args::{CopyArgs, DiffArgs, ListArgs, SessionsCommand, StateFilter},
    copy::{CopyConfig, Destination},
    diff::{DiffConfig, DiffView, TurnChoice},
    error::CliError,
    sessions::{Action, SessionsConfig, Wanted},
};

pub(super) fn sessions(
    command: SessionsCommand,
    environment: &Environment,
    streams: Streams,
) -> Result<SessionsConfig, CliError> {
    let (given, action) = match command {
        SessionsCommand::List(args) => {
            let wanted = wanted(&args, environment)?;
            (args.server, Action::List(wanted))
        }
        SessionsCommand::Show(args) => (args.server, Action::Show { session: args.session, json: args.json }),
        SessionsCommand::Rename(args) => {
            let title = args.title.join(" ");
            (args.server, Action::Rename { session: args.session, title })
        }
        SessionsCommand::Delete(args) => {
            (args.server, Action::Delete { sessions: args.sessions, yes: args.yes })
        }
        SessionsCommand::Export(args) => {
            let output = args
                .output
                .map(|path| if path == Path::new("-") { path } else { environment.absolute(&path) });
            (args.server, Action::Export { session: args.session, format: args.format, output })
        }
    };
    Ok(SessionsConfig {
        server: server(given, environment)?,
        action,
        shape: shape(environment, streams),
        person: streams.person(),
    })
}

fn wanted(args: &ListArgs, environment: &Environment) -> Result<Wanted, CliError> {
    let state = args.state.map(|state| match state {
        StateFilter::Idle => SessionState::Idle,
        StateFilter::Queued => SessionState::Queued,
        StateFilter::Running => SessionState::Running,
        StateFilter::Waiting => SessionState::Waiting,
    });
    Ok(Wanted {
        sandbox: args.sandbox.as_deref().map(sandbox_key).transpose()?,
        title: args.title.clone(),
        state,
        directory: args.directory.as_deref().map(|path| real(&environment.absolute(path))),
        limit: usize::try_from(args.limit).unwrap_or(usize::MAX),
        json: args.json,
    })
}

/// The directory as the server knows it: by its real name, whichever link led there. One that is not on this machine
/// is taken as it was given.
fn real(path: &Path) -> String {
    let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    real.display().to_string()
}

pub(super) fn diff(
    args: DiffArgs,
    environment: &Environment,
    streams: Streams,
) -> Result<DiffConfig, CliError> {
    let view = match (args.stat, args.json) {
        (true, _) => DiffView::Stat,
        (_, true) => DiffView::Json,
        _ => DiffView::Patch,
    };
    Ok(DiffConfig {
        server: server(args.server, environment)?,
        session: args.session,
        turn: args.turn.as_deref().map(turn).transpose()?,
        view,
        shape: shape(environment, streams),
    })
}

fn turn(text: &str) -> Result<TurnChoice, CliError> {
    if let Ok(ordinal) = text.parse::<i64>()
        && ordinal > 0
    {
        return Ok(TurnChoice::Ordinal(ordinal));
    }
    text.parse().map(TurnChoice::Id).map_err(|_| {
        CliError::usage("--turn", format!("{text:?} is neither a turn's number, from 1, nor its id"))
    })
}

pub(super) fn copy(
    args: CopyArgs,
    environment: &Environment,
    streams: Streams,
) -> Result<CopyConfig, CliError> {
    let (session, path) = args.from.split_once(':').ok_or_else(|| {
        let reason = format!("{:?} names no session: say SESSION:PATH, such as last:report.md", args.from);
        CliError::usage("SESSION:PATH", reason)
    })?;
    let to = match args.to.as_path() {
        path if path == Path::new("-") => Destination::StandardOutput,
        path => Destination::Path(environment.absolute(path)),
    };
    Ok(CopyConfig {
        server: server(args.server, environment)?,
        session: session.parse().map_err(|error| CliError::usage("SESSION:PATH", format!("{error}")))?,
        path: path.to_owned(),
        to,
        force: args.force,
        shape: shape(environment, streams),
    })
}
