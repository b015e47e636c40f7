//! What the command line means, the files that it names included. Reads files.

use std::{
    fs::File,
    io::{self, Read},
    net::SocketAddr,
    path::Path,
    time::Duration,
};

use berth_operator::{
    election::Candidate,
    platform::{Network, Platform},
};
use berth_server::{Limits, ServerConfig, Sharing, StaticDirectory};
use secrecy::SecretString;

use crate::{
    args::{ImagePullPolicy, OperatorArgs, ProcessArgs, ServeArgs},
    exit::ControllerError,
    sandboxes,
};

/// Most bytes of a file with a secret.
const SECRET_MAX: u64 = 4096;
/// Most bytes of the sandboxes' file.
const SANDBOXES_MAX: u64 = 1024 * 1024;

/// A checked configuration of `serve`.
#[derive(Debug)]
pub struct Config {
    /// Where the API listens.
    pub listen: SocketAddr,
    /// Of the server.
    pub server: ServerConfig,
    /// Where the sandboxes are; in the cluster when absent.
    pub directory: Option<StaticDirectory>,
}

impl Config {
    /// Checks what was typed, and reads the files.
    pub fn new(args: ServeArgs) -> Result<Self, ControllerError> {
        check_listen(args.listen)?;
        let token = read_secret("--token-file", &args.token_file)?;
        let directory = args.sandboxes.as_deref().map(read_sandboxes).transpose()?;
        let lease = Duration::from_secs(args.bounds.lease);
        let limits = Limits { lease, lease_renewal: lease / 3, ..Limits::default() };
        let server = ServerConfig { database: args.database, sharing: Sharing::Shared, token, limits };
        Ok(Self { listen: args.listen, server, directory })
    }
}

fn read_sandboxes(path: &Path) -> Result<StaticDirectory, ControllerError> {
    let text = read("--sandboxes", path, SANDBOXES_MAX)?;
    let folder = path.parent().map(Path::to_path_buf).unwrap_or_default();
    let password = |path: &Path| read_secret("--sandboxes", &folder.join(path));
    sandboxes::parse(&text, password)
}

/// A checked configuration of `operator`.
#[derive(Debug)]
pub struct OperatorConfig {
    /// Where probes and metrics are answered.
    pub admin: SocketAddr,
    /// What it was told.
    pub platform: Platform,
    /// By which it waits for its turn, if it does.
    pub candidate: Option<Candidate>,
    /// For how long nobody must have used what a namespace's sandboxes share before it is removed.
    pub sweep_after: Duration,
}

/// What `operator` was told. Everything in it was checked as it was read.
pub fn operator(args: OperatorArgs) -> OperatorConfig {
    let ProcessArgs { admin, leader_election, identity, sweep_after } = args.process.clone();
    let namespace = &*args.network.control_namespace;
    let candidate =
        leader_election.then(|| Candidate::new(namespace, berth_operator::rules::LEASE, identity));
    let sweep_after = Duration::from_secs(sweep_after);
    OperatorConfig { admin, candidate, sweep_after, platform: platform(args) }
}

fn platform(args: OperatorArgs) -> Platform {
    let policy = args.image_pull_policy.map(|policy| match policy {
        ImagePullPolicy::Always => "Always",
        ImagePullPolicy::IfNotPresent => "IfNotPresent",
        ImagePullPolicy::Never => "Never",
    });
    Platform {
        sidecar_image: args.sidecar_image,
        sandbox_image: args.sandbox_image,
        image_pull_policy: policy.map(str::to_owned),
        network: Network {
            control_namespace: args.network.control_namespace,
            control_addresses: args.network.control_address,
            resolvers: args.network.resolver,
            allowed: args.network.allow,
        },
    }
}

/// Callers are told apart by one token, and nothing is encrypted: that is for one machine.
fn check_listen(address: SocketAddr) -> Result<(), ControllerError> {
    if address.ip().is_loopback() {
        return Ok(());
    }
    Err(ControllerError::Configuration {
        field: "--listen",
        reason: format!(
            "{address} is not on the loopback interface, and this server has no encryption and only one token; give \
             127.0.0.1:{}, and let a proxy that has both stand before it",
            address.port()
        ),
    })
}

