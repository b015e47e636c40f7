//! What a door holds of a supervisor: where opencode stands, and a way to ask for a change. Types and channels only;
//! in local mode the supervisor is in the same process, in a pod it is behind `127.0.0.1:4094`.

use std::time::Duration;

use tokio::{
    sync::{mpsc, oneshot, watch},
    time::timeout,
};

use crate::ServeState;

/// Commands that wait at most; more are refused.
const COMMANDS: usize = 16;

/// How long a supervisor may take to say that it heard a command. What was asked for then takes as long as it takes:
/// see [`ServeState`].
const HEARD: Duration = Duration::from_secs(10);

/// Why opencode is started again though it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum RestartCause {
    /// It is idle and holds more memory than it should.
    Memory,
    /// It took a prompt and never began with it.
    NeverStarted,
}

/// What a supervisor may be asked to do.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum ServeCommand {
    /// Ends that run of opencode and starts the next at once; nothing when another run is current.
    Restart {
        /// The run that is meant.
        boot_id: String,
        /// Why.
        cause: RestartCause,
    },
    /// Ends opencode and leaves it stopped.
    Stop,
    /// Starts it again after [`ServeCommand::Stop`].
    Start,
}

/// Why a command came to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The supervisor is gone, or cannot be reached.
    #[error("the supervisor of opencode cannot be reached")]
    Unreachable,
    /// It did not say in time that it heard the command.
    #[error("the supervisor of opencode did not answer in time")]
    Timeout,
}

/// A command and where to say that it was heard.
#[derive(Debug)]
pub(crate) struct Heard {
    pub(crate) command: ServeCommand,
    pub(crate) heard: oneshot::Sender<()>,
}

/// The door's side; may be cloned.
#[derive(Debug, Clone)]
pub struct ServeLink {
    state: watch::Receiver<ServeState>,
    commands: mpsc::Sender<Heard>,
}

impl ServeLink {
    /// Both sides.
    pub(crate) fn new(state: watch::Receiver<ServeState>) -> (Self, mpsc::Receiver<Heard>) {
        let (commands, receiver) = mpsc::channel(COMMANDS);
        (Self { state, commands }, receiver)
    }

    /// A link that only tells: every command is [`LinkError::Unreachable`]. For tests.
    pub fn telling(state: watch::Receiver<ServeState>) -> Self {
        Self::new(state).0
    }

    /// Follows where opencode stands.
    pub fn state(&self) -> watch::Receiver<ServeState> {
        self.state.clone()
    }

    /// Asks for a change, and returns when the supervisor has heard it.
    pub async fn command(&self, command: ServeCommand) -> Result<(), LinkError> {
        let (heard, answer) = oneshot::channel();
        self.commands.try_send(Heard { command, heard }).map_err(|_| LinkError::Unreachable)?;
        timeout(HEARD, answer).await.map_err(|_| LinkError::Timeout)?.map_err(|_| LinkError::Unreachable)
    }
}
