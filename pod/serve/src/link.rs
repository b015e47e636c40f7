//! What a door holds of a supervisor: where opencode stands, and a way to ask for a change. In local mode the
//! supervisor is in the same process, in a pod it is behind `127.0.0.1:4094`: see [`ServeLink::remote`].

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, oneshot, watch},
    time::timeout,
};

use crate::{ServeMemory, ServeState, memory, remote::Remote};

/// Commands that wait at most; more are refused.
const COMMANDS: usize = 16;

/// How long a supervisor may take to say that it heard a command. It may be busy with what a run left behind. What was
/// asked for then takes as long as it takes: see [`ServeState`].
const HEARD: Duration = Duration::from_secs(10);

/// Why opencode is started again though it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum RestartCause {
    /// It is idle and holds more memory than it should.
    Memory,
    /// It took a prompt and never began with it.
    NeverStarted,
    /// It is idle, and a configuration file was changed that it could not use before.
    Configuration,
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
    /// Starts it again after [`ServeCommand::Stop`], or at once when it waits for its restart.
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
    /// It does not take the password, or not the question.
    #[error("the supervisor of opencode refuses the question")]
    Refused,
}

/// A command and where to say that it was heard.
#[derive(Debug)]
pub(crate) struct Heard {
    pub(crate) command: ServeCommand,
    pub(crate) heard: oneshot::Sender<()>,
}

#[derive(Debug, Clone)]
enum Way {
    /// In this process.
    Here { commands: mpsc::Sender<Heard>, adopts: bool },
    /// Behind its control address.
    There(Arc<Remote>),
    /// There is none.
    Nowhere,
}

/// The door's side; may be cloned.
#[derive(Debug, Clone)]
pub struct ServeLink {
    state: watch::Receiver<ServeState>,
    way: Way,
}

impl ServeLink {
    /// Both sides, in one process. `adopts`: the process is the supervisor's own.
    pub(crate) fn new(state: watch::Receiver<ServeState>, adopts: bool) -> (Self, mpsc::Receiver<Heard>) {
        let (commands, receiver) = mpsc::channel(COMMANDS);
        (Self { state, way: Way::Here { commands, adopts } }, receiver)
    }

    /// To a supervisor in another process, whose state is followed elsewhere.
    pub(crate) fn there(state: watch::Receiver<ServeState>, remote: Arc<Remote>) -> Self {
        Self { state, way: Way::There(remote) }
    }

    /// A link that only tells: every command is [`LinkError::Unreachable`]. For tests.
    pub fn telling(state: watch::Receiver<ServeState>) -> Self {
        Self { state, way: Way::Nowhere }
    }

    /// Follows where opencode stands.
    pub fn state(&self) -> watch::Receiver<ServeState> {
        self.state.clone()
    }

    /// Asks for a change, and returns when the supervisor has heard it.
    pub async fn command(&self, command: ServeCommand) -> Result<(), LinkError> {
        let commands = match &self.way {
            Way::Here { commands, .. } => commands,
            Way::There(remote) => return remote.command(&command, HEARD).await,
            Way::Nowhere => return Err(LinkError::Unreachable),
        };
        let (heard, answer) = oneshot::channel();
        commands.try_send(Heard { command, heard }).map_err(|_| LinkError::Unreachable)?;
        timeout(HEARD, answer).await.map_err(|_| LinkError::Timeout)?.map_err(|_| LinkError::Unreachable)
    }

    /// Reads how much memory opencode and its tools hold now. It costs a look at every process: not to be polled
    /// more often than each few seconds.
    pub async fn memory(&self) -> Result<ServeMemory, LinkError> {
        match &self.way {
            Way::Here { adopts, .. } => {
                let pid = self.state.borrow().pid;
                Ok(memory::read(pid, *adopts).await)
            }
            Way::There(remote) => remote.memory(HEARD).await,
            Way::Nowhere => Err(LinkError::Unreachable),
        }
    }
}
