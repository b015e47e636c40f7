//! Typed client of Berth's own HTTP API, for the CLI, the tests and everyone's programs.
//!
//! - [`BerthClient`]: one method per route.
//! - [`EventStream`]: a session's event log from any position on; it reconnects by itself and yields each event
//!   exactly once.
//! - [`ClientError`]: what can go wrong, with the server's own problem documents kept as such.
//!
//! Everything here does IO over HTTP. It speaks plain HTTP only, which is what a server on this machine, in the
//! same cluster or behind a port-forward offers. It knows nothing of Kubernetes or SQL.

mod client;
mod error;
mod events;

pub use client::{BerthClient, FileContent, RetryPolicy};
pub use error::ClientError;
pub use events::EventStream;
