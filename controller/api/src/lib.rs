//! The kinds of Berth's Kubernetes API (group `berth.dev`, version `v1alpha1`): their types and schemas, the names and
//! labels of what is made from them, conditions with their reasons, and the configuration that opencode gets.
//!
//! It is not responsible for making any of it: that is the operator's. Pure.

pub mod canonical;
pub mod condition;
pub mod configuration;
pub mod definition;
pub mod layout;
pub mod merge;
pub mod names;
pub mod next_step;
pub mod quantity;
pub mod sandbox;
pub mod settings;
pub mod span;
pub mod status;
pub mod template;

pub use condition::{ConditionType, Reason};
pub use next_step::Subject;
pub use sandbox::{Sandbox, SandboxSpec};
pub use settings::Settings;
pub use status::SandboxStatus;
pub use template::{SandboxTemplate, SandboxTemplateSpec};
