//! The file that says where the sandboxes are: [`crate::args`] has its form. Pure, but for the passwords that it names.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use berth_server::{SandboxAddress, StaticDirectory};
use secrecy::SecretString;
use serde::Deserialize;

use crate::exit::ControllerError;

/// Longest name, as Kubernetes has it.
const NAME_MAX: usize = 63;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sandboxes {
    sandboxes: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    namespace: String,
    name: String,
    door_url: String,
    password_file: PathBuf,
    directory: String,
}

/// Reads the file's text; `password` reads a file with a password.
pub(crate) fn parse(
    text: &str,
    password: impl Fn(&Path) -> Result<SecretString, ControllerError>,
) -> Result<StaticDirectory, ControllerError> {
    let file: Sandboxes =
        serde_json::from_str(text).map_err(|error| wrong(format!("not as it must be: {error}")))?;
    let mut names = BTreeSet::new();
    let mut addresses = Vec::with_capacity(file.sandboxes.len());
    for (index, entry) in file.sandboxes.into_iter().enumerate() {
        check(&entry).map_err(|reason| wrong(format!("sandboxes[{index}].{reason}")))?;
        if !names.insert((entry.namespace.clone(), entry.name.clone())) {
            return Err(wrong(format!("{}/{} is there twice", entry.namespace, entry.name)));
        }
        addresses.push(SandboxAddress {
            namespace: entry.namespace,
            name: entry.name,
            directory: entry.directory,
            aliases: Vec::new(),
            door_url: entry.door_url.trim_end_matches('/').to_owned(),
            door_password: password(&entry.password_file)?,
            pod_uid: None,
        });
    }
    addresses.sort_by(|one, other| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)));
    Ok(StaticDirectory(addresses))
}

fn wrong(reason: String) -> ControllerError {
    ControllerError::Configuration { field: "--sandboxes", reason }
}

fn check(entry: &Entry) -> Result<(), String> {
    for (field, name) in [("namespace", &entry.namespace), ("name", &entry.name)] {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(plain) {
            return Err(format!("{field} must be 1 to {NAME_MAX} lower-case letters, digits and hyphens"));
        }
    }
    let rest = entry.door_url.strip_prefix("http://").or_else(|| entry.door_url.strip_prefix("https://"));
    if rest.is_none_or(|rest| rest.is_empty() || rest.contains(['@', '?', '#'])) {
        return Err("door_url must be http:// or https:// with a host, and hold no user, password or query"
            .to_owned());
    }
    if !entry.directory.starts_with('/') {
        return Err("directory must be an absolute path".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use berth_server::SandboxDirectory;
    use serde_json::{Value, json};

    use super::*;

    fn entry() -> Value {
        json!({
            "namespace": "team", "name": "one", "door_url": "http://127.0.0.1:4096/", "password_file": "p",
            "directory": "/work",
        })
    }

    fn read(sandboxes: &[Value]) -> Result<StaticDirectory, ControllerError> {
        parse(&json!({ "sandboxes": sandboxes }).to_string(), |_| Ok(SecretString::from("x")))
    }

    #[test]
    fn sandboxes_are_found_in_the_order_of_their_names() {
        let mut other = entry();
        other["name"] = json!("another");
        let directory = read(&[entry(), other]).unwrap();
        let names: Vec<String> = directory.list().into_iter().map(|address| address.name).collect();
        assert_eq!(names, ["another", "one"]);
        assert_eq!(directory.find("team", "one").unwrap().door_url, "http://127.0.0.1:4096");
    }

    #[test]
    fn a_wrong_field_is_named() {
        for (field, value) in [
            ("namespace", ""),
            ("name", "One"),
            ("name", "a/b"),
            ("door_url", "127.0.0.1:4096"),
            ("door_url", "ftp://x"),
            ("door_url", "http://user:pass@x"),
            ("directory", "work"),
        ] {
            let mut wrong = entry();
            wrong[field] = json!(value);
            let error = read(&[entry(), wrong]).unwrap_err().to_string();
            assert!(error.contains(&format!("sandboxes[1].{field}")), "{error}");
            assert!(!error.contains("pass@"), "{error}");
        }
        let twice = read(&[entry(), entry()]).unwrap_err().to_string();
        assert!(twice.contains("team/one is there twice"), "{twice}");
        let mut unknown = entry();
        unknown["colour"] = json!("red");
        assert!(read(&[unknown]).unwrap_err().to_string().contains("colour"));
    }
}
