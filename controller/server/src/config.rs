//! What the server is told at its start.

use std::{path::PathBuf, time::Duration};

use berth_opencode::WatchdogLimits;
use secrecy::SecretString;

use crate::store::Sharing;

/// Configuration of a server with its own database.
#[derive(Debug)]
pub struct ServerConfig {
    /// The SQLite file; made when absent.
    pub database: PathBuf,
    /// Who else uses it.
    pub sharing: Sharing,
    /// The bearer token that every caller must present.
    pub token: SecretString,
    /// Bounds.
    pub limits: Limits,
}

/// Bounds on what callers may ask for and on what the server waits for.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Largest request body, in bytes, that of a prompt excepted.
    pub body_bytes: usize,
    /// Largest body of a prompt, in bytes: its files are in it as base64.
    pub prompt_bytes: usize,
    /// Open turns per session, the running one included.
    pub queue: i64,
    /// Of each turn: its start, silence, wall clock and steps.
    pub watchdog: WatchdogLimits,
    /// How long a queued prompt waits for a sandbox that cannot be reached, or whose opencode does not come up.
    pub unreachable: Duration,
    /// How long a prompt waits for a sandbox that has no place, image or quota yet: nodes are added meanwhile, and images
    /// fetched.
    pub unplaced: Duration,
    /// How long a prompt waits while the gate of its sandbox is closed. A gate opens after an hour unless its holder
    /// prolongs that.
    pub gated: Duration,
    /// Longest time for one call of opencode. The first one in a directory boots it, which takes up to 13.5 s with 20 such
    /// directories at once (measured on opencode 1.18.33).
    pub call: Duration,
    /// How long opencode may take to end a turn after it was told to.
    pub stop: Duration,
    /// How long a permission or question waits before it is rejected.
    pub ask: Duration,
    /// How long the owner of a sandbox keeps its subscription with nothing to do.
    pub linger: Duration,
    /// How long an owner may be silent before another one takes the sandbox over: at most 60 s.
    pub lease: Duration,
    /// How often an owner renews its lease: well below it.
    pub lease_renewal: Duration,
    /// Longest time for which deltas of one part are gathered before they are committed.
    pub batch: Duration,
    /// Interval of keepalive comments on event streams.
    pub keepalive: Duration,
    /// Longest time for a request that is not a stream.
    pub request: Duration,
    /// How long open requests may take when the server is told to stop.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 1024 * 1024,
            prompt_bytes: 24 * 1024 * 1024,
            queue: 32,
            watchdog: WatchdogLimits::default(),
            unreachable: Duration::from_mins(2),
            unplaced: Duration::from_mins(15),
            gated: Duration::from_hours(2),
            call: Duration::from_mins(1),
            stop: Duration::from_mins(1),
            ask: Duration::from_mins(15),
            linger: Duration::from_mins(1),
            lease: Duration::from_secs(15),
            lease_renewal: Duration::from_secs(5),
            batch: Duration::from_millis(40),
            keepalive: Duration::from_secs(15),
            request: Duration::from_secs(30),
            drain: Duration::from_secs(5),
        }
    }
}
