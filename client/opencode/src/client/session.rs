//! Sessions of opencode, and which of them belongs to a session of Berth. IO.

use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Call, OpencodeClient};
use crate::{
    error::ClientError,
    model::{SESSION_METADATA, SessionInfo},
};

/// How many sessions of a directory are looked through for one of ours, newest first.
const LIST_LIMIT: u32 = 1000;

/// What a new session is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSession {
    /// Title; opencode writes one after the first turn when absent.
    pub title: Option<String>,
    /// The session of Berth that it belongs to; goes into its metadata.
    pub berth_session_id: Uuid,
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
    /// Makes a session in `directory`.
    pub async fn create_session(
        &self,
        directory: &str,
        new: &NewSession,
    ) -> Result<SessionInfo, ClientError> {
        let mut body = json!({ "metadata": { SESSION_METADATA: new.berth_session_id } });
        if let Some(title) = &new.title {
            body["title"] = json!(title);
        }
        self.write(Call::post(&["session"], body).directory(directory)).await
    }

    /// One session.
    pub async fn get_session(&self, directory: &str, id: &str) -> Result<SessionInfo, ClientError> {
        self.read(Call::get(&["session", id]).directory(directory)).await
    }

    /// The directory's newest sessions. An empty list proves nothing: sessions are hidden when the directory's
    /// repository was removed or made anew.
    pub async fn list_sessions(&self, directory: &str) -> Result<Vec<SessionInfo>, ClientError> {
        self.read(Call::get(&["session"]).directory(directory).query("limit", LIST_LIMIT.to_string())).await
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
        let ours = |session: &SessionInfo| session.berth_session_id() == Some(new.berth_session_id);
        let listed = self.list_sessions(directory).await?;
        if let Some(session) = listed.into_iter().find(|session| ours(session) && session.parent_id.is_none())
        {
            return Ok(Ensured { session, how: EnsuredHow::Found });
        }
        let session = self.create_session(directory, new).await?;
        Ok(Ensured { session, how: EnsuredHow::Created })
    }

    /// Gives a session a title.
    pub async fn rename_session(
        &self,
        directory: &str,
        id: &str,
        title: &str,
    ) -> Result<SessionInfo, ClientError> {
        let path = ["session", id];
        let call = Call { body: Some(json!({ "title": title })), ..Call::new(Method::PATCH, &path) };
        self.write(call.directory(directory)).await
    }

    /// Deletes a session. A turn that runs in it goes on: abort it first.
    pub async fn delete_session(&self, directory: &str, id: &str) -> Result<(), ClientError> {
        let path = ["session", id];
        self.write::<Value>(Call::new(Method::DELETE, &path).directory(directory)).await.map(drop)
    }
}
