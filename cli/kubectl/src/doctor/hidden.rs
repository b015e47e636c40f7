//! Objects of the cluster with nothing in them that may be secret, and what may be secret in them. Pure.

use std::collections::BTreeSet;

use berth_command::secrets::{in_config, without_secrets};
use berth_testkit::fixture::{REDACTED, Redactor};
use serde_json::{Map, Value};

/// opencode's configuration, as a pod has it.
const CONFIGURATION: &str = "OPENCODE_CONFIG_CONTENT";

/// Holds the whole manifest once more.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Shorter values are in every other word, and protect nothing.
const SECRET_MIN: usize = 5;

/// The object without what may be secret in it, whatever it is called: values of variables but for Berth's own, and what
/// opencode's configuration keeps keys in.
pub(super) fn object(mut value: Value, redactor: &Redactor) -> Value {
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
        let annotations = metadata.get_mut("annotations").and_then(Value::as_object_mut);
        annotations.and_then(|annotations| annotations.remove(LAST_APPLIED));
    }
    redactor.value(inside(value, redactor))
}

fn inside(value: Value, redactor: &Redactor) -> Value {
    match value {
        Value::Array(list) => list.into_iter().map(|item| inside(item, redactor)).collect(),
        Value::Object(map) => map
            .into_iter()
            .map(|(name, item)| {
                let item = match name.as_str() {
                    "env" => variables(item, redactor),
                    "config" if item.is_object() => without_secrets(item, redactor),
                    _ => inside(item, redactor),
                };
                (name, item)
            })
            .collect(),
        other => other,
    }
}

fn variables(list: Value, redactor: &Redactor) -> Value {
    let Value::Array(list) = list else { return Value::from(REDACTED) };
    let hide = |item: Value| match item {
        Value::Object(variable) => Value::Object(hide_value(variable, redactor)),
        _ => Value::from(REDACTED),
    };
    list.into_iter().map(hide).collect()
}

fn hide_value(mut variable: Map<String, Value>, redactor: &Redactor) -> Map<String, Value> {
    let name = variable.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    if let Some(value) = variable.get_mut("value").filter(|_| !is_berths(&name)) {
        let configuration = value.as_str().filter(|_| name == CONFIGURATION);
        let parsed = configuration.and_then(|text| serde_json::from_str::<Value>(text).ok());
        *value = match parsed {
            Some(parsed) => Value::from(without_secrets(parsed, redactor).to_string()),
            None => Value::from(REDACTED),
        };
    }
    variable
}

/// Variables that Berth sets, whose values are no secrets.
fn is_berths(name: &str) -> bool {
    let starts = ["BERTH_", "OPENCODE_DISABLE_", "XDG_"].iter().any(|start| name.starts_with(start));
    starts || name == "HOME"
}

/// What may be secret in a Sandbox or a template.
pub(super) fn secrets(manifest: &Value) -> Vec<String> {
    let opencode = &manifest["spec"]["opencode"];
    let variables = opencode["env"].as_array().into_iter().flatten();
    let values = variables.filter_map(|variable| variable["value"].as_str()).map(str::to_owned);
    let mut found = in_config(&opencode["config"]);
    found.extend(values);
    found
}

/// The Secrets that a manifest names, wherever it does, by their names.
pub(super) fn references(manifest: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    collect(&manifest["spec"], &mut found);
    found
}

fn collect(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Array(list) => list.iter().for_each(|item| collect(item, found)),
        Value::Object(map) => {
            for (name, item) in map {
                if name.to_ascii_lowercase().ends_with("secretkeyref") || name.ends_with("SecretRef") {
                    found.extend(item["name"].as_str().map(str::to_owned));
                }
                collect(item, found);
            }
        }
        _ => {}
    }
}

/// Those of them that can be told from other words.
pub(super) fn worth_hiding(secrets: impl IntoIterator<Item = String>) -> Vec<String> {
    let trimmed = secrets.into_iter().map(|secret| secret.trim().to_owned());
    trimmed
        .filter(|secret| secret.len() >= SECRET_MIN && !["true", "false"].contains(&secret.as_str()))
        .collect()
}

#[cfg(test)]
mod tests {
    use secrecy::SecretString;
    use serde_json::json;

    use super::*;

    fn manifest() -> Value {
        json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "Sandbox",
            "metadata": { "name": "one", "managedFields": [{ "x": "planted-managed" }], "annotations": {
                LAST_APPLIED: "{\"env\": \"planted-applied\"}", "plain": "kept",
            } },
            "spec": {
                "model": "anthropic/large",
                "providers": [{ "name": "anthropic", "apiKeySecretRef": { "name": "keys", "key": "anthropic" } }],
                "opencode": {
                    "env": [
                        { "name": "PLAIN", "value": "planted-variable" },
                        { "name": "OTHER", "valueFrom": { "secretKeyRef": { "name": "more", "key": "k" } } },
                    ],
                    "config": { "permission": { "bash": "ask" },
                        "provider": { "x": { "options": { "apiKey": "planted-option" } } },
                        "mcp": { "y": { "headers": { "X": "planted-header" }, "command": ["npx", "--key=planted-word"] } } },
                },
                "seed": { "git": { "url": "https://user:planted-url@git.test/x", "credentialsSecretRef": { "name": "git" } } },
            },
        })
    }

    #[test]
    fn an_object_keeps_its_shape_and_loses_its_secrets() {
        let shown = object(manifest(), &Redactor::new(Vec::new()));
        let text = shown.to_string();
        assert!(!text.contains("planted"), "{text}");
        assert_eq!(shown["spec"]["model"], "anthropic/large");
        assert_eq!(shown["metadata"]["annotations"]["plain"], "kept");
        assert_eq!(shown["spec"]["opencode"]["config"]["permission"]["bash"], "ask");
        assert_eq!(shown["spec"]["opencode"]["env"][1]["valueFrom"]["secretKeyRef"]["name"], "more");
    }

    #[test]
    fn a_pods_configuration_is_cleaned_and_berths_own_variables_stay() {
        let config = manifest()["spec"]["opencode"]["config"].to_string();
        let pod = json!({ "spec": { "containers": [{ "env": [
            { "name": CONFIGURATION, "value": config }, { "name": "BERTH_SUPERVISOR_PORT", "value": "4095" },
            { "name": "PLAIN", "value": "planted-variable" }, { "name": CONFIGURATION, "value": "planted-broken" },
        ] }] } });
        let shown = object(pod, &Redactor::new(Vec::new()));
        let text = shown.to_string();
        assert!(!text.contains("planted") && text.contains("permission") && text.contains("4095"), "{text}");
    }

    #[test]
    fn what_a_manifest_tells_is_taken_out_of_logs_too() {
        let mut found = worth_hiding(secrets(&manifest()));
        found.sort();
        assert_eq!(found, ["--key=planted-word", "planted-header", "planted-option", "planted-variable"]);
        let redactor = Redactor::new(found.into_iter().map(SecretString::from).collect());
        assert!(!redactor.text("opencode says planted-variable, and planted-option").contains("planted"));
        assert_eq!(
            worth_hiding(["true".to_owned(), "abc".to_owned(), " long-enough\n".to_owned()]),
            ["long-enough"]
        );
    }

    #[test]
    fn the_secrets_that_a_manifest_names_are_found_wherever_they_stand() {
        assert_eq!(references(&manifest()).into_iter().collect::<Vec<_>>(), ["git", "keys", "more"]);
    }
}
