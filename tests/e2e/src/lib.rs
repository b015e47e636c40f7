//! Harness of the end-to-end tests: Berth in a real cluster, reached as people reach it. Tests are in `tests/cluster/`, one
//! file for each topic.
//!
//! - [`Setting`]: which cluster, out of the environment.
//! - [`Cluster`]: Berth in it, what tests share there, and the way to the server.
//! - [`Case`]: one test in a namespace of its own, which it deletes; what a person needs is printed when it fails.
//! - [`Forward`]: a `kubectl port-forward` for as long as it is held.
//! - [`Victim`]: processes of a pod, to be killed from the node.

mod case;
mod cluster;
mod forward;
mod kubectl;
mod setting;
mod surgeon;
mod trial;
mod trouble;
mod wait;

pub use case::{Case, Shape};
pub use cluster::{Cluster, MANIFEST, SHARED, SURGEON, VISITOR};
pub use forward::Forward;
pub use kubectl::Kubectl;
pub use setting::Setting;
pub use surgeon::{Outcome, Victim};
pub use trial::{Body, trial};
pub use wait::{LONG, until, within};
