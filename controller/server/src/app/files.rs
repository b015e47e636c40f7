//! What a session did to files, the files themselves, and what its sandbox's opencode offers: all read at the door.
//!
//! Any replica may do that, owner or not: a read changes nothing (docs/adr/0009).

use berth_opencode::{AgentDetails, ClientError, FileStream, ModelDetails, ModelReference, OpencodeClient};
use berth_wire::{
    api::{AgentInfo, AgentMode, FileChange, FileEntry, ModelChoice, ModelInfo, Session},
    problem::ProblemType,
};
use uuid::Uuid;

use super::{App, AppError, invalid};
use crate::{diff, store::HistoryRow};

/// Longest path, in bytes.
const PATH_MAX: usize = 4096;

impl App {
    /// The files that the session changed, or one turn of it.
    pub(crate) async fn diff(
        &self,
        session_id: Uuid,
        turn: Option<Uuid>,
    ) -> Result<Vec<FileChange>, AppError> {
        let session = self.session(session_id).await?;
        let row = match turn {
            Some(turn) => Some(self.turn_of(&session, turn).await?),
            None => None,
        };
        // Before its first prompt is sent a session has done nothing, and a turn neither.
        let Some(root) = &session.opencode_session_id else { return Ok(Vec::new()) };
        let message = match row {
            None => None,
            Some(HistoryRow { message_id: None, .. }) => return Ok(Vec::new()),
            Some(HistoryRow { message_id, .. }) => message_id,
        };
        let (directory, message) = (&session.directory, &message);
        let turns = self.read_of(&session, |client| async move {
            match message {
                None => client.session_diffs(directory, root).await,
                Some(message) => client.list_diffs(directory, root, message).await.map(|turn| vec![turn]),
            }
        });
        let turns = match turns.await? {
            // opencode's session is gone, and with it what it knew.
            Err(ClientError::NotFound { .. }) => Vec::new(),
            other => other.map_err(AppError::Sandbox)?,
        };
        // A long session's files are compared line by line: not on a thread that serves others.
        tokio::task::spawn_blocking(move || diff::combine(turns)).await.map_err(|_| AppError::Broken)
    }

    async fn turn_of(&self, session: &Session, turn: Uuid) -> Result<HistoryRow, AppError> {
        let row = self.store.turn_row(turn).await?.filter(|row| row.turn.session_id == session.id);
        row.ok_or_else(|| AppError::NotFound { what: "turn", id: format!("{turn} in this session") })
    }

    /// What is in a directory beneath the session's own.
    pub(crate) async fn list_files(&self, session_id: Uuid, path: &str) -> Result<Vec<FileEntry>, AppError> {
        check_path(path)?;
        let session = self.session(session_id).await?;
        let directory = &session.directory;
        let listed =
            self.read_of(&session, |client| async move { client.list_files(directory, path).await }).await?;
        listed.map_err(|error| file_error(error, path))
    }

    /// A file beneath the session's directory.
    pub(crate) async fn open_file(&self, session_id: Uuid, path: &str) -> Result<FileStream, AppError> {
        check_path(path)?;
        let session = self.session(session_id).await?;
        let directory = &session.directory;
        let opened =
            self.read_of(&session, |client| async move { client.open_file(directory, path).await }).await?;
        opened.map_err(|error| file_error(error, path))
    }

    pub(crate) async fn list_models(&self, namespace: &str, name: &str) -> Result<Vec<ModelInfo>, AppError> {
        let directory = &self.find_sandbox(namespace, name)?.directory;
        let read = |client: OpencodeClient| async move { client.list_models(directory).await };
        let models = self.read_at_door(namespace, name, read).await?;
        Ok(models.map_err(AppError::Sandbox)?.into_iter().map(model_info).collect())
    }

    pub(crate) async fn list_agents(&self, namespace: &str, name: &str) -> Result<Vec<AgentInfo>, AppError> {
        let directory = &self.find_sandbox(namespace, name)?.directory;
        let read = |client: OpencodeClient| async move { client.list_agents(directory).await };
        let agents = self.read_at_door(namespace, name, read).await?;
        let agents = agents.map_err(AppError::Sandbox)?.into_iter();
        Ok(agents.filter(|agent| !agent.hidden && !agent.name.is_empty()).map(agent_info).collect())
    }

    /// Reads at the door of a session's sandbox.
    async fn read_of<T, F: Future<Output = Result<T, ClientError>>>(
        &self,
        session: &Session,
        read: impl Fn(OpencodeClient) -> F,
    ) -> Result<Result<T, ClientError>, AppError> {
        self.read_at_door(&session.namespace, &session.sandbox, read).await
    }
}

/// The door judges where links in it lead.
fn check_path(path: &str) -> Result<(), AppError> {
    let plain = path.split('/').all(|segment| segment != "..");
    if plain && !path.starts_with('/') && !path.contains('\0') && path.len() <= PATH_MAX {
        return Ok(());
    }
    let reason = "must be a path from the session's directory, without .. and not beginning with /";
    Err(AppError::InvalidParameter { name: "path", reason: reason.to_owned() })
}

/// What the door says of a path.
fn file_error(error: ClientError, path: &str) -> AppError {
    let ClientError::Refused(problem) = &error else { return AppError::Sandbox(error) };
    match problem.problem_type() {
        Some(ProblemType::NotFound) if problem.extensions.contains_key("object") => {
            AppError::NotFound { what: "file", id: path.to_owned() }
        }
        Some(ProblemType::Invalid) => invalid("path", problem.detail.clone()),
        _ => AppError::Sandbox(error),
    }
}

fn model_choice(id: ModelReference) -> ModelChoice {
    ModelChoice { provider_id: id.provider_id, model_id: id.model_id }
}

fn model_info(model: ModelDetails) -> ModelInfo {
    ModelInfo {
        id: model_choice(model.id),
        name: model.name,
        provider: model.provider,
        context_tokens: model.context,
        images: model.images,
        default: model.configured,
    }
}

fn agent_info(agent: AgentDetails) -> AgentInfo {
    AgentInfo {
        name: agent.name,
        description: agent.description,
        mode: match agent.mode.as_str() {
            "primary" => AgentMode::Primary,
            "subagent" => AgentMode::Subagent,
            _ => AgentMode::All,
        },
        model: agent
            .model
            .map(|model| ModelChoice { provider_id: model.provider_id, model_id: model.model_id }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_go_down() {
        for good in ["", "a", "a/b.txt", ".hidden", "a/./b", "..a/b..", "ä/🦀"] {
            assert!(check_path(good).is_ok(), "{good}");
        }
        for bad in ["/etc/passwd", "..", "a/../b", "../a", "a\0b"] {
            assert!(check_path(bad).is_err(), "{bad:?}");
        }
        assert!(check_path(&"a".repeat(5000)).is_err());
    }
}
