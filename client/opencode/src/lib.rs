//! Typed client of opencode serve, and the pure translation of its events to ACP session updates.
//!
//! - [`client`]: calls and the event stream, with their bounds and typed errors. The only IO here.
//! - [`model`], [`event`]: what opencode answers and sends, as far as Berth reads it.
//! - [`ids`]: message and part ids in opencode's format.
//! - [`translate`]: the state machine that makes a session's log, and the one end of each turn, out of events.
//! - [`replay`]: recorded streams, translated as they would have been live.
//! - [`watchdog`]: when a turn must not go on.
//!
//! Knows nothing of Berth's server, its store or Kubernetes.

pub mod client;
pub mod error;
pub mod event;
pub mod ids;
pub mod model;
pub mod replay;
pub mod translate;
pub mod watchdog;

pub use client::{
    AgentDetails, ClientConfig, DoorProof, Ensured, EnsuredHow, EventStream, FenceHolder, FileStream, Health,
    MessagePage, ModelDetails, NewSession, OpencodeClient, PermissionReply, Prompt, PromptContent,
    PromptPart, Protocol, SessionPatch, StreamItem, Subscription, SubscriptionCounts, SubscriptionItem,
};
pub use error::ClientError;
pub use event::{Event, GlobalEvent};
pub use model::ModelReference;
pub use translate::{Awaits, DueRetry, Observation, SessionTranslator, Snapshot, Translation, TurnPhase};
pub use watchdog::{Watchdog, WatchdogLimits};
