//! The `berth` program, as a shell and as a person at a terminal use it, against a server that plays scripts.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot be set up, or waits in vain, has failed"
)]

mod chat;
mod debug;
mod fake;
mod process;
mod run;
mod terminal;
mod up;
