//! The configuration that opencode gets from a `Sandbox`: `OPENCODE_CONFIG_CONTENT`. Pure.
//!
//! It holds no key: a provider's is named by the variable that has it, as `{env:NAME}`, since tools that the agent runs
//! see this text in their environment (measured on opencode 1.18.33).

use serde_json::{Map, Value, json};

use crate::{
    canonical, names,
    settings::{Provider, Settings},
};

/// Switches that keep opencode from replacing itself, and from looking for tools on the network while it starts. The
/// images have what it needs.
pub const SWITCHES: [&str; 3] =
    ["OPENCODE_DISABLE_AUTOUPDATE", "OPENCODE_DISABLE_DEFAULT_PLUGINS", "OPENCODE_DISABLE_LSP_DOWNLOAD"];

/// The configuration as one object: what the manifest gives as it is, then what the manifest's own fields say, then
/// what is Berth's.
pub fn build(spec: &Settings) -> Value {
    let mut config = spec.opencode.as_ref().and_then(|opencode| opencode.config.clone()).unwrap_or_default();
    if let Some(model) = &spec.model {
        config.insert("model".to_owned(), json!(model));
    }
    for provider in &spec.providers {
        add_provider(&mut config, provider);
    }
    // Without them opencode does not know what a turn changed, and `berth diff` shows nothing.
    config.entry("snapshot").or_insert(json!(true));
    config.insert("autoupdate".to_owned(), json!(false));
    config.insert("share".to_owned(), json!("disabled"));
    config.remove("server");
    // One manifest gives one text, however it was written: pods are compared by it.
    canonical::value(&config)
}

fn add_provider(config: &mut Map<String, Value>, provider: &Provider) {
    let options = ["provider", &*provider.name, "options"].into_iter().fold(config, object);
    if provider.api_key_secret_ref.is_some() {
        let variable = names::key_variable(&provider.name);
        options.insert("apiKey".to_owned(), json!(format!("{{env:{variable}}}")));
    }
    if let Some(url) = &provider.base_url {
        options.insert("baseURL".to_owned(), json!(url));
    }
}

/// The object of this name, in place of whatever else is there.
fn object<'a>(parent: &'a mut Map<String, Value>, name: &str) -> &'a mut Map<String, Value> {
    let member = parent.entry(name).or_insert_with(|| Value::Object(Map::new()));
    if !member.is_object() {
        *member = Value::Object(Map::new());
    }
    member.as_object_mut().expect("it was made one just now")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(value: Value) -> Settings {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn an_empty_manifest_has_what_is_berths() {
        assert_eq!(
            build(&Settings::default()),
            json!({ "autoupdate": false, "share": "disabled", "snapshot": true })
        );
    }

    #[test]
    fn fields_of_the_manifest_go_before_the_configuration_and_the_rest_of_it_stays() {
        let built = build(&spec(json!({
            "model": "gateway/large",
            "providers": [
                { "name": "gateway", "baseURL": "https://models.test/v1", "apiKeySecretRef": { "name": "s", "key": "k" } },
                { "name": "odd", "baseURL": "http://odd.test" },
            ],
            "opencode": { "config": {
                "model": "other/small", "small_model": "gateway/small", "permission": { "bash": "ask" },
                "provider": { "gateway": { "npm": "@ai-sdk/openai-compatible", "options": { "timeout": 1 } }, "odd": 7 },
                "share": "auto", "autoupdate": true, "snapshot": false, "server": { "port": 1 },
            } },
        })));
        assert_eq!(
            built,
            json!({
                "model": "gateway/large", "small_model": "gateway/small", "permission": { "bash": "ask" },
                "provider": {
                    "gateway": { "npm": "@ai-sdk/openai-compatible", "options": {
                        "timeout": 1, "baseURL": "https://models.test/v1", "apiKey": "{env:PROVIDER_GATEWAY_API_KEY}",
                    } },
                    "odd": { "options": { "baseURL": "http://odd.test" } },
                },
                "share": "disabled", "autoupdate": false, "snapshot": false,
            })
        );
    }
}
