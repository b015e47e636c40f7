//! Objects as text: documents of YAML, or a List as JSON. Pure.

use serde_json::{Value, json};

use crate::{args::ObjectFormat, error::PluginError};

/// Objects in one text. What stands in `about` goes before each as a comment, where the format has such.
pub(crate) fn objects(format: ObjectFormat, objects: &[(String, Value)]) -> Result<String, PluginError> {
    match format {
        ObjectFormat::Json => {
            let items: Vec<Value> = objects.iter().map(|(_, object)| object.clone()).collect();
            Ok(format!("{:#}\n", list(&items)))
        }
        ObjectFormat::Yaml => {
            let mut text = String::new();
            for (about, object) in objects {
                text.push_str("---\n");
                if !about.is_empty() {
                    text.extend(["# ", about, "\n"]);
                }
                text.push_str(&document(object)?);
            }
            Ok(text)
        }
    }
}

/// One document.
pub(crate) fn document(object: &Value) -> Result<String, PluginError> {
    let text = serde_saphyr::to_string(object);
    let mut text = text.map_err(|error| PluginError::Output(std::io::Error::other(error)))?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

/// As kubectl gives several objects.
pub(crate) fn list(items: &[Value]) -> Value {
    json!({ "apiVersion": "v1", "kind": "List", "metadata": { "resourceVersion": "" }, "items": items })
}

/// The documents of a text; empty ones are left out, and of Lists the items are taken.
pub(crate) fn read(text: &str) -> Result<Vec<Value>, String> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).map_err(|error| error.to_string())?;
    let mut objects = Vec::new();
    for document in documents {
        match document {
            Value::Null => {}
            Value::Object(mut list) if list.get("kind").is_some_and(|kind| kind == "List") => {
                let items = list.remove("items").unwrap_or_default();
                objects.extend(items.as_array().into_iter().flatten().cloned());
            }
            other => objects.push(other),
        }
    }
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let one = json!({ "kind": "A", "text": "yes", "lines": "a\nb: c\n", "number": "1", "none": null, "list": [] });
        let two = json!({ "kind": "B" });
        for format in [ObjectFormat::Yaml, ObjectFormat::Json] {
            let given = [("first".to_owned(), one.clone()), (String::new(), two.clone())];
            let text = objects(format, &given).unwrap();
            assert_eq!(read(&text).unwrap(), [one.clone(), two.clone()], "{text}");
        }
    }

    #[test]
    fn documents_with_nothing_in_them_are_left_out() {
        assert_eq!(read("---\n# nothing\n---\nkind: A\n---\n").unwrap(), [json!({ "kind": "A" })]);
        assert!(read("a: [").is_err());
    }
}
