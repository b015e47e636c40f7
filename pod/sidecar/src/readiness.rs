//! Whether a supervisor may start opencode. Types only.

/// What the supervisor is told when it asks before a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// It may.
    Ready,
    /// It must wait, for this reason.
    NotYet(&'static str),
}
