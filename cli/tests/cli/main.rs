//! The `berth` program, as a shell and as a person at a terminal use it, against a server that plays scripts.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot be set up, or waits in vain, has failed"
)]

mod background;
mod bulk;
mod chat;
mod conversation;
mod debug;
mod doctor;
mod fake;
mod home;
mod links;
mod process;
mod run;
mod screen;
mod sessions;
mod shell;
mod terminal;
mod tmux;
mod up;
