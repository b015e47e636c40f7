//! The calls that a turn needs: prompt, abort, status, permissions, questions, models. IO.

use std::collections::{BTreeMap, HashMap};

use berth_wire::{
    admission::{GateState, HoldGate},
    door::{DoorState, DoorTurns},
};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::{Call, OpencodeClient, prompt::Prompt};
use crate::{
    error::ClientError,
    model::{ModelReference, PermissionRequest, QuestionRequest, SessionStatus},
};

/// Answer to a request for a permission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PermissionReply {
    /// Allow this one.
    Once,
    /// Allow this one and what the request says in `always`, for **all** sessions of the directory, until opencode
    /// restarts. Berth's server never sends it: its own rules are per session, and last.
    Always,
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
        let answer = self.send(&Call::post(&path, prompt.to_json()).directory(directory)).await?;
        // Something else may answer any path with 200 and a page: that is no promise to run the prompt.
        if answer.status == StatusCode::NO_CONTENT {
            return Ok(());
        }
        let seen = format!("{} instead of 204 for a prompt", answer.status.as_u16());
        Err(ClientError::UnexpectedBody { seen })
    }

    /// Aborts what the session does. Has no effect on a prompt that has not started.
    pub async fn abort(&self, directory: &str, session: &str) -> Result<(), ClientError> {
        let path = ["session", session, "abort"];
        self.write::<bool>(Call::post(&path, json!({})).directory(directory)).await.map(drop)
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
            PermissionReply::Always => "always",
            PermissionReply::Reject => "reject",
        };
        let mut body = json!({ "reply": reply });
        if let Some(message) = message {
            body["message"] = json!(message);
        }
        if !self.denies_unknown_requests() {
            let listed = self.list_permissions(directory).await?;
            check_listed(request, listed.iter().map(|listed| &listed.id))?;
        }
        let path = ["permission", request, "reply"];
        self.write::<Value>(Call::post(&path, body).directory(directory)).await.map(drop)
    }

    /// Requests for answers in the directory. Those of aborted turns stay listed for ever.
    pub async fn list_questions(&self, directory: &str) -> Result<Vec<QuestionRequest>, ClientError> {
        self.read(Call::get(&["question"]).directory(directory)).await
    }

    /// Answers questions: for each question, in order, the chosen labels or free text. [`ClientError::NotFound`] means
    /// that they were settled otherwise.
    pub async fn reply_question(
        &self,
        directory: &str,
        request: &str,
        answers: &[Vec<String>],
    ) -> Result<(), ClientError> {
        self.check_question(directory, request).await?;
        let path = ["question", request, "reply"];
        let call = Call::post(&path, json!({ "answers": answers })).directory(directory);
        self.write::<Value>(call).await.map(drop)
    }

    /// Dismisses questions, which ends the turn.
    pub async fn reject_question(&self, directory: &str, request: &str) -> Result<(), ClientError> {
        self.check_question(directory, request).await?;
        let path = ["question", request, "reject"];
        self.write::<Value>(Call::post(&path, json!({})).directory(directory)).await.map(drop)
    }

    async fn check_question(&self, directory: &str, request: &str) -> Result<(), ClientError> {
        if self.denies_unknown_requests() {
            return Ok(());
        }
        let listed = self.list_questions(directory).await?;
        check_listed(request, listed.iter().map(|listed| &listed.id))
    }

    /// How many tokens each model of the directory's configuration takes, its answer included. opencode's answer holds
    /// the providers' keys; nothing of it but names and sizes is kept.
    pub async fn context_sizes(&self, directory: &str) -> Result<BTreeMap<ModelReference, u64>, ClientError> {
        let answer: Value = self.read(Call::get(&["config", "providers"]).directory(directory)).await?;
        let providers = answer["providers"].as_array().map(Vec::as_slice).unwrap_or_default();
        Ok(providers.iter().flat_map(sizes).collect())
    }

    /// Closes the directory's instance: what runs in it is aborted, and all that is only in memory is forgotten, such as
    /// what `always` allowed. The next call in the directory boots it anew.
    pub async fn dispose_instance(&self, directory: &str) -> Result<(), ClientError> {
        let path = ["instance", "dispose"];
        self.write::<Value>(Call::post(&path, json!({})).directory(directory)).await.map(drop)
    }

    /// What runs in opencode, as its door sees it. Only a door answers this.
    pub async fn door_turns(&self) -> Result<DoorTurns, ClientError> {
        self.read(Call::get(&["berth", "turns"])).await
    }

    /// Takes the door's gate, keeps it, or moves it on; where it stands then. Only a door answers this.
    pub async fn hold_gate(&self, gate: &HoldGate) -> Result<GateState, ClientError> {
        let body =
            serde_json::to_value(gate).map_err(|error| ClientError::InvalidRequest(error.to_string()))?;
        self.write(Call { body: Some(body), ..Call::new(Method::PUT, &["berth", "gate"]) }).await
    }

    /// State of opencode as its door sees it. Only a door answers this.
    pub async fn door_state(&self) -> Result<DoorState, ClientError> {
        self.read(Call::get(&["berth", "state"])).await
    }
}

fn check_listed<'a>(request: &str, mut listed: impl Iterator<Item = &'a String>) -> Result<(), ClientError> {
    if listed.any(|id| id == request) {
        return Ok(());
    }
    Err(ClientError::NotFound { message: format!("request {request} is not open") })
}

fn sizes(provider: &Value) -> Vec<(ModelReference, u64)> {
    let Some((id, models)) = provider["id"].as_str().zip(provider["models"].as_object()) else {
        return Vec::new();
    };
    let size = |(model_id, model): (&String, &Value)| {
        let tokens = model["limit"]["context"].as_u64().filter(|tokens| *tokens > 0)?;
        Some((ModelReference { provider_id: id.to_owned(), model_id: model_id.clone() }, tokens))
    };
    models.iter().filter_map(size).collect()
}
