//! How opencode is to be run. Types only.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fmt, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use secrecy::SecretString;

/// Bytes of a password file; longer ones are refused. As many as the door takes.
const PASSWORD_MAX: u64 = 1024;

/// Where opencode finds its configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigHome {
    /// In the data directory, apart from everything else.
    Own,
    /// In this directory, as `XDG_CONFIG_HOME`.
    At(PathBuf),
}

/// What opencode gets of the calling program's environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inherit {
    /// [`INHERITED`](crate::INHERITED) names and `LC_*`: for a person's machine, where the environment is not meant
    /// for an agent.
    Listed,
    /// Everything but what Kubernetes and Berth put there: for a container, whose image and manifest mean their
    /// environment for the agent.
    AllBut,
}

/// opencode's internal password, given to it as `OPENCODE_SERVER_PASSWORD`.
#[derive(Debug, Clone)]
pub enum Password {
    /// This one.
    Known(SecretString),
    /// What this file holds at each start: 1 to 1,024 bytes of UTF-8, where line ends at the end do not count. The
    /// door reads the same file in the same way.
    File(PathBuf),
}

impl Password {
    /// The password now.
    pub(crate) fn read(&self) -> io::Result<SecretString> {
        match self {
            Self::Known(password) => Ok(password.clone()),
            Self::File(path) => read_password(path),
        }
    }
}

fn read_password(path: &Path) -> io::Result<SecretString> {
    use io::Read;
    let mut text = String::new();
    std::fs::File::open(path)?.take(PASSWORD_MAX + 1).read_to_string(&mut text)?;
    let password = text.trim_end_matches(['\r', '\n']);
    if password.is_empty() || text.len() as u64 > PASSWORD_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is empty or too long"));
    }
    Ok(password.into())
}

/// Somebody who says when opencode may be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitFor {
    /// Where it is asked.
    pub address: SocketAddr,
    /// Path of the question; the answer 200 means yes.
    pub path: String,
}

/// How opencode is to be run.
#[derive(Clone)]
pub struct ServeConfig {
    /// opencode's binary.
    pub program: PathBuf,
    /// Its working directory, which is also its default directory.
    pub directory: PathBuf,
    /// Private directory of this sandbox: lock, identity, output, and opencode's data, state and cache.
    pub data: PathBuf,
    /// Where its configuration is.
    pub config_home: ConfigHome,
    /// Environment of the calling program.
    pub inherited: BTreeMap<OsString, OsString>,
    /// What of it is passed on.
    pub inherit: Inherit,
    /// Variables for opencode on top, such as `OPENCODE_CONFIG_CONTENT`. Names of Berth's own are refused.
    pub environment: BTreeMap<String, String>,
    /// Internal password.
    pub password: Password,
    /// Port on the loopback interface; a free one when there is none.
    pub port: Option<u16>,
    /// Who is asked before each start, and waited for.
    pub wait_for: Option<WaitFor>,
    /// The process does nothing else: it may adopt and reap what opencode leaves behind.
    pub owns_process: bool,
    /// Bounds.
    pub timings: Timings,
}

impl ServeConfig {
    /// A configuration with an own configuration directory, no extra variables, a free port and default bounds.
    pub fn new(
        program: impl Into<PathBuf>,
        directory: impl Into<PathBuf>,
        data: impl Into<PathBuf>,
        password: SecretString,
        inherited: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Self {
        Self {
            program: program.into(),
            directory: directory.into(),
            data: data.into(),
            config_home: ConfigHome::Own,
            inherited: inherited.into_iter().collect(),
            inherit: Inherit::Listed,
            environment: BTreeMap::new(),
            password: Password::Known(password),
            port: None,
            wait_for: None,
            owns_process: false,
            timings: Timings::default(),
        }
    }
}

impl fmt::Debug for ServeConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServeConfig")
            .field("program", &self.program)
            .field("directory", &self.directory)
            .field("data", &self.data)
            .field("config_home", &self.config_home)
            .field("inherit", &self.inherit)
            .field("environment", &self.environment.keys())
            .field("port", &self.port)
            .field("wait_for", &self.wait_for)
            .field("owns_process", &self.owns_process)
            .field("timings", &self.timings)
            .finish_non_exhaustive()
    }
}

/// Bounds of the supervision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timings {
    /// From the spawn until opencode must answer.
    pub start: Duration,
    /// For one health request during the start; each attempt has a connection of its own.
    pub start_health: Duration,
    /// Between the beginnings of two health requests, once opencode answers.
    pub health_every: Duration,
    /// For one of those.
    pub health: Duration,
    /// So many of those in a row without an answer mean that opencode is wedged.
    pub health_misses: u32,
    /// Pause before the first restart; doubles with each that follows.
    pub backoff_first: Duration,
    /// Longest pause before a restart.
    pub backoff_longest: Duration,
    /// After this long in health, the next pause is the first again.
    pub stable: Duration,
    /// Between TERM and KILL for opencode.
    pub grace: Duration,
    /// Between TERM and KILL for the processes that it left behind.
    pub orphan_grace: Duration,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            start: Duration::from_mins(1),
            start_health: Duration::from_millis(500),
            health_every: Duration::from_secs(5),
            health: Duration::from_secs(10),
            health_misses: 3,
            backoff_first: Duration::from_secs(1),
            backoff_longest: Duration::from_secs(30),
            stable: Duration::from_mins(1),
            grace: Duration::from_secs(5),
            orphan_grace: Duration::from_secs(1),
        }
    }
}

/// File in the data directory that opencode's output goes to.
pub fn log_file(data: &Path) -> PathBuf {
    data.join("opencode.log")
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    #[test]
    fn a_password_file_is_read_as_the_door_reads_it() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("password");
        let longest = "x".repeat(1024);
        for (text, password) in [
            ("one", Some("one")),
            ("one\r\n\n", Some("one")),
            (" one\t\n", Some(" one\t")),
            (longest.as_str(), Some(longest.as_str())),
            ("\n", None),
            ("", None),
            (&"x".repeat(1025), None),
        ] {
            std::fs::write(&file, text).unwrap();
            let read = Password::File(file.clone()).read().ok();
            assert_eq!(read.as_ref().map(ExposeSecret::expose_secret), password, "{text:?}");
        }
        std::fs::write(&file, b"\xff").unwrap();
        assert!(Password::File(file).read().is_err());
    }
}
