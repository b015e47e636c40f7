//! opencode's configuration: what may be secret in it, and the same without. Pure.

use berth_testkit::fixture::{REDACTED, Redactor};
use serde_json::Value;

/// In opencode's configuration, what is below these may be secret whatever it is called.
const SECRET_PLACES: [&str; 4] = ["environment", "env", "headers", "options"];

/// Every string in a value.
pub fn strings(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::String(text) => found.push(text.clone()),
        Value::Array(list) => list.iter().for_each(|item| strings(item, found)),
        Value::Object(map) => map.values().for_each(|item| strings(item, found)),
        _ => {}
    }
}

/// What may be secret in opencode's configuration.
pub fn in_config(value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    collect(value, &mut found);
    found
}

fn collect(value: &Value, found: &mut Vec<String>) {
    if let Value::Object(map) = value {
        for (name, item) in map {
            if SECRET_PLACES.contains(&name.as_str()) {
                strings(&without_addresses(item), found);
            } else if name == "command" {
                strings(&arguments(item), found);
            } else {
                collect(item, found);
            }
        }
    }
}

/// A configuration of opencode with nothing in it that may be secret.
pub fn without_secrets(value: Value, redactor: &Redactor) -> Value {
    redactor.value(hidden(value))
}

fn hidden(value: Value) -> Value {
    let Value::Object(map) = value else { return value };
    let hide = |(name, item): (String, Value)| {
        let item = if SECRET_PLACES.contains(&name.as_str()) {
            emptied(item)
        } else if name == "command" {
            program(item)
        } else {
            hidden(item)
        };
        (name, item)
    };
    map.into_iter().map(hide).collect()
}

/// Addresses help whoever reads; what is secret in them is found by what it looks like.
fn is_address(name: &str) -> bool {
    name == "baseURL"
}

fn without_addresses(value: &Value) -> Value {
    match value {
        Value::Object(map) => map
            .iter()
            .filter(|(name, _)| !is_address(name))
            .map(|(name, item)| (name.clone(), item.clone()))
            .collect(),
        other => other.clone(),
    }
}

fn emptied(value: Value) -> Value {
    match value {
        Value::String(_) => Value::from(REDACTED),
        Value::Array(list) => list.into_iter().map(emptied).collect(),
        Value::Object(map) => map
            .into_iter()
            .map(|(name, item)| {
                let item = if is_address(&name) { item } else { emptied(item) };
                (name, item)
            })
            .collect(),
        other => other,
    }
}

/// The arguments of a command, of which any may be a key.
fn arguments(command: &Value) -> Value {
    let rest = command.as_array().into_iter().flatten().skip(1);
    // Options by themselves, such as `-y`, are none.
    rest.filter(|word| !word.as_str().is_some_and(|word| word.starts_with('-') && !word.contains('=')))
        .cloned()
        .collect()
}

/// A command without its arguments.
fn program(command: Value) -> Value {
    match command {
        Value::Array(list) => {
            let mut words = list.into_iter();
            words.next().into_iter().chain(words.map(emptied)).collect()
        }
        other => hidden(other),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_configuration_keeps_its_shape_and_loses_its_secrets() {
        let config = json!({
            "model": "anthropic/claude",
            "provider": { "anthropic": { "options": { "apiKey": "one-secret", "baseURL": "http://u:pw-secret@h/v1" } } },
            "mcp": { "x": { "command": ["npx", "-y", "--key=two-secret", "three-secret"],
                            "environment": { "PLAIN": "four-secret" }, "headers": { "X": "five-secret" } } },
            "permission": { "bash": "ask" }
        });
        let clean = without_secrets(config.clone(), &Redactor::new(Vec::new()));
        let text = clean.to_string();
        assert!(!text.contains("secret"), "{text}");
        assert_eq!(clean["permission"], config["permission"]);
        assert_eq!(clean["mcp"]["x"]["command"][0], "npx");
        let mut found = in_config(&config);
        found.sort();
        assert_eq!(found, ["--key=two-secret", "five-secret", "four-secret", "one-secret", "three-secret"]);
    }
}
