//! The definitions of the kinds, as they are installed in a cluster. Pure.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

use crate::{Sandbox, SandboxTemplate};

/// Definition of `Sandbox`.
pub fn sandbox() -> CustomResourceDefinition {
    labelled(Sandbox::crd())
}

/// Definition of `SandboxTemplate`.
pub fn template() -> CustomResourceDefinition {
    labelled(SandboxTemplate::crd())
}

fn labelled(mut definition: CustomResourceDefinition) -> CustomResourceDefinition {
    let labels = definition.metadata.labels.get_or_insert_default();
    labels.insert("app.kubernetes.io/part-of".to_owned(), "berth".to_owned());
    definition
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::names;

    fn schema_of(definition: &CustomResourceDefinition) -> Value {
        let definition = serde_json::to_value(definition).unwrap();
        definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
    }

    fn schema() -> Value {
        schema_of(&sandbox())
    }

    /// Paths of properties without a description. What Kubernetes defines itself is not looked into.
    fn without_description(path: &str, schema: &Value, found: &mut Vec<String>) {
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            if property["description"].as_str().is_none_or(str::is_empty) {
                found.push(path.clone());
            }
            without_description(&path, property, found);
        }
        if let Some(items) = schema.get("items") {
            without_description(&format!("{path}[]"), items, found);
        }
    }

    fn rules<'a>(schema: &'a Value, found: &mut Vec<&'a Value>) {
        found.extend(schema["x-kubernetes-validations"].as_array().into_iter().flatten());
        match schema {
            Value::Object(members) => members.values().for_each(|member| rules(member, found)),
            Value::Array(members) => members.iter().for_each(|member| rules(member, found)),
            _ => {}
        }
    }

    /// Whether a default stands anywhere; a property may have that name.
    fn has_default(schema: &Value) -> bool {
        match schema {
            Value::Object(members) => {
                let is_schema = members.contains_key("type") || members.contains_key("anyOf");
                is_schema && members.contains_key("default") || members.values().any(has_default)
            }
            Value::Array(members) => members.iter().any(has_default),
            _ => false,
        }
    }

    #[test]
    fn every_field_is_described() {
        let mut found = Vec::new();
        without_description("", &schema()["properties"]["spec"], &mut found);
        without_description("", &schema()["properties"]["status"], &mut found);
        without_description("", &schema_of(&template())["properties"]["spec"], &mut found);
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn every_rule_says_what_to_change() {
        let (schema, template) = (schema(), schema_of(&template()));
        let mut found = Vec::new();
        rules(&schema, &mut found);
        rules(&template, &mut found);
        assert!(found.len() >= 60, "{}", found.len());
        assert!(found.iter().all(|rule| rule["message"].as_str().is_some_and(|text| !text.is_empty())));
        let root = schema["x-kubernetes-validations"].to_string();
        assert!(root.contains(&format!("<= {}", names::NAME_MAX)), "{root}");
    }

    #[test]
    fn nothing_is_required_that_can_be_filled_in_and_nothing_has_a_default() {
        for schema in [schema(), schema_of(&template())] {
            assert_eq!(schema["properties"]["spec"].get("required"), None);
            assert!(!has_default(&schema), "{schema}");
        }
    }

    #[test]
    fn lists_are_maps_by_name_and_free_form_is_kept() {
        let spec = &schema()["properties"]["spec"]["properties"];
        for list in [&spec["providers"], &spec["opencode"]["properties"]["env"]] {
            assert_eq!(list["x-kubernetes-list-type"], "map");
            assert_eq!(list["x-kubernetes-list-map-keys"], json!(["name"]));
        }
        // With additionalProperties beside it, the apiserver drops what is deeper than one level (measured on 1.36).
        let mut config = spec["opencode"]["properties"]["config"].clone();
        config.as_object_mut().unwrap().remove("description");
        let free =
            json!({ "type": "object", "nullable": true, "x-kubernetes-preserve-unknown-fields": true });
        assert_eq!(config, free);
        let amount = &spec["resources"]["properties"]["limits"]["additionalProperties"];
        assert_eq!(amount["x-kubernetes-int-or-string"], true, "{amount}");
    }

    #[test]
    fn it_fits_what_kubectl_apply_can_hold() {
        for definition in [sandbox(), template()] {
            let length = serde_json::to_string(&definition).unwrap().len();
            assert!(length < 200_000, "{length}");
        }
    }
}
