//! The session server: who asks over HTTP is answered from the store, and what runs in sandboxes is brought into
//! the store by one runner per sandbox.
//!
//! Layers: [`http`] (routes, problem+json) -> [`app`] (what callers may do) -> [`store`] (what is remembered).
//! Beside them the `runner` module owns sandboxes: it alone talks to doors. It reads wishes from the store and
//! writes events to it. Sandboxes are found through [`directory`].

mod app;
pub mod config;
mod diff;
pub mod directory;
mod history;
mod http;
mod metrics;
mod runner;
mod server;
pub mod store;

pub use config::{Limits, ServerConfig};
pub use directory::{SandboxAddress, SandboxDirectory, StaticDirectory, Unready};
pub use http::openapi;
pub use metrics::Metrics;
pub use server::{OpenError, RunError, Server};
pub use store::Sharing;
