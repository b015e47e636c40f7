//! `berth sessions`: which there are, what was said in them, and their titles and ends. Does IO.
//!
//! [`find`] is how every command finds the session that a person named.

use std::{collections::BTreeMap, path::PathBuf};

use berth_client::BerthClient;
use berth_wire::api::{Session, SessionFilter, SessionState};

use crate::{
    args::ExportFormat,
    choice::{SessionChoice, short},
    connect::{self, ServerChoice},
    error::{CliError, Exit},
    output::Shape,
    text::clean_line,
};

mod delete;
mod export;
mod list;
mod show;
mod transcript;

/// Most sessions that are named when one beginning of an id fits several.
const CANDIDATES: usize = 5;
/// Longest title that is shown in a message, in characters.
const TITLE_LIMIT: usize = 200;

/// `berth sessions`, checked.
#[derive(Debug, Clone)]
pub struct SessionsConfig {
    /// The server.
    pub server: ServerChoice,
    /// What is wanted.
    pub action: Action,
    /// The output streams.
    pub shape: Shape,
    /// Somebody is there to ask.
    pub person: bool,
}

/// What is to be done with sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// `list`
    List(Wanted),
    /// `show`
    Show {
        /// The session.
        session: SessionChoice,
        /// JSON lines instead of text.
        json: bool,
    },
    /// `rename`
    Rename {
        /// The session.
        session: SessionChoice,
        /// Its new title.
        title: String,
    },
    /// `delete`
    Delete {
        /// The sessions.
        sessions: Vec<SessionChoice>,
        /// Nobody is asked.
        yes: bool,
    },
    /// `export`
    Export {
        /// The session.
        session: SessionChoice,
        /// As what.
        format: ExportFormat,
        /// The file; standard output when absent.
        output: Option<PathBuf>,
    },
}

/// Which sessions are listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Namespace and name of the only sandbox.
    pub sandbox: Option<(String, String)>,
    /// Part of the title.
    pub title: Option<String>,
    /// State.
    pub state: Option<SessionState>,
    /// Working directory, links resolved.
    pub directory: Option<String>,
    /// At most this many.
    pub limit: usize,
    /// JSON lines instead of a table.
    pub json: bool,
}

/// Does what is wanted.
pub async fn sessions(config: SessionsConfig) -> Result<Exit, CliError> {
    let SessionsConfig { server, action, shape, person } = config;
    let client = connect::client(&server)?;
    match action {
        Action::List(wanted) => list::list(&client, &wanted, shape).await,
        Action::Show { session, json } => {
            let session = find(&client, &session).await?;
            show::show(&client, &session, json, shape).await
        }
        Action::Rename { session, title } => {
            let session = find(&client, &session).await?;
            client.rename_session(session.id, &title).await?;
            Ok(Exit::Succeeded)
        }
        Action::Delete { sessions, yes } => delete::delete(&client, &sessions, yes, person, shape).await,
        Action::Export { session, format, output } => {
            let session = find(&client, &session).await?;
            export::export(&client, &session, format, output.as_deref()).await
        }
    }
}

/// The session that is meant.
pub async fn find(client: &BerthClient, choice: &SessionChoice) -> Result<Session, CliError> {
    if let SessionChoice::Id(id) = choice {
        return Ok(client.get_session(*id).await?);
    }
    chosen(choice, all(client, &SessionFilter::default(), None).await?)
}

/// The sessions of a sandbox that have something to do.
pub async fn busy(client: &BerthClient, namespace: &str, name: &str) -> Result<Vec<Session>, CliError> {
    let mut found = BTreeMap::new();
    // One may go from one state to the next meanwhile.
    for state in [SessionState::Queued, SessionState::Running, SessionState::Waiting] {
        let filter = SessionFilter { state: Some(state), ..SessionFilter::default() };
        let sessions = client.list_sessions(namespace, name, &filter).await?;
        found.extend(sessions.into_iter().map(|session| (session.id, session)));
    }
    Ok(found.into_values().filter(|session| !session.open_turns.is_empty()).collect())
}

