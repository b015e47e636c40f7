//! What the commands for people have in common, `berth` and `kubectl berth`: nothing about what they do.
//!
//! - [`text`]: text from elsewhere made safe for a terminal; [`table`]: rows in columns. Pure.
//! - [`printer`]: standard output. IO.
//! - [`check`]: what a doctor finds, and how it is shown.
//! - [`secrets`]: opencode's configuration without what may be secret in it. Pure.
//! - [`archive`]: files of a diagnostics archive, and the archive itself. IO.
//! - [`replacement`]: a file that takes its place when it is whole. IO.

pub mod archive;
pub mod check;
pub mod printer;
pub mod replacement;
pub mod secrets;
pub mod table;
pub mod text;
