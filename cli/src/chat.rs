//! `berth chat`: a session, prompt after prompt. Does IO.
//!
//! At a terminal, [`interactive`] leads the conversation: what is final goes to the terminal's scrollback, and below it
//! is a live area with what still changes and what is typed. [`state`] is the conversation as a pure state machine,
//! [`transcript`] what events look like, [`screen`] what is written to the terminal. Without a terminal, or on one that
//! can do nothing, [`plain`] takes prompts line by line and shows turns like `berth run`.

use crate::{
    config::ChatConfig,
    error::{CliError, Exit},
};

mod commands;
mod diff;
mod editor;
mod effect;
mod following;
mod history;
mod interactive;
mod line;
mod markdown;
mod opening;
mod plain;
mod screen;
mod state;
mod terminal;
mod transcript;

/// Talks until the person leaves, or until there is no more to read.
pub async fn chat(config: ChatConfig) -> Result<Exit, CliError> {
    if config.screen {
        Box::pin(interactive::talk(config)).await
    } else {
        Box::pin(plain::talk(config)).await
    }
}