/// The session that is meant, of all that there are, the one that changed last first.
fn chosen(choice: &SessionChoice, sessions: Vec<Session>) -> Result<Session, CliError> {
    let prefix = match choice {
        SessionChoice::Last => String::new(),
        SessionChoice::Id(id) => id.to_string(),
        SessionChoice::Prefix(prefix) => prefix.clone(),
    };
    let mut fitting: Vec<Session> =
        sessions.into_iter().filter(|session| session.id.to_string().starts_with(&prefix)).collect();
    if fitting.len() > 1 && *choice != SessionChoice::Last {
        let ids: Vec<_> = fitting.iter().map(|session| session.id).collect();
        let named = fitting.iter().take(CANDIDATES).map(|session| named(session, &short(session.id, &ids)));
        let named = named.collect::<Vec<_>>().join(", ");
        let more = if fitting.len() > CANDIDATES { ", ..." } else { "" };
        return Err(CliError::Ambiguous { prefix, named: format!("{named}{more}") });
    }
    if fitting.is_empty() {
        return Err(CliError::NoSession { choice: choice.clone() });
    }
    Ok(fitting.swap_remove(0))
}

/// For a message: its id, and its title if it has one.
fn named(session: &Session, id: &str) -> String {
    match session.title.as_deref().map(|title| clean_line(title, TITLE_LIMIT)) {
        Some(title) if !title.is_empty() => format!("{id} ({title})"),
        _ => id.to_owned(),
    }
}

/// All sessions that the filter lets through, of one sandbox or of all, those that changed last first.
async fn all(
    client: &BerthClient,
    filter: &SessionFilter,
    sandbox: Option<&(String, String)>,
) -> Result<Vec<Session>, CliError> {
    let sandboxes = if let Some(sandbox) = sandbox {
        vec![sandbox.clone()]
    } else {
        let sandboxes = client.list_sandboxes().await?;
        sandboxes.into_iter().map(|sandbox| (sandbox.namespace, sandbox.name)).collect()
    };
    let mut sessions = Vec::new();
    for (namespace, name) in &sandboxes {
        sessions.extend(client.list_sessions(namespace, name, filter).await?);
    }
    sessions.sort_by_key(|session| std::cmp::Reverse((session.updated_at, session.id)));
    Ok(sessions)
}

#[cfg(test)]
mod tests {
    use berth_wire::turn::Usage;
    use jiff::Timestamp;
    use uuid::Uuid;

    use super::*;

    fn session(id: u128, title: Option<&str>) -> Session {
        Session {
            id: Uuid::from_u128(id),
            namespace: "local".to_owned(),
            sandbox: "default".to_owned(),
            directory: "/x".to_owned(),
            title: title.map(ToOwned::to_owned),
            opencode_session_id: None,
            state: SessionState::Idle,
            last_seq: 0,
            open_turns: Vec::new(),
            usage: Usage::default(),
            created_at: Timestamp::UNIX_EPOCH,
            updated_at: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn a_beginning_names_one_session_or_the_error_names_them_all() {
        let sessions = || {
            vec![
                session(0x0198_f2c4_1a2b_7000_8000_0000_0000_0001, Some("the login form")),
                session(0x0198_f2c4_1a2c_7000_8000_0000_0000_0002, None),
                session(0x0199_f2c4_1a2b_7000_8000_0000_0000_0003, None),
            ]
        };
        let choose = |text: &str| chosen(&text.parse().unwrap(), sessions());
        assert_eq!(choose("0199").unwrap().id, sessions()[2].id);
        assert_eq!(choose("0198f2c41a2c").unwrap().id, sessions()[1].id);
        assert_eq!(choose("last").unwrap().id, sessions()[0].id);
        let error = choose("0198f2c4").unwrap_err().to_string();
        assert!(error.contains("0198f2c4-1a2b (the login form), 0198f2c4-1a2c"), "{error}");
        let error = choose("0200").unwrap_err().to_string();
        assert!(error.contains("berth sessions list"), "{error}");
        assert!(chosen(&SessionChoice::Last, Vec::new()).unwrap_err().to_string().contains("berth run"));
    }
}
