//! What opencode is given to work with: its configuration and the way to a model. Does IO where it links files.

use std::{
    collections::BTreeMap,
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use berth_serve::ConfigHome;
use berth_testkit::provider_config;
use serde_json::json;

/// Switches that keep opencode from looking for news of itself, of models and of tools on the network.
const OFFLINE: [&str; 5] = [
    "OPENCODE_DISABLE_AUTOUPDATE",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS",
    "OPENCODE_DISABLE_LSP_DOWNLOAD",
    "OPENCODE_DISABLE_MODELS_FETCH",
    "OPENCODE_PURE",
];

/// Which model answers.
#[derive(Clone)]
pub enum Model {
    /// A scripted one in this process.
    Scripted {
        /// A configuration directory that is complete, so that opencode installs nothing into it; an empty one of
        /// the sandbox's own when absent or missing.
        config_home: Option<PathBuf>,
    },
    /// The user's own, by the user's own settings.
    Own {
        /// The user's `XDG_CONFIG_HOME`.
        config_home: PathBuf,
        /// The user's `auth.json`, which opencode reads keys from, and writes them to when they are renewed.
        auth: PathBuf,
        /// Variables with keys. Not shown by `Debug`.
        environment: BTreeMap<String, String>,
    },
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Scripted { config_home } => {
                f.debug_struct("Scripted").field("config_home", config_home).finish()
            }
            Self::Own { config_home, auth, environment } => f
                .debug_struct("Own")
                .field("config_home", config_home)
                .field("auth", auth)
                .field("environment", &environment.keys())
                .finish(),
        }
    }
}

impl Model {
    /// True for the scripted one.
    pub fn is_scripted(&self) -> bool {
        matches!(self, Self::Scripted { .. })
    }

    /// opencode's configuration directory.
    pub fn config_home(&self) -> ConfigHome {
        match self {
            Self::Scripted { config_home: Some(path) } if path.is_dir() => ConfigHome::At(path.clone()),
            Self::Scripted { .. } => ConfigHome::Own,
            Self::Own { config_home, .. } => ConfigHome::At(config_home.clone()),
        }
    }
}

/// Environment of an opencode whose only model is the scripted one at `model`; shell commands need a permission, and
/// nothing leaves this machine.
pub fn scripted_environment(model: SocketAddr) -> BTreeMap<String, String> {
    let mut config = provider_config(model);
    config["permission"] = json!({ "bash": "ask" });
    // Without them opencode does not know what a turn changed, and `berth diff` shows nothing.
    config["snapshot"] = true.into();
    let mut environment: BTreeMap<String, String> =
        OFFLINE.iter().map(|name| ((*name).to_owned(), "1".to_owned())).collect();
    environment.insert("OPENCODE_CONFIG_CONTENT".to_owned(), config.to_string());
    environment
}

/// Environment of an opencode with the user's own settings and these variables.
pub fn own_environment(variables: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut environment = variables.clone();
    // It would replace its own binary while it is supervised.
    environment.insert("OPENCODE_DISABLE_AUTOUPDATE".to_owned(), "1".to_owned());
    environment
}

/// Makes the sandbox's `auth.json` a link to the user's, or no link when there is none. A file that is there instead
/// of a link is the sandbox's own and stays.
pub fn link_auth(sandbox_data: &Path, auth: Option<&Path>) -> io::Result<()> {
    let directory = sandbox_data.join("data/opencode");
    let link = directory.join("auth.json");
    match fs::symlink_metadata(&link) {
        Ok(metadata) if metadata.is_symlink() => fs::remove_file(&link)?,
        Ok(_) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    match auth.filter(|auth| auth.is_file()) {
        Some(auth) => {
            fs::create_dir_all(&directory)?;
            std::os::unix::fs::symlink(auth, &link)
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auth_is_linked_only_while_the_users_own_model_is_used() {
        let directory = tempfile::tempdir().unwrap();
        let (data, auth) = (directory.path().join("sandbox"), directory.path().join("auth.json"));
        let link = data.join("data/opencode/auth.json");
        link_auth(&data, Some(&auth)).unwrap();
        assert!(!link.exists());
        fs::write(&auth, "{}").unwrap();
        link_auth(&data, Some(&auth)).unwrap();
        assert_eq!(fs::read_link(&link).unwrap(), auth);
        link_auth(&data, None).unwrap();
        assert!(fs::symlink_metadata(&link).is_err());
        fs::write(&link, "own").unwrap();
        link_auth(&data, Some(&auth)).unwrap();
        assert_eq!(fs::read_to_string(&link).unwrap(), "own");
        assert_eq!(fs::read_to_string(&auth).unwrap(), "{}");
    }

    #[test]
    fn keys_do_not_show() {
        let environment = BTreeMap::from([("OPENAI_API_KEY".to_owned(), "sk-secret".to_owned())]);
        let (config_home, auth) = (PathBuf::from("/c"), PathBuf::from("/a"));
        let text = format!("{:?}", Model::Own { config_home, auth, environment });
        assert!(text.contains("OPENAI_API_KEY") && !text.contains("sk-secret"), "{text}");
    }

    #[test]
    fn the_scripted_models_configuration_asks_for_commands() {
        let environment = scripted_environment("127.0.0.1:9".parse().unwrap());
        let config: serde_json::Value =
            serde_json::from_str(&environment["OPENCODE_CONFIG_CONTENT"]).unwrap();
        assert_eq!(config["permission"]["bash"], "ask");
        assert_eq!(config["snapshot"], true, "what a turn changed is known, as with a model of one's own");
        assert_eq!(config["model"], "scripted/m");
        assert_eq!(environment["OPENCODE_DISABLE_AUTOUPDATE"], "1");
    }
}
