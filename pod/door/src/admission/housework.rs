//! What the door itself changes in opencode, which must not meet the requests that it would disturb. Pure but for the lock.

use std::{sync::Arc, time::Duration};

use super::{Admission, in_flight::InFlight};
use crate::class::Class;

/// How long a read may go on that opencode is not started anew under.
pub(super) const READ: Duration = Duration::from_mins(1);

/// What the door itself changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Housework {
    /// It starts opencode anew.
    Opencode,
    /// It closes the instance of a directory.
    Directory {
        /// The directory.
        directory: String,
        /// opencode's own.
        own: String,
    },
}

impl Housework {
    /// Whether a request of this class, which names this directory or opencode's own, and this cannot go on at once.
    pub(super) fn disturbs(&self, class: &Class, named: &str) -> bool {
        match self {
            Self::Opencode => true,
            // A call that names a session and no directory may be for any.
            Self::Directory { directory, own } => {
                *class != Class::Read && (named == directory || (named == own && class.session().is_some()))
            }
        }
    }
}

impl Admission {
    /// Keeps everything out that `work` disturbs, until what this gives is dropped; nothing while the gate is held, or
    /// while such a request is in flight. A read that goes on for longer than [`READ`] does not count: it is a stream,
    /// which every end of opencode cuts.
    pub(crate) fn reserve(self: &Arc<Self>, work: Housework) -> Option<Reserved> {
        self.with(|state, now| {
            let counts = |call: &InFlight| {
                call.class != Class::Read || now.saturating_duration_since(call.since) <= READ
            };
            let in_flight =
                state.calls.values().any(|call| counts(call) && work.disturbs(&call.class, &call.directory));
            if state.reserved.is_some() || in_flight || !state.gate.is_open() {
                return None;
            }
            state.reserved = Some((work, now));
            Some(Reserved(Arc::clone(self)))
        })
    }

    /// Whether a request is in flight that names this directory.
    pub(crate) fn is_named(&self, directory: &str) -> bool {
        self.state().calls.values().any(|call| call.directory == directory)
    }

    /// Whether somebody is connected to a terminal in this directory.
    pub(crate) fn has_tunnel(&self, directory: &str) -> bool {
        let is_one = |call: &InFlight| call.class == Class::Tunnel && call.directory == directory;
        self.state().calls.values().any(is_one)
    }

    /// Waits until nothing is reserved.
    pub(crate) async fn released(&self) {
        let mut changed = self.changed.subscribe();
        while self.with(|state, _| state.reserved.is_some()) {
            // The sender lives as long as this.
            let _ = changed.changed().await;
        }
    }
}

/// What the door's own work disturbs is not admitted until this is dropped.
#[derive(Debug)]
pub(crate) struct Reserved(Arc<Admission>);

impl Drop for Reserved {
    fn drop(&mut self) {
        self.0.state().reserved = None;
        self.0.changed.send_replace(());
    }
}
