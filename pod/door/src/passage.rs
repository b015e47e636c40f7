//! Whether requests may pass to opencode now. Types only.

use std::net::SocketAddr;

/// What the door does with a request for opencode. Written by the subscription alone: requests pass only while its
/// journal hears everything that they cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Passage {
    /// Requests wait: opencode starts, or the journal does not listen to it yet.
    Starting,
    /// Requests pass.
    Open {
        /// Where opencode listens.
        address: SocketAddr,
        /// Names the run of opencode.
        boot_id: String,
    },
    /// opencode does not answer and is being ended: requests are refused.
    Wedged,
    /// opencode is of a version that Berth does not speak: requests are refused.
    Unsupported(String),
    /// opencode is stopped: requests are refused.
    Stopped,
}
