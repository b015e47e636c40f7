//! Runs the supervisor until it is asked to stop. IO.

use std::{
    ffi::OsString,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use berth_serve::{
    ConfigHome, Inherit, Password, ServeConfig, StartError, Supervisor, Timings, WaitFor,
    args::{Args, TimingArgs},
    serve_control,
};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::termination::{self, Termination};

/// The command line is wrong.
pub(crate) const USAGE: u8 = 64;

/// A defect, or no more resources.
const INTERNAL: u8 = 70;

/// Somebody else holds the data directory.
const IN_USE: u8 = 75;

/// What was configured cannot be used.
const CONFIGURATION: u8 = 78;

/// Why the program ends without having been asked to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The URL is not one that can be asked.
    #[error("--wait-for {url}: it must be http://, an IP address, a port and a path")]
    WaitFor {
        /// What was typed.
        url: String,
    },
    /// Supervision did not begin.
    #[error("opencode cannot be supervised")]
    Start(#[source] StartError),
    /// The control address cannot be used.
    #[error("cannot listen on the control address {address}")]
    Control {
        /// The address.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// No runtime, or no signals.
    #[error("the system gives not what the program needs")]
    Runtime(#[source] io::Error),
}

impl Failure {
    /// The exit code.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Start(StartError::InUse { .. }) => IN_USE,
            Self::Start(_) | Self::Control { .. } | Self::WaitFor { .. } => CONFIGURATION,
            Self::Runtime(_) => INTERNAL,
        }
    }

    /// One word for it.
    pub(crate) fn reason(&self) -> &'static str {
        match self.code() {
            IN_USE => "DataInUse",
            CONFIGURATION => "Configuration",
            _ => "Internal",
        }
    }

    /// It and its causes, in words.
    pub(crate) fn chain(&self) -> String {
        berth_wire::problem::error_chain(self)
    }

    /// For Kubernetes.
    pub(crate) fn termination(&self) -> Termination {
        Termination::failed(self.reason(), self.chain())
    }
}

/// A workspace is empty at first.
async fn make_directory(path: &Path) -> Result<(), StartError> {
    let unusable = |source| StartError::Directory { directory: path.to_owned(), source };
    tokio::fs::create_dir_all(path).await.map_err(unusable)
}

/// What is to be run.
#[derive(Debug)]
pub(crate) struct Program {
    serve: ServeConfig,
    control: SocketAddr,
    termination_log: Option<PathBuf>,
}

impl Program {
    /// Makes sense of the command line and the environment.
    pub(crate) fn new(
        args: Args,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, Failure> {
        let termination_log = args.termination_log();
        let wait_for = args.wait_for.as_deref().map(parse_wait_for).transpose()?;
        // The password is replaced below: none is ever in this program's memory but for a moment.
        let serve = ServeConfig {
            config_home: args.config_home.map_or(ConfigHome::Own, ConfigHome::At),
            inherit: Inherit::AllBut,
            password: Password::File(args.password_file),
            port: Some(args.port),
            wait_for,
            owns_process: true,
            timings: timings(args.timings),
            ..ServeConfig::new(args.opencode, args.directory, args.data, "".into(), environment)
        };
        Ok(Self { serve, control: args.control, termination_log })
    }

    /// Runs until SIGTERM or SIGINT, then ends opencode and all that it started.
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let mut terminate = signal(SignalKind::terminate()).map_err(Failure::Runtime)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::Runtime)?;
        let password = self.serve.password.clone();
        let bound = TcpListener::bind(self.control).await;
        make_directory(&self.serve.directory).await.map_err(Failure::Start)?;
        let supervisor = Supervisor::start(self.serve).await.map_err(Failure::Start)?;
        let listener = match bound {
            Ok(listener) => listener,
            Err(source) => {
                supervisor.stop().await;
                return Err(Failure::Control { address: self.control, source });
            }
        };
        let (shutdown, tracker) = (CancellationToken::new(), TaskTracker::new());
        let (link, metrics) = (supervisor.link(), supervisor.metrics().clone());
        tracker.spawn(serve_control(listener, link, password, metrics, shutdown.clone()));
        tracker.spawn(termination::follow(supervisor.watch(), self.termination_log, shutdown.clone()));
        tracker.close();
        tracing::info!(control = %self.control, "the supervisor runs");
        let asked = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        };
        tracing::info!(signal = asked, "the supervisor was asked to stop");
        supervisor.stop().await;
        shutdown.cancel();
        tracker.wait().await;
        Ok(())
    }
}

fn timings(args: TimingArgs) -> Timings {
    let usual = Timings::default();
    let or = |given: Option<u64>, usual| given.map_or(usual, Duration::from_millis);
    let backoff_longest = or(args.backoff_longest, usual.backoff_longest);
    Timings {
        health_every: or(args.health_period, usual.health_every),
        health: or(args.health_deadline, usual.health),
        backoff_first: usual.backoff_first.min(backoff_longest),
        backoff_longest,
        grace: or(args.grace, usual.grace),
        ..usual
    }
}

fn parse_wait_for(url: &str) -> Result<WaitFor, Failure> {
    let wrong = || Failure::WaitFor { url: url.to_owned() };
    let rest = url.strip_prefix("http://").ok_or_else(wrong)?;
    let (address, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
    let address = address.parse().map_err(|_| wrong())?;
    path.parse::<http::uri::PathAndQuery>().map_err(|_| wrong())?;
    Ok(WaitFor { address, path: path.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_can_be_asked() {
        let ready = parse_wait_for("http://127.0.0.1:8731/ready").unwrap();
        assert_eq!((ready.address.to_string().as_str(), ready.path.as_str()), ("127.0.0.1:8731", "/ready"));
        assert_eq!(parse_wait_for("http://[::1]:1").unwrap().path, "/");
        for url in [
            "",
            "127.0.0.1:1/x",
            "https://127.0.0.1:1/",
            "http://name:1/",
            "http://127.0.0.1/",
            "http://127.0.0.1:1/a b",
        ] {
            let failure = parse_wait_for(url).unwrap_err();
            assert_eq!((failure.code(), failure.reason()), (CONFIGURATION, "Configuration"), "{url}");
        }
    }
}
