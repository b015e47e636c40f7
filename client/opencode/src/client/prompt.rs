//! What a prompt is made of. Pure.

use serde_json::{Map, Value, json};

use crate::model::ModelReference;

/// What a part of a prompt holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PromptContent {
    /// Text.
    Text(String),
    /// A file.
    File {
        /// Media type, such as `image/png`.
        mime: String,
        /// Where it is: `data:<mime>;base64,...`, or `file://` with an absolute path of opencode's machine. Text of a
        /// `text/plain` file is put into the prompt by opencode.
        url: String,
        /// Its name, for the model.
        filename: Option<String>,
    },
    /// A subagent that the model is asked to use, by its name.
    Agent(String),
}

/// A part of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptPart {
    /// Part id, from [`crate::ids::part_id`]: without one, opencode doubles the part when the prompt is sent again.
    pub id: String,
    /// What it holds.
    pub content: PromptContent,
}

impl PromptPart {
    /// A text, under a new part id.
    pub fn text(text: impl Into<String>) -> Self {
        Self { id: crate::ids::part_id(), content: PromptContent::Text(text.into()) }
    }

    fn to_json(&self) -> Value {
        let id = &self.id;
        match &self.content {
            PromptContent::Text(text) => json!({ "id": id, "type": "text", "text": text }),
            PromptContent::File { mime, url, filename: Some(name) } => {
                json!({ "id": id, "type": "file", "mime": mime, "url": url, "filename": name })
            }
            PromptContent::File { mime, url, filename: None } => {
                json!({ "id": id, "type": "file", "mime": mime, "url": url })
            }
            PromptContent::Agent(name) => json!({ "id": id, "type": "agent", "name": name }),
        }
    }
}

/// A prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// Message id, from [`crate::ids::message_id`].
    pub message_id: String,
    /// Its parts; must not be empty, since opencode would run a turn about nothing.
    pub parts: Vec<PromptPart>,
    /// Model, when not the session's: one that is named stays the session's for later prompts, also when it does not
    /// exist (measured on opencode 1.18.33).
    pub model: Option<ModelReference>,
    /// Agent, when not the default one.
    pub agent: Option<String>,
    /// Words for the system prompt of this turn, after opencode's own.
    pub system: Option<String>,
    /// Variant of the model, such as an effort: one of those that opencode lists for it.
    pub variant: Option<String>,
}

impl Prompt {
    /// A prompt of these parts under this message id, for the session's own model and agent.
    pub fn new(message_id: impl Into<String>, parts: Vec<PromptPart>) -> Self {
        Self { message_id: message_id.into(), parts, model: None, agent: None, system: None, variant: None }
    }

    pub(super) fn to_json(&self) -> Value {
        let mut body = Map::new();
        body.insert("messageID".to_owned(), json!(self.message_id));
        body.insert("parts".to_owned(), self.parts.iter().map(PromptPart::to_json).collect());
        if let Some(model) = &self.model {
            let value = json!({ "providerID": model.provider_id, "modelID": model.model_id });
            body.insert("model".to_owned(), value);
        }
        for (name, value) in [("agent", &self.agent), ("system", &self.system), ("variant", &self.variant)] {
            if let Some(value) = value {
                body.insert(name.to_owned(), json!(value));
            }
        }
        Value::Object(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_holds_what_was_given_and_nothing_else() {
        let part = |id: &str, content| PromptPart { id: id.to_owned(), content };
        let file = |filename: Option<&str>| PromptContent::File {
            mime: "text/plain".to_owned(),
            url: "data:text/plain;base64,aGVsbG8=".to_owned(),
            filename: filename.map(str::to_owned),
        };
        let parts = vec![
            part("prt_1", PromptContent::Text("hi".to_owned())),
            part("prt_2", file(Some("a.txt"))),
            part("prt_3", file(None)),
            part("prt_4", PromptContent::Agent("general".to_owned())),
        ];
        let mut prompt = Prompt::new("msg_1", parts);
        let url = "data:text/plain;base64,aGVsbG8=";
        let expected = json!([
            { "id": "prt_1", "type": "text", "text": "hi" },
            { "id": "prt_2", "type": "file", "mime": "text/plain", "url": url, "filename": "a.txt" },
            { "id": "prt_3", "type": "file", "mime": "text/plain", "url": url },
            { "id": "prt_4", "type": "agent", "name": "general" },
        ]);
        assert_eq!(prompt.to_json(), json!({ "messageID": "msg_1", "parts": expected }));
        prompt.parts.clear();
        prompt.model = Some(ModelReference { provider_id: "p".to_owned(), model_id: "m".to_owned() });
        (prompt.agent, prompt.system, prompt.variant) =
            (Some("plan".to_owned()), Some("be brief".to_owned()), Some("low".to_owned()));
        let expected = json!({
            "messageID": "msg_1", "parts": [], "model": { "providerID": "p", "modelID": "m" }, "agent": "plan",
            "system": "be brief", "variant": "low",
        });
        assert_eq!(prompt.to_json(), expected);
    }
}
