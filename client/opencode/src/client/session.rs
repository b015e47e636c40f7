//! Sessions of opencode, and which of them belongs to a session of Berth. IO.

use reqwest::Method;
use serde::Serialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Call, OpencodeClient};
use crate::{
    error::ClientError,
    model::{PermissionRule, SESSION_METADATA, SessionInfo, Todo},
};

/// How many sessions of a directory are looked through for one of ours, newest first.
const LIST_LIMIT: u32 = 1000;

fn list(directory: &str) -> Call<'static> {
    Call::get(&["session"]).directory(directory).query("limit", LIST_LIMIT.to_string())
}

/// What a new session is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSession {
    /// Title; opencode writes one after the first turn when absent.
    pub title: Option<String>,
    /// The session of Berth that it belongs to; goes into its metadata.
    pub berth_session_id: Uuid,
    /// Rules for permissions, the last that fits counts; none leaves those of the configuration.
    pub permission: Vec<PermissionRule>,
}

/// What is to change in a session; what is absent stays.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SessionPatch {
    /// Title.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Rules for permissions that are added behind those that it has (measured on opencode 1.18.33).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permission: Option<Vec<PermissionRule>>,
}

/// How [`OpencodeClient::ensure_session`] came by the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnsuredHow {
    /// The known id is still there.
    Known,
    /// One with our metadata was there.
    Found,
    /// It was made.
    Created,
}

/// A session that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ensured {
    /// The session.
    pub session: SessionInfo,
    /// How.
    pub how: EnsuredHow,
}

impl OpencodeClient {
    /// Makes a session in `directory`. A door refuses it, as busy, while another call makes one for the same session of
    /// Berth, or makes it on after its caller gave it up.
    pub async fn create_session(
        &self,
        directory: &str,
        new: &NewSession,
    ) -> Result<SessionInfo, ClientError> {
        let mut body = json!({ "metadata": { SESSION_METADATA: new.berth_session_id } });
        if let Some(title) = &new.title {
            body["title"] = json!(title);
        }
        if !new.permission.is_empty() {
            body["permission"] = json!(new.permission);
        }
        let call = Call::post(&["session"], body).directory(directory);
        self.write(call.keyed(new.berth_session_id)).await
    }

    /// One session.
    pub async fn get_session(&self, directory: &str, id: &str) -> Result<SessionInfo, ClientError> {
        self.read(Call::get(&["session", id]).directory(directory)).await
    }

    /// The directory's newest sessions. An empty list proves nothing: sessions are hidden when the directory's
    /// repository was removed or made anew.
    pub async fn list_sessions(&self, directory: &str) -> Result<Vec<SessionInfo>, ClientError> {
        self.read(list(directory)).await
    }

    /// The session that was made in `directory` for this one of Berth, if there is one. A door refuses to look, as busy,
    /// while a call that makes it goes on.
    pub async fn find_session(
        &self,
        directory: &str,
        berth_session_id: Uuid,
    ) -> Result<Option<SessionInfo>, ClientError> {
        let listed: Vec<SessionInfo> = self.read(list(directory).keyed(berth_session_id)).await?;
        let ours = |session: &SessionInfo| {
            session.berth_session_id() == Some(berth_session_id) && session.parent_id.is_none()
        };
        Ok(listed.into_iter().find(ours))
    }

    /// Sees to it that the session exists: the known one, else one that was made for `new.berth_session_id` before,
    /// else a new one. Only opencode's own word that the known one does not exist leads on; an outage is an error.
    pub async fn ensure_session(
        &self,
        directory: &str,
        known: Option<&str>,
        new: &NewSession,
    ) -> Result<Ensured, ClientError> {
        if let Some(id) = known {
            match self.get_session(directory, id).await {
                Ok(session) => return Ok(Ensured { session, how: EnsuredHow::Known }),
                Err(ClientError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        if let Some(session) = self.find_session(directory, new.berth_session_id).await? {
            return Ok(Ensured { session, how: EnsuredHow::Found });
        }
        let session = self.create_session(directory, new).await?;
        Ok(Ensured { session, how: EnsuredHow::Created })
    }

    /// Changes a session. Rules take effect with its next prompt.
    pub async fn patch_session(
        &self,
        directory: &str,
        id: &str,
        patch: &SessionPatch,
    ) -> Result<SessionInfo, ClientError> {
        let path = ["session", id];
        let body = serde_json::to_value(patch).expect("a patch is plain data and serialises");
        let call = Call { body: Some(body), ..Call::new(Method::PATCH, &path) };
        self.write(call.directory(directory)).await
    }

    /// Sessions whose parent it is: those of its subagents, of all turns. Not those of subagents' subagents.
    pub async fn list_children(&self, directory: &str, id: &str) -> Result<Vec<SessionInfo>, ClientError> {
        self.read(Call::get(&["session", id, "children"]).directory(directory)).await
    }

    /// The agent's list of things to do.
    pub async fn list_todos(&self, directory: &str, id: &str) -> Result<Vec<Todo>, ClientError> {
        self.read(Call::get(&["session", id, "todo"]).directory(directory)).await
    }

    /// Deletes a session. A turn that runs in it goes on: abort it first.
    pub async fn delete_session(&self, directory: &str, id: &str) -> Result<(), ClientError> {
        let path = ["session", id];
        self.write::<Value>(Call::new(Method::DELETE, &path).directory(directory)).await.map(drop)
    }
}
