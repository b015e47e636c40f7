//! The inside of a sandbox.
//!
//! - [`serve`]: supervision of `opencode serve`: one process per data directory, restarted, ended, swept up after.
//! - [`door`]: the authenticated way in: proxy of every opencode route, and the event journal with ids.
//!
//! Both are libraries: local mode runs them in one process, a pod runs them in two containers.

pub mod door;
pub mod serve;

mod upstream;
