//! `berth up`: local mode, a server and its sandboxes in this process, until it is told to stop. Does IO.
//!
//! - [`local`]: the wiring, also for tests and other programs: [`Local::start`] and [`Local::stop`].
//! - [`sandbox`]: one sandbox, a supervisor and a door.
//! - [`model`]: what opencode is given to work with.
//! - [`binary`]: where opencode is.
//! - [`data`]: the lock, the token and the note in the data directory.

use std::{path::PathBuf, time::Duration};

use tokio::signal::unix::{SignalKind, signal};

use crate::{
    config::DEFAULT_SANDBOX,
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
    /// The data directory, where it is not the usual one and other commands must be told.
    pub data: Option<PathBuf>,
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
    let UpConfig { mut local, opencode, data, shape } = config;
    let mut screen = Screen(Output::standard(shape));
    let mut stops = Stops::listen().map_err(CliError::Signals)?;
    local.program = opencode.find()?;
    let hint = Hint { scripted: local.model.is_scripted(), data };
    let mut local = Local::start(local).await?;
    screen.starting(&local)?;
    let result = tokio::select! {
        result = serve(&mut local, &mut screen, &hint) => result,
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
async fn serve(local: &mut Local, screen: &mut Screen, hint: &Hint) -> Result<(), CliError> {
    local.ready(READY_LIMIT).await?;
    screen.ready(local, hint)?;
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

/// What decides which commands are suggested.
struct Hint {
    scripted: bool,
    data: Option<PathBuf>,
}

impl Hint {
    /// Options that lead another command to this server and this sandbox.
    fn options(&self, sandbox: &str) -> String {
        let data = self.data.as_ref().map(|data| format!(" --data {}", quoted(&data.display().to_string())));
        let sandbox = Some(sandbox).filter(|name| *name != DEFAULT_SANDBOX);
        let sandbox = sandbox.map(|name| format!(" --sandbox {name}"));
        data.unwrap_or_default() + &sandbox.unwrap_or_default()
    }

    fn prompt(&self) -> &'static str {
        if self.scripted { "scenario: demo" } else { "what does this project do?" }
    }
}

/// A word for a shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "/._-+:@%".contains(c);
    if word.chars().all(plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
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

    fn ready(&mut self, local: &Local, hint: &Hint) -> Result<(), CliError> {
        self.line(Tone::Good, &format!("Berth is up at {}", local.url()))?;
        for sandbox in local.sandboxes() {
            let (address, state) = (sandbox.address(), sandbox.watch().borrow().clone());
            let version = state.version.as_deref().unwrap_or("of an unknown version");
            self.line(
                Tone::Tool,
                &format!("  {:<12} {}  (opencode {version})", address.name, address.directory),
            )?;
        }
        let first = local.sandboxes().first().map_or(DEFAULT_SANDBOX, |sandbox| &sandbox.address().name);
        let (options, prompt) = (hint.options(first), hint.prompt());
        self.line(Tone::Tool, "Type next, in another terminal:")?;
        self.line(Tone::Ask, &format!("  berth run{options} \"{prompt}\""))?;
        self.line(Tone::Ask, &format!("  berth chat{options}"))?;
        self.note("Ctrl-C ends it.")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggested_commands_lead_to_this_server() {
        let hint = |data: Option<&str>| Hint { scripted: true, data: data.map(PathBuf::from) };
        assert_eq!(hint(None).options("default"), "");
        assert_eq!(hint(None).options("api"), " --sandbox api");
        assert_eq!(hint(Some("/d")).options("api"), " --data /d --sandbox api");
        assert_eq!(hint(Some("/it's here")).options("default"), r" --data '/it'\''s here'");
    }
}
