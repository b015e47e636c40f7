//! What a directory's configuration offers: models and agents. IO.

use serde::Deserialize;
use serde_json::Value;

use super::{Call, OpencodeClient};
use crate::{error::ClientError, model::ModelReference};

/// A model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelDetails {
    /// Its ids.
    pub id: ModelReference,
    /// Its name for a person.
    pub name: String,
    /// Its provider's name for a person.
    pub provider: String,
    /// Tokens that it takes, its answer included; none where that is not told.
    pub context: Option<u64>,
    /// It takes images.
    pub images: bool,
    /// The configuration names it as the one to take.
    pub configured: bool,
}

/// An agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct AgentDetails {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub description: Option<String>,
    /// `primary`, `subagent` or `all`.
    pub mode: String,
    /// It is for opencode's own use, such as writing titles.
    pub hidden: bool,
    /// The model that it is tied to.
    pub model: Option<AgentModel>,
}

/// The model of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct AgentModel {
    /// Its provider.
    #[serde(rename = "providerID")]
    pub provider_id: String,
    /// Its id.
    #[serde(rename = "modelID")]
    pub model_id: String,
}

impl OpencodeClient {
    /// The models that the directory's configuration offers, by provider. opencode's answers hold the providers' keys;
    /// nothing of them but what is named here is kept.
    pub async fn list_models(&self, directory: &str) -> Result<Vec<ModelDetails>, ClientError> {
        let answer: Value = self.read(Call::get(&["config", "providers"]).directory(directory)).await?;
        let config: Value = self.read(Call::get(&["config"]).directory(directory)).await?;
        let configured = config["model"].as_str().and_then(|model| model.split_once('/'));
        let providers = answer["providers"].as_array().map(Vec::as_slice).unwrap_or_default();
        Ok(providers.iter().flat_map(|provider| models_of(provider, configured)).collect())
    }

    /// The agents that the directory's configuration offers.
    pub async fn list_agents(&self, directory: &str) -> Result<Vec<AgentDetails>, ClientError> {
        self.read(Call::get(&["agent"]).directory(directory)).await
    }
}

fn models_of(provider: &Value, configured: Option<(&str, &str)>) -> Vec<ModelDetails> {
    let Some((provider_id, models)) = provider["id"].as_str().zip(provider["models"].as_object()) else {
        return Vec::new();
    };
    let details = |(model_id, model): (&String, &Value)| ModelDetails {
        id: ModelReference { provider_id: provider_id.to_owned(), model_id: model_id.clone() },
        name: model["name"].as_str().unwrap_or(model_id).to_owned(),
        provider: provider["name"].as_str().unwrap_or(provider_id).to_owned(),
        context: model["limit"]["context"].as_u64().filter(|tokens| *tokens > 0),
        images: model["capabilities"]["input"]["image"].as_bool().unwrap_or_default(),
        configured: configured == Some((provider_id, model_id)),
    };
    models.iter().map(details).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn of_a_provider_only_names_are_kept() {
        let provider = json!({
            "id": "acme", "name": "Acme", "key": "secret", "options": { "apiKey": "secret" },
            "models": {
                "a": { "name": "A", "limit": { "context": 1000 }, "capabilities": { "input": { "image": true } } },
                "b/c": { "limit": { "context": 0 } },
            },
        });
        let models = models_of(&provider, Some(("acme", "b/c")));
        let seen: Vec<_> = models
            .iter()
            .map(|model| {
                (
                    model.id.model_id.as_str(),
                    model.name.as_str(),
                    model.context,
                    model.images,
                    model.configured,
                )
            })
            .collect();
        assert_eq!(seen, [("a", "A", Some(1000), true, false), ("b/c", "b/c", None, false, true)]);
        assert!(!format!("{models:?}").contains("secret"));
        assert!(models_of(&json!({ "models": [] }), None).is_empty());
    }
}
