//! The environment that opencode gets: from nothing, by name. Pure.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
};

use secrecy::{ExposeSecret, SecretString};

use crate::{ConfigHome, Inherit, ServeConfig, StartError, process::Marks, unpacked};

/// Names that are passed on from the calling program's environment, besides `LC_*`.
pub const INHERITED: [&str; 19] = [
    "ALL_PROXY",
    "HOME",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "LANG",
    "LOGNAME",
    "NO_PROXY",
    "PATH",
    "SHELL",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TERM",
    "TMPDIR",
    "TZ",
    "USER",
    "all_proxy",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];

/// Marks opencode and everything that it starts, the tools that leave its process group too.
pub(crate) const MARKER: &str = "BERTH_SERVE_ID";

/// Marks the same processes by the boot that they belong to.
pub(crate) const BOOT_MARKER: &str = "BERTH_SERVE_BOOT";

const PASSWORD: &str = "OPENCODE_SERVER_PASSWORD";
const USERNAME: &str = "OPENCODE_SERVER_USERNAME";

/// Refuses variables that only the supervisor may set.
pub(crate) fn check(config: &ServeConfig) -> Result<(), StartError> {
    let reserved =
        |name: &&String| name.starts_with("BERTH_") || [PASSWORD, USERNAME].contains(&name.as_str());
    match config.environment.keys().find(reserved) {
        Some(name) => Err(StartError::Reserved { name: name.clone() }),
        None => Ok(()),
    }
}

/// The whole environment: inherited names, then the XDG directories, then what was configured, then our own.
pub(crate) fn build(
    config: &ServeConfig,
    password: &SecretString,
    marks: Marks<'_>,
) -> BTreeMap<OsString, OsString> {
    let mut environment: BTreeMap<OsString, OsString> = config
        .inherited
        .iter()
        .filter(|(name, value)| match config.inherit {
            Inherit::Listed => is_listed(name),
            Inherit::AllBut => is_the_agents(name, value),
        })
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let config_home = match &config.config_home {
        ConfigHome::Own => config.data.join("config"),
        ConfigHome::At(path) => path.clone(),
    };
    let directories = [
        ("XDG_CONFIG_HOME", config_home),
        ("XDG_DATA_HOME", config.data.join("data")),
        ("XDG_STATE_HOME", config.data.join("state")),
        ("XDG_CACHE_HOME", config.data.join("cache")),
    ];
    environment.extend(directories.map(|(name, path)| (name.into(), path.into())));
    environment.extend(config.environment.iter().map(|(name, value)| (name.into(), value.into())));
    environment.insert(MARKER.into(), marks.identity.into());
    environment.insert(BOOT_MARKER.into(), marks.boot_id.into());
    environment.extend(marks.unpacked.map(|path| (unpacked::VARIABLE.into(), path.into())));
    environment.insert(PASSWORD.into(), password.expose_secret().into());
    environment
}

fn is_listed(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| INHERITED.contains(&name) || name.starts_with("LC_"))
}

/// In a container everything is meant for the agent but what Berth and Kubernetes put there. Kubernetes names its
/// services like container links of old: `REDIS_SERVICE_HOST`, `REDIS_SERVICE_PORT`, `REDIS_SERVICE_PORT_<name>`,
/// `REDIS_PORT=tcp://...`, `REDIS_PORT_6379_TCP`, `REDIS_PORT_6379_TCP_ADDR`. A name that is no UTF-8 is the agent's.
fn is_the_agents(name: &OsStr, value: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return true };
    let berths = name.starts_with("BERTH_") || [PASSWORD, USERNAME].contains(&name);
    !(berths || name.starts_with("KUBERNETES_") || is_service(name) || is_link(name, value))
}

fn is_service(name: &str) -> bool {
    ["_SERVICE_HOST", "_SERVICE_PORT"].iter().any(|end| name.ends_with(end))
        || name.contains("_SERVICE_PORT_")
}

