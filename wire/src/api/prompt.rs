//! Prompts: parts, model and agent.

use std::{borrow::Cow, fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

/// Most parts of one prompt.
pub const PARTS_MAX: usize = 64;
/// Most bytes that one `data:` URL may hold, decoded.
pub const DATA_URL_MAX: usize = 8 * 1024 * 1024;

/// Names a model.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelChoice {
    /// Provider, as opencode's configuration names it.
    #[schema(min_length = 1, max_length = 255)]
    pub provider_id: String,
    /// Model, as the provider names it.
    #[schema(min_length = 1, max_length = 255)]
    pub model_id: String,
}

impl fmt::Display for ModelChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.provider_id, self.model_id)
    }
}

/// A text that names no model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not of the form provider/model")]
pub struct ParseModelError(String);

impl FromStr for ModelChoice {
    type Err = ParseModelError;

    /// Reads `provider/model`; the model's own name may have slashes too.
    fn from_str(text: &str) -> Result<Self, ParseModelError> {
        match text.split_once('/') {
            Some((provider, model)) if !provider.is_empty() && !model.is_empty() => {
                Ok(Self { provider_id: provider.to_owned(), model_id: model.to_owned() })
            }
            _ => Err(ParseModelError(text.to_owned())),
        }
    }
}

/// One part of a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum PromptPart {
    /// Plain text.
    Text {
        /// The text, not blank.
        #[schema(min_length = 1, pattern = r"\S")]
        text: String,
    },
    /// A file; with an image's media type, an image.
    File {
        /// Media type, such as `image/png`.
        #[schema(pattern = "^[a-z]+/[a-z0-9.+-]+$")]
        mime: String,
        /// Its name, for the model and for people.
        #[schema(min_length = 1, max_length = 255)]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        filename: Option<String>,
        /// In a request: a `data:` URL with at most 8 MiB, or a `file://` URL of a path beneath the session's
        /// directory. In an answer, in place of a `data:` URL: the path of this API where the content is,
        /// `/v1/turns/{id}/parts/{index}`.
        url: String,
    },
    /// The mention of a subagent that the agent is asked to use.
    Agent {
        /// Its name.
        #[schema(min_length = 1, max_length = 255, pattern = r"\S")]
        name: String,
    },
}

impl PromptPart {
    /// A text part.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }

    /// For a person, in place of the part: the text itself, `[file.png]`, or `@agent`.
    pub fn summary(&self) -> Cow<'_, str> {
        match self {
            Self::Text { text } => Cow::Borrowed(text),
            Self::File { filename: Some(name), .. } => Cow::Owned(format!("[{name}]")),
            Self::File { mime, url, filename: None } => match url.strip_prefix("file://") {
                Some(path) => Cow::Owned(format!("[{path}]")),
                None => Cow::Owned(format!("[{mime}]")),
            },
            Self::Agent { name } => Cow::Owned(format!("@{name}")),
        }
    }

    fn is_data(&self) -> bool {
        matches!(self, Self::File { url, .. } if has_data_scheme(url))
    }
}

/// URL schemes are the same in any case of letters.
fn has_data_scheme(url: &str) -> bool {
    url.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:"))
}

/// The prompt as it is shown: what `data:` URLs held is found at a path of the API instead.
pub fn shown_prompt(turn: Uuid, parts: Vec<PromptPart>) -> Vec<PromptPart> {
    let shown = |(index, part): (usize, PromptPart)| match part {
        PromptPart::File { mime, filename, .. } if part.is_data() => {
            PromptPart::File { mime, filename, url: format!("/v1/turns/{turn}/parts/{index}") }
        }
        other => other,
    };
    parts.into_iter().enumerate().map(shown).collect()
}

/// Body of `POST /v1/sessions/{id}/messages`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "parts": [{ "type": "text", "text": "What does this repository do?" }] }))]
#[serde(deny_unknown_fields)]
pub struct PostMessage {
    /// The prompt, 1 to 64 parts.
    #[schema(min_items = 1, max_items = 64)]
    pub parts: Vec<PromptPart>,
    /// The model that is to answer; it stays the session's for later prompts. The session's own when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelChoice>,
    /// Name of the agent that is to answer; opencode's default one when absent.
    #[schema(min_length = 1, max_length = 255)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
}

impl PostMessage {
    /// A prompt of one text part.
    pub fn text(text: impl Into<String>) -> Self {
        Self::new(vec![PromptPart::text(text)])
    }

    /// A prompt of these parts, for the session's own model and agent.
    pub fn new(parts: Vec<PromptPart>) -> Self {
        Self { parts, model: None, agent: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_named_by_provider_and_model() {
        let name: ModelChoice = "openrouter/anthropic/claude".parse().unwrap();
        assert_eq!((name.provider_id.as_str(), name.model_id.as_str()), ("openrouter", "anthropic/claude"));
        assert_eq!(name.to_string(), "openrouter/anthropic/claude");
        for bad in ["", "model", "/model", "provider/"] {
            assert!(bad.parse::<ModelChoice>().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_shown_of_a_prompt_holds_no_data() {
        let file = |url: &str| PromptPart::File {
            mime: "image/png".to_owned(),
            filename: None,
            url: url.to_owned(),
        };
        let parts =
            vec![PromptPart::text("hi"), file("DATA:image/png;base64,AA"), file("file:///work/a.png")];
        let shown = shown_prompt(Uuid::nil(), parts.clone());
        assert_eq!(shown[0], parts[0]);
        assert_eq!(shown[1], file(&format!("/v1/turns/{}/parts/1", Uuid::nil())));
        assert_eq!(shown[2], parts[2]);
    }
}
