//! The calls that a turn needs: prompt, abort, messages, status, permissions, questions. IO.

use std::collections::HashMap;

use berth_wire::door::DoorState;
use serde_json::{Map, Value, json};

use super::{Call, OpencodeClient};
use crate::{
    error::ClientError,
    model::{MessageWithParts, ModelReference, PermissionRequest, QuestionRequest, SessionStatus},
};

/// One text of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptText {
    /// Part id, from [`crate::ids::part_id`]: without one, opencode doubles the part when the prompt is sent again.
    pub id: String,
    /// The text.
    pub text: String,
}

/// A prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// Message id, from [`crate::ids::message_id`].
    pub message_id: String,
    /// Its texts; must not be empty, since opencode would run a turn about nothing.
    pub parts: Vec<PromptText>,
    /// Model, when not the session's: one that is named stays the session's for later prompts, also when it does not
    /// exist (measured on opencode 1.18.33).
    pub model: Option<ModelReference>,
    /// Agent, when not the default one.
    pub agent: Option<String>,
}

impl Prompt {
    fn to_json(&self) -> Value {
        let text = |part: &PromptText| json!({ "id": part.id, "type": "text", "text": part.text });
        let mut body = Map::new();
        body.insert("messageID".to_owned(), json!(self.message_id));
        body.insert("parts".to_owned(), self.parts.iter().map(text).collect());
        if let Some(model) = &self.model {
            let value = json!({ "providerID": model.provider_id, "modelID": model.model_id });
            body.insert("model".to_owned(), value);
        }
        if let Some(agent) = &self.agent {
            body.insert("agent".to_owned(), json!(agent));
        }
        Value::Object(body)
    }
}

/// Answer to a request for a permission. opencode's own `always` is not offered: it would hold for all sessions of the
/// directory until opencode restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PermissionReply {
    /// Allow this one.
    Once,
    /// Refuse. Without a message this ends the turn; other open requests of the session are refused too.
    Reject,
}

impl OpencodeClient {
    /// Hands a prompt over (`prompt_async`); opencode then works, and tells by events. Not tried again: the prompt may
    /// have been taken although no answer came, and the same ids run a second turn when the first one was aborted,
    /// failed, or is not the newest.
    pub async fn send_prompt(
        &self,
        directory: &str,
        session: &str,
        prompt: &Prompt,
    ) -> Result<(), ClientError> {
        if prompt.parts.is_empty() {
            return Err(ClientError::InvalidRequest("a prompt needs a part".to_owned()));
        }
        let path = ["session", session, "prompt_async"];
        self.send(&Call::post(&path, prompt.to_json()).directory(directory)).await.map(drop)
    }

    /// Aborts what the session does. Has no effect on a prompt that has not started.
    pub async fn abort(&self, directory: &str, session: &str) -> Result<(), ClientError> {
        let path = ["session", session, "abort"];
        self.write::<bool>(Call::post(&path, json!({})).directory(directory)).await.map(drop)
    }

    /// The newest `limit` messages, oldest first.
    pub async fn list_messages(
        &self,
        directory: &str,
        session: &str,
        limit: u32,
    ) -> Result<Vec<MessageWithParts>, ClientError> {
        let path = ["session", session, "message"];
        self.read(Call::get(&path).directory(directory).query("limit", limit.to_string())).await
    }

    /// What the directory's sessions do; idle ones are absent.
    pub async fn session_status(
        &self,
        directory: &str,
    ) -> Result<HashMap<String, SessionStatus>, ClientError> {
        self.read(Call::get(&["session", "status"]).directory(directory)).await
    }

    /// Requests for permissions in the directory. Those of aborted turns stay listed for ever.
    pub async fn list_permissions(&self, directory: &str) -> Result<Vec<PermissionRequest>, ClientError> {
        self.read(Call::get(&["permission"]).directory(directory)).await
    }

    /// Answers a request for a permission. [`ClientError::NotFound`] means that it was settled otherwise. With a
    /// message, a refusal does not end the turn: the model reads it and goes on.
    pub async fn reply_permission(
        &self,
        directory: &str,
        request: &str,
        reply: PermissionReply,
        message: Option<&str>,
    ) -> Result<(), ClientError> {
        let reply = match reply {
            PermissionReply::Once => "once",
            PermissionReply::Reject => "reject",
        };
        let mut body = json!({ "reply": reply });
        if let Some(message) = message {
            body["message"] = json!(message);
        }
        let path = ["permission", request, "reply"];
        self.write::<Value>(Call::post(&path, body).directory(directory)).await.map(drop)
    }

    /// Requests for answers in the directory. Those of aborted turns stay listed for ever.
    pub async fn list_questions(&self, directory: &str) -> Result<Vec<QuestionRequest>, ClientError> {
        self.read(Call::get(&["question"]).directory(directory)).await
    }

    /// Answers questions: for each question, in order, the chosen labels or free text.
    pub async fn reply_question(
        &self,
        directory: &str,
        request: &str,
        answers: &[Vec<String>],
    ) -> Result<(), ClientError> {
        let path = ["question", request, "reply"];
        let call = Call::post(&path, json!({ "answers": answers })).directory(directory);
        self.write::<Value>(call).await.map(drop)
    }

    /// Dismisses questions, which ends the turn.
    pub async fn reject_question(&self, directory: &str, request: &str) -> Result<(), ClientError> {
        let path = ["question", request, "reject"];
        self.write::<Value>(Call::post(&path, json!({})).directory(directory)).await.map(drop)
    }

    /// State of opencode as its door sees it. Only a door answers this.
    pub async fn door_state(&self) -> Result<DoorState, ClientError> {
        self.read(Call::get(&["berth", "state"])).await
    }
}
