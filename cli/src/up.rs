//! `berth up`: local mode, a server and its sandboxes in this process, until it is told to stop. Does IO.
//!
//! - [`local`]: the wiring, also for tests and other programs: [`Local::start`] and [`Local::stop`].
//! - [`sandbox`]: one sandbox, a supervisor and a door.
//! - [`model`]: what opencode is given to work with.
//! - [`binary`]: where opencode is.
//! - [`data`]: the lock, the token and the note in the data directory.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use crate::{
    error::{CliError, Exit},
    output::{Output, Shape},
    render::Tone,
};

pub mod binary;
pub mod data;
pub mod local;
pub mod model;
pub mod sandbox;

pub use binary::OpencodeChoice;
pub use local::{Local, LocalConfig, LocalEvent, SandboxSpec, UpError};
pub use model::Model;
pub use sandbox::{LocalSandbox, SandboxConfig, SandboxError};

/// Longest time for all sandboxes' opencodes to answer; each takes 2 to 6 s, and they start together.
const READY_LIMIT: Duration = Duration::from_secs(90);

/// `berth up`, checked.
#[derive(Debug)]
pub struct UpConfig {
    /// What is to be started.
    pub local: LocalConfig,
    /// Where opencode may be.
    pub opencode: OpencodeChoice,
    /// The output streams.
    pub shape: Shape,
}

/// Signals that mean "stop".
struct Stops {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
}

impl Stops {
    fn listen() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}

/// Runs local mode until a signal ends it.
pub async fn up(config: UpConfig) -> Result<Exit, CliError> {
    let UpConfig { mut local, opencode, shape } = config;
    let mut screen = Screen(Output::standard(shape));
    let mut stops = Stops::listen().map_err(CliError::Signals)?;
    local.program = opencode.find()?;
    let scripted = local.model.is_scripted();
    let mut local = Local::start(local).await?;
    screen.starting(&local)?;
    let result = tokio::select! {
        result = serve(&mut local, &mut screen, scripted) => result,
        () = stops.next() => Ok(()),
    };
    if result.is_ok() {
        screen.note("stopping; Ctrl-C again leaves at once")?;
    }
    tokio::select! {
        () = local.stop() => {}
        () = stops.next() => return Ok(Exit::Failed),
    }
    result.map(|()| Exit::Succeeded)
}

/// Waits for readiness, says so, and then tells what happens. Returns only with an error.
async fn serve(local: &mut Local, screen: &mut Screen, scripted: bool) -> Result<(), CliError> {
    local.ready(READY_LIMIT).await?;
    screen.ready(local, scripted)?;
    loop {
        match local.next_event().await? {
            LocalEvent::OpencodeExited { sandbox, exit } => {
                screen.bad(&format!("sandbox {sandbox}: {exit}; it is started again"))?;
            }
            LocalEvent::OpencodeReady { sandbox, boot } => {
                screen.note(&format!("sandbox {sandbox}: opencode answers again (start {boot})"))?;
            }
        }
    }
}

/// What the person who started it reads.
struct Screen(Output);

impl Screen {
    fn note(&mut self, text: &str) -> Result<(), CliError> {
        self.0.note(Tone::Note, text).map_err(CliError::Output)
    }

    fn bad(&mut self, text: &str) -> Result<(), CliError> {
        self.0.note(Tone::Bad, text).map_err(CliError::Output)
    }

    fn line(&mut self, tone: Tone, text: &str) -> Result<(), CliError> {
        self.0.note(tone, text).map_err(CliError::Output)
    }

    fn starting(&mut self, local: &Local) -> Result<(), CliError> {
        for sandbox in local.sandboxes() {
            let address = sandbox.address();
            self.note(&format!("sandbox {}: starting opencode in {}", address.name, address.directory))?;
        }
        Ok(())
    }

    fn ready(&mut self, local: &Local, scripted: bool) -> Result<(), CliError> {
        self.line(Tone::Good, &format!("Berth is up at {}", local.url()))?;
        for sandbox in local.sandboxes() {
            let (address, state) = (sandbox.address(), sandbox.watch().borrow().clone());
            let version = state.version.as_deref().unwrap_or("of an unknown version");
            self.line(
                Tone::Tool,
                &format!("  {:<12} {}  (opencode {version})", address.name, address.directory),
            )?;
        }
        let option = match local.sandboxes() {
            [only] if only.address().name == crate::config::DEFAULT_SANDBOX => String::new(),
            [first, ..] => format!(" --sandbox {}", first.address().name),
            [] => String::new(),
        };
        let prompt = if scripted { "scenario: demo" } else { "what does this project do?" };
        self.line(Tone::Tool, "Type next, in another terminal:")?;
        self.line(Tone::Ask, &format!("  berth run{option} \"{prompt}\""))?;
        self.line(Tone::Ask, &format!("  berth chat{option}"))?;
        self.note("Ctrl-C ends it.")
    }
}