fn read(field: &'static str, path: &Path, limit: u64) -> Result<String, ControllerError> {
    let failed = |source| ControllerError::File { field, path: path.to_owned(), source };
    let mut text = String::new();
    let file = File::open(path).map_err(failed)?;
    let length = file.take(limit + 1).read_to_string(&mut text).map_err(failed)?;
    if length as u64 > limit {
        return Err(failed(io::Error::other(format!("it is larger than {limit} bytes"))));
    }
    Ok(text)
}

/// One line of printable characters.
fn read_secret(field: &'static str, path: &Path) -> Result<SecretString, ControllerError> {
    let text = read(field, path, SECRET_MAX)?;
    let secret = text.trim();
    if secret.is_empty() || !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(ControllerError::Configuration {
            field,
            reason: format!("{} must hold one line of printable characters without blanks", path.display()),
        });
    }
    Ok(SecretString::from(secret))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use berth_server::SandboxDirectory;
    use clap::Parser;
    use secrecy::ExposeSecret;

    use berth_wire::problem::error_chain;

    use super::*;
    use crate::args::{Args, Command};

    fn serve(folder: &Path, more: &[&str]) -> Result<Config, ControllerError> {
        let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        let (database, token, sandboxes) = (path("berth.db"), path("token"), path("sandboxes.json"));
        let given = [
            "berth-controller",
            "serve",
            "--database",
            &database,
            "--token-file",
            &token,
            "--sandboxes",
            &sandboxes,
        ];
        let Command::Serve(args) = Args::parse_from(given.iter().chain(more)).command else { unreachable!() };
        Config::new(args)
    }

    fn good(folder: &Path) {
        fs::write(folder.join("token"), "secret-token\n").unwrap();
        fs::write(folder.join("password"), "secret-password").unwrap();
        let one = r#"{"namespace":"n","name":"one","door_url":"http://127.0.0.1:1","password_file":"password","directory":"/w"}"#;
        fs::write(folder.join("sandboxes.json"), format!(r#"{{"sandboxes":[{one}]}}"#)).unwrap();
    }

    #[test]
    fn files_are_read_beside_each_other() {
        let folder = tempfile::tempdir().unwrap();
        good(folder.path());
        let config = serve(folder.path(), &["--lease", "6"]).unwrap();
        assert_eq!(config.server.token.expose_secret(), "secret-token");
        assert_eq!(
            config.directory.unwrap().find("n", "one").unwrap().door_password.expose_secret(),
            "secret-password"
        );
        let limits = config.server.limits;
        assert_eq!((limits.lease, limits.lease_renewal), (Duration::from_secs(6), Duration::from_secs(2)));
    }

    #[test]
    fn what_is_wrong_is_named_and_no_secret_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let check = |spoil: &dyn Fn(), more: &[&str], expected: &str| {
            good(folder.path());
            spoil();
            let error = serve(folder.path(), more).unwrap_err();
            assert_eq!(error.code(), 78);
            assert!(
                error_chain(&error).contains(expected) && !error_chain(&error).contains("secret"),
                "{}",
                error_chain(&error)
            );
        };
        let write = |name: &'static str, text: &'static str| {
            let path = folder.path().join(name);
            move || fs::write(&path, text).unwrap()
        };
        check(&|| (), &["--listen", "0.0.0.0:7447"], "loopback");
        check(&write("token", "two lines\nsecret"), &[], "one line");
        check(&write("token", " \n"), &[], "--token-file");
        check(&write("password", ""), &[], "password must hold");
        check(&|| fs::remove_file(folder.path().join("password")).unwrap(), &[], "cannot read");
        check(&write("sandboxes.json", "{"), &[], "--sandboxes");
        let huge = "x".repeat(usize::try_from(SECRET_MAX).unwrap() + 1);
        check(&|| fs::write(folder.path().join("token"), &huge).unwrap(), &[], "larger than");
    }
}