fn is_link(name: &str, value: &OsStr) -> bool {
    const PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];
    if name.ends_with("_PORT") {
        let value = value.to_string_lossy();
        return PROTOCOLS
            .iter()
            .any(|protocol| value.starts_with(&format!("{}://", protocol.to_lowercase())));
    }
    let mut after = name.split("_PORT_").skip(1);
    after.any(|rest| {
        let (number, rest) = rest.split_once('_').unwrap_or_default();
        let protocol = rest.split('_').next().unwrap_or_default();
        number.parse::<u16>().is_ok() && PROTOCOLS.contains(&protocol)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> ServeConfig {
        let inherited = [
            ("PATH", "/bin"),
            ("LC_ALL", "C"),
            ("BERTH_TOKEN", "secret"),
            ("TMPDIR", "/theirs/tmp"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("OPENCODE_SERVER_PASSWORD", "theirs"),
            ("XDG_DATA_HOME", "/theirs"),
        ]
        .map(|(name, value)| (name.into(), value.into()));
        ServeConfig::new("/opencode", "/work", "/data", "ours".into(), inherited)
    }

    fn built(config: &ServeConfig) -> BTreeMap<OsString, OsString> {
        build(config, &"ours".into(), marks())
    }

    fn marks() -> Marks<'static> {
        Marks { identity: "mark", boot_id: "boot", unpacked: Some("/data/unpacked/boot".as_ref()) }
    }

    fn get<'a>(environment: &'a BTreeMap<OsString, OsString>, name: &str) -> Option<&'a str> {
        environment.get(OsStr::new(name)).map(|value| value.to_str().unwrap())
    }

    #[test]
    fn only_named_variables_pass_and_ours_win() {
        let mut config = config();
        config.environment.insert("OPENCODE_PURE".to_owned(), "1".to_owned());
        let environment = built(&config);
        assert_eq!(get(&environment, "PATH"), Some("/bin"));
        assert_eq!(get(&environment, "LC_ALL"), Some("C"));
        assert_eq!(get(&environment, "BERTH_TOKEN"), None);
        assert_eq!(get(&environment, "AWS_SECRET_ACCESS_KEY"), None);
        assert_eq!(get(&environment, "OPENCODE_SERVER_PASSWORD"), Some("ours"));
        assert_eq!(get(&environment, "XDG_DATA_HOME"), Some("/data/data"));
        assert_eq!(get(&environment, "XDG_CONFIG_HOME"), Some("/data/config"));
        assert_eq!(get(&environment, "OPENCODE_PURE"), Some("1"));
        assert_eq!(get(&environment, MARKER), Some("mark"));
        assert_eq!(get(&environment, BOOT_MARKER), Some("boot"));
        assert_eq!(get(&environment, "BUN_TMPDIR"), Some("/data/unpacked/boot"));
        assert_eq!(get(&environment, "TMPDIR"), Some("/theirs/tmp"));
    }

    #[test]
    fn a_containers_environment_is_the_agents_but_for_what_kubernetes_and_berth_put_there() {
        let theirs = [
            ("PATH", "/bin"),
            ("AWS_REGION", "x"),
            ("APP_PORT", "8080"),
            ("SERVICE_HOSTS", "a"),
            ("REPORT_PORT_NAME", "x"),
            ("IMPORT_7_TCP", "x"),
            ("OPENCODE_CONFIG_CONTENT", "{}"),
        ];
        let not_theirs = [
            ("BERTH_SUPERVISOR_PORT", "1"),
            ("KUBERNETES_SERVICE_HOST", "10.0.0.1"),
            ("KUBERNETES_PORT", "tcp://10.0.0.1:443"),
            ("REDIS_SERVICE_HOST", "10.0.0.2"),
            ("REDIS_SERVICE_PORT", "6379"),
            ("REDIS_SERVICE_PORT_MAIN", "6379"),
            ("REDIS_PORT", "tcp://10.0.0.2:6379"),
            ("DNS_PORT_53_UDP", "udp://10.0.0.3:53"),
            ("DNS_PORT_53_UDP_PROTO", "udp"),
            ("DNS_PORT_53_TCP_ADDR", "10.0.0.3"),
            ("OPENCODE_SERVER_PASSWORD", "theirs"),
            ("OPENCODE_SERVER_USERNAME", "theirs"),
        ];
        let inherited = theirs.iter().chain(&not_theirs).map(|(name, value)| (name.into(), value.into()));
        let mut config = ServeConfig { inherit: Inherit::AllBut, ..config() };
        config.inherited = inherited.collect();
        let environment = built(&config);
        for (name, value) in theirs {
            assert_eq!(get(&environment, name), Some(value), "{name}");
        }
        let ours = |name: &&(&str, &str)| get(&environment, name.0) == Some(name.1);
        assert_eq!(not_theirs.iter().filter(ours).collect::<Vec<_>>(), Vec::<&(&str, &str)>::new());
        assert_eq!(get(&environment, "OPENCODE_SERVER_PASSWORD"), Some("ours"));
    }

    #[test]
    fn the_configuration_directory_can_be_the_users() {
        let config = ServeConfig { config_home: ConfigHome::At("/home/me/.config".into()), ..config() };
        assert_eq!(get(&built(&config), "XDG_CONFIG_HOME"), Some("/home/me/.config"));
    }

    #[test]
    fn reserved_names_are_refused_and_values_stay_out_of_debug() {
        for name in ["BERTH_X", "OPENCODE_SERVER_PASSWORD", "OPENCODE_SERVER_USERNAME"] {
            let mut config = config();
            config.environment.insert(name.to_owned(), "topsecret".to_owned());
            assert!(!format!("{config:?}").contains("secret"), "{config:?}");
            let error = check(&config).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
        assert!(check(&config()).is_ok());
    }
}
