//! opencode itself, and the providers that it is to work with. Runs `opencode --version`; shows no key.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use berth_command::check::Check;
use berth_opencode::Protocol;
use serde_json::Value;
use tokio::{process::Command, time::timeout};

use super::DoctorConfig;
use crate::{args::PROVIDER_VARIABLES, error::error_chain, up::binary::OPENCODE_VERSION};

/// `opencode --version` takes half a second, on a busy machine a few.
const VERSION_LIMIT: Duration = Duration::from_secs(30);
/// Longest configuration file that is read, in bytes.
const CONFIG_MAX: u64 = 4 * 1024 * 1024;
/// Names of configuration files, later ones over earlier ones.
const CONFIG_FILES: [&str; 3] = ["config.json", "opencode.json", "opencode.jsonc"];
/// Providers whose key has another name than theirs in capitals and `_API_KEY`.
const PROVIDERS: [(&str, &str); 6] = [
    ("google", "GOOGLE_GENERATIVE_AI_API_KEY"),
    ("togetherai", "TOGETHER_API_KEY"),
    ("fireworks-ai", "FIREWORKS_API_KEY"),
    ("zhipuai", "ZHIPU_API_KEY"),
    ("moonshotai", "MOONSHOT_API_KEY"),
    ("amazon-bedrock", "AWS_BEARER_TOKEN_BEDROCK"),
];

pub(super) async fn checks(config: &DoctorConfig) -> Vec<Check> {
    let mut checks = vec![found(config).await];
    checks.extend(broken_files(config));
    checks.push(providers(config));
    checks
}

/// The program, and what it says of itself.
pub(super) async fn version(program: &Path) -> Result<String, String> {
    // It makes directories in its home, wherever that is.
    let home = tempfile::tempdir().map_err(|error| format!("no directory for a trial: {error}"))?;
    let mut command = Command::new(program);
    command
        .arg("--version")
        .env_clear()
        .env("HOME", home.path())
        .env("PATH", "/usr/bin:/bin")
        .kill_on_drop(true);
    let output = timeout(VERSION_LIMIT, command.stdin(Stdio::null()).output()).await;
    drop(home);
    let output = match output {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return Err(format!("it cannot be run: {error}")),
        Err(_) => return Err(format!("it says nothing for {} s", VERSION_LIMIT.as_secs())),
    };
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if output.status.success() && !said.is_empty() {
        return Ok(said.chars().take(64).collect());
    }
    let complaint = String::from_utf8_lossy(&output.stderr).trim().chars().take(200).collect::<String>();
    Err(format!("`--version` fails ({}): {complaint}", output.status))
}

async fn found(config: &DoctorConfig) -> Check {
    const NAME: &str = "opencode";
    let install = format!(
        "`npm install -g opencode-ai@{OPENCODE_VERSION}` installs the right one; --opencode names it"
    );
    let program = match config.opencode.find() {
        Ok(program) => program,
        Err(error) => return Check::bad(NAME, "not found", error_chain(&error)),
    };
    let place = program.display();
    let version = match version(&program).await {
        Ok(version) => version,
        Err(why) => return Check::bad(NAME, format!("{place}: {why}"), install),
    };
    match Protocol::of_version(&version) {
        None => Check::bad(NAME, format!("{place} is {version}, which Berth does not speak"), install),
        Some(_) if version != OPENCODE_VERSION => {
            let fix = format!("nothing to do; Berth is tested most with {OPENCODE_VERSION}");
            Check::note(NAME, format!("{place} is {version}"), fix)
        }
        Some(_) => Check::good(NAME, format!("{version} at {place}")),
    }
}

/// Configuration files in their order, with what is in them.
pub(super) fn read_config(config: &DoctorConfig) -> Vec<(PathBuf, Value)> {
    files(config).into_iter().filter_map(|path| Some((path.clone(), parse(&path).ok()??))).collect()
}

/// Where configuration files may be, in their order.
pub(super) fn files(config: &DoctorConfig) -> Vec<PathBuf> {
    let places = [config.opencode_config.join("opencode"), config.directory.clone()];
    places.iter().flat_map(|place| CONFIG_FILES.iter().map(|name| place.join(name))).collect()
}

/// Every file from which opencode may take configuration when it works in `directory`: there, in each directory above it,
/// and in the `.opencode` of each.
pub(super) fn project_files(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let places = directory.ancestors().flat_map(|place| [place.to_owned(), place.join(".opencode")]);
    places.flat_map(|place| CONFIG_FILES.map(|name| place.join(name)))
}

