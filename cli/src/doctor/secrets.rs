//! What must not be shown, and its removal. Reads the files that hold secrets; shows none.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
};

use berth_command::secrets::{in_config, strings};
use berth_testkit::fixture::Redactor;
use secrecy::SecretString;
use serde_json::Value;

use super::{
    DoctorConfig,
    files::sandboxes,
    opencode::{files, parse, project_files},
};
use crate::{args::PROVIDER_VARIABLES, directories::noted};

/// Shorter values are in every other word, and protect nothing.
const SECRET_MIN: usize = 5;
/// Shorter values of a file that cannot be read are taken for words.
const BROKEN_MIN: usize = 8;
/// Longest file with secrets that is read, in bytes.
const FILE_MAX: u64 = 4 * 1024 * 1024;
/// Variables of providers that are no secrets.
const NOT_SECRET: [&str; 2] = ["AWS_REGION", "AZURE_RESOURCE_NAME"];
/// Ends of the names of variables that hold secrets.
const SECRET_NAMES: [&str; 8] =
    ["KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIALS", "AUTH"];

/// Takes out whatever is secret here, and whatever looks like it.
pub(super) fn redactor(config: &DoctorConfig) -> Redactor {
    let mut secrets = Vec::new();
    let state = &config.server.state;
    let tokens = [Some(state.token()), config.server.token_file.clone()];
    for path in tokens.into_iter().flatten() {
        secrets.extend(read(&path).map(|text| text.trim().to_owned()));
    }
    let own = sandboxes(state.root()).into_iter().map(|(_, data)| data.join("data/opencode/auth.json"));
    for path in std::iter::once(config.auth.clone()).chain(own) {
        let value = read(&path).and_then(|text| serde_json::from_str(&text).ok());
        strings(&value.unwrap_or(Value::Null), &mut secrets);
    }
    secrets.extend(of_environment(&config.environment));
    for path in configurations(config) {
        match parse(&path) {
            Ok(value) => {
                let found = in_config(&value.unwrap_or_default());
                let named = found.iter().flat_map(|text| referred_to(text, &path, &config.environment));
                let named: Vec<String> = named.collect();
                secrets.extend(found.into_iter().chain(named));
            }
            Err(_) => in_broken(&read(&path).unwrap_or_default(), &mut secrets),
        }
    }
    assigned(&mut secrets);
    secrets.retain(|secret| secret.len() >= SECRET_MIN && !is_word(secret));
    Redactor::new(secrets.into_iter().map(SecretString::from).collect())
}

/// Every configuration of which something may be in what is collected: the user's, this directory's, and those of each
/// directory in which a sandbox works or has worked.
fn configurations(config: &DoctorConfig) -> BTreeSet<PathBuf> {
    let worked = sandboxes(config.server.state.root()).into_iter().flat_map(|(_, data)| noted(&data));
    let projects = std::iter::once(config.directory.clone()).chain(worked);
    let given = ["OPENCODE_CONFIG"].map(|name| config.environment.get(OsStr::new(name)).map(PathBuf::from));
    files(config)
        .into_iter()
        .chain(projects.flat_map(|directory| project_files(&directory).collect::<Vec<_>>()))
        .chain(given.into_iter().flatten())
        .collect()
}

/// What `{env:NAME}` and `{file:path}` in a configuration stand for.
fn referred_to(text: &str, configuration: &Path, environment: &BTreeMap<OsString, OsString>) -> Vec<String> {
    let mut found = Vec::new();
    for piece in text.split('{').skip(1).filter_map(|piece| Some(piece.split_once('}')?.0)) {
        if let Some(name) = piece.strip_prefix("env:") {
            found.extend(environment.get(OsStr::new(name)).map(|value| value.to_string_lossy().into_owned()));
        } else if let Some(path) = piece.strip_prefix("file:") {
            let home = environment.get(OsStr::new("HOME")).map(PathBuf::from).unwrap_or_default();
            let path = match path.strip_prefix("~/") {
                Some(rest) => home.join(rest),
                None => configuration.with_file_name(path),
            };
            found.extend(read(&path).map(|text| text.trim().to_owned()));
        }
    }
    found
}

/// Of `--key=value` the value is secret on its own, too.
fn assigned(secrets: &mut Vec<String>) {
    let values = secrets.iter().filter(|secret| secret.starts_with('-'));
    let values: Vec<_> = values.filter_map(|secret| Some(secret.split_once('=')?.1.to_owned())).collect();
    secrets.extend(values);
}

/// Words that say what a secret is for, and are none.
fn is_word(text: &str) -> bool {
    matches!(text, "oauth" | "wellknown" | "true" | "false")
}

fn read(path: &Path) -> Option<String> {
    let length = fs::metadata(path).ok()?.len();
    if length > FILE_MAX { None } else { fs::read_to_string(path).ok() }
}

/// Values of variables whose names say that they are secret.
fn of_environment(environment: &BTreeMap<OsString, OsString>) -> impl Iterator<Item = String> {
    let named = environment.iter().filter(|(name, _)| {
        let name = name.to_string_lossy().to_ascii_uppercase();
        let provider = PROVIDER_VARIABLES.contains(&&*name) && !NOT_SECRET.contains(&&*name);
        provider || SECRET_NAMES.iter().any(|end| name.ends_with(end))
    });
    named.map(|(_, value)| value.to_string_lossy().into_owned())
}

/// What may be secret in a configuration that cannot be read as one: whatever is between quotes and names nothing.
/// Quotes that are missing make values of what is between values, so both readings count.
fn in_broken(text: &str, found: &mut Vec<String>) {
    for line in text.lines() {
        let pieces: Vec<&str> = line.split('"').collect();
        let values = pieces.iter().enumerate().skip(1).filter(|(index, _)| {
            let after = pieces.get(index + 1).map_or("", |after| after.trim_start());
            !after.starts_with(':')
        });
        let trimmed =
            values.map(|(_, piece)| piece.trim_matches(|letter: char| " \t,:[]{}".contains(letter)));
        found.extend(trimmed.filter(|value| value.len() >= BROKEN_MIN).map(ToOwned::to_owned));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_configuration_tells_its_secrets() {
        let text = r#"{
            "provider": { "anthropic": { "options": { "apiKey": "one-secret", } },
            "mcp": { "x": { "environment": { "PLAIN": two-secret" }, "headers": { "X": "three-secret }
            "y": ["--key=four-secret" "five-secret"]"#;
        let mut found = Vec::new();
        in_broken(text, &mut found);
        assigned(&mut found);
        let redactor = Redactor::new(found.into_iter().map(SecretString::from).collect());
        for secret in ["one-secret", "two-secret", "three-secret", "four-secret", "five-secret"] {
            assert!(!redactor.text(&format!("opencode says {secret}.")).contains(secret), "{secret}");
        }
        assert_eq!(redactor.text("provider anthropic"), "provider anthropic");
    }

    #[test]
    fn variables_are_secret_by_their_names() {
        let variables = [("OPENAI_API_KEY", "a"), ("AWS_REGION", "b"), ("MY_TOKEN", "c"), ("PATH", "d")];
        let environment = variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let found: Vec<_> = of_environment(&environment.collect()).collect();
        assert_eq!(found, ["c", "a"]);
    }
}
