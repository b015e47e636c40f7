//! Harness of the integration tests: the parts of Berth put together around a real opencode, and what is asked of
//! every log. Tests are in `tests/`, one file for each topic.
//!
//! - [`Stack`]: scripted model, opencode under supervision, door, server and client, in this process.
//! - [`FakeStack`]: server and door around a fake opencode that fails on demand.
//! - [`Cutter`]: a TCP relay that cuts connections where a test says so.
//! - [`SessionLog`]: a session's events, checked for holes, doubles and order.
//! - [`Fleet`]: servers, door, supervisor and opencode as processes of their own, to be killed and paused.
//! - [`UpProcess`]: `berth up` as a process of its own, to be killed.
//! - [`Scale`]: few seeds in a quick run, many in a soak run.

mod cutter;
mod fake;
mod fleet;
mod log;
mod process;
mod programs;
mod stack;
pub mod talk;
mod up;
mod wait;

pub use berth_testkit::Scale;
pub use cutter::Cutter;
pub use fake::{FAKE_DIRECTORY, FakeStack};
pub use fleet::{Fleet, LEASE};
pub use log::SessionLog;
pub use process::{Process, send};
pub use programs::{
    berth_program, kubectl_berth_program, opencode_config_home, opencode_program, schemathesis_program,
    sdk_modules,
};
pub use stack::{Options, Stack};
pub use up::UpProcess;
pub use wait::{BOUND, within};

/// What the scripted model says to `text:n=<count>`.
pub fn words(count: usize) -> String {
    (0..count).fold(String::new(), |text, index| text + "word" + &index.to_string() + " ")
}
