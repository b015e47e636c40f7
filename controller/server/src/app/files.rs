//! What a session did to files, the files themselves, and what its sandbox's opencode offers: all read at the door.
//!
//! Any replica may do that, owner or not: a read changes nothing (docs/adr/0009).

use berth_opencode::{AgentDetails, ClientError, FileStream, ModelDetails, ModelReference};
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
        let client = self.client_of(&session)?;
        let turns = match row {
            None => client.session_diffs(&session.directory, root).await,
            Some(HistoryRow { message_id: None, .. }) => return Ok(Vec::new()),
            Some(HistoryRow { message_id: Some(message), .. }) => {
                client.list_diffs(&session.directory, root, &message).await.map(|turn| vec![turn])
            }
        };
        let turns = match turns {
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
        let listed = self.client_of(&session)?.list_files(&session.directory, path).await;
        listed.map_err(|error| file_error(error, path))
    }

    /// A file beneath the session's directory.
    pub(crate) async fn open_file(&self, session_id: Uuid, path: &str) -> Result<FileStream, AppError> {
        check_path(path)?;
        let session = self.session(session_id).await?;
        let opened = self.client_of(&session)?.open_file(&session.directory, path).await;
        opened.map_err(|error| file_error(error, path))
    }

    pub(crate) async fn list_models(&self, namespace: &str, name: &str) -> Result<Vec<ModelInfo>, AppError> {
        let sandbox = self.find_sandbox(namespace, name)?;
        let models = self.doors.client(&sandbox)?.list_models(&sandbox.directory).await;
        Ok(models.map_err(AppError::Sandbox)?.into_iter().map(model_info).collect())
    }

    pub(crate) async fn list_agents(&self, namespace: &str, name: &str) -> Result<Vec<AgentInfo>, AppError> {
        let sandbox = self.find_sandbox(namespace, name)?;
        let agents = self.doors.client(&sandbox)?.list_agents(&sandbox.directory).await;
        let agents = agents.map_err(AppError::Sandbox)?.into_iter();
        Ok(agents.filter(|agent| !agent.hidden && !agent.name.is_empty()).map(agent_info).collect())
    }

    fn client_of(&self, session: &Session) -> Result<berth_opencode::OpencodeClient, AppError> {
        self.doors.client(&self.find_sandbox(&session.namespace, &session.sandbox)?)
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
