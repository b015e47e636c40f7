//! The `berth` program, as a shell and as a person at a terminal use it, against a server that plays scripts.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod chat;
mod fake;
mod process;
mod run;
mod terminal;
