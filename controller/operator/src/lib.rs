//! The operator: makes a pod, a Secret and, where asked for, a claim out of each `Sandbox`, and keeps them as the manifest
//! says.
//!
//! - [`platform`]: what the operator itself was told, such as images. Pure.
//! - [`prepare`]: a manifest, checked and filled in. Pure.
//! - [`build`]: the objects, as they should be. Pure.
//! - [`decide`]: what is to be done about the pod that is there. Pure.
//! - [`judge`]: conditions out of what was seen. Pure.
//! - `rotation`: how the password of a door is exchanged. Pure; `passwords` does it.
//! - [`rules`]: what the operator may do in the cluster. Pure.
//! - [`metrics`]: what is counted; [`pulse`]: what probes are told.
//! - [`run`](run()): the reconciler over all sandboxes. IO, with `reconcile`, `apply`, `ending` and `door` below it, and
//!   `sweep` beside it, which `namespaces` keeps apart; [`election`]: which of several operators runs it.
//!
//! It knows nothing of sessions, and serves no HTTP.

mod apply;
pub mod build;
pub mod decide;
mod door;
pub mod election;
mod ending;
mod error;
mod exits;
#[cfg(test)]
mod fake;
pub mod judge;
mod lifetime;
mod memory;
pub mod metrics;
mod moving;
mod namespaces;
mod passwords;
pub mod platform;
pub mod prepare;
mod protection;
pub mod pulse;
mod reconcile;
mod refusal;
mod rotation;
pub mod rules;
mod run;
mod sweep;

pub use run::{Operator, run};
