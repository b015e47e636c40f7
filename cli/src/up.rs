//! `berth up`: local mode, a server and its sandboxes in this process, until it is told to stop. Does IO.
//!
//! - [`local`]: the wiring, also for tests and other programs: [`Local::start`] and [`Local::stop`].
//! - [`sandbox`]: one sandbox, a supervisor and a door.
//! - [`model`]: what opencode is given to work with.
//! - `exits`: how opencode ended, kept for `berth doctor`.
//! - [`binary`]: where opencode is.
//! - [`detach`]: the same as a process in the background.
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
pub mod detach;
mod exits;
pub mod local;
pub mod model;
pub mod sandbox;

use exits::ExitLog;

pub use binary::OpencodeChoice;
pub use detach::DetachConfig;
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
    /// What decides which commands are suggested.
    pub hint: Hint,
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
    let UpConfig { mut local, opencode, hint, shape } = config;
    let in_background = local.log.is_some();
    if in_background {
        leave_terminal();
    }
    let mut screen = Screen { output: Output::standard(shape), stamped: in_background };
    let mut stops = Stops::listen().map_err(CliError::Signals)?;
    local.program = opencode.find()?;
    let mut local = Local::start(local).await?;
    screen.starting(&local)?;
    let result = tokio::select! {
        result = serve(&mut local, &mut screen, &hint) => result,
        () = stops.next() => Ok(()),
    };
    if result.is_ok() {
        screen.note(if in_background { "stopping" } else { "stopping; Ctrl-C again leaves at once" })?;
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
    let exits = ExitLog(local.state().exits());
    screen.ready(local, hint)?;
    loop {
        match local.next_event().await? {
            LocalEvent::OpencodeExited { sandbox, exit } => {
                exits.record(&sandbox, &exit);
                screen.bad(&format!("sandbox {sandbox}: {exit}; it is started again"))?;
            }
            LocalEvent::OpencodeReady { sandbox, boot } => {
                screen.note(&format!("sandbox {sandbox}: opencode answers again (start {boot})"))?;
            }
        }
    }
}

/// In a session of its own this process gets no signal from the terminal, when that is closed for example.
fn leave_terminal() {
    if let Err(error) = nix::unistd::setsid() {
        tracing::warn!(%error, "the terminal cannot be left");
    }
}

/// What decides which commands are suggested.
#[derive(Debug, Clone)]
pub struct Hint {
    /// The scripted model answers.
    pub scripted: bool,
    /// The data directory, where it is not the usual one and other commands must be told.
    pub data: Option<PathBuf>,
}

impl Hint {
    /// The option that leads another command to this server.
    fn data_option(&self) -> String {
        let data = self.data.as_ref().map(|data| format!(" --data {}", quoted(&data.display().to_string())));
        data.unwrap_or_default()
    }

    /// Options that lead another command to this server and this sandbox.
    fn options(&self, sandbox: &str) -> String {
        let sandbox = Some(sandbox).filter(|name| *name != DEFAULT_SANDBOX);
        let sandbox = sandbox.map(|name| format!(" --sandbox {name}"));
        self.data_option() + &sandbox.unwrap_or_default()
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
struct Screen {
    output: Output,
    /// Each line begins with the time: it is a log.
    stamped: bool,
}

impl Screen {
    fn new(output: Output) -> Self {
        Self { output, stamped: false }
    }

    fn note(&mut self, text: &str) -> Result<(), CliError> {
        self.line(Tone::Note, text)
    }

    fn bad(&mut self, text: &str) -> Result<(), CliError> {
        self.line(Tone::Bad, text)
    }

    fn line(&mut self, tone: Tone, text: &str) -> Result<(), CliError> {
        let stamped;
        let text = if self.stamped {
            stamped = format!("{:.3} {text}", jiff::Timestamp::now());
            stamped.as_str()
        } else {
            text
        };
        self.output.note(tone, text).map_err(CliError::Output)
    }

    fn sandbox(&mut self, name: &str, directory: &str, version: Option<&str>) -> Result<(), CliError> {
        let version = version.unwrap_or("of an unknown version");
        self.line(Tone::Tool, &format!("  {name:<12} {directory}  (opencode {version})"))
    }

    fn suggestions(&mut self, when: &str, sandbox: Option<&str>, hint: &Hint) -> Result<(), CliError> {
        let (options, prompt) = (hint.options(sandbox.unwrap_or(DEFAULT_SANDBOX)), hint.prompt());
        self.line(Tone::Tool, when)?;
        self.line(Tone::Ask, &format!("  berth run{options} \"{prompt}\""))?;
        self.line(Tone::Ask, &format!("  berth chat{options}"))
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
            self.sandbox(&address.name, &address.directory, state.version.as_deref())?;
        }
        if self.stamped {
            return Ok(());
        }
        let first = local.sandboxes().first().map(|sandbox| sandbox.address().name.as_str());
        self.suggestions("Type next, in another terminal:", first, hint)?;
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
