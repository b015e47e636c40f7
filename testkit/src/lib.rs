//! Test doubles for Berth's tests and its users': a scripted model, so that a prompt decides what "the model" does.
//!
//! [`ScriptedModel`] is a real HTTP server that speaks the OpenAI chat-completions and the Anthropic messages
//! stream. Point opencode at it with [`provider_config`]; prompt `scenario: tool`, or `@stub say:hello`; look at
//! what it was asked with [`ScriptedModel::log`].
//!
//! ```no_run
//! # async fn example() -> std::io::Result<()> {
//! use berth_testkit::{ScriptedModel, provider_config};
//! use tokio_util::sync::CancellationToken;
//!
//! let model = ScriptedModel::bind("127.0.0.1:0".parse().expect("an address")).await?;
//! let configuration = provider_config(model.address());
//! let log = model.log();
//! let shutdown = CancellationToken::new();
//! let running = model.run(shutdown.clone());
//! // ... start opencode with OPENCODE_CONFIG_CONTENT set to the configuration, and prompt it ...
//! # let _ = (configuration, log);
//! running.await
//! # }
//! ```
//!
//! [`fake_serve`] is another double: a server that looks like opencode itself, and fails on demand.
//!
//! [`script`] is the language, [`scenarios`] the scripts with a name. [`validate`] holds the rules of a session's log,
//! and [`fixture`] makes fixtures of recordings. [`wait`] has bounded waits, and [`installed`] finds the opencode that
//! tests run. Everything but those two, the servers, [`Scale`] and [`ControlGroup`] is pure.

mod answer;
mod beat;
mod config;
mod control_group;
mod conversation;
pub mod fake_serve;
pub mod fixture;
pub mod installed;
mod log;
pub mod ports;
mod scale;
mod scenario;
pub mod script;
mod server;
pub mod validate;
pub mod wait;
mod wire;

pub use config::{provider_config, provider_config_for};
pub use control_group::{ControlGroup, WITHOUT_ROOT, is_without_root};
pub use log::{MAX_REQUESTS, ModelLog, RecordedRequest, RequestOutcome};
pub use scale::Scale;
pub use scenario::{Scenario, scenario, scenarios};
pub use server::{MAX_BODY, ScriptedModel};
pub use wire::ModelWire;