/// What is in a configuration file; `None` when there is none.
pub(super) fn parse(path: &Path) -> Result<Option<Value>, String> {
    let text = match fs::metadata(path).map(|metadata| metadata.len()) {
        Ok(length) if length > CONFIG_MAX => return Err("it is too long".to_owned()),
        Ok(_) => fs::read_to_string(path).map_err(|error| error.to_string())?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let value = jsonc_parser::parse_to_serde_value::<Value>(&text, &jsonc_parser::ParseOptions::default());
    value.map(Some).map_err(|error| error.to_string())
}

fn broken_files(config: &DoctorConfig) -> Vec<Check> {
    let broken = files(config).into_iter().filter_map(|path| {
        let why = parse(&path).err()?;
        let fix = "mend it: a sandbox that reads it does not work";
        Some(Check::bad("configuration", format!("{}: {why}", path.display()), fix))
    });
    broken.collect()
}

/// What is there of providers and their keys.
fn providers(config: &DoctorConfig) -> Check {
    const NAME: &str = "providers";
    let configs: Vec<Value> = read_config(config).into_iter().map(|(_, value)| value).collect();
    let keys = keys(config, &configs);
    let model = configs.iter().rev().find_map(|value| value["model"].as_str());
    let wanted = model.and_then(|model| model.split_once('/')).map(|(provider, _)| provider.to_owned());
    let known = keys.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    match wanted {
        Some(provider) if keys.contains(&provider) => Check::good(
            NAME,
            format!("a key for {provider}, whose model is the configured one; keys: {known}"),
        ),
        // Its own models are free, and a provider without a key may be one on this machine.
        Some(provider) if provider == "opencode" || has_address(&configs, &provider) => {
            Check::good(NAME, format!("{provider}, whose model is the configured one, may need no key"))
        }
        Some(provider) => {
            let fix = format!("`opencode auth login`, or set {} where `berth up` runs", variable(&provider));
            Check::bad(NAME, format!("no key for {provider}, whose model is the configured one"), fix)
        }
        None if keys.is_empty() => {
            let fix = "`opencode auth login`, or set ANTHROPIC_API_KEY or its like where `berth up` runs; \
                       `berth up --scripted` needs none";
            Check::note(NAME, "no key of any", fix)
        }
        None => Check::good(NAME, format!("keys: {known}")),
    }
}

/// Providers that there is a key for: in auth.json, in the configuration, or in the environment.
fn keys(config: &DoctorConfig, configs: &[Value]) -> BTreeSet<String> {
    let auth = fs::read_to_string(&config.auth).ok();
    let auth: Option<Value> = auth.and_then(|text| serde_json::from_str(&text).ok());
    let mut found: BTreeSet<String> =
        auth.as_ref().and_then(Value::as_object).into_iter().flat_map(|map| map.keys().cloned()).collect();
    for value in configs {
        let providers = value["provider"].as_object().into_iter().flatten();
        let with_key = providers.filter(|(_, provider)| provider["options"]["apiKey"].is_string());
        found.extend(with_key.map(|(name, _)| name.clone()));
    }
    let set = |name: &str| {
        config.environment.get(std::ffi::OsStr::new(name)).is_some_and(|value| !value.is_empty())
    };
    let variables = PROVIDER_VARIABLES.into_iter().filter(|name| name.ends_with("_KEY") && set(name));
    found.extend(variables.map(provider_of));
    if set("AWS_BEARER_TOKEN_BEDROCK") {
        found.insert("amazon-bedrock".to_owned());
    }
    found
}

fn has_address(configs: &[Value], provider: &str) -> bool {
    configs.iter().any(|value| value["provider"][provider]["options"]["baseURL"].is_string())
}

/// The variable with a provider's key.
fn variable(provider: &str) -> String {
    let known =
        PROVIDERS.iter().find(|(name, _)| *name == provider).map(|(_, variable)| (*variable).to_owned());
    known.unwrap_or_else(|| format!("{}_API_KEY", provider.to_ascii_uppercase().replace('-', "_")))
}

/// The provider whose key this variable has.
fn provider_of(variable: &str) -> String {
    if variable == "GEMINI_API_KEY" {
        return "google".to_owned();
    }
    let known =
        PROVIDERS.iter().find(|(_, name)| *name == variable).map(|(provider, _)| (*provider).to_owned());
    known.unwrap_or_else(|| variable.trim_end_matches("_API_KEY").to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn providers_and_their_variables_lead_to_each_other() {
        for (provider, name) in [
            ("anthropic", "ANTHROPIC_API_KEY"),
            ("google", "GOOGLE_GENERATIVE_AI_API_KEY"),
            ("xai", "XAI_API_KEY"),
        ] {
            assert_eq!(variable(provider), name);
            assert_eq!(provider_of(name), provider);
        }
        assert_eq!(provider_of("GEMINI_API_KEY"), "google");
    }

    #[test]
    fn configurations_may_have_comments() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("opencode.jsonc");
        assert_eq!(parse(&path).unwrap(), None);
        fs::write(&path, "{ // the model\n \"model\": \"a/b\", /* and */ }").unwrap();
        assert_eq!(parse(&path).unwrap().unwrap()["model"], "a/b");
        fs::write(&path, "{ \"model\": ").unwrap();
        assert!(parse(&path).is_err());
    }
}
